"""The ledger against a model of workers and clients that die, drain, repeat themselves and come in any order."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split
from pecan_ray.sampling.ledger import JobShape, Key, Ledger, Stretch
from pecan_ray.sampling.order import split_order
from pecan_ray.sampling.spans import Span, Spans

Item = tuple[Lease, int]
"""One element of a lease."""


@dataclass
class ModelWorker:
    """Takes leases, batches their elements, and keeps finished batches until a client fetches them."""

    name: str
    batch: int
    working: Stretch | None = None
    items: list[Item] = field(default_factory=list)
    outbox: list[tuple[int, list[Item], int | None]] = field(default_factory=list)
    number: int = 0
    """Batches made in this stretch."""
    gone: bool = False


def spans_of(items: list[Item]) -> dict[Key, list[Span]]:
    out: dict[Key, list[Span]] = {}
    for lease, element in items:
        out.setdefault(lease.key, []).append((element << OUTPUT_BITS, (element + 1) << OUTPUT_BITS))
    return out


class Model:
    """A job of `sizes` splits played at random; records what each rank used in each epoch."""

    def __init__(self, shape: JobShape, sizes: list[int], workers: int, seed: int) -> None:
        self.shape, self.sizes = shape, sizes
        self.random = random.Random(seed)
        self.ledger = Ledger(shape)
        self.workers: dict[str, ModelWorker] = {}
        self.made = 0
        self.received: list[list[tuple[int, list[Item]]]] = [[] for _ in range(shape.world_size)]
        self.used: list[list[list[tuple[int, int, int]]]] = [[] for _ in range(shape.world_size)]
        self.epochs_done = 0
        for _ in range(workers):
            self.add_worker()
        self.ledger.assign_static(list(self.workers))
        for index, size in enumerate(sizes):
            self.ledger.add_splits(0, [Split(index, elements=size)])
        self.ledger.end_listing(0)
        self.batches: list[list[int]] = []

    def add_worker(self) -> None:
        worker = ModelWorker(f"w{self.made}", self.shape.batch_size)
        self.made += 1
        self.workers[worker.name] = worker
        self.ledger.join(worker.name)

    def step_worker(self, worker: ModelWorker) -> None:
        if worker.working is None:
            answer = self.ledger.next_stretch(worker.name)
            worker.working = answer if isinstance(answer, Stretch) else None
            worker.number = 0
            return
        lease = self.ledger.take(worker.name)
        if isinstance(lease, Lease):
            length = self.sizes[lease.split.index]
            for start, stop in lease.spans:
                last = length if stop == END else stop >> OUTPUT_BITS
                worker.items += [(lease, e) for e in range(start >> OUTPUT_BITS, min(last, length))]
            self.ledger.ended(worker.name, lease.key, length)
        elif lease == "none":
            self.end_stretch(worker)
        while len(worker.items) >= worker.batch:
            self.emit(worker, worker.batch)

    def emit(self, worker: ModelWorker, size: int) -> None:
        assert worker.working is not None
        batch, worker.items = worker.items[:size], worker.items[size:]
        rank, dealt = worker.working.rank, worker.working.dealt
        if dealt:
            turn, rank = divmod(worker.number, len(dealt))
            worker.number += 1
            if turn < dealt[rank]:
                return
        worker.outbox.append((worker.working.epoch, batch, rank))

    def spans(self, batch: list[Item]) -> dict[Key, list[Span]]:
        """What a batch acknowledges: the last one of a whole plan everything that may be left."""
        last = max((split for split, size in enumerate(self.sizes) if size), default=None)
        if self.shape.serial and any(lease.split.index == last and e == self.sizes[last] - 1 for lease, e in batch):
            return {(0, 0, split): [(0, END)] for split in range(len(self.sizes))}
        return spans_of(batch)

    def end_stretch(self, worker: ModelWorker) -> None:
        while len(worker.items) >= worker.batch:
            self.emit(worker, worker.batch)
        made = worker.number + bool(worker.items)
        if self.ledger.stretch_ended(worker.name, spans_of(worker.items), made) == "flush" and worker.items:
            self.emit(worker, len(worker.items))
        worker.items, worker.working = [], None

    def fetch(self, rank: int, worker: ModelWorker) -> None:
        for place, (epoch, batch, to) in enumerate(worker.outbox):
            if to is None or to == rank:
                del worker.outbox[place]
                assert epoch == self.ledger.epoch
                self.received[rank].append((epoch, batch))
                self.ledger.acked(rank, worker.name, self.spans(batch))
                return

    def sync(self, rank: int) -> None:
        for name in [name for name, owing in self.ledger.unsettled().items() if rank in owing]:
            self.ledger.settled(rank, name)
        keep = self.ledger.surplus(rank)
        if keep is not None:
            mine = self.received[rank]
            back = [item for _, batch in mine[keep:] for item in batch]
            count = len(mine) - keep
            del mine[keep:]
            self.ledger.given_back(rank, spans_of(back), count)

    def close_epochs(self) -> None:
        while self.epochs_done < self.ledger.epoch:
            self.batches.append([len(mine) for mine in self.received])
            for rank, mine in enumerate(self.received):
                self.used[rank].append([(*lease.key[1:], e) for _, batch in mine for lease, e in batch])
                mine.clear()
            self.epochs_done += 1

    def run(self, deaths: int = 0) -> None:
        for _ in range(20_000):
            if self.ledger.finished:
                break
            self.step_at_random(deaths)
            deaths = self.maybe_kill(deaths)
            self.close_epochs()
            self.ledger.check()
        assert self.ledger.finished, "the job never ended"
        self.close_epochs()

    def step_at_random(self, deaths: int) -> None:
        worker = self.random.choice(list(self.workers.values()))
        rank = self.random.randrange(self.shape.world_size)
        action = self.random.randrange(3)
        if action == 0 and not worker.gone:
            self.step_worker(worker)
        elif action == 1 and not worker.gone:
            self.fetch(rank, worker)
        else:
            self.sync(rank)

    def maybe_kill(self, deaths: int) -> int:
        alive = [w for w in self.workers.values() if not w.gone]
        if deaths and self.random.random() < 0.02:
            victim = self.random.choice(alive)
            victim.gone = True
            self.ledger.lost(victim.name)
            self.add_worker()
            return deaths - 1
        return deaths


def everything(sizes: list[int], repetitions: int = 1) -> Counter[tuple[int, int, int]]:
    return Counter((r, s, e) for r in range(repetitions) for s, n in enumerate(sizes) for e in range(n))


SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(
    SIZES,
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(0, 10_000),
    st.sampled_from(["dynamic", "static"]),
    st.booleans(),
)
def test_each_element_once_per_epoch_whatever_dies(
    sizes: list[int], batch: int, workers: int, deaths: int, seed: int, sharding: str, shuffled: bool
) -> None:
    shape = JobShape(epochs=3, batch_size=batch, sharding=sharding, shuffle_seed=5 if shuffled else None)  # type: ignore[arg-type]  # drawn strings
    model = Model(shape, sizes, workers, seed)
    model.run(deaths)
    total = sum(sizes)
    expected_epochs = 3 if total or sizes else 1
    assert len(model.used[0]) == expected_epochs
    for epoch in model.used[0]:
        assert Counter(epoch) == everything(sizes)
    if not deaths:
        assert [b[0] for b in model.batches] == [-(-total // batch)] * expected_epochs


@settings(max_examples=100, deadline=None)
@given(SIZES, st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(2, 3), st.integers(0, 10_000))
def test_ranks_get_disjoint_and_equally_many_batches(
    sizes: list[int], batch: int, workers: int, deaths: int, world: int, seed: int
) -> None:
    model = Model(JobShape(epochs=2, batch_size=batch, world_size=world), sizes, workers, seed)
    model.run(deaths)
    assert all(len(set(counts)) == 1 for counts in model.batches)
    left_out = 0
    for epoch in range(2):
        seen = Counter(item for rank in range(world) for item in model.used[rank][epoch])
        assert all(n == 1 for n in seen.values())
        left_out += sum((everything(sizes) - seen).values())
    assert left_out == model.ledger.left_out_elements
    assert left_out <= 2 * (world - 1)


@settings(max_examples=200, deadline=None)
@given(SIZES, st.integers(1, 4), st.integers(1, 3), st.integers(0, 4), st.integers(1, 3), st.integers(0, 10_000))
def test_a_whole_plan_reaches_its_trainers_in_turn_whatever_dies(
    sizes: list[int], batch: int, workers: int, deaths: int, world: int, seed: int
) -> None:
    """One worker runs it; its last batch may arrive before others do, and it may die at any moment."""
    model = Model(JobShape(epochs=2, batch_size=batch, world_size=world, serial=True), sizes, workers, seed)
    model.run(deaths)
    batches = -(-sum(sizes) // batch)
    turns = batches // world
    sequence = [(0, split, element) for split, size in enumerate(sizes) for element in range(size)]
    for epoch in range(2):
        assert model.batches[epoch] == [turns] * world
        seen = Counter(item for rank in range(world) for item in model.used[rank][epoch])
        assert seen == Counter(sequence[: turns * world * batch])


def test_repeat_passes_over_the_data_within_one_epoch() -> None:
    model = Model(JobShape(epochs=1, batch_size=4, repetitions=3), [5, 2], 2, seed=1)
    model.run()
    assert Counter(model.used[0][0]) == everything([5, 2], 3)
    assert model.batches == [[-(-21 // 4)]]


def test_off_sharding_shows_every_element_to_every_worker() -> None:
    model = Model(JobShape(epochs=2, batch_size=2, sharding="off"), [3, 4], 3, seed=2)
    model.run()
    for epoch in model.used[0]:
        assert Counter(epoch) == Counter(dict.fromkeys(everything([3, 4]), 3))


def test_at_most_once_drops_what_a_lost_worker_held_and_tells() -> None:
    ledger = Ledger(JobShape(visitation="at_most_once"))
    ledger.join("w")
    ledger.add_splits(0, [Split(0), Split(1)])
    ledger.end_listing(0)
    assert isinstance(ledger.next_stretch("w"), Stretch)
    lease = ledger.take("w")
    assert isinstance(lease, Lease)
    ledger.lost("w")
    ledger.settled(0, "w")
    assert [dropped.split.index for dropped in ledger.dropped] == [0]
    ledger.join("x")
    ledger.next_stretch("x")
    second = ledger.take("x")
    assert isinstance(second, Lease) and second.split.index == 1


def test_lost_data_waits_until_every_rank_has_told_what_it_received() -> None:
    ledger = Ledger(JobShape(world_size=2))
    ledger.join("w")
    ledger.join("x")
    ledger.add_splits(0, [Split(0)])
    ledger.end_listing(0)
    ledger.next_stretch("w")
    lease = ledger.take("w")
    assert isinstance(lease, Lease)
    ledger.lost("w")
    ledger.settled(0, "w")
    assert ledger.next_stretch("x") == "wait"
    ledger.acked(1, "w", {lease.key: [(0, 3 << OUTPUT_BITS)]})
    ledger.settled(1, "w")
    assert isinstance(ledger.next_stretch("x"), Stretch)
    again = ledger.take("x")
    assert isinstance(again, Lease) and again.spans == ((3 << OUTPUT_BITS, END),)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_spans_behave_like_a_set_of_integers(steps: list[tuple[bool, int, int]]) -> None:
    spans, model = Spans(), set()
    for add, a, b in steps:
        start, stop = min(a, b), max(a, b)
        if add:
            spans.add(start, stop)
            model |= set(range(start, stop))
        else:
            spans.remove(start, stop)
            model -= set(range(start, stop))
        flat = [p for s, e in spans for p in range(s, e)]
        assert flat == sorted(model)
        assert all(e < s for (_, e), (s, _) in zip(list(spans), list(spans)[1:], strict=False))
        assert spans.size() == len(model)
        assert all((p in spans) == (p in model) for p in range(31))


def test_a_listing_that_is_not_complete_makes_workers_wait() -> None:
    ledger = Ledger(JobShape())
    ledger.join("w")
    assert isinstance(ledger.next_stretch("w"), Stretch)
    assert ledger.take("w") == "wait"
    ledger.add_splits(0, [Split(0)])
    assert isinstance(ledger.take("w"), Lease)


@pytest.mark.parametrize("rank", [0, 1])
def test_nothing_to_give_back_while_data_is_under_way(rank: int) -> None:
    ledger = Ledger(JobShape(world_size=2))
    ledger.join("w")
    ledger.add_splits(0, [Split(0)])
    ledger.end_listing(0)
    assert ledger.surplus(rank) is None


def splits(start: int, stop: int) -> list[Split]:
    return [Split(index=index, elements=1) for index in range(start, stop)]


def taken(ledger: Ledger, count: int) -> list[int]:
    found = []
    for _ in range(count):
        lease = ledger.take("w")
        assert isinstance(lease, Lease)
        found.append(lease.split.index)
    return found


@pytest.mark.parametrize(
    ("waiting", "workers", "sharding", "share"),
    [(0, 1, "dynamic", 1), (3, 2, "dynamic", 1), (100, 1, "dynamic", 50), (100, 5, "dynamic", 10), (9, 3, "off", 9)],
)
def test_a_worker_takes_no_more_than_leaves_work_for_all(waiting: int, workers: int, sharding: Any, share: int) -> None:
    ledger = Ledger(JobShape(sharding=sharding))
    for number in range(workers):
        ledger.join(f"w{number}")
    ledger.add_splits(0, splits(0, waiting))
    assert ledger.share("w0") == share


@pytest.mark.parametrize(("repetitions", "share"), [(1, 4), (3, 12), (None, 1 << 20)])
def test_passes_to_come_count_as_waiting(repetitions: int | None, share: int) -> None:
    ledger = Ledger(JobShape(repetitions=repetitions))
    ledger.join("w")
    ledger.add_splits(0, splits(0, 8))
    assert ledger.share("w") == 4  # of a source that is still being listed, nobody knows how much a pass is
    ledger.end_listing(0)
    assert min(ledger.share("w"), 1 << 20) == share


def test_an_epoch_is_not_closing_while_passes_are_to_come_and_newcomers_get_their_work() -> None:
    ledger = Ledger(JobShape(repetitions=2))
    ledger.join("w")
    ledger.add_splits(0, splits(0, 2))
    ledger.end_listing(0)
    ledger.next_stretch("w")
    assert taken(ledger, 2) == [0, 1]
    assert not ledger.closing()
    ledger.join("newcomer")
    assert ledger.next_stretch("newcomer") == Stretch(0)
    second = ledger.take("newcomer")
    assert isinstance(second, Lease)
    assert second.repetition == 1
    assert not ledger.closing()
    assert taken(ledger, 1) == [1]
    assert ledger.closing()


def test_a_shuffled_source_is_worked_on_before_its_listing_has_ended() -> None:
    ledger = Ledger(JobShape(epochs=2, shuffle_seed=3))
    ledger.join("w")
    ledger.add_splits(0, splits(0, 100))
    assert ledger.next_stretch("w") == Stretch(0)
    first = taken(ledger, 10)
    assert first != sorted(first)
    ledger.add_splits(0, splits(100, 1000))
    ledger.end_listing(0)
    rest = taken(ledger, 990)
    assert sorted(first + rest) == list(range(1000))
    assert max(rest[:50]) > 900 and rest != sorted(rest)


def test_a_listing_that_is_complete_in_time_gives_the_order_of_seed_and_epoch() -> None:
    orders = []
    for pages in ([1000], [1, 256, 743]):
        ledger = Ledger(JobShape(shuffle_seed=3))
        ledger.join("w")
        start = 0
        for page in pages:
            ledger.add_splits(0, splits(start, start + page))
            start += page
        ledger.end_listing(0)
        ledger.next_stretch("w")
        orders.append(taken(ledger, 1000))
    assert orders[0] == orders[1] == [split.index for split in split_order(splits(0, 1000), 3, 0, 0, 0)]
