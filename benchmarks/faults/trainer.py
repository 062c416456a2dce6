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
from pathlib import Path
from typing import Any

import numpy as np

import pecan_ray as pecan
from benchmarks.faults.case import FaultCase

SayFacts = Callable[[dict[str, Any]], None]


def train(folder: str, rank: int) -> None:
    """Be a rank of the job that lies in the folder."""
    case: FaultCase = pickle.loads(Path(folder, "case.pickle").read_bytes())
    ended = threading.Event()
    with Path(folder, f"rank-{rank}.jsonl").open("a", buffering=1) as out:

        def say(line: dict[str, Any]) -> None:
            out.write(json.dumps(line) + "\n")

        say({"pid": os.getpid()})
        try:
            _receive(case, rank, Path(folder), say, ended)
        except pecan.errors.PecanError as error:
            say({"error": f"{type(error).__name__}: {error}"})
        finally:
            ended.set()
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith("pecan-")]
        say({"end": True, "threads": [name for name in left if name != "pecan-faults"]})


def _receive(case: FaultCase, rank: int, folder: Path, say: SayFacts, ended: threading.Event) -> None:
    with case.pipeline(folder / "data").iter_batches(
        epochs=case.epochs,
        workers=case.workers,
        rank=rank,
        world_size=case.world_size,
        job=folder.name,
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
            assert batches.provenance is not None
            say({"epoch": batches.provenance.epoch, "ids": values[:, 0].tolist()})
            time.sleep(case.steps_s[rank])
    report = batches.report()
    assert batches._session is not None
    facts = batches._session.facts()
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


def _explain(batches: pecan.Batches, file: Path, ended: threading.Event) -> None:
    """When somebody asks for it, write what this trainer knows."""
    while not ended.wait(0.5):
        if file.with_suffix(".ask").exists():
            session = batches._session
            assert session is not None
            state = "\n".join(f"{name} = {value!r}" for name, value in vars(session.client.state).items())
            file.write_text(f"{state}\n{vars(session.client.state.outgoing)!r}\n")
            file.with_suffix(".ask").unlink()


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
