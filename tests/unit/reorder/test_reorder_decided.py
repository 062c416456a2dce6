"""Orders of operators drawn at random, and why, and how far arrays are moved: a change to it shows what it changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pecan_ray.plan.splits import Array
from pecan_ray.reorder import Mode, ProfiledOp, auto_order
from pecan_ray.reorder.policy import revalidate
from pecan_ray.reorder.relative_bound import moved, step_of

WRITTEN = Path(__file__).with_name("decided.txt")
"""A paragraph for each case; `python -m tests.unit.reorder.test_reorder_decided` writes all anew."""
CASES = 40
MODES: tuple[Mode, ...] = ("pecan", "safe")
SHAPES = ((40, 40, 3), (3, 24, 40), (500,), (70,), (8,), (16, 9, 9))


def operators(draw: random.Random) -> list[ProfiledOp]:
    """Draw operators on three columns."""

    def some(share: float) -> frozenset[str]:
        return frozenset(name for name in "abc" if draw.random() < share)

    found = []
    for number in range(draw.randint(3, 8)):
        reads, writes = some(0.4), some(0.3)
        facts: dict[str, Any] = {
            "reads": reads,
            "writes": writes,
            "drops": some(0.1) - writes,
            "creates": some(0.1) & writes,
        }
        found.append(
            ProfiledOp(
                f"op{number}",
                draw.choice((0.1, 0.5, 0.97, 1.0, 1.02, 1.5, 4.0)),
                keep_position=draw.random() < 0.1,
                custom_dtype_cast=draw.random() < 0.2,
                seconds=draw.choice((None, 0.0, 0.001, 0.02, 0.3)),
                elements=draw.choice((1.0, 1.0, 0.5, 3.0)),
                **(facts if draw.random() < 0.6 else {}),
            )
        )
    return found


def orders(draw: random.Random) -> Iterator[str]:
    """Yield the order in each mode, with its reasons, and the one of the next epoch."""
    ops = operators(draw)
    forbidden = [] if draw.random() < 0.5 else [(ops[0].name, ops[-1].name)]
    banned = {frozenset((one.name, other.name)) for one, other in pairwise(ops) if draw.random() < 0.3}
    for mode in MODES:
        for band in (0.0, 0.05):
            plan = auto_order(
                ops,
                mode,
                commutes=lambda pair: frozenset(pair) not in banned,
                forbidden=forbidden,
                neutral_band=band,
            )
            yield f"{mode} {band}: {', '.join(plan.order)}"
            yield from (f"  {one.name} {one.from_} -> {one.to}: {one.reason}" for one in plan.moves)
    again = [ProfiledOp(op.name, draw.choice((op.inflation, 0.3, 1.0, 3.0))) for op in ops]
    renewed = revalidate(auto_order(ops, neutral_band=0.05), again)
    yield "next epoch: as before" if renewed is None else f"next epoch: {', '.join(renewed.order)}: {renewed.reason}"


def distances(draw: random.Random) -> Iterator[str]:
    """Yield by how much arrays are moved that were changed in some way."""
    rng = np.random.default_rng(draw.randrange(1000))
    for shape in SHAPES:
        kind = draw.choice(("u1", "f4", "f2", "f8", "i8", "c8"))
        steps = np.add.accumulate(rng.integers(-9, 10, shape), axis=draw.randrange(len(shape)))
        given: Array = (steps - steps.min()).astype(kind)
        others: list[Array] = [
            np.roll(given, 1, 0),
            (given * 3).astype(kind),
            given + np.asarray(rng.integers(0, draw.choice((2, 9)), shape), kind),
            given[::-1].copy(),
            np.where(np.arange(given.size).reshape(shape) % 97 < 3, 0, given).astype(kind),
        ]
        user, exchanged = draw.sample(others, 2)
        without = [draw.choice([given, *others, None]) for _ in range(draw.randint(0, 2))]
        found = moved(user, exchanged, without, step_of(given, user) if draw.random() < 0.5 else 0.0)
        numbers = f"{found.share:.3g} {found.local:.3g}, {found.largest:.3g}, {found.by:.3g} of {found.effect:.3g}"
        yield f"{kind}{list(shape)}: {numbers}, rejected {found.rejected} {found.why}".rstrip()


def decided(case: int) -> str:
    """Return what is decided in a case."""
    draw = random.Random(case)
    return "\n".join((f"case {case}", *(distances if case % 2 else orders)(draw)))


@pytest.mark.parametrize("case", range(CASES))
def test_what_is_decided_in_a_case_is_what_is_written_down(case: int) -> None:
    assert decided(case) == WRITTEN.read_text().strip().split("\n\n")[case]


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(map(decided, range(CASES))) + "\n")
