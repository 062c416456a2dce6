"""What AutoOrder has decided for a job, and may find while that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pecan_ray.autocache.decision import EpochEstimate
from pecan_ray.autoorder.late_look import JobEnd
from pecan_ray.engines.counting import OpCount
from pecan_ray.plan.op_sequences import OpOrders
from pecan_ray.plan.operators import Plan


class ReorderResult(NamedTuple):
    """What a look beside a job has found."""

    plan: Plan | None
    """In another order than before; None: it stays."""
    order: OpOrders
    reason: str
    """Why."""
    decoders: tuple[str, ...] = ()
    order_text: str = ""
    """All that was found, as JSON; empty: as before."""
    dropped: bool = False
    """The order that the job runs gives other results than the user's, which is run at once in its place."""


ReorderAfterEpoch: TypeAlias = Callable[[Mapping[str, OpCount]], ReorderResult | None]
"""From what went through operators in the first epoch to the plan in another order; None: it stays."""


@dataclass(frozen=True)
class Ordered:
    """What AutoOrder has decided."""

    plan: Plan
    order: OpOrders = ()
    """Of the operators, before decoders took over what follows them."""
    notes: tuple[str, ...] = ()
    """What it changed, for people."""
    op_seconds: tuple[tuple[str, float], ...] = ()
    """Seconds that each operator takes of an element of the source; empty where not all were measured."""
    row_seconds: float | None = None
    """Seconds of one thread for a row of a batch; None: not measured, infinite: the look is too slow for its job."""
    reorder_after_epoch: ReorderAfterEpoch | None = None
    background_search: Callable[[], ReorderResult | None] | None = None
    """Looks beside the job, for an order or at the kept one that it runs, and returns what it has found."""
    on_fallback: Callable[[str], None] | None = None
    """To be told that a job went back to the user's order, and why."""
    decoders: tuple[str, ...] = ()
    """Those that did."""
    epoch_estimate: EpochEstimate | None = None
    """What an epoch takes with what is kept at `autocache` points."""
    order_text: str = ""
    """What was found, operator by operator, as JSON."""
    end: JobEnd = field(default_factory=JobEnd)
    """To be told when the job ends, since what looks beside it ends then."""
