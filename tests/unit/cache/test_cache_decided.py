"""What is cached, and for whom, in cases drawn at random, written down: a change to it shows what it changes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks.reproduction import cache_policies
from benchmarks.reproduction.quiver_benefit import ProbedJob, benefit, choose_caching
from pecan_ray.cache import (
    CachePoint,
    ClusterResources,
    DeliveryCost,
    ExecutionProfile,
    JobDemand,
    OperatorCost,
    SlidingWindow,
    SourceCost,
    StoredEntry,
    StoreModel,
    SubstitutionSampler,
    allocate,
    choose_execution,
    entries_to_evict,
    silod_perf,
)
from pecan_ray.cache.allocation import sjf_scores
from pecan_ray.cache.division import Demands
from pecan_ray.cache.fetch_claims import FetchClaims, Fetcher
from pecan_ray.cache.readers import Readers
from pecan_ray.cache.rendezvous_hash import RendezvousHash
from tests.unit.refused import refusal, refused_fields

WRITTEN = Path(__file__).with_name("decided.txt")
"""A paragraph for each case; `python -m tests.unit.cache.test_cache_decided` writes all anew."""


def power(draw: random.Random, low: float, high: float) -> float:
    """Draw a number of which the logarithm is even."""
    return float(f"{10 ** draw.uniform(low, high):.3g}")


def allocations(draw: random.Random) -> Iterator[str]:
    names = draw.sample(("own", "own", "a", "a", "b", "b"), draw.randint(2, 5))
    sizes = {"a": 700.0, "b": 4000.0}
    jobs = [
        JobDemand(
            str(number),
            power(draw, 0, 2),
            sizes.get(name) or power(draw, 2, 4),
            name if name in sizes else None,
            draw.choice((None, power(draw, 3, 5))),
            draw.randint(1, 8),
            draw.choice((None, 0.0, power(draw, 1, 3))),
        )
        for number, name in enumerate(names)
    ]
    cluster = ClusterResources(power(draw, 1.5, 4), power(draw, 0, 1.7), draw.choice((None, 40)))
    yield f"scores for sjf: {', '.join(f'{score:.4g}' for score in sjf_scores(Demands.of(jobs), cluster))}"
    for policy in get_args(cache_policies.ComparedPolicy):
        given = cache_policies.allocate(jobs, cluster, policy).values()
        cells = (
            f"{one.cache_bytes:.4g} {one.remote_io:.4g} {one.hit_share:.4g} {one.bytes_per_s:.4g}" for one in given
        )
        yield f"{policy}: {', '.join(cells)}"


def executions(draw: random.Random) -> Iterator[str]:
    names = [f"op{number}" for number in range(draw.randint(1, 4))]
    ops = tuple(
        OperatorCost(
            name, power(draw, -5, -2), power(draw, 3, 6), draw.choice((1.0, 0.3, 3.0)), draw.choice((None, True))
        )
        for name in names
    )
    behind = draw.sample((None, *names), draw.randint(1, len(names)))
    points = tuple(CachePoint(f"p{number}", one, draw.choice((0.0, 0.0, 0.2))) for number, one in enumerate(behind))
    profile = ExecutionProfile(
        SourceCost(power(draw, -5, -2), power(draw, 3, 6), draw.choice((0.0, 0.9)), draw.choice((math.inf, 1e8))),
        ops,
        points,
        elements=10_000,
        splits=draw.choice((1, 100)),
        workers=draw.randint(1, 3),
        readers=draw.randint(1, 4),
        threads=draw.randint(1, 4),
        delivery=DeliveryCost(draw.choice((0.0, 1e-5)), draw.choice((0.0, 1e-9)), 1e-3, draw.choice((0.0, 0.5))),
        batches=300,
        rows=draw.random() < 0.5,
        split_elements=draw.choice(((), (50.0, 500.0))),
    )
    stores = [
        StoreModel(
            power(draw, -3, -1), 1e-6, power(draw, -10, -8), draw.choice((0.0, 0.8)), draw.choice((math.inf, 1e9))
        )
        for _ in range(3)
    ]
    choice = choose_execution(
        profile,
        stores[0],
        max_bytes=draw.choice((None, 10**9)),
        measured={("compute", None): 5.0} if draw.random() < 0.5 else None,
        memory=draw.choice((None, (stores[1], 10**8))),
        remote=draw.choice((None, stores[2])),
        most_entry_bytes=draw.choice((math.inf, 1e7)),
    )
    yield choice.reason
    yield from choice.warnings
    for one in choice.options:
        yield f"{one}: {one.seconds:.4g} s, {one.nbytes:.4g} bytes, {one.share:.3g} of them, remote {one.remote}"
    slow = choose_execution(profile, stores[0], measured={(choice.mode, choice.point): 1.5 * choice.seconds})
    yield f"if it takes half as long again: {slow.reason}"


def shared_choices(draw: random.Random) -> Iterator[str]:
    """Yield which datasets are cached of jobs that were probed, and how well one store's reads are described."""
    data = {name: power(draw, 9, 11.5) for name in "abc"}
    jobs = [
        ProbedJob(
            str(number),
            draw.choice("abc"),
            draw.uniform(1, 3),
            draw.uniform(0.9, 2),
            draw.choice((None, draw.uniform(0.9, 2.5))),
            draw.randint(1, 4),
        )
        for number in range(6)
    ]
    for name, one in choose_caching(jobs, data, power(draw, 10, 11.5)).items():
        yield f"{name}: {one.part}, {one.nbytes:.4g} bytes, {one.benefit:.4g} GPUs"
    reads = []
    for _ in range(draw.choice((1, 2, 12, 30))):
        nbytes, elements = power(draw, 4, 8), float(draw.randint(1, 1000))
        disturbed = 1.0 if draw.random() < 0.85 else draw.uniform(2, 9)
        reads.append((nbytes, elements, (0.005 + 2e-6 * elements + 1e-9 * nbytes) * draw.gauss(1, 0.03) * disturbed))
    found = StoreModel.fit(reads)
    error = "unknown" if found.error is None else f"{found.error:.3g}"
    yield f"{found.latency_s:.3g} s + {found.per_element_s:.3g} s each + {found.per_byte_s:.3g} s a byte, error {error}"
    sampler = SubstitutionSampler(23, draw.choice((2, 4, 7)), 1)
    for _ in range(12):
        batch = sampler.next_batch(draw.randint(1, 6), set(draw.sample(range(23), 6)))
        yield f"{batch} of chunk {sampler.current_chunk}"


