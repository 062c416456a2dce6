"""Random functions: the same element is augmented the same way, whoever computes it, when, and beside what."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.engines.contract import Produced
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import Shuffle
from pecan_ray.plan.splits import END, OUTPUT_BITS, Element, Lease, Split
from pecan_ray.sampling import random_keys
from pecan_ray.sampling.random_keys import SplitOrder, ThreadGenerator, generator, random_key, shuffle_key
from pecan_ray.sources import Arrays
from tests.long_form import examples
from tests.unit.engines.engine_leases import run_engine, whole_leases

ROWS = 40


def noisy(element: Element, rng: np.random.Generator) -> Element:
    return {**element, "noise": element.get("noise", 0.0) + rng.random()}


def three(element: Element, rng: np.random.Generator) -> Iterator[Element]:
    for part in range(3):
        yield {**element, "part": part, "drawn": rng.random()}


def numbers(split_rows: int = 10, **options: Any) -> PecanPipeline:
    return PecanPipeline(Arrays(i=np.arange(ROWS), split_rows=split_rows), **options)


def noise_of(produced: list[Produced]) -> dict[tuple[int, int], float]:
    """Return the noise of each element, by its number and its part."""
    found: dict[tuple[int, int], float] = {}
    for batch in produced:
        if batch.rows:
            parts = batch.columns.get("part", np.zeros(batch.rows, int))
            for i, part, noise in zip(batch.columns["i"], parts, batch.columns["noise"], strict=True):
                assert (int(i), int(part)) not in found
                found[int(i), int(part)] = float(noise)
    return found


def run(pipe: PecanPipeline, epoch: int = 0, **options: Any) -> dict[tuple[int, int], float]:
    return noise_of(run_engine(pipe, whole_leases(tuple(pipe.plan.sources()), epoch=epoch), **options))


PLANS = {
    "map": numbers().map(noisy),
    "flat_map": numbers().flat_map(three).map(noisy),
    "flat_map of flat_map": numbers().flat_map(three).flat_map(lambda e: [e], name="again").map(noisy),
    "map behind shuffle": numbers().flat_map(three).shuffle(9).map(noisy),
    "map behind unbatch": numbers().flat_map(three).batch(5).unbatch().map(noisy),
}


@pytest.mark.parametrize("before", [numbers(), numbers().flat_map(three)], ids=["map", "flat_map"])
def test_another_epoch_seed_name_or_use_gives_other_numbers(before: PecanPipeline) -> None:
    pipe = before.map(noisy).batch(4)
    found = [run(pipe), run(pipe, epoch=1), run(pipe, seed=1), run(before.map(noisy, name="other").batch(4))]
    values = [value for one in found for value in one.values()]
    assert len(set(values)) == len(values)
    assert found[0] == run(pipe)
    twice = run(before.map(noisy).map(noisy, name="b").batch(4))
    assert all(0 < twice[key] - once < 1 and twice[key] != 2 * once for key, once in found[0].items())


@pytest.mark.parametrize("plan", PLANS)
@examples(15)
@given(
    cuts=st.sets(st.integers(1, 9 * 3), max_size=4),
    turn=st.integers(0, 3),
    threads=st.integers(1, 4),
    order=st.sampled_from(["relaxed", "strict"]),
    batch=st.integers(1, 9),
)
def test_threads_order_batches_and_cuts_of_leases_do_not_matter(
    plan: str, cuts: set[int], turn: int, threads: int, order: str, batch: int
) -> None:
    wanted = run(PLANS[plan].batch(16))
    assert len(set(wanted.values())) == len(wanted), "each element has noise of its own"
    third = (1 << OUTPUT_BITS) // 3
    bounds = [0, *((cut // 3 << OUTPUT_BITS) + cut % 3 * third for cut in sorted(cuts)), END]
    if plan == "map":
        bounds = sorted({bound >> OUTPUT_BITS << OUTPUT_BITS for bound in bounds})
    spans = list(itertools.pairwise(bounds))
    pipe = PLANS[plan].batch(batch)
    merged: dict[tuple[int, int], float] = {}
    for part in spans[turn:] + spans[:turn]:
        leases = [replace(lease, spans=(part,)) for lease in reversed(whole_leases(tuple(pipe.plan.sources())))]
        found = noise_of(run_engine(pipe, leases, threads=threads, order=order))
        assert merged.keys().isdisjoint(found)
        merged |= found
    assert merged == wanted


def test_a_key_follows_each_of_its_arguments_and_a_users_seed_replaces_the_jobs_and_the_operators_name() -> None:
    numbers = ("seed", "epoch", "pass_index", "branch", "split", "element", "output")
    base: dict[str, Any] = {"op": "op", **{name: at for at, name in enumerate(numbers)}}
    changed: list[dict[str, Any]] = [{"op": "other"}, *({name: 99} for name in numbers)]
    assert len({random_key(**{**base, **change}) for change in [{}, *changed]}) == 9
    assert random_key(**{**base, "seed": 2**64 - 1}) == random_key(**{**base, "seed": -1}), "of 64 bits"
    own, jobs = Shuffle(name="shuffle", buffer=5, seed=1), Shuffle(name="shuffle", buffer=5)
    assert shuffle_key(own, 7, 2, 3) == shuffle_key(replace(own, name="other"), 8, 2, 3)
    assert len({shuffle_key(own, 7, epoch, pass_index) for epoch in range(2) for pass_index in range(2)}) == 4
    others = [(replace(own, seed=2), 7), (jobs, 7), (replace(jobs, name="other"), 7), (jobs, 8)]
    assert len({shuffle_key(own, 7, 0), *(shuffle_key(op, seed, 0) for op, seed in others)}) == 5


OWN, LEASE = Shuffle(name="shuffle", buffer=5, seed=1), Lease(2, Split(5), pass_index=3, branch=4)
JOBS = replace(OWN, seed=None)


@pytest.mark.parametrize(
    ("key", "first"),
    [
        (random_keys.element_key(7, LEASE, 6, 1, "flip"), 10751166315010454458),
        (random_keys.graph_element_key(7, LEASE, 6), 18194314990100827153),
        (random_keys.graph_operator_key("flip"), 1721140000461100453),
        (random_keys.shuffle_key(OWN, 7, 2, 3), 2251089646914098966),
        (random_keys.shuffle_key(JOBS, 7, 2, 3), 18376176989823753304),
        (random_keys.shuffle_key(replace(JOBS, reshuffle=False), 7, 2, 3), 10578910427096204411),
        (random_keys.splits_key(SplitOrder(7), 2, 3, 4), 2007686344640298214),
        (random_keys.splits_key(SplitOrder(7, of_operator=True), 2, 3, 4), 6873675748980066733),
        (random_keys.splits_key(SplitOrder(7, reshuffle=False), 2, 3, 4), 17021825620086758066),
        (random_keys.mix_key(7, 2, 3), 3323047787917723674),
        (random_keys.subset_key(7, 2, 3), 7944116750904461445),
        (random_keys.sampler_key(7, 2, 3), 17598485476558543763),
        (random_keys.dataset_key(7, (2, 3), 4, 5, 6, "seed"), 16869699240584461773),
        (random_key(0, 0, 0, 0, 0, 0, 0, "flip"), 1721140000461100453),
    ],
)
def test_a_state_that_was_saved_before_finds_the_draws_that_it_stands_for(key: random_keys.Key, first: int) -> None:
    assert key[0] == first, "for ever"
    assert generator((1, 2)).integers(1 << 62) == 1426463251206822594


def test_a_threads_generator_is_set_anew_and_equals_a_new_one_and_one_that_was_kept_is_left_alone() -> None:
    mine = ThreadGenerator()
    rng = mine.at((1, 2))
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(mine.at, (1, 2)).result()
    assert rng is not there and rng.random() == there.random(), "each thread has one of its own"
    first = id(rng)
    rng.random(3), rng.integers(9, dtype=np.uint32), rng.standard_normal()  # leaves some bits unused
    del rng
    rng = mine.at((3, 4))
    assert id(rng) == first
    assert np.array_equal(rng.random(50), generator((3, 4)).random(50))
    del rng
    for whole in (True, False):
        kept = mine.at((1, 2)) if whole else mine.at((1, 2)).bit_generator
        mine.at((3, 4)).random(5)
        left = kept if isinstance(kept, np.random.Generator) else np.random.Generator(kept)
        assert left.random() == generator((1, 2)).random()
        del kept, left
