"""Rewrite rules that push croppings and resizings into the decoder, make one warp of several, and use known functions.

A rule applies to neighbouring operators on one column.  Decoding at a reduced size averages pixels that a bilinear
resize would skip, and is for modes that may change them (docs/howto/ordering.md).  Decoding a part leaves pixels as
they are in the python engine; in the tensorflow engine it differs at the border by the colour of the pixels outside
(0.01 of 255 on average).

The rule "known functions" does the same for functions of other libraries (`pecan_ray.known`), as they are themselves
or in a row of torchvision's or Albumentations'.
"""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pecan_ray import images
from pecan_ray.autoorder.rewrites import Match, Pushed, matches, rewritten, rewritten_ops
from pecan_ray.engines.python.channel_arithmetic import PerChannelFunction, is_channel_arithmetic
from pecan_ray.engines.python.rows import RowsColumn, RowsWatch, array_of
from pecan_ray.fused_warps import DecodeWarp, Warp
from pecan_ray.known.detect_steps import known_functions, steps_of
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import ElementOp, Map, Op, Plan, is_pass_dependent
from pecan_ray.plan.splits import Source

WARPED = (images.RandomFlip, images.RandomRotate, images.RandomShear)
GEOMETRY = (*WARPED, images.RandomCrop, images.CenterCrop, images.Resize)
"""Operators of which a run is one warp, if one of the first kind is among them."""
CASTING = frozenset(("astype", "np", "numpy", "float16", "float32", "float64", "copy"))
"""Names in a function that casts."""
KNOWN_FUNCTIONS = "known functions"
AS_KNOWN = " as known"
"""How an order names that: after the operators, joined by a plus;"""
EXACTLY = " exactly"
"""and behind it, that pixels are equal."""
PIXEL_ARITHMETIC = "arithmetic of pixels"
BY_ROWS_OF_PIXELS = " by rows of pixels"
"""How an order names that, after the operator."""
EARLY = ("decode+warp", "warp", KNOWN_FUNCTIONS, PIXEL_ARITHMETIC)
"""Rules that begin nowhere within what another one could take over."""


class DecoderRun(NamedTuple):
    """A decoder that takes over what follows it."""

    rule: str
    behind: tuple[type, ...]
    """Classes of the functions behind the decoder."""
    merge: Callable[..., Any]
    """From those functions to the merged one."""
    reduces: bool = True
    """Whether images are decoded at a reduced size."""


RUNS = (
    DecoderRun("decode+random_crop+resize", (images.RandomCrop, images.Resize), images.DecodeRandomCropResize),
    DecoderRun("decode+resize", (images.Resize,), images.DecodeResize),
    DecoderRun("decode+random_crop", (images.RandomCrop,), images.DecodeRandomCrop, reduces=False),
    DecoderRun("decode+crop", (images.CenterCrop,), images.DecodeCrop, reduces=False),
)
"""The first one that fits takes over most."""


class KnownAtOnce:
    """Several functions that are known are done at once."""

    def matches(self, ops: Sequence[Op], engine: EngineName, source: Source | None) -> Iterator[Match]:
        """Yield it with other pixels, and with equal ones."""
        maps = _maps(ops) if engine == "python" else []
        decodes = bool(maps) and _is_decoder(maps[0])
        run = list(itertools.takewhile(lambda op: steps_of(op.fn) is not None, maps[decodes:]))
        found = known_functions([(op.name, op.fn) for op in run], decodes=decodes) if run else None
        if found is None:
            return
        for reduces, steps in ((True, found.unequal), (False, found.equal)):
            if steps:
                names = tuple(op.name for op in maps[: len(run) + decodes])
                why = f"{', '.join(names)} are one, since AutoOrder knows {', '.join(steps)}"
                decoder = "+".join(names) + AS_KNOWN + EXACTLY * (not reduces)
                made = replace(run[0], fn=found.merged(reduces=reduces))
                yield Match(Pushed(KNOWN_FUNCTIONS, names, decoder, why, reduces), len(names), (made,))


class OneWarp:
    """A run of flips, rotations, shears, crops and resizes is one warp."""

    def matches(self, ops: Sequence[Op], engine: EngineName, source: Source | None) -> Iterator[Match]:
        """Yield it."""
        if engine == "python" and (run := _warp(_maps(ops))):
            names = tuple(op.name for op in run)
            made = replace(run[0], fn=Warp(tuple((op.name, op.fn) for op in run)))
            why = _one_warp(names)
            yield Match(Pushed("warp", names, "+".join(names), why, reduces=True), len(names), (made,))


class ChannelArithmetic:
    """A normalization in NumPy with a number for each channel computes with whole rows of an image at a time.

    Its results are equal.
    """

    def matches(self, ops: Sequence[Op], engine: EngineName, source: Source | None) -> Iterator[Match]:
        """Yield it."""
        for op in _maps(ops)[:1] if engine == "python" else ():
            if is_channel_arithmetic(op):
                why = f"{op.name} computes with rows of pixels where it does nothing but arithmetic"
                rewrite = Pushed(PIXEL_ARITHMETIC, (op.name,), op.name + BY_ROWS_OF_PIXELS, why)
                yield Match(rewrite, 1, (replace(op, fn=PerChannelFunction(op.fn)),))