def readers_of_a_node(draw: random.Random) -> Iterator[str]:
    """Yield which of its datasets several jobs read, who fetches a block that several miss, and on which node it is."""
    readers, claims, now = Readers(), FetchClaims(), 0.0
    nodes = RendezvousHash(f"node-{number}" for number in range(5))
    for _ in range(16):
        now += draw.choice((0.5, 0.5, 1.0, 3.0, 45.0))
        job, key = draw.choice("ab"), draw.choice("xy")
        reader, ending = Fetcher(job, 1, 0), draw.choice(("read on", "read on", "complete", "rejected", "cancelled"))
        shared, fetcher = readers.report(job, draw.sample("xyz", 2), now), claims.take(key, reader, now)
        who = "fetches it" if fetcher is None else f"is told of {fetcher.node}"
        yield f"{now} s, {job} shares {shared}; asks for {key} of {nodes.owner(f'{key} {now}')} and {who}, {ending}"
        if ending == "complete":
            claims.complete(key)
        elif ending == "rejected":
            claims.rejected(key, now)
        elif ending == "cancelled":
            claims.cancel_fetch(["x", "y", "z"], reader)
    readers.forget_old(now + 50)
    yield f"{len(readers)} datasets are read, {len(claims)} blocks are fetched"


def windows(draw: random.Random) -> Iterator[str]:
    """Yield what is left in the window of a shared job for readers that come, lag and go."""
    max_lag = draw.choice((None, 4))
    window: SlidingWindow[int] = SlidingWindow(6, max_lag=max_lag, overflow_bytes=draw.choice((0, 4)))
    yield f"a window of {window.capacity_bytes} bytes, max_lag {max_lag}"
    for number in range(24):
        reader, nbytes = draw.choice("abc"), draw.randint(1, 3)
        if reader not in window.readers:
            window.attach(reader, at=draw.choice(("newest", "oldest")))
        elif draw.random() < 0.1:
            window.detach(reader)
        said = f"{reader} of {window.readers}: "
        if reader in window.readers:
            said += f"reads {window.read(reader)}, skipped {window.skipped(reader)}, {window.lag(reader)} behind; "
        if draw.random() < 0.7 and window.may_push(nbytes):
            window.push(number, nbytes)
            said += f"{number} is pushed with {nbytes} bytes, {window.take_overflow()} is moved; "
        yield f"{said}{len(window)} entries, {window.bytes} bytes, {window.slowest()} slowest"
    window.stop_overflow()
    yield f"{window.bytes} bytes without a place to move to"


