"""What trainers and workers want done in simulated jobs, event by event, written down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pecan_ray.job.trainer import TrainerState
from pecan_ray.job.trainer_events import TrainerTime
from pecan_ray.job.worker import WorkerState
from tests.protocol.draw import draw
from tests.protocol.world import World
from tests.unit.job.in_words import words

WRITTEN = Path(__file__).with_name("machines.txt")
"""A paragraph for each history; `python -m tests.unit.job.test_machines` writes all anew."""
SEEDS = [*range(1000, 1014), *(seed for seed in range(1014, 1300) if draw(seed).joined or draw(seed).coordinated)][:26]
MOST_TOLD = 9
"""Lines of a trainer or worker that are written down, beginning with its first, and as many of its last."""


class Recorder:
    """Notes what each trainer and worker of a history wants done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: dict[str, list[str]] = {}
        monkeypatch.setattr("tests.protocol.trainer.TrainerState", self._recorded(TrainerState))
        monkeypatch.setattr("tests.protocol.worker.WorkerState", self._recorded(WorkerState))

    def _recorded(self, kind: Any) -> Any:
        recorder = self

        class Recorded(kind):  # type: ignore[misc]  # of either kind
            """A state whose instructions are noted."""

            def __init__(self, *arguments: Any, **named: Any) -> None:
                super().__init__(*arguments, **named)
                name = f"{kind.__name__} {sum(kind.__name__ in one for one in recorder.told)}"
                self.lines = recorder.told.setdefault(name, [])

            def handle(self, event: Any, now: float) -> Any:
                done = super().handle(event, now)
                # What is reported once a second would fill the table.
                if done and not isinstance(event, TrainerTime):
                    self.lines.append(f"{now:.2f} s: {type(event).__name__} -> {'; '.join(map(words, done))}")
                return done

        return Recorded

    def play(self, seed: int) -> str:
        """Play a history; return what was noted as a paragraph."""
        self.told.clear()
        assert World(draw(seed)).run().failure == ""
        return "\n".join((f"history {seed}", *self._lines()))

    def _lines(self) -> Iterator[str]:
        for name, lines in self.told.items():
            yield f"{name}: {len(lines)} events with instructions"
            yield from lines[:MOST_TOLD]
            yield from lines[MOST_TOLD:][-MOST_TOLD:]


def test_what_trainers_and_workers_want_done_is_what_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    assert [recorder.play(seed) for seed in SEEDS] == WRITTEN.read_text().strip().split("\n\n")


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patched:
        written = Recorder(patched)
        WRITTEN.write_text("\n\n".join(map(written.play, SEEDS)) + "\n")
