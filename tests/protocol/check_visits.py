"""What must hold at the end of a history whose level of visiting promises less, or something for each worker."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.protocol.audit import Audit, must, undisturbed
from tests.protocol.check_counts import check_known, scenario_pieces

if TYPE_CHECKING:
    from tests.protocol.job import JobModel


def check_some_visits(audit: Audit, job: JobModel, epochs: int) -> None:
    """With "zero_or_more", when workers were lost: nothing but the data was used, and what was not is counted."""
    scenario, ledger = audit.scenario, job.state.ledger
    expected = scenario_pieces(scenario)
    missing = 0
    for epoch in set(range(epochs)) - audit.left:
        check_known(audit, epoch, expected)
        used = audit.used_pieces.get(epoch, Counter())
        missing += len({(key, element) for key, element, _ in expected if not used["", (key, element, _)]})
    counted = ledger.left_out_elements + job.state.bad.count
    must(missing <= counted, f"{missing} elements are missing, and {counted} are counted")


def check_each_worker(audit: Audit, job: JobModel, epochs: int) -> None:
    """With sharding="off": every worker that began an epoch, and stayed, has given all of it.

    None gives anything twice, as was seen when it was used.  What ranks give back is counted, also of a worker that is
    gone; what that one had not delivered is not.
    """
    scenario, ledger = audit.scenario, job.state.ledger
    expected = scenario_pieces(scenario)
    whole = len(expected) if scenario.take is None else min(scenario.take, len(expected))
    not_draining = {name for name, held in ledger.workers.items() if held.unresolved is None}
    missing = of_all = 0
    for epoch in set(range(epochs)) - audit.left:
        check_known(audit, epoch, expected)
        given = Counter(worker for worker, _ in audit.used_pieces.get(epoch, ()))
        began = audit.began.get(epoch, set())
        must(given.keys() <= began, f"{given.keys() - began} gave something of epoch {epoch}, and never began it")
        for worker in sorted(began):
            lacks = whole - given[worker]
            of_all += lacks
            must(lacks >= 0, f"{worker} gave {given[worker]} of {whole} elements of epoch {epoch}")
            if worker in not_draining:
                missing += lacks
                complete = scenario.ranks == 1 and not scenario.drop_remainder
                must(not (complete and lacks), f"{lacks} elements of epoch {epoch} by {worker} are missing")
    counted = ledger.left_out_elements
    must(missing <= counted, f"{missing} elements are missing of workers that stayed, and {counted} are counted")
    fits = of_all == counted if undisturbed(audit.world) else of_all >= counted
    must(fits or bool(audit.left), f"{of_all} elements are missing of all workers, and {counted} are counted")
