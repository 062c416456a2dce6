"""A state as users save it, beside their model: plain values that JSON has, versioned and checked.

What is missing of begun splits is told as intervals of positions.  Many of them (a shuffle buffer leaves holes in the
splits that it was filled from) are packed: differences of numbers, compressed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, zip_longest
from typing import Any, TypeAlias

from pecan_ray.errors import PlanError, StateError
from pecan_ray.job.delivery_log import MOST_STEPS
from pecan_ray.job.listing_digest import groups_of, read_digest
from pecan_ray.job.resume_point import BranchPoint, Cursor, KnownListing, Rest, ResumePoint, Step
from pecan_ray.job.state_numbers import StateNumbers, whole
from pecan_ray.job.state_remaining_parts import pack_remaining_parts, unpack_remaining_parts
from pecan_ray.options import IterOptions, Order
from pecan_ray.plan.splits import END, OUTPUT_BITS
from pecan_ray.sampling.spans import Span

FORMAT = 2
"""Grows whenever what is written cannot be read by versions before."""
FORMATS = (1, FORMAT)
"""What is read; 1 tells rests behind each other, and not by columns."""
ELEMENT = 1 << OUTPUT_BITS
# States come from files that may be damaged, or made to do harm: a number without a bound takes any memory.
MOST_SEED = 1 << 256
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, zlib.error)
"""What reading damaged values can raise."""

Plain: TypeAlias = Any
"""What JSON has."""


@dataclass(frozen=True)
class SavedState:
    """Where a pipeline stands between two batches."""

    point: ResumePoint
    batches: int
    """That each rank has used since the pipeline began, runs before included."""
    seed: int
    engine: str
    parts: tuple[tuple[str, str], ...]
    """What the pipeline consists of: (what it is, a hash)."""
    order: Order = "relaxed"
    """Of the batches."""
    first_epoch: int = 0
    """The number of the first epoch of the first run that led here."""
    passed: int = field(default=0, compare=False)
    """The number of batches of epochs that the loops had left: no loop was given these."""

    @property
    def given(self) -> int:
        """Batches that each loop was given, runs before included."""
        return self.batches - self.passed

    def to_json(self) -> dict[str, Plain]:
        """Return it as plain values; raises StateError where it is too large to be read again."""
        numbers, point = StateNumbers(), self.point
        try:
            sources = [
                {**_branch(branch, numbers), **_listing(listing)}
                for branch, listing in zip(point.branches, point.listings, strict=True)
            ]
            steps = [_step(step, numbers) for step in point.steps]
            bad = numbers.packed(_deltas(point.bad))
        except ValueError as error:
            raise StateError(
                f"the state cannot be saved: {error}. Use smaller shuffle buffers, or fewer workers."
            ) from error
        fields: dict[str, Plain] = {
            "pecan_ray_state": FORMAT,
            "epoch": point.epoch,
            "first_epoch": self.first_epoch,
            "batches": self.batches,
            "made": point.used_batches,
            "seed": self.seed,
            "engine": self.engine,
            "order": self.order,
            "pipeline": [list(part) for part in self.parts],
            "orders": [list(order) for order in point.op_order],
            "decoders": list(point.decoders),
            "sources": sources,
            "passes": point.passes,
            "bad": bad,
            "steps": steps,
        }
        if self.passed:
            fields["passed"] = self.passed
        return {**fields, "checksum": checksum_of(fields)}

    @classmethod
    def from_json(cls, state: Mapping[str, Plain]) -> SavedState:
        """Return what was saved; raises StateError where it is no state, a newer one, or damaged."""
        if not isinstance(state, Mapping) or not isinstance(state.get("pecan_ray_state"), int):
            raise StateError("this is no state of pecan_ray: pass what state_dict() has returned.")
        if state["pecan_ray_state"] not in FORMATS:
            raise StateError(
                f"the state has format {state['pecan_ray_state']}, and this version of pecan_ray reads {FORMATS[0]} to "
                f"{FORMAT}: load it with the version that has saved it, or a newer one."
            )
        fields = {name: value for name, value in state.items() if name != "checksum"}
        try:
            if state.get("checksum") != checksum_of(fields):
                raise StateError("the state is damaged: its checksum does not fit what it holds. Load an earlier one.")
            # A state may be damaged and have the right checksum. So every field is checked as it is read.
            return cls(
                _point_of(fields),
                whole(fields["batches"]),
                whole(fields["seed"], MOST_SEED),
                _text(fields["engine"]),
                tuple(map(_part, fields["pipeline"])),
                _order(fields["order"]),
                _first_epoch(fields),
                # No more than all of them, or a damaged number would make `given` negative.
                min(whole(fields.get("passed", 0)), whole(fields["batches"])),
            )
        except DAMAGE as error:
            raise StateError(f"the state cannot be read: {type(error).__name__}: {error}.") from error


def no_state_of(options: IterOptions) -> str:
    """Return why a run with these options has no state; empty if it has one."""
    if options.share:
        return "the batches of a shared group are made for all its readers, whatever one of them has read"
    if options.sharding != "dynamic":
        return f"sharding={options.sharding!r} ties data to workers, and another run has other ones"
    if options.visitation != "exactly_once":
        return f"visitation={options.visitation!r} lets data be lost or repeated"
    return ""


def start_of_run(options: IterOptions, saved: SavedState | None) -> tuple[int, int]:
    """Return the epoch in which a run begins, and the batches that runs before it have used."""
    return (options.first_epoch, 0) if saved is None else (saved.point.epoch, saved.batches)


def check_can_resume(saved: SavedState, options: IterOptions) -> None:
    """Raise PlanError where a run with these options cannot go on from a state."""
    if why := no_state_of(options):
        raise PlanError(f"iter_batches: a state cannot be gone on from, since {why}.")
    if options.epochs is not None and saved.point.epoch - saved.first_epoch > options.epochs:
        since = f" from epoch {saved.first_epoch} on" if saved.first_epoch else ""
        raise PlanError(
            f"the state is in epoch {saved.point.epoch} of epochs={options.epochs}{since}: pass more of them."
        )


def _difference(
    saved: SavedState, engine: str, seed: int | None, parts: Sequence[tuple[str, str]], order: Order
) -> str:
    """Return in words what differs between the pipeline of a state and this one; empty: nothing does.

    `seed`: None if any will do.
    """
    mine = [("engine", engine), ("order", order), *parts]
    theirs = [("engine", saved.engine), ("order", saved.order), *saved.parts]
    if seed is not None:
        mine, theirs = [("seed", str(seed)), *mine], [("seed", str(saved.seed)), *theirs]
    for one, other in zip_longest(mine, theirs):
        if one != other:
            here = f"{one[0]} ({one[1]})" if one else "nothing"
            there = f"{other[0]} ({other[1]})" if other else "nothing"
            return f"it has {there} where this one has {here}"
    return ""


def compatible_state(
    state: Mapping[str, Plain],
    options: IterOptions,
    *,
    engine: str,
    seed: int | None,
    parts: Sequence[tuple[str, str]],
) -> SavedState:
    """Return a state from which a run with these options can go on; raises StateError or PlanError for another one.

    One that was taken at the end of an epoch fits any pipeline over the same sources: the next epoch begins with that.
    """
    saved, order = SavedState.from_json(state), options.order or "relaxed"
    check_can_resume(saved, options)
    message = _difference(saved, engine, seed, parts, order)
    if not message:
        return saved
    epoch = starting_epoch(saved.point)
    # Decision 142: at the end of an epoch engine, order and operators may differ, but not the sources and the seed.
    if _sources(saved.parts) != _sources(parts) or (seed is not None and seed != saved.seed):
        raise StateError(f"the state is of another pipeline: {message}.")
    if epoch is None:
        raise StateError(
            f"the state is of another pipeline: {message}. A pipeline may change at the end of an epoch, and this "
            f"state was taken in the middle of epoch {saved.point.epoch}."
        )
    # Without what lies within an epoch, which belongs to the other pipeline. The listings stay,
    # because the data must still be the same.
    point = ResumePoint(epoch, (BranchPoint(),) * len(saved.point.branches), saved.point.listings)
    return replace(saved, point=point, engine=engine, parts=tuple(parts), order=order)


def point_for(point: ResumePoint, branches: int) -> ResumePoint:
    """Return where a run of so many sources goes on; raises StateError in the midst of an epoch of other ones.

    A zip that is read in step counts as one source.
    """
    if len(point.branches) == branches:
        return point
    epoch = starting_epoch(point)
    if epoch is None:
        raise StateError(
            "the state was taken in the midst of an epoch of a run that has read its zip in another way: in step where "
            'on_error="raise", else by one worker. Go on with the options of that run, or from the end of an epoch.'
        )
    return ResumePoint(epoch, (BranchPoint(),) * branches, point.listings[:branches])


def starting_epoch(point: ResumePoint) -> int | None:
    """Return the epoch of which nothing was used where a state was taken; None in the middle of one."""
    if all(branch == BranchPoint() for branch in point.branches) and not point.used_batches:
        return point.epoch
    # Without listings nothing tells how many splits there are, and endless passes (0) have no end.
    places = zip(point.branches, point.listings, strict=True) if point.listings and point.passes else ()
    ended = [_all_used(branch, listing, point.passes) for branch, listing in places]
    return point.epoch + 1 if ended and all(ended) and not point.used_batches else None


def _all_used(branch: BranchPoint, listing: KnownListing, passes: int) -> bool:
    """Tell whether nothing of a source is left in an epoch."""
    cursor = branch.cursor
    started = listing.complete and cursor.taken >= listing.splits and cursor.pass_index >= passes - 1
    return started and not cursor.missing and not branch.remaining_parts


def _sources(parts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [part for part in parts if part[0].startswith("source ")]


def checksum_of(fields: Mapping[str, Plain]) -> str:
    """Return what tells a whole state from a damaged one."""
    # Sorted, because whatever keeps the state may change the order of its keys.
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"


def _point_of(fields: Mapping[str, Plain]) -> ResumePoint:
    sources, steps, numbers = fields["sources"], fields.get("steps", []), StateNumbers()
    if not (isinstance(sources, list) and sources and isinstance(steps, list) and len(steps) <= MOST_STEPS):
        raise ValueError("it has no sources, or too many steps")
    return ResumePoint(
        whole(fields["epoch"]),
        tuple(_branch_of(source, numbers) for source in sources),
        tuple(map(_listing_of, sources)),
        whole(fields["made"]),
        tuple(_step_of(step, len(sources), numbers) for step in steps),
        whole(fields.get("passes", 1)),
        tuple(accumulate(numbers.from_packed(fields.get("bad", [])))),
        tuple(map(_texts, fields["orders"])),
        _texts(fields.get("decoders", [])),
    )


def _listing(listing: KnownListing) -> dict[str, Plain]:
    return {
        "splits": listing.splits,
        "complete": listing.complete,
        "digests": list(listing.digests),
        "marks": listing.digest,
    }


def _listing_of(source: Mapping[str, Plain]) -> KnownListing:
    splits, complete, digests = whole(source["splits"]), source["complete"], tuple(map(_text, source["digests"]))
    if not isinstance(complete, bool) or len(digests) != groups_of(splits):
        raise ValueError(f"{len(digests)} digests tell nothing of {splits} splits")
    marks = _text(source.get("marks", ""))
    if marks:
        # For its check alone: it raises ValueError if the marks are damaged.
        read_digest(marks)
    return KnownListing(splits, complete, digests, marks)


def _branch(point: BranchPoint, numbers: StateNumbers) -> dict[str, Plain]:
    cursor = point.cursor
    return {
        "repetition": cursor.pass_index,
        "begun": cursor.taken,
        "missing": numbers.packed([number for pair in cursor.missing for number in pair]),
        "grown": numbers.packed([number for pair in cursor.extensions for number in pair]),
        "rests": pack_remaining_parts(point.remaining_parts, numbers),
        **({"used": pack_remaining_parts(point.used, numbers)} if point.used else {}),
    }


def _branch_of(source: Mapping[str, Plain], numbers: StateNumbers) -> BranchPoint:
    missing, grown = _spans(numbers.from_packed(source["missing"])), _pairs(numbers.from_packed(source["grown"]))
    if any(later < one for pair in pairwise(grown) for one, later in zip(*pair, strict=True)):
        raise ValueError("an order of splits shrinks")
    cursor = Cursor(whole(source["repetition"]), whole(source["begun"]), missing, grown)
    remaining_parts = source["rests"]
    # Decision 33: format 1 has a list here, whose rests come behind each other.
    of_columns = isinstance(remaining_parts, dict)
    return BranchPoint(
        cursor,
        tuple(
            unpack_remaining_parts(remaining_parts, numbers)
            if of_columns
            else _remaining_parts(numbers.from_packed(remaining_parts))
        ),
        tuple(unpack_remaining_parts(source["used"], numbers)) if "used" in source else (),
    )


def _step(step: Step, numbers: StateNumbers) -> dict[str, Plain]:
    """All ranks' and sources' rests behind each other, each after its length."""
    told = [list(_numbers(remaining_parts)) for rank in step.ranks for remaining_parts in rank]
    had = numbers.packed([number for one in told for number in (len(one), *one)])
    return {"epoch": step.epoch, "ranks": len(step.ranks), "had": had}


def _step_of(step: Mapping[str, Plain], branches: int, numbers: StateNumbers) -> Step:
    had, remaining_parts, at = numbers.from_packed(step["had"]), list[tuple[Rest, ...]](), 0
    while at < len(had):
        end = at + 1 + had[at]
        remaining_parts.append(tuple(_remaining_parts(had[at + 1 : end])))
        at = end
    ranks = whole(step["ranks"], len(remaining_parts))
    if at != len(had) or len(remaining_parts) != ranks * branches:
        raise ValueError("a step is not of all ranks")
    return Step(
        whole(step["epoch"]), tuple(tuple(remaining_parts[r * branches : (r + 1) * branches]) for r in range(ranks))
    )


def _text(value: Plain) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _texts(value: Plain) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.40} is no list")
    return tuple(map(_text, value))


def _part(value: Plain) -> tuple[str, str]:
    name, digest = _texts(value)
    return name, digest


def _order(value: Plain) -> Order:
    if value not in ("relaxed", "strict"):
        raise ValueError(f"{value!r:.40} is no order")
    return "strict" if value == "strict" else "relaxed"


def _first_epoch(fields: Mapping[str, Plain]) -> int:
    """Return where the epochs began; states of earlier versions began with epoch 0."""
    first = whole(fields.get("first_epoch", 0))
    if first > whole(fields["epoch"]):
        raise ValueError(f"epoch {fields['epoch']} lies before the first one, {first}")
    return first


def _deltas(numbers: Sequence[int]) -> list[int]:
    return [to - at for at, to in pairwise([0, *numbers])]


def _pairs(numbers: Sequence[int]) -> tuple[Span, ...]:
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _spans(numbers: Sequence[int]) -> tuple[Span, ...]:
    if any(one >= other for one, other in pairwise(numbers)) or (numbers and numbers[-1] > END):
        raise ValueError("intervals overlap, or lie outside a split")
    return _pairs(numbers)


def _numbers(remaining_parts: Sequence[Rest]) -> Iterator[int]:
    """Yield of each rest: repetition, index, unit, how many positions, and their differences in that unit."""
    for rest in remaining_parts:
        positions = [position for span in rest.spans for position in span]
        # Positions between elements are told in elements, as smaller numbers, which compress better.
        unit = 1 if any(position % ELEMENT for position in positions) else ELEMENT
        yield from (rest.pass_index, rest.index, unit, len(positions))
        yield from (to // unit - at // unit for at, to in pairwise([0, *positions]))


def _remaining_parts(numbers: Sequence[int]) -> Iterator[Rest]:
    at, before = 0, (-1, -1)
    while at < len(numbers):
        pass_index, index, unit, count = numbers[at : at + 4]
        steps = numbers[at + 4 : at + 4 + count]
        if len(steps) != count or unit not in (1, ELEMENT) or (pass_index, index) <= before:
            raise ValueError("what is missing of a split is damaged, or comes twice")
        before = whole(pass_index), whole(index)
        yield Rest(index, pass_index, _spans([step * unit for step in accumulate(steps)]))
        at += 4 + count
