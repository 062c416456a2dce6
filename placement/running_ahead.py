"""Programs that run ahead of their accelerators: beside a wait, their own part of a step says little.

Such a program hands a batch over and asks at once for the next one.  While batches are there it is held up by the
accelerators, and what it takes for itself is their step; where it waits for batches, the wait hides all of that but
the handing over.  So beside a wait the step may be anything from what it seemed to the whole time of a batch, unless
the trainer has shown that it does not run ahead.
"""

from __future__ import annotations

from collections.abc import Iterable

from pecan_ray.placement.evidence import SHORTEST_STEP, Reading
from pecan_ray.placement.model import WAITING
from pecan_ray.plan.windows import Window

ALLOWED = 0.1
"""Share by which the step may be longer than a batch was that hid it: workers disturb it, and windows vary."""
LONG = 0.2
"""From this share of waiting on, most of the step of a program that runs ahead is hidden."""
EMPTY = 0.5
"""A queue of fewer batches, on average, is empty: no stock runs out."""
ALIKE = 0.8
"""A step of this share of that without a wait is the whole one."""
SHOWN = 2
"""Windows that show it."""


def may_be_one_step(one: Reading | Window, other: Reading | Window, error: float) -> bool:
    """Say whether the same step of accelerators explains both, if the program runs ahead of them.

    `error`: the relative error of the difference.
    """
    (short, hidden_s), (long, _) = sorted((seen_step(one), seen_step(other)))
    return long <= (short + hidden_s) * (1 + max(ALLOWED, error))


def seen_step(one: Reading | Window) -> tuple[float, float]:
    """Return the least that the step may be, and what a wait may hide of it."""
    wait = (one.wait if isinstance(one, Reading) else one.wait_time) or 0.0
    return max(one.batch_time - wait, SHORTEST_STEP * one.batch_time), wait


def shows_its_step(windows: Iterable[Window]) -> bool:
    """Say whether the trainer's own step was seen to be the same beside long waits and beside none.

    Then the program waits for its accelerators before it asks for the next batch, and will go on doing so.
    """
    seen = [(window, *seen_step(window)) for window in windows if window.wait_time is not None]
    calm = min((own for window, own, wait in seen if wait <= WAITING * window.batch_time), default=None)
    if calm is None:
        return False
    whole = [
        window
        for window, own, wait in seen
        if wait > LONG * window.batch_time
        and window.queue_size < EMPTY
        and own >= ALIKE * calm
        and window.batch_time > (1 + LONG) * calm
    ]
    return len(whole) >= SHOWN
