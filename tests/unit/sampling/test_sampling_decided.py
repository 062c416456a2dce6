"""What is drawn, packed and counted, written down for cases drawn at random: a change to it shows what it changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pecan_ray.plan.operators import Subset
from pecan_ray.sampling.budget import BadCount, over_budget
from pecan_ray.sampling.order import shuffled
from pecan_ray.sampling.packing import cu_seqlens, pack_rows
from pecan_ray.sampling.random_keys import SplitOrder
from pecan_ray.sampling.subsets import is_member

WRITTEN = Path(__file__).with_name("decided.txt")
"""A paragraph for each case; `python -m tests.unit.sampling.test_sampling_decided` writes all anew."""
CASES = 6


def decided(case: int) -> str:
    """Return what is decided in a case."""
    return "\n".join((f"case {case}", *told(random.Random(case))))


def told(draw: random.Random) -> Iterator[str]:
    """Yield what is drawn, packed and counted."""
    lengths, row = [draw.randint(0, 12) for _ in range(8)], draw.randint(4, 10)
    rows = pack_rows(lengths, row)
    spelled = [" ".join(f"{one.sequence}[{one.start}:{one.stop}]" for one in segments) for segments in rows]
    yield f"{lengths} in rows of {row}: {', '.join(spelled)}"
    segments = np.array([[draw.randint(0, 1) for _ in range(5)] for _ in range(2)])
    both, one = cu_seqlens(segments).tolist(), cu_seqlens(segments[0]).tolist()
    yield f"segments {segments.tolist()} begin at {both}, those of the first row at {one}"
    order = SplitOrder(draw.randint(0, 9), of_operator=draw.random() < 0.5, reshuffle=draw.random() < 0.7)
    epoch, again, branch = draw.randint(0, 3), draw.randint(0, 2), draw.randint(0, 2)
    indices = np.arange(12) * draw.choice((1, 1 << 40))
    yield f"{order}, pass {again} of epoch {epoch}: {shuffled(indices, order, epoch, again, branch).tolist()}"
    part = Subset(name="part", low=draw.choice((0.0, 0.25)), high=draw.choice((0.5, 0.9)), seed=draw.randint(0, 9))
    split, first = draw.randint(0, 3), draw.choice((0, 995, 2000))
    found = [number for number in range(first, first + 20) if is_member(part, split, number)]
    yield f"a part from {part.low} to {part.high} of split {split} by seed {part.seed}, from {first} on: {found}"
    bad = BadCount()
    for _ in range(2):
        bad = bad.plus(draw.randint(1, 12), estimated=draw.random() < 0.4, open_end=draw.random() < 0.3)
    yield f"{bad} of {bad.elements + 80} are bad: {over_budget('job', bad, 80, 0.15, 'the last')}"


@pytest.mark.parametrize("case", range(CASES))
def test_what_is_decided_in_a_case_is_what_is_written_down(case: int) -> None:
    assert decided(case) == WRITTEN.read_text().strip().split("\n\n")[case]


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(map(decided, range(CASES))) + "\n")
