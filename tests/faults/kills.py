"""Kill a child of this process at a random moment of its work, many times."""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

from tqdm.auto import tqdm

KILLS = 100
SECONDS = 40.0  # of one test; what a loaded machine does not reach in this time is fewer kills, never more time


def killed_at_random(work: Callable[[], object], check: Callable[[], object], *, kills: int = KILLS) -> int:
    """How many of the children were killed while they worked; `check` runs in this process after each.

    A forked child starts in a millisecond, where a new interpreter takes seconds. The moments are spread over a little
    more than the time that the latest child to end took, so that most are killed and some end.

    Args:
        work: what a child does.
        check: raises where something is lost.
        kills: how many children are killed, at most.
    """
    tqdm.set_lock(threading.RLock())  # its own lock is shared with children, and a killed one would never give it back
    draw, killed, end = random.Random(0), 0, time.monotonic() + SECONDS
    began = time.monotonic()
    assert _ended(_started(work)) == 0  # one that is not killed, to know how long it takes
    span = time.monotonic() - began
    check()
    while killed < kills and time.monotonic() < end:
        began = time.monotonic()
        child = _started(work)
        code = _ended(child, began + draw.uniform(0, 1.2 * span))
        if code is None:
            os.kill(child, signal.SIGKILL)
            killed += _ended(child) == -signal.SIGKILL
        else:
            assert code == 0
            span = time.monotonic() - began
        check()
    assert killed >= min(kills, 10)  # or the work is over before it can be killed
    return killed


def _started(work: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc(file=sys.__stderr__)
        os._exit(1)


def _ended(child: int, until: float | None = None) -> int | None:
    """The exit code of a child; None if it still works at that moment."""
    while until is not None:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(0.0005)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
