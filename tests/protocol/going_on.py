"""Histories of several runs: each but the last is cut off, and the next one goes on from its state, with others."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.protocol.draw import draw
from tests.protocol.saved import Saved
from tests.protocol.scenario import FaultKind, Scenario
from tests.protocol.world import HistoryOutcome, World

ENDS_A_RUN: tuple[FaultKind, ...] = ("fail", "kill trainer")
MOST_CUTS = 3


def play_in_pieces(seed: int) -> HistoryOutcome | None:
    """Play the history of a seed in several runs; None where it has no state, or ends before one could be taken."""
    scenario, random = draw(seed), Random(seed)
    if not _has_states(scenario):
        return None
    scenario = replace(scenario, faults=tuple(one for one in scenario.faults if one.kind not in ENDS_A_RUN))
    saved: Saved | None = None
    alone = Random(f"alone {seed}")
    for _ in range(random.randint(1, MOST_CUTS)):
        played = _perhaps_by_one(scenario, alone)
        world = World(played, saved=saved)
        try:
            cut = world.run_until(random.choice((1, 1, 2, 3, 5, 8, 13, 30)), random.randrange(played.ranks))
        except Exception as error:
            return HistoryOutcome(failure=f"before it was cut off: {type(error).__name__}: {error}")
        if cut is None:
            break
        saved, scenario = cut, _with_other_parties(scenario, random)
    if saved is None:
        return None
    return World(_perhaps_by_one(scenario, alone), saved=saved).run()


def _has_states(scenario: Scenario) -> bool:
    there = scenario.sharding == "dynamic" and scenario.visitation == "exactly_once"
    return (
        there
        and not scenario.absent
        and (scenario.error_budget == 1.0 or scenario.within_budget)
        and scenario.stop_after is None
    )


def _with_other_parties(scenario: Scenario, random: Random) -> Scenario:
    """Return the same data with other ranks, workers and pages of the listing."""
    ranks = random.choice((scenario.ranks, 1, 2, 3))
    numbered = scenario.numbered and (ranks == 1 or not scenario.joined)
    other = replace(
        scenario,
        ranks=ranks,
        numbered=numbered,
        joined=scenario.joined and numbered,
        promised=scenario.promised and numbered,
        local=random.choice((1, 2)),
        remote=random.choice((0, 1, 3)),
        window=random.choice((1, 4)),
        prefetch_bytes=random.choice((1, 5000, 1 << 26)),
        page=random.choice((1, 2, 100)),
    )
    # A run of one trainer may join the rows that the one before has numbered.
    return replace(other, joined=other.joined or (numbered and ranks == 1 and other.page < 100))


def _perhaps_by_one(scenario: Scenario, random: Random) -> Scenario:
    """Return the scenario, or one in which one worker at a time keeps the order that several keep by joining rows."""
    if not (scenario.joined and scenario.may_divide_splits) or scenario.wrong_by or random.random() < 0.6:
        return scenario
    by_one = replace(scenario, numbered=False, joined=False, promised=False, local=1, remote=0, auto=False, alone=True)
    return replace(by_one, in_order=True, ranks=random.choice((1, 2, 3))) if scenario.promised else by_one
