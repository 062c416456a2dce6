"""`python -m tests.protocol`: simulate the control plane of jobs, as long as there is time."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial

from tests.protocol.campaign import Summary, play_seeds
from tests.protocol.draw import draw
from tests.protocol.going_on import play_in_pieces
from tests.protocol.scenario import Scenario
from tests.protocol.shrink import describe, shrink
from tests.protocol.world import play

LOT = 50
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
    parser.add_argument("--workers-of-cpu", type=int, default=1, help="processes that play")
    chosen = parser.parse_args(arguments)
    hurt = chosen.hurt_controllers
    if chosen.seed is not None:
        return _replay_in_pieces(chosen.seed) if chosen.in_pieces else _replay(draw(chosen.seed, hurt_controller=hurt))
    seeds = range(chosen.first, chosen.first + chosen.histories) if chosen.histories else itertools.count(chosen.first)
    until = time.monotonic() + (60.0 * chosen.minutes if not chosen.histories else float("inf"))
    how = partial(play_seeds, in_pieces=chosen.in_pieces, hurt_controller=hurt)
    summary = _play(iter(seeds), until, chosen.workers_of_cpu, how)
    _say(summary.text())
    for seed in sorted(summary.failures)[:MOST_FAILURES]:
        _say(f"\nseed {seed}: {summary.failures[seed]}")
        if not chosen.in_pieces:
            _say(f"smaller: {describe(shrink(draw(seed, hurt_controller=hurt)))}")
            _say(f"again: python -m tests.protocol --seed {seed}{' --hurt-controllers' if hurt else ''}")
    return bool(summary.failures)


def _play(seeds: Iterator[int], until: float, processes: int, how: Callable[[list[int]], Summary]) -> Summary:
    summary, began, said = Summary(), time.monotonic(), 0.0
    with ProcessPoolExecutor(processes) as pool:
        playing: set[Future[Summary]] = set()
        while True:
            while len(playing) < 2 * processes and time.monotonic() < until:
                lot = list(itertools.islice(seeds, LOT))
                if not lot:
                    break
                playing.add(pool.submit(how, lot))
            if not playing:
                return summary
            done, playing = wait(playing, return_when=FIRST_COMPLETED)
            for future in done:
                found = future.result()
                summary.add(found)
                for seed in sorted(found.failures):
                    _say(f"failed: --seed {seed}")
            now = time.monotonic() - began
            if now - said > 10.0:
                said = now
                _say(f"{now:5.0f} s: {summary.histories:,} histories, {len(summary.failures)} failures")


def _replay(scenario: Scenario) -> int:
    outcome = play(scenario)
    _say(describe(scenario))
    _say(outcome.failure or "every promise was kept")
    _say(f"{outcome.events} events, {outcome.seconds:.1f} virtual seconds, {outcome.batches} batches used")
    if outcome.failure:
        _say(f"smaller: {describe(shrink(scenario))}")
    return bool(outcome.failure)


def _replay_in_pieces(seed: int) -> int:
    outcome = play_in_pieces(seed)
    _say("it has no state" if outcome is None else outcome.failure or "every promise was kept")
    return outcome is not None and bool(outcome.failure)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
