"""Guard: watches a test-time adaptation method, and stops it before it is worse than the frozen source."""

from spear_hf.guard.guard import Guard
from spear_hf.guard.policy import GuardPolicy

__all__ = ["Guard", "GuardPolicy"]
