"""Each habit of the table, in each way to iterate that has it, beside DataLoader and tf.data."""

from __future__ import annotations

import pytest

from tests.parity.judged import cells, must_be_right, peers_of, spelled, written
from tests.parity.table import HABITS, SECTIONS, SHORT, short_page
from tests.parity.ways import HERE, WAYS, Way


@pytest.mark.parametrize(
    ("at", "peer"),
    [pytest.param(at, peer, id=f"{one.name}-{peer}") for at, one in enumerate(HABITS) for peer in one.peers],
)
def test_a_peer_does_what_the_row_says_of_it(at: int, peer: str) -> None:
    facts, here = peers_of(HABITS[at].look)[peer](), written(at, "here")
    if HABITS[at].peers[peer] == "same":
        assert spelled("here", facts) == here
    else:
        assert spelled(peer, facts) == written(at, peer) and spelled("here", facts) != here


@pytest.mark.parametrize(("at", "way"), cells())
def test_ours_does_what_its_peers_do_or_what_the_row_says(at: int, way: Way) -> None:
    must_be_right(at, way, HERE)


def test_the_documentation_has_the_rows_and_their_peers_and_lists_what_differs() -> None:
    rows = [(section, name) for section, looks in SECTIONS.items() for name in looks]
    assert [(habit.section, habit.name) for habit in HABITS] == rows
    assert len({name for _, name in rows}) == len(rows)
    ways = {way.name for way in WAYS}
    for habit in HABITS:
        assert habit.peers.keys() == peers_of(habit.look).keys(), habit.name
        assert {*habit.look.only, *habit.look.without, *habit.look.on_workers} <= ways, habit.name
    assert SHORT.read_text() == short_page(), "run python -m tests.parity.judged"
