"""`python -m tests.protocol`: simulate the control plane of jobs, as long as there is time."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.protocol.campaign import Summary, play_seeds
from tests.protocol.draw import draw
from tests.protocol.going_on import play_in_pieces
from tests.protocol.shrink import describe, shrink
from tests.protocol.world import play

LOT = 100
"""Histories that a process plays at a time."""
MOST_FAILURES = 5
"""So many are made smaller and told."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a history has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="play histories for so long")
    parser.add_argument("--histories", type=int, help="play so many, however long it takes")
    parser.add_argument("--seed", type=int, help="play the history of this seed alone, and tell all of it")
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--in-pieces", action="store_true", help="cut each off and go on from its state")
    parser.add_argument("--hurt-controllers", action="store_true", help="kill and freeze the controller in each")
    parser.add_argument("--least-ranks", type=int, default=1, help="only histories of at least so many ranks")
    parser.add_argument("--packed", action="store_true", help="only histories with compressed files, read in order")
    parser.add_argument("--workers-of-cpu", type=int, default=1, help="processes that play")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return _replay(given.seed, given.in_pieces, given.hurt_controllers)
    seeds: Iterator[int] = itertools.count(given.first)
    if given.least_ranks > 1:
        seeds = (seed for seed in seeds if draw(seed).ranks >= given.least_ranks)
    if given.packed:
        seeds = (seed for seed in seeds if draw(seed).whole)
    minutes: float = given.minutes
    if given.histories:
        seeds, minutes = itertools.islice(seeds, given.histories), float("inf")
    lots = iter(lambda: list(itertools.islice(seeds, LOT)), [])
    summary = Summary()
    for found in _play(lots, given, time.monotonic() + 60 * minutes):
        summary.add(found)
        for seed, failure in found.failures.items():
            _say(f"failed: --seed {seed}: {failure}")
        _say(f"{summary.histories:,} histories, {len(summary.failures)} failures")
    _say(summary.text())
    for seed in sorted(summary.failures)[:MOST_FAILURES]:
        _replay(seed, given.in_pieces, given.hurt_controllers)
    return bool(summary.failures)


def _play(lots: Iterator[list[int]], given: argparse.Namespace, until: float) -> Iterator[Summary]:
    play_lot = partial(play_seeds, in_pieces=given.in_pieces, hurt_controller=given.hurt_controllers)
    with ProcessPoolExecutor(given.workers_of_cpu) as pool:
        while time.monotonic() < until and (some := list(itertools.islice(lots, given.workers_of_cpu))):
            yield from pool.map(play_lot, some)


def _replay(seed: int, in_pieces: bool, hurt_controller: bool) -> int:
    scenario = draw(seed, hurt_controller=hurt_controller)
    outcome = play_in_pieces(seed) if in_pieces else play(scenario)
    if outcome is None:
        _say(f"seed {seed} has no state")
        return 0
    _say(f"seed {seed}: {describe(scenario)}\n{outcome.failure or 'every promise was kept'}")
    _say(f"{outcome.events} events, {outcome.seconds:.1f} virtual seconds, {outcome.batches} batches used")
    if outcome.failure and not in_pieces:
        _say(f"smaller: {describe(shrink(scenario))}")
    return bool(outcome.failure)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
