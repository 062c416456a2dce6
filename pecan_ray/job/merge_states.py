"""One state out of those of ranks that have used different numbers of batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pecan_ray.errors import StateError
from pecan_ray.job.resume import ended
from pecan_ray.job.resume_point import Rest, ResumePoint
from pecan_ray.job.saved_state import SavedState
from pecan_ray.sampling.spans import Spans


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one state out of those of all ranks of a job, also where some have used more batches than others.

    `states`: what ``Batches.state_dict()`` has returned at rank 0, at rank 1 and so on.  A run that goes on from what
    this returns gets exactly what none of the ranks has used.  A state knows the last eight batches of every rank, of
    more than 64 ranks or of a large shuffle buffer fewer: so far ranks may be apart.  Raises StateError where they are
    further apart, where one has begun an epoch that another one has not, where the states are not of one job, and for
    batches in one sequence (``order="strict"``, `take`, `skip`, `zip`), of which none may be missing in the middle.
    """
    saved = [SavedState.from_json(state) for state in states]
    if not saved:
        raise StateError("merge_states: there are no states: pass those of all ranks, in the order of the ranks.")
    for rank, one in enumerate(saved):
        _check_same_job(rank, one, saved[0])
    most = max(saved, key=lambda one: one.batches)
    least = min(one.batches for one in saved)
    if most.batches == least:
        for rank, one in enumerate(saved):
            if one != most:
                raise StateError(f"merge_states: the state of rank {rank} is of another run than the one of rank 0.")
        return most.to_json()
    behind = next(one for one in saved if one.batches == least)  # in the epoch with which the merged state goes on
    # Only the state that has used most knows what the others have not used: its own last batches.
    merged, of = _merged(most, [one.batches for one in saved]), behind.point
    point = replace(merged, op_order=of.op_order, decoders=of.decoders)
    return replace(most, point=point, batches=least, passed=behind.passed).to_json()


def _check_same_job(rank: int, one: SavedState, first: SavedState) -> None:
    mine, theirs = ((s.seed, s.engine, s.order, s.first_epoch, s.parts) for s in (one, first))
    if mine != theirs:
        raise StateError(
            f"merge_states: the state of rank {rank} is of another pipeline or seed than the one of rank 0."
        )


def _merged(most: SavedState, batches: Sequence[int]) -> ResumePoint:
    """Return where the run stands that has used most, with what other ranks have not used missing as well."""
    steps = most.point.steps
    behind = [most.batches - one for one in batches]
    _check_that_steps_are_known(most, batches, max(behind))
    epoch = steps[max(behind) - 1].epoch
    if epoch != most.point.epoch and any(step.epoch != epoch for step in steps[: max(behind)]):
        raise StateError(
            f"merge_states: a rank has begun epoch {epoch + 1}, and another one has not ended epoch {epoch}: save the "
            "states of all ranks in the same epoch."
        )
    unused = list(_unused(most.point, behind))
    if epoch == most.point.epoch:
        there = zip(most.point.branches, unused, strict=True)
        points = [
            replace(point, remaining_parts=_joined([*point.remaining_parts, *remaining_parts]))
            for point, remaining_parts in there
        ]
    else:  # the one that has used most is between two epochs
        points = [ended(most.point.passes, _joined(remaining_parts)) for remaining_parts in unused]
    # The steps are those of the state that has used most. Some of them count as missing now, so no
    # other merge may use them.
    return replace(most.point, epoch=epoch, branches=tuple(points), steps=())


def _check_that_steps_are_known(most: SavedState, batches: Sequence[int], behind: int) -> None:
    """Raise StateError unless the state that has used most knows the last `behind` steps, of each of these ranks."""
    ranks, steps = len(batches), most.point.steps
    if most.order == "strict" or most.point.used_batches:
        raise StateError(
            f"merge_states: ranks have used {_join(batches)} batches, and these are one sequence, of which none may "
            "be missing in the middle: save the states of all ranks after the same number of batches."
        )
    if steps and len(steps[0].ranks) != ranks:
        raise StateError(f"merge_states: these are {ranks} states of {len(steps[0].ranks)} ranks: pass those of all.")
    if behind > len(steps):
        raise StateError(
            f"merge_states: ranks have used {_join(batches)} batches, and a state of this job knows the last "
            f"{len(steps)} of each: save the states of all ranks after the same number of batches, or nearly so."
        )


def _unused(point: ResumePoint, behind: Sequence[int]) -> Iterator[list[Rest]]:
    """Yield for each source what ranks that are so many batches behind have not used."""
    for branch in range(len(point.branches)):
        yield [
            rest for rank, back in enumerate(behind) for step in point.steps[:back] for rest in step.ranks[rank][branch]
        ]


def _joined(remaining_parts: Sequence[Rest]) -> tuple[Rest, ...]:
    """Put together what is missing of the same split."""
    missing: dict[tuple[int, int], Spans] = {}
    for rest in remaining_parts:
        known = missing.setdefault((rest.pass_index, rest.index), Spans())
        for start, stop in rest.spans:
            known.add(start, stop)
    return tuple(Rest(index, pass_index, tuple(spans)) for (pass_index, index), spans in sorted(missing.items()))


def _join(batches: Sequence[int]) -> str:
    return f"{min(batches)} to {max(batches)}"
