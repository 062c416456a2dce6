"""The python engine in the calling thread, where a debugger sees the user's functions and their exceptions."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from pecan_ray.engines.contract import BadElement, EngineOptions, Leases, Produced
from pecan_ray.engines.fork_tracker import forks
from pecan_ray.engines.items import Item
from pecan_ray.engines.positions import SkippedPositions, merge
from pecan_ray.engines.python.chain import Chain
from pecan_ray.engines.python.complete_calls import complete_call
from pecan_ray.engines.python.stream import ItemStream
from pecan_ray.errors import OpError
from pecan_ray.plan.operators import ElementOp, Plan
from pecan_ray.plan.splits import Lease, Split, with_seed


def run_here(plan: Plan, options: EngineOptions, leases: Leases) -> Generator[Produced, None, None]:
    """Yield what a plan makes of leases; a user's exception is raised as it is, with a note that names the element."""
    skipped_positions = SkippedPositions()
    sources = tuple(with_seed(source, options.seed) for source in plan.sources())
    # Without a pool everything runs in the calling thread, also functions with `processes=True`: a debugger
    # stops there.
    stream = ItemStream(plan, sources, options, leases, skipped_positions, pool=None, call=complete_call)
    failed: OpError
    try:
        for item in stream.items():
            if item is None:
                if (report := stream.report()) is not None:
                    yield report
                continue
            parts, bad = skipped_positions.take()
            spans, rows = merge(item.parts + parts), item.rows - item.repeats
            yield Produced(dict(item.value), spans, rows, item.lease.epoch, item.partial, bad=bad)
            forks.raise_reported()
        if (report := skipped_positions.report(stream.epoch)) is not None:
            yield report
        forks.raise_reported()
        return
    except OpError as error:
        if error.__cause__ is None:
            raise
        failed = error
    raise _plain(failed)  # outside of the handler, so that the user's exception keeps its own cause


def _plain(failed: OpError) -> Any:
    cause: Any = failed.__cause__
    if not isinstance(cause, Exception) or isinstance(cause, (StopIteration, StopAsyncIteration)):
        return failed  # such an exception would end the training loop instead
    # Python 3.11 and later.
    if hasattr(cause, "add_note"):
        cause.add_note(failed.message.splitlines()[0])
    return cause


def replay(ops: Sequence[ElementOp], bad: BadElement, seed: int) -> None:
    """Run operators on a quarantined element, with the random numbers that they had; raises what they raise."""
    epoch, pass_index, branch, split, element = (0, 0, 0, 0, 0)
    if bad.origin is not None:
        origin = bad.origin
        epoch, pass_index, branch = origin.epoch, origin.repetition, origin.branch
        split, element = origin.split, origin.element
    # Random numbers belong to seed, pass, operator and element, so these numbers alone bring them back.
    lease = Lease(epoch, Split(split), branch=branch, pass_index=pass_index)
    Chain(ops, EngineOptions(seed=seed), SkippedPositions()).run(Item(bad.element, [], lease, element))
