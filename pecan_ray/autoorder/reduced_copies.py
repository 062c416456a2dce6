"""Reduced copies: behind a decoder smaller photographs may be kept, where what follows needs no more pixels.

    Decode -> autocache -> RandomCrop -> Resize          9 MB of pixels are kept of a photograph of 2000 x 1500,
    decode, reduce -> autocache -> RandomCrop -> Resize  or as many pixels as the smallest random part needs,
    reduced JPEG -> autocache -> decode, crop, resize    or a JPEG of those.

Names stay, so that the same random numbers are drawn: the decoder's operator makes the copy, and that of the random
crop decodes it.  Results differ: whether they may, and whether it is faster, is judged in `copies_tried`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace

from pecan_ray import images
from pecan_ray.autoorder.push_down import WARPED, merged
from pecan_ray.plan.operators import Autocache, Join, Map, Op, Plan

RULE = "reduced copies"
AS_COPIES = " as reduced copies"
"""How an order names that: behind the name of the decoder;"""
AS_PIXELS = " as reduced pixels"
"""and so, where they are not encoded again."""


@dataclass(frozen=True)
class CopyPlace:
    """Where a plan can keep reduced copies."""

    at: int
    """Place of the decoder among the operators; the point is the next one."""
    decoder: Map
    point: Autocache
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

    def told(self) -> str:
        """Say it in words."""
        kept = f"JPEGs of {self.pixels:,} pixels" if self.encoded else f"{self.pixels:,} pixels"
        names = ", ".join(op.name for op in self.run)
        decoded = f", and they are decoded for {names}" if self.encoded else ""
        return (
            f"{self.decoder.name} keeps large photographs at {self.point.name!r} as {kept}, "
            f"which the smallest part of {self.run[0].name} needs{decoded} (rule {RULE})"
        )


def copy_place(plan: Plan) -> CopyPlace | None:
    """Return where a plan can keep reduced copies; None: nowhere."""
    if isinstance(plan.head, Join):
        return None
    for at, (decoder, point) in enumerate(itertools.pairwise(plan.ops)):
        if not (isinstance(decoder, Map) and isinstance(decoder.fn, images.Decode) and isinstance(point, Autocache)):
            continue
        run = _run_behind(plan.ops[at + 2 :], decoder.on)
        if run is not None and not (decoder.keep_position or decoder.processes):
            crop, resize = run[0].fn, run[-1].fn
            assert isinstance(crop, images.RandomCrop) and isinstance(resize, images.Resize)
            sides = (resize.height, resize.width)
            return CopyPlace(at, decoder, point, run, images.pixels_for(crop, resize), sides)
    return None


def _run_behind(ops: tuple[Op, ...], on: str | None) -> tuple[Map, ...] | None:
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


def with_reduced_copies(plan: Plan, names: Collection[str]) -> tuple[Plan, tuple[str, ...]]:
    """Return an ordered plan with reduced copies where an order's `names` say so, and that in words."""
    place = copy_place(plan)
    place = next((one for one in kinds(place) if one.name in names), None) if place is not None else None
    if place is None:
        return plan, ()
    behind = place.at + 2 + len(place.run)
    return replace(plan, ops=(*plan.ops[: place.at], *place.ops, *plan.ops[behind:])), (place.told(),)


def kinds(place: CopyPlace) -> tuple[CopyPlace, ...]:
    """Return the ways to keep copies at a place."""
    return place, replace(place, encoded=False)


def can_keep_copies(ordered: Plan, users: Plan) -> CopyPlace | None:
    """Return where an ordered plan can keep reduced copies, if the user's order could be given them too."""
    place = copy_place(ordered)
    if place is None:
        return None
    wanted = [place.decoder.name, place.point.name, place.run[0].name]
    names = [op.name for op in users.ops]
    return place if names[place.at : place.at + len(wanted)] == wanted else None
