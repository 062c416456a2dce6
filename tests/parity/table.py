"""The table: what people do with DataLoader, tf.data and other libraries, and what happens here.

Its words are those of a page of the documentation; how each row is looked at is in `rows_of_*.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.parity.looks import Look
from tests.parity.rows_of_pipelines import OPERATORS, PASSES, SEEDS
from tests.parity.rows_of_programs import OTHERS
from tests.parity.rows_of_trainers import KERAS, LIGHTNING, TRAINER

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, SHORT = DOCS / "habits.md", DOCS / "passes.md"
SHORT_HEAD = "## What differs on purpose\n"
"""The last heading of the short page."""
SECTIONS: dict[str, dict[str, Look]] = {
    "Passes": PASSES,
    "Seeds and random numbers": SEEDS,
    "The order of operators": OPERATORS,
    "Keras": KERAS,
    "Lightning": LIGHTNING,
    "The Trainer of Hugging Face": TRAINER,
    "Data sets, processes, programs": OTHERS,
}


@dataclass(frozen=True)
class Habit:
    section: str
    name: str
    """What people write."""
    says: str
    """What happens here."""
    peers: Mapping[str, str]
    """Of each peer that has the habit: "same", or "differs: what it does: why we do otherwise on purpose"."""

    @property
    def look(self) -> Look:
        return SECTIONS[self.section][self.name]


def _habits() -> Iterator[Habit]:
    for part in PAGE.read_text().split("\n## ")[1:]:
        section, head, _, *lines = filter(None, part.splitlines())
        names = _cells(head)[2:]
        for name, says, *said in map(_cells, lines):
            yield Habit(section, name, says, {peer: one for peer, one in zip(names, said, strict=True) if one})


def _cells(line: str) -> list[str]:
    return line[2:-2].split(" | ")


HABITS = tuple(_habits())


def short_page() -> str:
    """Return the page on passes, at the end of which is what differs."""
    head, _, _ = SHORT.read_text().partition(SHORT_HEAD)
    lines = [["habit", "here", "elsewhere", "why"], ["---"] * 4]
    for habit in HABITS:
        for said in dict.fromkeys(one for one in habit.peers.values() if one != "same"):
            peers = [peer for peer, one in habit.peers.items() if one == said]
            _, there, why = said.split(": ", 2)
            lines.append([habit.name, habit.says, f"{', '.join(peers)}: {there}", why])
    return f"{head}{SHORT_HEAD}\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
