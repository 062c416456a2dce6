"""What is right for a row, by its peers, and what is seen of ours."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from pecan_ray.engines.in_process import run_in_process
from pecan_ray.plan.shape import keeps_source_order
from tests.parity.chains import Chain
from tests.parity.habit import Habit, Opener, Seen
from tests.parity.ours import pipeline
from tests.parity.peers import PEERS
from tests.parity.rows_of_operators import OPERATORS
from tests.parity.rows_of_passes import SEEDS
from tests.parity.seen import Batch, Facts, Pass, Row, batch_of
from tests.parity.table import HABITS
from tests.parity.ways import WAYS, Calls, Loader, Way

MADE: dict[tuple[str, str, int], list[Row]] = {}
"""Passes as the engine makes them, by chain, engine and number."""


def peers_of(habit: Habit) -> dict[str, Callable[[], Facts]]:
    if habit.peers is not None:
        return {name: functools.partial(_facts, see) for name, see in habit.peers.items()}
    having = [peer for peer in PEERS if all(map(peer.offers, habit.look.chains))]
    return {peer.name: functools.partial(_facts, functools.partial(habit.look.see, peer.produced)) for peer in having}


@functools.cache
def peers_facts(habit_at: int) -> Mapping[str, Facts]:
    return {name: see() for name, see in peers_of(HABITS[habit_at]).items()}


def right(habit: Habit, peers: Mapping[str, Facts]) -> Facts:
    """Return what is right: what peers do where we do as they, and what the row says."""
    found = dict(habit.stats)
    for name, facts in peers.items():
        if name not in habit.differs:
            found |= facts
    return found


def cells(*, on_workers: bool = False) -> list[Any]:
    """Return the rows, by number, in all ways that have them; on workers, which take seconds, in one of these ways."""
    found = []
    for at, habit in enumerate(HABITS):
        ways = [way for way in WAYS if has(habit, way)]
        for way in ways:
            if on_workers and way.name not in habit.on_workers and way is not ways[at % len(ways)]:
                continue
            later = [pytest.mark.slow] if is_for_the_long_form(at, way, on_workers) else []
            found.append(pytest.param(at, way, marks=later, id=f"{habit.name}-{way.name}"))
    return found


def is_for_the_long_form(at: int, way: Way, on_workers: bool) -> bool:
    """Tell whether the short form leaves a cell out: the way to iterate does not matter, and what it costs does."""
    if on_workers:
        return way.name not in HABITS[at].on_workers
    if HABITS[at] not in (*SEEDS, *OPERATORS):
        return False
    # Each engine has all of these rows, and every other way a third of them.
    return way.is_slow or (way.loader is not Calls and (at + WAYS.index(way)) % 3 > 0)


def peers_cells() -> list[Any]:
    """Return the rows, by number, with the names of the peers that have them."""
    return [
        pytest.param(at, peer, id=f"{habit.name}-{peer}") for at, habit in enumerate(HABITS) for peer in peers_of(habit)
    ]


def has(habit: Habit, way: Way) -> bool:
    wanted = not habit.only or way.name in habit.only
    return wanted and way.name not in habit.without and (not habit.look.needs or habit.look.needs in way.has)


def must_be_right(at: int, way: Way, options: Mapping[str, Any]) -> None:
    habit, (facts, numbers) = HABITS[at], observed(HABITS[at], way, options)
    assert facts == {**facts, **right(habit, peers_facts(at))}
    assert numbers == list(habit.passes)


def observed(habit: Habit, way: Way, options: Mapping[str, Any]) -> tuple[Facts, list[int | None]]:
    """Return what is seen of ours in one way, and the numbers of the passes where the row has them.

    All jobs are over and nothing holds them when it returns, also for a row that fails.
    """
    opened: list[Loader] = []

    def made(chain: Chain) -> Opener:
        pipe = pipeline(chain, engine=way.engine)

        def opener() -> Loader:
            usual = keeps_source_order(pipe.plan)
            given = {name: value for name, value in options.items() if name != "order" or not usual}
            opened.append(way.loader(pipe, given, habit.steps))
            return opened[-1]

        return opener

    try:
        seen = habit.look.see(made)
    finally:
        for loader in opened:
            loader.close()
    if isinstance(seen, dict):
        return seen, []
    chain, most = habit.look.chains[0], max(habit.passes, default=-1)
    return seen.stats(), [number_of(one, chain, way, most) for one in seen.passes if habit.passes]


def _facts(see: Callable[[], Seen | Facts]) -> Facts:
    seen = see()
    return seen.stats() if isinstance(seen, Seen) else seen


def number_of(one: Pass, chain: Chain, way: Way, most: int) -> int | None:
    """Return the number of a pass, by what the engine makes of those up to `most`; None: it is none of these."""
    seen = _flat(one)
    return next((number for number in range(most + 1) if _made(chain, way, number)[: len(seen)] == seen), None)


def _made(chain: Chain, way: Way, number: int) -> list[Row]:
    pipe, key = pipeline(chain, engine=way.engine), (str(chain), way.engine, number)
    if key not in MADE:
        MADE[key] = _flat(map(batch_of, run_in_process(pipe.plan, engine=pipe.engine, seed=pipe.seed, epoch=number)))
    return MADE[key]


def _flat(one: Iterable[Batch]) -> list[Row]:
    return [row for batch in one for row in batch]
