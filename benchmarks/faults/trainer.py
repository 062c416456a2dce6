"""One trainer of a run: writes what it receives into a file, line by line, so that its death loses nothing of it.

python -m benchmarks.faults.trainer FOLDER RANK
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pecan_ray as pecan
from benchmarks.faults.case import FaultCase
from pecan_ray.run_of_job import JobRun

SAVED, BEGINNING = "state.json", "beginning.json"
SAVE_S = 0.5
"""Between two states."""
SayFacts = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Beginning:
    """With what trainers begin."""

    job: str
    journals: str | None
    """Folder or bucket of the controller's journal, if not Ray's."""
    state: dict[str, Any] | None
    """To go on from."""

    def write(self, folder: Path) -> None:
        """Write it into a run's folder."""
        (folder / BEGINNING).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Beginning:
        """Read what was written."""
        return cls(**json.loads((folder / BEGINNING).read_text()))


def train(folder: str, rank: int) -> None:
    """Be a rank of the job that lies in the folder."""
    case: FaultCase = pickle.loads(Path(folder, "case.pickle").read_bytes())
    begin = Beginning.read(Path(folder))
    ended = threading.Event()
    with Path(folder, f"rank-{rank}.jsonl").open("a", buffering=1) as out:

        def say(line: dict[str, Any]) -> None:
            out.write(json.dumps(line) + "\n")

        say({"pid": os.getpid(), "kept": begin.state["batches"] if begin.state else 0})
        try:
            _receive(case, rank, Path(folder), begin, say, ended)
        except pecan.errors.PecanError as error:
            say({"error": f"{type(error).__name__}: {error}"})
        finally:
            ended.set()
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith("pecan-")]
        say({"end": True, "threads": [name for name in left if name != "pecan-faults"]})


def _receive(case: FaultCase, rank: int, folder: Path, begin: Beginning, say: SayFacts, ended: threading.Event) -> None:
    saved = time.monotonic()
    with case.pipeline(folder / "data", begin.journals).iter_batches(
        epochs=case.epochs,
        workers=case.workers,
        rank=rank,
        world_size=case.world_size,
        job=begin.job,
        state=begin.state,
        visitation=case.visitation,
        on_error=case.on_error,
        prefetch_bytes=case.prefetch_bytes,
    ) as batches:
        threading.Thread(
            target=_explain, args=(batches, folder / f"rank-{rank}.txt", ended), name="pecan-faults", daemon=True
        ).start()
        for batch in batches:
            values = np.asarray(batch["i"])
            assert (values == values[:, :1]).all(), "a batch is damaged"
            if case.cut:
                assert values.dtype == np.float64 and not (values % 2).any(), "a batch came without its last operator"
                values = values.astype(np.int32) // 2
            assert batches.provenance is not None
            say({"epoch": batches.provenance.epoch, "ids": values[:, 0].tolist()})
            if case.has("restart from state") and time.monotonic() - saved > SAVE_S:
                _save(batches.state_dict(), folder / SAVED)
                saved = time.monotonic()
            time.sleep(case.steps_s[rank])
    report = batches.report()
    assert isinstance(batches._run, JobRun)
    facts = batches._run.session.stats()
    say(
        {
            "seconds": facts.seconds,
            "elements": facts.elements,
            "bad": facts.bad_elements,
            "left_out": facts.left_out_elements,
            "dropped": [[list(key), list(spans)] for key, spans in facts.dropped],
            "lost": facts.workers_lost,
            "gone": facts.lost,
            "events": [[event.seconds, event.kind] for event in facts.events if event.kind in ("lost", "worker")],
            "report": str(report),
        }
    )


def _save(state: dict[str, Any], file: Path) -> None:
    """Keep a state, as one does with a model: the last one, or the one before it."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(state))
    part.rename(file)


def _explain(batches: pecan.Batches, file: Path, ended: threading.Event) -> None:
    """When somebody asks for it, write what this trainer knows."""
    while not ended.wait(0.5):
        if file.with_suffix(".ask").exists():
            assert isinstance(batches._run, JobRun)
            session = batches._run.session
            state = "\n".join(f"{name} = {value!r}" for name, value in vars(session.client.state).items())
            file.write_text(f"{state}\n{vars(session.client.state.outgoing)!r}\n")
            file.with_suffix(".ask").unlink()


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
