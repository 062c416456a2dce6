"""A state as users save it, beside their model: plain values that JSON has, versioned and checked.

What is missing of begun splits is told as intervals of positions.  Many of them (a shuffle buffer leaves holes in the
splits that it was filled from) are packed: differences of numbers, compressed.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, zip_longest
from typing import Any, TypeAlias

from pecan_ray.errors import PlanError, StateError
from pecan_ray.job.resume_point import BranchPoint, Cursor, KnownListing, Rest, ResumePoint, Step
from pecan_ray.options import IterOptions, Order
from pecan_ray.plan.splits import OUTPUT_BITS
from pecan_ray.sampling.spans import Span

FORMAT = 1
"""Grows whenever what was written before cannot be read as it is."""
FEW = 100
"""So many numbers stay readable."""
MOST_BYTES = 1 << 28
"""What packed numbers may take when they are unpacked."""
ELEMENT = 1 << OUTPUT_BITS

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

    def to_json(self) -> dict[str, Plain]:
        """Return it as plain values."""
        fields: dict[str, Plain] = {
            "pecan_ray_state": FORMAT,
            "epoch": self.point.epoch,
            "batches": self.batches,
            "made": self.point.made,
            "seed": self.seed,
            "engine": self.engine,
            "order": self.order,
            "pipeline": [list(part) for part in self.parts],
            "orders": [list(order) for order in self.point.op_order],
            "sources": [
                {**_branch(point), **_listing(listing)}
                for point, listing in zip(self.point.branches, self.point.listings, strict=True)
            ],
            "passes": self.point.passes,
            "bad": _packed(_differences(self.point.bad)),
            "steps": list(map(_step, self.point.steps)),
        }
        return {**fields, "checksum": _checksum(fields)}

    @classmethod
    def from_json(cls, state: Mapping[str, Plain]) -> SavedState:
        """Return what was saved; raises StateError where it is no state, a newer one, or damaged."""
        if not isinstance(state, Mapping) or not isinstance(state.get("pecan_ray_state"), int):
            raise StateError("this is no state of pecan_ray: pass what state_dict() has returned.")
        if state["pecan_ray_state"] != FORMAT:
            raise StateError(
                f"the state has format {state['pecan_ray_state']}, and this version of pecan_ray reads {FORMAT}: load "
                "it with the version that has saved it, or a newer one."
            )
        fields = {name: value for name, value in state.items() if name != "checksum"}
        if state.get("checksum") != _checksum(fields):
            raise StateError("the state is damaged: its checksum does not fit what it holds. Load an earlier one.")
        try:
            sources = fields["sources"]
            point = ResumePoint(
                fields["epoch"],
                tuple(map(_branch_of, sources)),
                tuple(map(_listing_of, sources)),
                fields["made"],
                tuple(map(_step_of, fields.get("steps", ()))),
                int(fields.get("passes", 1)),
                tuple(accumulate(_unpacked(fields.get("bad", [])))),
                tuple(tuple(order) for order in fields["orders"]),
            )
            parts = tuple((name, digest) for name, digest in fields["pipeline"])
            return cls(point, fields["batches"], fields["seed"], fields["engine"], parts, fields["order"])
        except (KeyError, TypeError, ValueError, zlib.error, binascii.Error) as error:
            raise StateError(f"the state cannot be read: {type(error).__name__}: {error}.") from error


def no_state_of(options: IterOptions) -> str:
    """Return why a run with these options has no state; empty if it has one."""
    if options.sharding != "dynamic":
        return f"sharding={options.sharding!r} ties data to workers, and another run has other ones"
    if options.visitation != "exactly_once":
        return f"visitation={options.visitation!r} lets data be lost or repeated"
    return ""


def must_go_on(saved: SavedState, options: IterOptions) -> None:
    """Raise PlanError where a run with these options cannot go on from a state."""
    if why := no_state_of(options):
        raise PlanError(f"iter_batches: a state cannot be gone on from, since {why}.")
    if options.epochs is not None and saved.point.epoch > options.epochs:
        raise PlanError(f"the state is in epoch {saved.point.epoch} of epochs={options.epochs}: pass more of them.")


def must_fit(
    saved: SavedState, *, engine: str, seed: int | None, parts: Sequence[tuple[str, str]], order: Order = "relaxed"
) -> None:
    """Raise StateError, naming what differs, unless a state is of this pipeline; `seed`: None if any will do."""
    mine = [("engine", engine), ("order", order), *parts]
    theirs = [("engine", saved.engine), ("order", saved.order), *saved.parts]
    if seed is not None:
        mine, theirs = [("seed", str(seed)), *mine], [("seed", str(saved.seed)), *theirs]
    for one, other in zip_longest(mine, theirs):
        if one != other:
            here = f"{one[0]} ({one[1]})" if one else "nothing"
            there = f"{other[0]} ({other[1]})" if other else "nothing"
            raise StateError(f"the state is of another pipeline: it has {there} where this one has {here}.")


def _checksum(fields: Mapping[str, Plain]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"


def _listing(listing: KnownListing) -> dict[str, Plain]:
    return {"splits": listing.splits, "complete": listing.complete, "digests": list(listing.digests)}


def _listing_of(source: Mapping[str, Plain]) -> KnownListing:
    return KnownListing(int(source["splits"]), bool(source["complete"]), tuple(source["digests"]))


def _branch(point: BranchPoint) -> dict[str, Plain]:
    cursor = point.cursor
    return {
        "repetition": cursor.repetition,
        "begun": cursor.taken,
        "missing": _packed([number for pair in cursor.missing for number in pair]),
        "grown": _packed([number for pair in cursor.grown for number in pair]),
        "rests": _packed(list(_numbers(point.rests))),
    }


def _branch_of(source: Mapping[str, Plain]) -> BranchPoint:
    missing, grown = (_pairs(_unpacked(source[name])) for name in ("missing", "grown"))
    cursor = Cursor(int(source["repetition"]), int(source["begun"]), missing, grown)
    return BranchPoint(cursor, tuple(_rests(_unpacked(source["rests"]))))


def _step(step: Step) -> dict[str, Plain]:
    """All ranks' and sources' rests behind each other, each after its length."""
    told = [list(_numbers(rests)) for rank in step.ranks for rests in rank]
    had = _packed([number for one in told for number in (len(one), *one)])
    return {"epoch": step.epoch, "ranks": len(step.ranks), "had": had}


def _step_of(step: Mapping[str, Plain]) -> Step:
    numbers, rests, at = _unpacked(step["had"]), list[tuple[Rest, ...]](), 0
    while at < len(numbers):
        end = at + 1 + numbers[at]
        rests.append(tuple(_rests(numbers[at + 1 : end])))
        at = end
    ranks = max(1, int(step["ranks"]))
    branches = len(rests) // ranks
    if len(rests) != ranks * branches:
        raise ValueError("a step is not of all ranks")
    return Step(int(step["epoch"]), tuple(tuple(rests[r * branches : (r + 1) * branches]) for r in range(ranks)))


def _differences(numbers: Sequence[int]) -> list[int]:
    return [to - at for at, to in pairwise([0, *numbers])]


def _pairs(numbers: Sequence[int]) -> tuple[Span, ...]:
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _numbers(rests: Sequence[Rest]) -> Iterator[int]:
    """Yield of each rest: repetition, index, unit, how many positions, and their differences in that unit."""
    for rest in rests:
        positions = [position for span in rest.spans for position in span]
        unit = 1 if any(position % ELEMENT for position in positions) else ELEMENT
        yield from (rest.repetition, rest.index, unit, len(positions))
        yield from (to // unit - at // unit for at, to in pairwise([0, *positions]))


def _rests(numbers: Sequence[int]) -> Iterator[Rest]:
    at = 0
    while at < len(numbers):
        repetition, index, unit, count = numbers[at : at + 4]
        positions, position = [], 0
        for step in numbers[at + 4 : at + 4 + count]:
            position += step * unit
            positions.append(position)
        if len(positions) != count:
            raise ValueError("it ends in the middle of a split")
        yield Rest(index, repetition, _pairs(positions))
        at += 4 + count


def _packed(numbers: Sequence[int]) -> list[int] | str:
    if len(numbers) <= FEW:
        return list(numbers)
    out = bytearray()
    for number in numbers:
        while number >= 0x80:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)
    return base64.b85encode(zlib.compress(out, 9)).decode()


def _unpacked(packed: Plain) -> list[int]:
    if isinstance(packed, list):
        return [int(number) for number in packed]
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(base64.b85decode(packed), MOST_BYTES)
    if not unpacking.eof:
        raise ValueError("it is cut off, or far too large")
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    return numbers
