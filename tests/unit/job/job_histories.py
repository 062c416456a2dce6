"""Histories of the simulation: how one is played, and those that failed once."""

from __future__ import annotations

from pathlib import Path

from tests.protocol.scenario import DEADLY, Scenario, SplitModel
from tests.protocol.shrink import described
from tests.protocol.world import World


def played(scenario: Scenario) -> World:
    """Play a history in which every promise is kept; return its end."""
    world = World(scenario)
    outcome = world.run()
    assert outcome.failure == ""
    return world


def split_of(elements: int, *bad: int, kind: int = DEADLY) -> SplitModel:
    """A split of which some elements kill, or stop, whoever works on them."""
    return SplitModel(tuple(kind if number in bad else 1 for number in range(elements)))


LINES = Path(__file__).with_name("histories.txt").read_text().splitlines()
CASES = {name: described(text) for name, _, text in (line.partition(": ") for line in LINES)}
"""Made small: a line each, as `python -m tests.protocol` tells of it."""
REPEATS = CASES["elements come twice since a worker was taken for silent"]
"""With it elements are used twice: messages of a worker that lives are lost until it is taken for silent."""
