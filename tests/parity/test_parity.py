"""Each habit of the table, in each way to iterate that has it, beside DataLoader and tf.data."""

from __future__ import annotations

import pytest

from tests.parity import document
from tests.parity.judged import cells, must_be_right, peers_cells, peers_facts, peers_of
from tests.parity.table import HABITS
from tests.parity.ways import HERE, WAYS, Way


@pytest.mark.parametrize(("at", "peer"), peers_cells())
def test_a_peer_does_what_the_row_says_of_it(at: int, peer: str) -> None:
    habit, facts = HABITS[at], peers_facts(at)[peer]
    said = {name: facts.get(name) for name in habit.stats}
    assert (said != habit.stats) if peer in habit.differs else (said == habit.stats), facts


@pytest.mark.parametrize(("at", "way"), cells())
def test_ours_does_what_its_peers_do_or_what_the_row_says(at: int, way: Way) -> None:
    must_be_right(at, way, HERE)


def test_rows_have_names_of_their_own_and_speak_of_peers_and_ways_that_there_are() -> None:
    names = [habit.name for habit in HABITS]
    assert len(set(names)) == len(names)
    ways = {way.name for way in WAYS}
    for habit in HABITS:
        assert habit.differs.keys() <= peers_of(habit).keys(), habit.name
        assert {*habit.only, *habit.without, *habit.on_workers} <= ways, habit.name


def test_the_documentation_shows_the_table() -> None:
    shown = [document.PAGE.read_text(), document.SHORT.read_text()]
    assert shown == [document.page(), document.short_page()], "run python -m tests.parity.document"
