"""Kill a child of this process at a random moment of its work, many times."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable

KILLS = 100


def killed_at_random(work: Callable[[], object], check: Callable[[], object], *, kills: int = KILLS) -> int:
    """How many of the children were killed while they worked; `check` runs in this process after each.

    A forked child starts in a millisecond, where a new interpreter takes seconds. The moments are spread over twice
    the time that the work takes, so that some children end before they are killed.

    Args:
        work: what a child does.
        check: raises where something is lost.
        kills: how many children are killed.
    """
    draw, killed, span = random.Random(0), 0, 0.0
    began = time.monotonic()
    assert _finished(_started(work)) == 0  # one that is not killed, to know how long it takes
    span = time.monotonic() - began
    check()
    while killed < kills:
        child = _started(work)
        time.sleep(draw.uniform(0, 1.2 * span))
        os.kill(child, signal.SIGKILL)
        killed += _finished(child) == -signal.SIGKILL
        check()
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


def _finished(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
