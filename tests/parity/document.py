"""The table as a page of the documentation: `python -m tests.parity.document` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.parity.habit import Habit
from tests.parity.judged import peers_of
from tests.parity.table import HABITS, SECTIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, SHORT = DOCS / "habits.md", DOCS / "passes.md"
HEAD = """# Habits from other loaders

What people write with torch's DataLoader, tf.data, Keras, Lightning and the Trainer of Hugging Face, and what the same
does here. Each row is a test ([tests/parity](../tests/parity/table.py)): it runs the peers, and pecan_ray in each way
to iterate that has the habit. *same*: the peer does the same; *differs*: pecan_ray does otherwise on purpose, for the
reason that is given; empty: the peer does not have the habit. What is behind it: [passes, epochs, seeds](passes.md).
"""
DIFFERENCES = "## What differs on purpose\n"
"""The last heading of the short page."""


def page() -> str:
    return HEAD + "".join(f"\n## {title}\n\n{_table(habits)}" for title, habits in SECTIONS.items())


def short_page() -> str:
    head, _, _ = SHORT.read_text().partition(DIFFERENCES)
    lines = [["habit", "here", "elsewhere", "why"], ["---"] * 4]
    for habit in HABITS:
        for why in dict.fromkeys(habit.differs.values()):
            peers = [peer for peer, reason in habit.differs.items() if reason == why]
            there, _, reason = why.partition(": ")
            lines.append([habit.name, habit.says, f"{', '.join(peers)}: {there}", reason])
    return f"{head}{DIFFERENCES}\n{_lines(lines)}"


def _table(habits: Iterable[Habit]) -> str:
    """Return the table of a section; its peers are those that any of its rows has."""
    having = {habit.name: peers_of(habit).keys() for habit in habits}
    names = sorted({peer for peers in having.values() for peer in peers})
    lines = [["with others", "here", *names], ["---"] * (2 + len(names))]
    for habit in habits:
        said = [_compared(habit, peer) if peer in having[habit.name] else "" for peer in names]
        lines.append([habit.name, habit.says, *said])
    return _lines(lines)


def _compared(habit: Habit, peer: str) -> str:
    why = habit.differs.get(peer)
    return "same" if why is None else f"differs: {why}"


def _lines(lines: Iterable[list[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def write() -> None:
    PAGE.write_text(page())
    SHORT.write_text(short_page())


if __name__ == "__main__":
    write()
