"""Adapters to the Hub and back; the only place that imports huggingface_hub."""

from spear_hf.hub.fetching import Token, cached_commit, fetch, pull, subfolders_of
from spear_hf.hub.loading import load_adapter, load_spear_model
from spear_hf.hub.pushing import push, push_model, save

__all__ = [
    "Token",
    "cached_commit",
    "fetch",
    "load_adapter",
    "load_spear_model",
    "pull",
    "push",
    "push_model",
    "save",
    "subfolders_of",
]