class DecoderTakesOver:
    """A decoder takes over what follows it; where that is as much as it can, an order names it by the decoder alone.

    Where images come out smaller, or warped, a cast of bytes to floats between is done to these.
    """

    def matches(self, ops: Sequence[Op], engine: EngineName, source: Source | None) -> Iterator[Match]:
        """Yield what it can take over, the most first."""
        maps, first = _maps(ops), True
        if not maps or not _is_decoder(maps[0]):
            return
        casts = _names_of_casts(maps) if engine == "python" else set[str]()
        moving = _moving_pixels(maps[1:], casts)
        for rule, run, fn, reduces in self._merge_candidates(moving, engine):
            span = maps[: maps.index(run[-1]) + 1]
            between = [op for op in span if op.name in casts]
            if between and not reduces:
                continue
            names = tuple(op.name for op in span)
            decoder = names[0] if first else "+".join(names)
            why = _why_taken_over(names[0], run, between, early=rule in EARLY)
            only_parts = engine == "python" and not reduces
            rewrite = Pushed(rule, names, decoder, why, reduces, only_parts=only_parts)
            yield Match(rewrite, len(span), (replace(run[0], fn=fn), *between))
            first = False

    def _merge_candidates(
        self, behind: Sequence[Map], engine: EngineName
    ) -> Iterator[tuple[str, Sequence[Map], Any, bool]]:
        if engine == "python" and (run := _warp(behind)):
            yield "decode+warp", run, DecodeWarp(tuple((op.name, op.fn) for op in run)), True
        for one in RUNS:
            run = list(behind[: len(one.behind)])
            kinds = zip(run, one.behind, strict=False)
            fits = len(run) == len(one.behind) and all(isinstance(op.fn, kind) for op, kind in kinds)
            if fits:
                yield one.rule, run, one.merge(*(op.fn for op in run)), one.reduces


def _moving_pixels(behind: Sequence[Map], casts: Collection[str]) -> list[Map]:
    """Return the croppings, warps and resizings right behind a decoder, between which there may be casts."""
    known = itertools.takewhile(lambda op: op.name in casts or isinstance(op.fn, GEOMETRY), behind)
    return [op for op in known if op.name not in casts]


def _names_of_casts(maps: Sequence[Map]) -> set[str]:
    return {op.name for op in maps if only_casts(op)}


def only_casts(op: Map) -> bool:
    """Tell whether an operator does nothing to images of bytes but make floats of them, values as they are.

    Only a function is asked that names nothing but what a cast needs, so that asking it changes nothing: it is run on
    each byte.
    """
    plain = isinstance(op.fn, types.FunctionType) and not op.fn.__closure__
    by_name = plain and set(op.fn.__code__.co_names) <= CASTING
    if is_pass_dependent(op) or not (by_name or type(op.fn) is operator.methodcaller):
        return False
    given, watch = np.arange(256, dtype=np.uint8).reshape(256, 1, 1, 1), RowsWatch(256, exactly=True)
    try:
        made = array_of(op.fn(RowsColumn(given, watch)), watch)
    except Exception:  # what it raises it may raise of this alone
        return False
    return not watch.refused and made.dtype.kind == "f" and np.array_equal(made, given)


def _why_taken_over(decoder: str, run: Sequence[Op], between: Sequence[Op], *, early: bool) -> str:
    taken = [op.name for op in run]
    why = _one_warp([decoder, *taken]) if early else f"the decoder takes over {', '.join(taken)}"
    return f"{why}, behind which comes {', '.join(op.name for op in between)}" if between else why


def _is_decoder(op: Map) -> bool:
    """Tell whether an operator is a decoder that can take over what follows: one that turns images has other boxes."""
    return isinstance(op.fn, images.Decode) and not op.fn.upright


def _one_warp(names: Sequence[str]) -> str:
    return f"{', '.join(names)} are one warp"


def _maps(ops: Sequence[Op]) -> list[Map]:
    """Return the first operators, as far as they are maps of one column that may be merged."""
    first = ops[0]
    if not isinstance(first, Map) or first.on is None:
        return []
    run = list[Map]()
    for op in ops:
        if not isinstance(op, Map) or op.on != first.on or op.keep_position or op.processes:
            break
        run.append(op)
    return run


def _warp(maps: Sequence[Map]) -> list[Map]:
    """Return the first maps, as far as one warp does what they do; none where it is not worth it."""
    run = list(itertools.takewhile(lambda op: isinstance(op.fn, GEOMETRY), maps))
    return run if len(run) > 1 and any(isinstance(op.fn, WARPED) for op in run) else []


RULES = (KnownAtOnce(), OneWarp(), DecoderTakesOver(), ChannelArithmetic())


def push_down(
    plan: Plan, engine: EngineName, decoders: Collection[str] | None = None
) -> tuple[Plan, tuple[Pushed, ...]]:
    """Return the plan with its decoders merged with what follows them, joins' inputs too; and what was done.

    `decoders`: the names of those that take something over; None: all decoders.
    """
    return rewritten(RULES, plan, engine, decoders)


def with_decoders(ops: Sequence[ElementOp], engine: EngineName, decoders: Collection[str]) -> list[ElementOp]:
    """Return operators with those decoders among them merged with what follows them."""
    found = rewritten_ops(RULES, ops, engine, decoders)[0] if decoders else ops
    return [op for op in found if isinstance(op, ElementOp)]


def choices(ops: Sequence[Op], engine: EngineName) -> list[list[Pushed]]:
    """Return for each decoder what it could take over, the most first."""
    found, behind = list[list[Pushed]](), 0
    for at in range(len(ops)):
        # What another one could take over with more begins no warp of its own, and no run of known functions.
        ways = [one.rewrite for one in matches(RULES, ops[at:], engine)]
        ways = [one for one in ways if at >= behind or one.rule not in EARLY]
        behind = max([behind, *(at + len(one.ops) for one in ways)])
        if ways:
            found.append(ways)
    return found
