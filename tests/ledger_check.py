"""The ledger's invariant, for tests and simulations."""

from __future__ import annotations

from collections.abc import Iterable

from pecan_ray.job.ledger import Ledger
from pecan_ray.plan.splits import LeaseKey
from pecan_ray.sampling.spans import Span, Spans


def check_ledger(ledger: Ledger) -> None:
    """Raise AssertionError if a position is in two places at once."""
    seen: dict[LeaseKey, Spans] = {}
    places: list[tuple[LeaseKey, Iterable[Span]]] = [*ledger.leftovers.positions(), *ledger.fatal_elements.positions()]
    if ledger.shape.sharding != "off":
        places += [(lease.key, lease.spans) for lease in ledger.queues]
        for state in ledger.workers.values():
            places += [(key, held.missing) for key, held in state.pending_leases.items()]
            places += [(lease.key, lease.spans) for lease in state.group]
    for key, spans in places:
        known = seen.setdefault(key, Spans())
        for start, stop in spans:
            before = known.size()
            known.add(start, stop)
            if known.size() != before + stop - start:
                raise AssertionError(f"split {key}: [{start}, {stop}) is in two places")
