"""What is right for a row, by its peers and by what is written down, and what is seen of ours."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pecan_ray.engines.in_process import run_in_process
from pecan_ray.plan.shape import keeps_source_order
from tests.parity.chains import Chain
from tests.parity.looks import Look, Opener
from tests.parity.ours import pipeline
from tests.parity.peers import PEERS
from tests.parity.seen import Batch, Facts, Pass, Row, Seen, batch_of, facts_of
from tests.parity.table import HABITS, SHORT, short_page
from tests.parity.ways import HERE, WAYS, Calls, Loader, Way

WRITTEN = Path(__file__).with_name("facts.txt")
"""A paragraph for each row; `python -m tests.parity.judged` writes all anew, and the end of the short page."""
BY_PEERS = ("Passes", "Data sets, processes, programs", "Keras", "Lightning", "The Trainer of Hugging Face")
"""Sections in which the way to iterate matters."""
MADE: dict[tuple[str, str, int], list[Row]] = {}
"""Passes as the engine makes them, by chain, engine and number."""


def peers_of(look: Look) -> dict[str, Callable[[], Facts]]:
    """Return the peers that have a habit."""
    if look.peers is not None:
        return {name: functools.partial(_facts, see) for name, see in look.peers.items()}
    having = [peer for peer in PEERS if all(map(peer.offers, look.chains))]
    return {peer.name: functools.partial(_facts, functools.partial(look.see, peer.produced)) for peer in having}


def _facts(see: Callable[[], Seen | Facts]) -> Facts:
    return facts_of(see())


def spelled(who: str, facts: Facts) -> str:
    return f"{who}: " + ", ".join(f"{name} {value}" for name, value in facts.items())


def paragraph(at: int) -> str:
    """Return what is seen of a row: here, and of the peers that differ."""
    habit = HABITS[at]
    here = observed(habit.look, next(way for way in WAYS if has(habit.look, way)), HERE)[0]
    differing = {name: see() for name, see in peers_of(habit.look).items() if habit.peers[name] != "same"}
    return "\n".join((habit.name, spelled("here", here), *(spelled(*one) for one in differing.items())))


def written(at: int, who: str) -> str:
    """Return what is written down of a row: what is seen here, or of a peer that differs."""
    name, *lines = WRITTEN.read_text().strip().split("\n\n")[at].splitlines()
    assert name == HABITS[at].name
    return next(line for line in lines if line.startswith(f"{who}: "))


def cells(*, on_workers: bool = False) -> list[Any]:
    """Return the rows, by number, in all ways that have them; on workers, which take seconds, in one of these ways."""
    found = []
    for at, habit in enumerate(HABITS):
        ways = [way for way in WAYS if has(habit.look, way)]
        for way in ways:
            if on_workers and way.name not in habit.look.on_workers and way is not ways[at % len(ways)]:
                continue
            later = [pytest.mark.slow] if is_for_the_long_form(at, way, on_workers) else []
            found.append(pytest.param(at, way, marks=later, id=f"{habit.name}-{way.name}"))
    return found


def is_for_the_long_form(at: int, way: Way, on_workers: bool) -> bool:
    """Tell whether the short form leaves a cell out: the way to iterate does not matter, and what it costs does."""
    if on_workers:
        return way.name not in HABITS[at].look.on_workers
    if HABITS[at].section in BY_PEERS:
        return False
    # Each engine has all of these rows, and every other way a third of them.
    return way.is_slow or (way.loader is not Calls and (at + WAYS.index(way)) % 3 > 0)


def has(look: Look, way: Way) -> bool:
    wanted = not look.only or way.name in look.only
    return wanted and way.name not in look.without and (not look.needs or look.needs in way.has)


def must_be_right(at: int, way: Way, options: Mapping[str, Any]) -> None:
    look = HABITS[at].look
    facts, numbers = observed(look, way, options)
    assert spelled("here", facts) == written(at, "here")
    assert numbers == list(look.passes)


def observed(look: Look, way: Way, options: Mapping[str, Any]) -> tuple[Facts, list[int | None]]:
    """Return what is seen of ours in one way, and the numbers of the passes where the row has them.

    All jobs are over and nothing holds them when it returns, also for a row that fails.
    """
    opened: list[Loader] = []

    def made(chain: Chain) -> Opener:
        pipe = pipeline(chain, engine=way.engine)

        def opener() -> Loader:
            usual = keeps_source_order(pipe.plan)
            given = {name: value for name, value in options.items() if name != "order" or not usual}
            opened.append(way.loader(pipe, given, look.steps))
            return opened[-1]

        return opener

    try:
        seen = look.see(made)
    finally:
        for loader in opened:
            loader.close()
    passes = seen.passes if isinstance(seen, Seen) and look.passes else ()
    return facts_of(seen), [number_of(one, look.chains[0], way, max(look.passes)) for one in passes]


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


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(map(paragraph, range(len(HABITS)))) + "\n")
    SHORT.write_text(short_page())
