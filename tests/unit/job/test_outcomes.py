"""What comes of simulated jobs, written down: a change to the control plane shows what it changes for users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.protocol.draw import draw
from tests.protocol.going_on import play_in_pieces
from tests.protocol.scenario import Scenario
from tests.protocol.trainer import TrainerModel
from tests.protocol.world import HistoryOutcome, World
from tests.unit.job.job_histories import CASES

WRITTEN = Path(__file__).with_name("outcomes.txt")
"""A paragraph for each history; `python -m tests.unit.job.test_outcomes` writes all anew."""
HURT_EVERY = 4
"""In each so many-th one of those drawn the controller is killed, and stands still."""
DRAWN = {f"history {seed}": draw(seed, hurt_controller=seed % HURT_EVERY == 0) for seed in range(60)}
HISTORIES = {**DRAWN, **CASES}
"""Those that failed once are among them."""
CUT_FAILED_ONCE = (35, 2648, 6012, 11378, 52307, 105390, 300502, 640200687, 7402568, 67400281, 81005345, 81012342)
"""Seeds of histories in which something was wrong once when they were cut off and gone on with."""
IN_PIECES: list[Iterable[int]] = [*(range(first, first + 25) for first in range(0, 200, 25)), CUT_FAILED_ONCE]
"""Histories that are cut off and gone on with, those of a paragraph together."""
MOST_TOLD = 12
"""Events of a job that are written down."""
LOTS = 14
"""Every so many-th history is one of the same test."""


def outcome(name: str, scenario: Scenario) -> str:
    """Return what comes of a history: what ranks get, what the job counts, and what it tells."""
    world = World(scenario)
    end, state, now = world.run(), world.job.state, world.job.now()
    stats = vars(state.stats(now))
    counts = {what: value for what, value in stats.items() if isinstance(value, (int, str)) and value}
    told = [one for one in state.story if one.kind != "worker"]
    lines = [
        f"{name}: {_ending(end)}",
        ", ".join(f"{what} {value}" for what, value in counts.items()),
        f"epochs end at {_seconds(stats['epoch_ends'])}; held up for {_seconds(stats['held_up'])}; ran "
        + ", ".join(f"{at:.1f} s: {one}" for at, one in stats["deployments"]),
        *map(_loop, world.trainers),
        *(f"{one.seconds:.1f} s, {one.kind}: {one.text}" for one in told[:MOST_TOLD]),
        f"{len(told)} events told, {len(list(state.story))} in all",
    ]
    return "\n".join(lines)


def _loop(trainer: TrainerModel) -> str:
    longest_s = max(trainer.waits[1:], default=0.0)  # behind the first batch
    return f"rank {trainer.rank}: {trainer.ended}, {trainer.state.yielded} batches, waits of {longest_s:.1f} s at most"


def _ending(end: HistoryOutcome) -> str:
    assert end.failure == ""
    return f"{end.events} events in {end.seconds:.1f} s, {dict(end.endings)}, queues above by {end.excess:.2f} messages"


def _seconds(several: Iterable[float]) -> str:
    return ", ".join(f"{one:.1f}" for one in several) or "none"


def outcome_in_pieces(seeds: Iterable[int]) -> str:
    """Return what comes of some histories that go on from their states."""
    ends = {seed: play_in_pieces(seed) for seed in seeds}
    told = (f"{seed}: {end.batches} batches, {_ending(end)}" for seed, end in ends.items() if end is not None)
    return "\n".join(("in pieces", *told))


def paragraphs(lot: int = 0, lots: int = 1) -> Iterator[str]:
    """Yield what comes of everything, or of one lot of several."""
    yield from (outcome(*one) for one in list(HISTORIES.items())[lot::lots])
    yield from map(outcome_in_pieces, IN_PIECES[lot::lots])


@pytest.mark.parametrize("lot", range(LOTS))
def test_every_promise_is_kept_and_what_comes_of_a_history_is_what_is_written_down(lot: int) -> None:
    written = WRITTEN.read_text().strip().split("\n\n")
    whole, pieces = written[: len(HISTORIES)], written[len(HISTORIES) :]
    assert list(paragraphs(lot, LOTS)) == whole[lot::LOTS] + pieces[lot::LOTS]


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(paragraphs()) + "\n")