def refusals(_: random.Random) -> Iterator[str]:
    job, probed, store = JobDemand("j", 1.0, 10.0, "x"), ProbedJob("a", "x", 2.0, 1.0), StoreModel()
    cluster, source, point = ClusterResources(2.0, 1.0, 8), SourceCost(1.0, 1.0), CachePoint("p", "decode")
    profile = ExecutionProfile(source, (OperatorCost("decode", 1.0, 1e5),), (point,), 1000)
    entry, sampler = StoredEntry("a", 1, 0.0, 0.0), SubstitutionSampler(5, 2, 0)
    values = (job, cluster, probed, source, profile.ops[0], point, profile, DeliveryCost(), store, entry)
    yield from refused_fields(values)
    wrong: Any = "fair"
    window = SlidingWindow[Any](3)
    window.attach("a")
    window.push("kept", 1)
    calls: list[Callable[[], object]] = [
        lambda: silod_perf(1.0, 1.0, 1.0, 0.0),
        lambda: allocate([replace(job, name=name) for name in "abc"], cluster),
        lambda: allocate([job, job], cluster),
        lambda: allocate([job, replace(job, name="b", dataset_bytes=20.0)], cluster),
        lambda: allocate([job], cluster, wrong),
        lambda: entries_to_evict([entry, entry], 1),
        lambda: entries_to_evict([], 1, wrong),
        lambda: entries_to_evict([], -1),
        lambda: replace(profile, points=(CachePoint("p", "x"),)),
        lambda: replace(profile, points=(point, point)),
        lambda: choose_execution(profile, store, max_bytes=0),
        lambda: choose_execution(profile, store, measured={("full", "p"): math.nan}),
        lambda: StoreModel.fit([(1.0, 1, 1.0), (0, 1, 1.0)]),
        lambda: StoreModel.fit([(1.0, 1, 1.0), wrong]),
        lambda: StoreModel.fit([]),
        lambda: SubstitutionSampler(0, 1, 0),
        lambda: SubstitutionSampler(5, 6, 0),
        lambda: sampler.next_batch(1, wrong),
        lambda: sampler.items_of(2),
        lambda: benefit(0.0, 1.0),
        lambda: choose_caching([probed], {"y": 1.0}, 1.0),
        lambda: choose_caching([], {"y": 0.0}, 1.0),
        lambda: window.attach("a"),
        lambda: window.attach("b", at=wrong),
        lambda: window.read("b"),
        lambda: window.push("large", 4),
        lambda: window.push("x", -1),
        lambda: window.push(None, 1),
        lambda: SlidingWindow(0),
        lambda: SlidingWindow(1, max_lag=0),
    ]
    yield from map(refusal, calls)
    yield f"{len(window)} entry, {window.bytes} byte, {window.lag('a')} behind for {window.readers}"


def decided(case: int) -> str:
    draw = random.Random(case)
    return "\n".join((f"case {case}", *CASES[case](draw)))


CASES: list[Callable[[random.Random], Iterator[str]]] = [allocations, executions, executions, shared_choices] * 10
CASES += [readers_of_a_node, readers_of_a_node, refusals, *[windows] * 4]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_what_is_cached_in_a_case_is_what_is_written_down(case: int) -> None:
    assert decided(case) == WRITTEN.read_text().strip().split("\n\n")[case]


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(map(decided, range(len(CASES)))) + "\n")
