"""Four trainers that step together on sentences of unequal length: what coordinated reads change.

python examples/coordinated_reads.py
python examples/coordinated_reads.py --plain

Each trainer is a thread here, where a real one is a process that `torchrun` starts.  A step takes as long as its batch
is padded to, and ends when all trainers have ended it, as with a gradient that they sum.  At the end stands what the
trainers waited for each other.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

# A script finds only its own folder: pecan_ray in a checkout is above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import ray

import pecan_ray as pecan

SENTENCES = Path(__file__).with_name("data") / "text" / "austen_500.jsonl"
RANKS, BATCH = 4, 8
STEP_S_PER_WORD = 0.001


def tokens(row: dict[str, Any]) -> dict[str, Any]:
    """Return a number for each word of a sentence, and how many there are."""
    words = row["text"].lower().split()
    return {"ids": np.array([sum(word.encode()) for word in words], np.int32), "words": len(words)}


def pipeline() -> pecan.PecanPipeline:
    """Return batches of `ids` int32 [8, words of the longest], of sentences of similar length."""
    source = pecan.sources.JsonLines(str(SENTENCES))
    pipe = pecan.PecanPipeline(source, name="sentences").map(tokens).filter(lambda row: row["words"] > 0)
    return pipe.shuffle(500).bucket_by_length([8, 16, 24, 32, 48], sizes=[BATCH] * 6, length="ids")


class Meeting:
    """Where trainers wait for each other at the end of each step."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(RANKS)
        self.waited_s = [0.0] * RANKS
        self.steps = 0

    def step(self, rank: int, longest: int) -> None:
        """Take a step on a batch that is padded to so many words, together with the others."""
        time.sleep(STEP_S_PER_WORD * longest)
        done = time.monotonic()
        self._barrier.wait()
        self.waited_s[rank] += time.monotonic() - done
        self.steps += rank == 0


def train(rank: int, meeting: Meeting, *, coordinated: bool, epochs: int) -> None:
    """Take a rank's batches, as each process of a real training does."""
    with pipeline().iter_batches(
        rank=rank,
        world_size=RANKS,
        coordinated=coordinated,
        job=f"sentences-{'coordinated' if coordinated else 'plain'}",
        epochs=epochs,
        workers=pecan.Workers(local=2),  # the same with and without rounds, which are compared
    ) as batches:
        for batch in batches:
            meeting.step(rank, batch["ids"].shape[1])
        if rank == 0:
            print(batches.report())


def main() -> None:
    """Train on all ranks, and say what they waited for each other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="each rank takes whatever batch comes")
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    ray.init(logging_level=logging.ERROR)  # by one thread, before the trainers begin; it joins a cluster that there is
    meeting = Meeting()
    trainers = [
        threading.Thread(
            target=train, args=(rank, meeting), kwargs={"coordinated": not given.plain, "epochs": given.epochs}
        )
        for rank in range(RANKS)
    ]
    for trainer in trainers:
        trainer.start()
    for trainer in trainers:
        trainer.join()
    print(
        f"{meeting.steps} steps; the trainers waited {sum(meeting.waited_s) / RANKS:.2f} s for each other in the mean"
    )


if __name__ == "__main__":
    main()
