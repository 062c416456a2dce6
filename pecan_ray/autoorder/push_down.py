"""Rewrite rules that push croppings and resizings into the decoder.

A rule applies to neighbouring operators of `pecan_ray.images` on one column.  Decoding at a reduced size averages
pixels that a bilinear resize would skip, and is for modes that may change them (docs/howto/ordering.md).  Decoding a
part leaves pixels as they are in the python engine; in the tensorflow engine it differs at the border by the colour of
the pixels outside (0.01 of 255 on average).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pecan_ray import images
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
    """Whether images are decoded at a reduced size, so that pixels are others."""


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

    def told(self) -> str:
        """Say it in words."""
        return f"the decoder takes over {', '.join(self.ops[1:])} (rule {self.rule})"


def push_down(
    plan: Plan, engine: EngineName, decoders: Collection[str] | None = None
) -> tuple[Plan, tuple[Pushed, ...]]:
    """Return the plan with its decoders merged with what follows them, joins' inputs too; and what was done.

    `decoders`: the names of those that take something over; None: all.
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
            behind = parts[1:]
            ops[at : at + len(parts)] = [replace(behind[0], fn=rule.merge(*(op.fn for op in behind)))]
            done.append(pushed)
        at += 1
    return tuple(ops), tuple(done)


def choices(ops: Sequence[Op], engine: EngineName) -> list[list[Pushed]]:
    """Return for each decoder what it could take over, the most first."""
    found = [[pushed for _, pushed in _ways(ops[at:], engine)] for at in range(len(ops))]
    return [ways for ways in found if ways]


def _ways(ops: Sequence[Op], engine: EngineName) -> list[tuple[Rule, Pushed]]:
    """Return the rules that apply to the first operator and those behind it."""
    found = list[tuple[Rule, Pushed]]()
    for rule in RULES:
        if _fits(rule, ops, engine):
            names = tuple(op.name for op in ops[: len(rule.pattern)])
            decoder = "+".join(names) if found else names[0]
            only_parts = engine == "python" and not rule.reduces
            found.append((rule, Pushed(rule.name, names, names[1], decoder, rule.reduces, only_parts)))
    return found


def scattered(ops: Sequence[Op], engine: EngineName) -> Iterator[tuple[str, ...]]:
    """Yield the names of operators that a decoder's best rule would merge if nothing stood between them."""
    for at in range(len(ops)):
        for rule in RULES:
            found = [ops[at]]
            for op in ops[at + 1 :]:
                if len(found) < len(rule.pattern) and _fits(rule, [*found, op], engine, partly=True):
                    found.append(op)
            if _fits(rule, found, engine):
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
