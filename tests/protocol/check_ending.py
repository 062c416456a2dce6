"""What must hold at the end of a history.

Everybody is at the end, or has ended with the reason that there is; every output was used as promised, or is counted as
what it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pecan_ray.job.bad_elements import digest_of
from pecan_ray.job.fatal_elements import MOST_IN_VAIN, STRIKES
from pecan_ray.job.heartbeat import NOTICE_S
from pecan_ray.job.losses import MOST_IN_A_ROW
from pecan_ray.plan.splits import OUTPUT_BITS, LeaseKey
from tests.protocol.audit import Audit, must, undisturbed
from tests.protocol.clock import HEARD_WITHIN_S
from tests.protocol.engine import WIDTH, ModelPiece, all_pieces, bucket_of
from tests.protocol.scenario import BAD, CUT, FATAL, TIMEOUT_S, Scenario, SplitModel

if TYPE_CHECKING:
    from tests.protocol.job import JobModel
    from tests.protocol.trainer import TrainerModel
    from tests.protocol.world import World

LEAST_NOTICE_S = {"announce node": 4.0, "announce worker": NOTICE_S}
"""Whoever hears so long before its end is drained by then; to a process nobody says how long it has."""


def check_ending(audit: Audit, job: JobModel, trainers: list[TrainerModel]) -> None:
    """Check a whole history."""
    scenario = audit.scenario
    for worker in job.processes.values():
        must(not worker.alive, f"{worker.name} outlives the job")
    _check_endings(audit.world, job, trainers)
    quiet = not (scenario.lost or audit.world.faults["freeze worker"])
    must(not (quiet and taken_for_silent(audit.world)), "a worker is taken for lost that all have heard")
    _check_announced(audit, job)
    if not trainers or any(trainer.ended != "end" for trainer in trainers):
        return
    must(job.state.ledger.finished, "all trainers are at the end, and the job is not")
    epochs = job.state.ledger.epoch
    if scenario.epochs is not None and job.state.ledger.queues.empty_source is False:
        must(epochs == scenario.epochs, f"{epochs} epochs instead of {scenario.epochs}")
    check_numbers(audit, trainers, epochs)
    if len(trainers) < scenario.ranks:
        return  # one was lost, with what it had
    check_sent_bytes(job, trainers)
    check_quarantine(audit, job, trainers)
    if scenario.sharding == "off":
        check_each_worker(audit, job, epochs)
    elif scenario.serial:
        check_serial(audit, job, epochs)
    elif scenario.visitation == "zero_or_more" and not undisturbed(audit.world):
        check_some_visits(audit, job, epochs)
    else:
        check_positions(audit, job, epochs)


def _check_announced(audit: Audit, job: JobModel) -> None:
    """Where nothing happens but ends that were announced in time, and all is heard, no worker is lost."""
    scenario = audit.scenario
    in_time = all(one.kind in LEAST_NOTICE_S and one.seconds >= LEAST_NOTICE_S[one.kind] for one in scenario.faults)
    if in_time and not (scenario.lost or audit.world.deaths):
        lost = [one.text for one in job.state.story if one.kind == "lost"]
        must(not lost, f"ends were announced, and yet: {lost}")


def _check_endings(world: World, job: JobModel, trainers: list[TrainerModel]) -> None:
    """Training loops end well unless there is a reason for something else, and with that reason."""
    scenario = world.scenario
    reasons: dict[str, str] = {}
    if scenario.stop_after is not None:
        reasons |= {"enough": "", "ClusterError": "has left before the end"}
    if scenario.absent:
        reasons |= {"gave up": "", "ClusterError": "has left before the end"}
    if scenario.error_budget < 1.0 and (not scenario.within_budget or machines_may_be_taken_for_elements(world)):
        reasons["ErrorBudgetError"] = "error budget"
    if world.faults["fail"]:
        reasons["PlanError"] = "the function failed"
    silent = scenario.processes_unknown and world.longest_freeze + HEARD_WITHIN_S > TIMEOUT_S
    if world.faults["kill trainer"] or silent:
        reasons["ClusterError"] = "has not been heard"
    if (world.deaths or machines_may_be_taken_for_elements(world)) and scenario.on_error == "raise":
        reasons["OpError"] = "ended the process"
    silenced = taken_for_silent(world) > MOST_IN_VAIN  # as if native code had held the GIL
    if (world.deaths or silenced) and (scenario.one_sequence or scenario.sharding == "off"):
        reasons["ClusterError"] = "one after the other"
    if world.deaths and scenario.promised:
        reasons["ClusterError"] = "cannot be kept"
    # Of a deadly element two die that work on other data too, before other passes know of it; where nothing is run
    # again, one in each pass.
    deadly = sum(sum(map(split.outputs.count, FATAL)) for split in scenario.splits)
    passes = scenario.num_passes * ((scenario.epochs or 1) if scenario.visitation == "at_most_once" else 2)
    if world.losses + min(world.deaths, passes * deadly) > MOST_IN_A_ROW:
        reasons.setdefault("ClusterError", "in a row")
    runs, error = job.state.ledger.runs, job.state.error
    continues = "goes on from a state" not in f"{runs.given_up} {runs.fatal_reason}"
    must(continues or not world.audit.in_order_before, "rows had come in order, and do not where the run goes on")
    if error is not None:
        must(type(error).__name__ in reasons, f"the job failed without a reason: {error}")
        reasons.setdefault("ClusterError", "the controller is gone")
    for trainer in trainers:
        must(trainer.ended == "end" or trainer.ended in reasons, f"{trainer.name} ended: {trainer.error}")
        since = max((at for at in world.killed if at < trainer.ended_at), default=math.inf)
        frozen = max((fault.seconds for fault in scenario.faults if fault.seconds < math.inf), default=0.0)
        within = (
            TIMEOUT_S + 20.0 + 200.0 * scenario.lost + max(frozen, world.longest_freeze) + world.controller_frozen_s
        )
        missed = trainer.used_at - min(world.missed, default=math.inf)
        must(missed < within, f"{trainer.name} got a batch {missed:.0f} s after another rank had gone without its own")
        if trainer.ended == "ClusterError":
            must(trainer.ended_at - since < within, f"{trainer.name} heard of a killed one after {within:.0f} s")


def check_sent_bytes(job: JobModel, trainers: list[TrainerModel]) -> None:
    """The job knows of the bytes of all batches that count, and of no more than have come.

    What a trainer has discarded since its last report, as of an epoch that the loop has left, is told with the next
    one, of which there is none behind the end.
    """
    came = sum((trainer.sent_bytes for trainer in trainers), Counter[str]())
    table, row_bytes = job.state.worker_table, job.world.scenario.row_bytes
    for one in (*table.past.values(), *table.workers.values()):
        told = one.delivered
        # Each message rounds down, and has a batch at least.
        least = told.elements * row_bytes // CUT - told.batches
        known = f"the job knows of {told.sent_bytes} bytes of {one.name}"
        must(least <= told.sent_bytes, f"{known}, and {least} belong to batches that count")
        must(told.sent_bytes <= came[one.name], f"{known}, and {came[one.name]} have come")


# --- counts ---------------------------------------------------------------------------------------------------


def machines_may_be_taken_for_elements(world: World) -> bool:
    """Tell whether machines failed so often that an element they had in hand looks like one that ends workers.

    A worker whose messages are lost for so long that it is taken for silent is one of them.
    """
    return world.losses + taken_for_silent(world) >= 2 * STRIKES


def taken_for_silent(world: World) -> int:
    """Return how many workers were taken for lost since they were not heard."""
    return sum(one.kind == "lost" and "has said nothing" in one.text for one in world.job.state.story)


def check_quarantine(audit: Audit, job: JobModel, trainers: list[TrainerModel]) -> None:
    """Every bad element is kept by some trainer, and by one alone once, where data is worked on once.

    What a rank gives back others keep again, and so they do with what a rank said as it left, if that is lost.  A
    plan that one worker runs as a whole may be over before it has said what was bad behind the last batch.  One that
    goes on from a state runs again what the run before has kept: the job does not count it again, and the file has it.
    """
    scenario, known = audit.scenario, job.state.bad.identities
    if scenario.on_error != "quarantine":
        return
    start = job.state.spec.start
    dealt = frozenset(start.bad if start is not None else ())
    kept = Counter(one.identity for trainer in trainers for one in trainer.quarantined)
    kept = Counter({one: times for one, times in kept.items() if one in known or digest_of(one) not in dealt})
    complete = kept.keys() <= known if scenario.serial else kept.keys() == known
    complete = complete or bool(audit.left)  # what comes of an epoch when all have left the job, it does not hear of
    must(complete, f"{len(kept)} of {len(known)} bad elements are kept")
    exact = scenario.visitation == "exactly_once" and scenario.sharding != "off" and scenario.ranks == 1
    # Workers that share a torn split all come to the tear.
    exact = exact and not (scenario.may_divide_splits and scenario.torn)
    # A second worker that makes the rows of a slow one meets its bad elements, too: the file has each once.
    helped = any(event.kind == "order" for event in job.state.story)
    if exact and not (helped or audit.world.losses or audit.world.faults["kill controller"]):
        twice = [one for one, times in kept.items() if times > 1]
        must(not twice, f"{twice} are kept more than once")


def check_numbers(audit: Audit, trainers: list[TrainerModel], epochs: int) -> None:
    """All ranks use equally many batches of each epoch, and hardly any is smaller."""
    scenario = audit.scenario
    for epoch in set(range(epochs)) - audit.left:
        counts = [audit.batches[trainer.rank, epoch] for trainer in trainers]
        # Where data is given out again at once, a batch of a lost worker may come when its epoch is over.
        even = len(set(counts)) <= 1 or (scenario.visitation == "zero_or_more" and not undisturbed(audit.world))
        must(even, f"ranks have {counts} batches of epoch {epoch}")
        if scenario.tail is not None and scenario.plain and not scenario.lossy:
            _check_few_rests(scenario, counts, epoch)
        if scenario.ranks == 1 and not scenario.lossy and scenario.sharding != "off":
            must(
                audit.short[epoch] <= max(1, scenario.buckets), f"{audit.short[epoch]} smaller batches in epoch {epoch}"
            )


def _check_few_rests(scenario: Scenario, counts: list[int], epoch: int) -> None:
    """Of each bucket one batch is smaller, and fewer than there are ranks were halved."""
    elements = Counter(bucket_of(piece, scenario.buckets) for piece in all_pieces(scenario))
    most = sum(-(-elements[bucket] // size) for bucket, size in enumerate(scenario.bucket_sizes)) + scenario.ranks - 1
    must(sum(counts) <= most, f"there are {counts} batches in epoch {epoch}, which can have {most}")


def check_positions(audit: Audit, job: JobModel, epochs: int) -> None:
    """Every output was used once, or is counted."""
    scenario, ledger = audit.scenario, job.state.ledger
    expected = set(all_pieces(scenario))
    dropped: dict[int, list[tuple[LeaseKey, int, int]]] = {}
    for lease in ledger.dropped.leases:
        must(scenario.visitation == "at_most_once", f"{lease} was dropped")
        must(not undisturbed(audit.world), f"{lease} was dropped, and no worker was lost")
        dropped.setdefault(lease.epoch, []).extend((lease.key, *span) for span in lease.spans)
    missing_in_all: list[ModelPiece] = []
    for epoch in range(epochs):
        used = audit.used_pieces.get(epoch, Counter())
        check_known(audit, epoch, expected)
        missing = [
            piece for piece in expected if not used["", piece] and not _within(piece, dropped.get(epoch, ()), scenario)
        ]
        missing_in_all += missing
        if epoch not in audit.left:
            _check_few(audit, job, epoch, missing)
    if not audit.continues and not audit.left:  # what the run before has left out was counted there
        _check_counts(audit, job, missing_in_all, epochs)


def check_known(audit: Audit, epoch: int, expected: set[ModelPiece]) -> None:
    """Nothing was used that is not in the data."""
    unknown = {piece for _, piece in audit.used_pieces.get(epoch, ())} - expected
    must(not unknown, f"batches of epoch {epoch} hold {sorted(unknown)}, which nothing should yield")


def _check_few(audit: Audit, job: JobModel, epoch: int, missing: list[ModelPiece]) -> None:
    """Only what cannot be divided among ranks, or fills no batch, is left out."""
    scenario = audit.scenario
    most = (scenario.batch_size if scenario.drop_remainder else 1) * scenario.ranks - 1
    if scenario.bucket_sizes:
        if scenario.drop_remainder:
            most = sum(size * scenario.ranks - 1 for size in scenario.bucket_sizes)
        # What a worker has made no rounds of is left out by then; what another one is lost with comes back later.
        most *= 1 + sum(one.kind in ("lost", "drain") for one in job.state.story)
    most += audit.left_before
    if machines_may_be_taken_for_elements(audit.world):
        most += job.state.bad.count
    if scenario.plain:
        must(len(missing) <= most, f"{len(missing)} elements of epoch {epoch} are missing: {sorted(missing)}")
    elif scenario.ranks == 1 and not scenario.drop_remainder:
        elements = {(key, element) for key, element, _ in missing}
        must(len(elements) <= most, f"epoch {epoch} lacks {sorted(missing)}")


def _check_counts(audit: Audit, job: JobModel, missing: list[ModelPiece], epochs: int) -> None:
    """What is missing was counted: exactly where every element yields one output."""
    scenario, ledger = audit.scenario, job.state.ledger
    elements = {(key, element) for key, element, _ in missing}
    splits = scenario.splits
    kinds = (BAD, *FATAL)
    bad = sum(sum(map(split.outputs[: split.readable].count, kinds)) + (split.torn is not None) for split in splits)
    many = machines_may_be_taken_for_elements(audit.world)
    blamed = max(0, job.state.bad.count - bad * epochs * scenario.num_passes) if many else 0
    if scenario.plain:
        must(many or not job.state.bad.count, "an element is blamed for nothing")
        counted = ledger.left_out_elements + job.state.bad.count
        must(counted == len(missing), f"{len(missing)} elements are missing, and {counted} are counted")
        return
    if scenario.torn and (scenario.ranks > 1 or not scenario.apart):
        return  # elements before the place where a split is torn are counted together with it
    nothing = sum(outputs != 1 for split in splits for outputs in split.outputs)
    nothing += sum(split.torn is not None for split in splits)
    counted, most = ledger.left_out_elements + blamed, len(missing) + nothing * epochs * scenario.num_passes
    must(
        len(elements) <= counted <= most,
        f"{len(elements)} elements ({len(missing)} outputs) are missing, {counted} are counted as left out",
    )
    if scenario.visitation == "exactly_once":
        unread = sum(_tear_is_left_out(scenario, split) for split in splits)
        lacks = len(elements) + (bad - unread) * epochs * scenario.num_passes
        counted = ledger.left_out_elements + job.state.bad.count
        filtered = sum(split.outputs[: split.readable].count(0) for split in splits)
        single = all(outputs <= 1 for split in splits for outputs in split.outputs)
        repeats = epochs * scenario.num_passes
        bound = len(missing) + (bad + filtered) * repeats if single else math.inf
        must(
            lacks <= counted <= bound,
            f"{lacks} elements are missing or bad, and {counted} are counted as one of these ({filtered} filtered)",
        )


def _tear_is_left_out(scenario: Scenario, split: SplitModel) -> bool:
    """Tell whether nobody may come to the tear: it is behind the last element, which kills and takes it along."""
    at_known_end = scenario.may_divide_splits and split.torn == len(split.outputs)
    return at_known_end and split.outputs[-1:] in {(kind,) for kind in FATAL}


def check_serial(audit: Audit, job: JobModel, epochs: int) -> None:
    """One sequence: what no rank got was counted, where no worker was lost."""
    scenario, ledger = audit.scenario, job.state.ledger
    total = len(all_pieces(scenario))
    if scenario.take is not None:
        total = min(total, scenario.take)
    if audit.left:  # what was left out is not counted for each epoch
        for epoch in set(range(epochs)) - audit.left:
            missing, most = (
                total - sum(audit.used_pieces.get(epoch, Counter()).values()),
                scenario.batch_size * scenario.ranks,
            )
            must(0 <= missing <= most + audit.left_before, f"epoch {epoch} lacks {missing} of {total} elements")
        return
    used = sum(sum(counts.values()) for counts in audit.used_pieces.values())
    counted, before = used + ledger.left_out_elements, audit.left_before
    told = f"{used} elements used, {counted - used} left out and {before} by a run before, of {total * epochs}"
    must(counted <= total * epochs <= counted + before, told)


def check_some_visits(audit: Audit, job: JobModel, epochs: int) -> None:
    """With "zero_or_more", when workers were lost: nothing but the data was used, and what was not is counted."""
    scenario, ledger = audit.scenario, job.state.ledger
    expected = set(all_pieces(scenario))
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
    expected = set(all_pieces(scenario))
    whole = len(expected) if scenario.take is None else min(scenario.take, len(expected))
    not_draining = {name for name, held in ledger.workers.items() if held.unresolved is None}
    missing = of_all = 0
    for epoch in set(range(epochs)) - audit.left:
        check_known(audit, epoch, expected)
        given = Counter(worker for worker, _ in audit.used_pieces.get(epoch, ()))
        began = audit.started.get(epoch, set())
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


def _within(piece: ModelPiece, spans: Iterable[tuple[LeaseKey, int, int]], scenario: Scenario) -> bool:
    """Tell whether some of an output's positions are in one of some intervals."""
    key, element, output = piece
    branch, _, index = key
    outputs = scenario.sources[branch][index].outputs[element]
    begin = (element << OUTPUT_BITS) + output * (WIDTH // outputs)
    end = begin + WIDTH // outputs
    return any(other == key and start < end and stop > begin for other, start, stop in spans)
