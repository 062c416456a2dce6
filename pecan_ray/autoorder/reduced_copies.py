"""Reduced copies: behind a decoder smaller photographs may be kept, where what follows needs no more pixels.

    Decode -> autocache -> RandomCrop -> Resize          9 MB of pixels are kept of a photograph of 2000 x 1500,
    decode, reduce -> autocache -> RandomCrop -> Resize  or as many pixels as the smallest random part needs,
    reduced JPEG -> autocache -> decode, crop, resize    or a JPEG of those.

Names stay, so that the same random numbers are drawn: the decoder's operator makes the copy, and that of the random
crop decodes it.  Results differ: whether they may, and whether it is faster, is judged in `copies_tried`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pecan_ray import images
from pecan_ray.autoorder.push_down import WARPED, merged
from pecan_ray.autoorder.rewrites import Match, Pushed
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Autocache, Join, Map, Op, Plan
from pecan_ray.plan.splits import Source

RULE = "reduced copies"
AS_COPIES = " as reduced copies"
"""How an order names that: behind the name of the decoder;"""
AS_PIXELS = " as reduced pixels"
"""and so, where they are not encoded again."""


@dataclass(frozen=True)
class CopyPlace:
    """Where a plan can keep reduced copies."""

    decoder: Map
    point: Autocache
    """The next one."""
    run: tuple[Map, ...]
    """What follows the point, from the random crop to the resize."""
    pixels: int
    """Of a copy, at least."""
    sides: tuple[int, int]
    """Height and width of a copy, at least: the target's."""
    encoded: bool = True
    """Whether they are kept as JPEGs."""

    @property
    def name(self) -> str:
        """What an order calls it by."""
        return self.decoder.name + (AS_COPIES if self.encoded else AS_PIXELS)

    @property
    def ops(self) -> tuple[Op, ...]:
        """What stands in the place of the decoder, the point and the run."""
        copy = images.ReducedCopy(self.pixels, self.sides)
        if not self.encoded:
            return (replace(self.decoder, fn=images.DecodeReducedCopy(copy)), self.point, *self.run)
        behind, _ = merged((self.decoder, *self.run), "python", (self.decoder.name,))
        return (replace(self.decoder, fn=copy), self.point, *behind)

    @property
    def why(self) -> str:
        """What is done, in words."""
        kept = f"JPEGs of {self.pixels:,} pixels" if self.encoded else f"{self.pixels:,} pixels"
        names = ", ".join(op.name for op in self.run)
        decoded = f", and they are decoded for {names}" if self.encoded else ""
        return (
            f"{self.decoder.name} keeps large photographs at {self.point.name!r} as {kept}, "
            f"which the smallest part of {self.run[0].name} needs{decoded}"
        )


def copy_place(plan: Plan) -> CopyPlace | None:
    """Return where a plan can keep reduced copies; None: nowhere."""
    if isinstance(plan.head, Join):
        return None
    return next((place for at in range(len(plan.ops)) if (place := _place(plan.ops[at:])) is not None), None)


def _place(ops: Sequence[Op]) -> CopyPlace | None:
    """Return the place that some operators begin with; None: they begin with none."""
    decoder, point = ops[0], ops[1] if len(ops) > 1 else None
    if not (isinstance(decoder, Map) and isinstance(decoder.fn, images.Decode) and isinstance(point, Autocache)):
        return None
    run = _run_behind(ops[2:], decoder.on)
    if run is None or decoder.keep_position or decoder.processes:
        return None
    crop, resize = run[0].fn, run[-1].fn
    assert isinstance(crop, images.RandomCrop) and isinstance(resize, images.Resize)
    return CopyPlace(decoder, point, run, images.pixels_for(crop, resize), (resize.height, resize.width))


def _run_behind(ops: Sequence[Op], on: str | None) -> tuple[Map, ...] | None:
    """Return a random crop, flips, rotations and shears, and a resize on a column, if operators begin so."""
    run = list[Map]()
    for op in ops:
        if not isinstance(op, Map) or op.on != on or op.keep_position or op.processes:
            return None
        if not isinstance(op.fn, (*WARPED, images.Resize) if run else images.RandomCrop):
            return None
        run.append(op)
        if isinstance(op.fn, images.Resize):
            return tuple(run)
    return None


class ReducedCopies:
    """Behind a decoder reduced copies are kept."""

    def matches(self, ops: Sequence[Op], engine: EngineName, source: Source | None) -> Iterator[Match]:
        """Yield it with JPEGs, and with pixels."""
        place = _place(ops) if engine == "python" else None
        for one in kinds(place) if place is not None else ():
            names = (one.decoder.name, one.point.name, *(op.name for op in one.run))
            yield Match(Pushed(RULE, names, one.name, one.why, reduces=True), len(names), one.ops)


def kinds(place: CopyPlace) -> tuple[CopyPlace, ...]:
    """Return the ways to keep copies at a place."""
    return place, replace(place, encoded=False)


def can_keep_copies(ordered: Plan, users: Plan) -> CopyPlace | None:
    """Return where an ordered plan can keep reduced copies, if the user's order could be given them too."""
    place = copy_place(ordered)
    if place is None:
        return None
    wanted = (place.decoder.name, place.point.name, place.run[0].name)
    names = [op.name for op in users.ops]
    return place if wanted in zip(names, names[1:], names[2:], strict=False) else None
