"""Rewrite rules that push croppings and resizings into the decoder.

A rule applies to neighbouring operators of `pecan_ray.images` on one column.  Decoding at a reduced size averages
pixels that a bilinear resize would skip, and is for modes that may change them (docs/howto/ordering.md).  Decoding a
part leaves pixels as they are in the python engine; in the tensorflow engine it differs at the border by the colour of
the pixels outside (0.01 of 255 on average).

The rule "known functions" does the same for functions of other libraries (`pecan_ray.known`), as they are themselves
or in a row of torchvision's or Albumentations'.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pecan_ray import images
from pecan_ray.fused_warps import DecodeWarp, Warp
from pecan_ray.known.recognise import KnownFunctions, known_functions, steps_of
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Join, Map, Op, Plan


@dataclass(frozen=True)
class Rule:
    """One way to merge neighbouring operators."""

    name: str
    pattern: tuple[type, ...]
    """Classes of their functions, in order."""
    merge: Callable[..., Any]
    """From the functions behind the first one to the merged function."""
    engines: tuple[EngineName, ...]
    reduces: bool = False
    """Whether images are decoded at a reduced size, or interpolated once for several times: pixels are others."""
    of_all: bool = False
    """Whether the merged function is made of the first one too."""
    suffix: str = ""
    """Of what an order calls it by."""
    steps: tuple[str, ...] = ()
    """What is done at once of known functions."""


WARPED = (images.RandomFlip, images.RandomRotate, images.RandomShear)
GEOMETRY = (*WARPED, images.RandomCrop, images.CenterCrop, images.Resize)
"""Operators of which a run is one warp, if one of the first kind is among them."""
WARPS = ("decode+warp", "warp")
"""Names of the rules for those."""
KNOWN_FUNCTIONS = "known functions"
AS_KNOWN = " as known"
"""How an order names that: after the operators, joined by a plus;"""
EXACTLY = " exactly"
"""and behind it, that pixels are equal."""
EARLY = (*WARPS, KNOWN_FUNCTIONS)
"""Rules that gain more than exchanges of what they merge."""
RULES = (
    Rule(
        "decode+random_crop+resize",
        (images.Decode, images.RandomCrop, images.Resize),
        images.DecodeRandomCropResize,
        ("python", "tensorflow"),
        reduces=True,
    ),
    Rule(
        "decode+resize",
        (images.Decode, images.Resize),
        images.DecodeResize,
        ("python", "tensorflow"),
        reduces=True,
    ),
    Rule("decode+reduce", (images.Decode, images.Reduce), images.DecodeReduce, ("python",), reduces=True),
    Rule(
        "decode+random_crop",
        (images.Decode, images.RandomCrop),
        images.DecodeRandomCrop,
        ("python", "tensorflow"),
    ),
    Rule("decode+crop", (images.Decode, images.CenterCrop), images.DecodeCrop, ("python", "tensorflow")),
)
"""The first one that fits takes over most."""


@dataclass(frozen=True)
class Pushed:
    """A rule that was applied."""

    rule: str
    ops: tuple[str, ...]
    """The operators that were merged."""
    into: str
    """Name of the operator that does their work now: that of the one with the random numbers, so that they stay."""
    decoder: str
    """What an order calls this by: the name of the decoder where it takes over as much as it can, else all of `ops`."""
    reduces: bool = False
    """Whether images are decoded at a reduced size, so that pixels are others."""
    only_parts: bool = False
    """Whether the decoder does nothing else than decoding a part, by a library of its own (python engine)."""
    steps: tuple[str, ...] = ()
    """What is done at once of known functions."""

    def told(self) -> str:
        """Say it in words."""
        if self.rule == KNOWN_FUNCTIONS:
            known = ", ".join(self.steps)
            return f"{', '.join(self.ops)} are one, since AutoOrder knows {known} (rule {self.rule})"
        if self.rule in WARPS:
            return f"{', '.join(self.ops)} are one warp (rule {self.rule})"
        return f"the decoder takes over {', '.join(self.ops[1:])} (rule {self.rule})"


def push_down(
    plan: Plan, engine: EngineName, decoders: Collection[str] | None = None
) -> tuple[Plan, tuple[Pushed, ...]]:
    """Return the plan with its decoders merged with what follows them, joins' inputs too; and what was done.

    `decoders`: the names of those that take something over; None: all decoders.
    """
    head, before = plan.head, tuple[Pushed, ...]()
    if isinstance(head, Join):
        branches = [push_down(branch, engine, decoders) for branch in head.inputs]
        before = tuple(one for _, pushed in branches for one in pushed)
        head = replace(head, inputs=tuple(branch for branch, _ in branches))
    ops, done = merged(plan.ops, engine, decoders)
    return replace(plan, head=head, ops=ops), (*before, *done)


def merged(
    given: Sequence[Op], engine: EngineName, decoders: Collection[str] | None = None
) -> tuple[tuple[Op, ...], tuple[Pushed, ...]]:
    """Return operators with the decoders among them merged with what follows them, and what was done."""
    ops = list(given)
    done: list[Pushed] = []
    at = 0
    while at < len(ops):
        ways = _ways(ops[at:], engine)
        taken = next((one for one in ways if decoders is None or one[1].decoder in decoders), None)
        if taken is not None:
            rule, pushed = taken
            parts = [op for op in ops[at : at + len(rule.pattern)] if isinstance(op, Map)]
            behind = parts if rule.of_all else parts[1:]
            ops[at : at + len(parts)] = [replace(behind[0], fn=rule.merge(*(op.fn for op in behind)))]
            done.append(pushed)
        at += 1
    return tuple(ops), tuple(done)


def choices(ops: Sequence[Op], engine: EngineName) -> list[list[Pushed]]:
    """Return for each decoder what it could take over, the most first."""
    found, behind = list[list[Pushed]](), 0
    for at in range(len(ops)):
        # What another one could take over with more begins no warp of its own, and no run of known functions.
        ways = [pushed for rule, pushed in _ways(ops[at:], engine) if at >= behind or rule.name not in EARLY]
        behind = max([behind, *(at + len(pushed.ops) for pushed in ways)])
        if ways:
            found.append(ways)
    return found


def _ways(ops: Sequence[Op], engine: EngineName) -> list[tuple[Rule, Pushed]]:
    """Return the rules that apply to the first operator and those behind it."""
    found = list[tuple[Rule, Pushed]]()
    for rule in (*_known(ops), *_warps(ops), *RULES):
        if _fits(rule, ops, engine):
            names = tuple(op.name for op in ops[: len(rule.pattern)])
            known = rule.name == KNOWN_FUNCTIONS
            as_much_as_it_can = not (rule.of_all or known) and all(one.name == KNOWN_FUNCTIONS for one, _ in found)
            decoder = names[0] if as_much_as_it_can else "+".join(names) + rule.suffix
            only_parts = engine == "python" and not rule.reduces and not rule.of_all and not known
            into = names[0] if rule.of_all else names[1]
            found.append((rule, Pushed(rule.name, names, into, decoder, rule.reduces, only_parts, rule.steps)))
    return found


def _known(ops: Sequence[Op]) -> Iterator[Rule]:
    """Yield the rules that do the first operators at once, if their functions are known: with other pixels first."""
    decodes = isinstance(ops[0], Map) and isinstance(ops[0].fn, images.Decode)
    run = list(itertools.takewhile(_is_known, ops[1:] if decodes else ops))
    named = [(op.name, op.fn) for op in run if isinstance(op, Map)]
    found = known_functions(named, decodes=decodes) if named else None
    if found is None:
        return
    pattern = (*((images.Decode,) if decodes else ()), *(type(fn) for _, fn in named))
    for reduces, steps in ((True, found.unequal), (False, found.equal)):
        if steps:
            merge, suffix = functools.partial(_as_known, found, reduces), AS_KNOWN + EXACTLY * (not reduces)
            yield Rule(KNOWN_FUNCTIONS, pattern, merge, ("python",), reduces, not decodes, suffix, steps)


def _is_known(op: Op) -> bool:
    return isinstance(op, Map) and op.on is not None and steps_of(op.fn) is not None


def _as_known(found: KnownFunctions, reduces: bool, *fns: Any) -> Any:
    return found.merged(reduces=reduces)


def _warps(ops: Sequence[Op]) -> Iterator[Rule]:
    """Yield the rule that makes one warp of the first operators, if they are such."""
    decodes = isinstance(ops[0], Map) and isinstance(ops[0].fn, images.Decode)
    behind = ops[1:] if decodes else ops
    run = list(itertools.takewhile(lambda op: isinstance(op, Map) and isinstance(op.fn, GEOMETRY), behind))
    fns = [op.fn for op in run if isinstance(op, Map)]
    if len(run) < 2 or not any(isinstance(fn, WARPED) for fn in fns):
        return
    pattern = tuple(map(type, fns))
    merge = functools.partial(_one_warp, DecodeWarp if decodes else Warp, tuple(op.name for op in run))
    if decodes:
        yield Rule("decode+warp", (images.Decode, *pattern), merge, ("python",), reduces=True)
    else:
        yield Rule("warp", pattern, merge, ("python",), reduces=True, of_all=True)


def _one_warp(kind: Callable[..., Any], names: tuple[str, ...], *fns: Any) -> Any:
    return kind(tuple(zip(names, fns, strict=True)))


def scattered(ops: Sequence[Op], engine: EngineName) -> Iterator[tuple[str, ...]]:
    """Yield the names of operators that a decoder's best rule would merge if nothing stood between them."""
    taken = list[Op]()
    for at in range(len(ops)):
        if ops[at] in taken:
            continue
        geometry = [op for op in ops[at + 1 :] if isinstance(op, Map) and isinstance(op.fn, GEOMETRY)]
        for rule in (*_warps([ops[at], *geometry]), *RULES):
            found = [ops[at]]
            for op in ops[at + 1 :]:
                if len(found) < len(rule.pattern) and _fits(rule, [*found, op], engine, partly=True):
                    found.append(op)
            if _fits(rule, found, engine):
                taken += found
                if found != list(ops[at : at + len(found)]):
                    yield tuple(op.name for op in found)
                break


def _fits(rule: Rule, ops: Sequence[Op], engine: EngineName, *, partly: bool = False) -> bool:
    """Tell whether a rule applies to the operators at hand (`partly`: as far as they go)."""
    if engine not in rule.engines or (len(ops) < len(rule.pattern) and not partly):
        return False
    pairs = list(zip(rule.pattern, ops, strict=False))
    first = ops[0]
    return all(
        isinstance(op, Map)
        and isinstance(op.fn, kind)
        and not (op.keep_position or op.processes)
        and isinstance(first, Map)
        and op.on == first.on
        for kind, op in pairs
    )
