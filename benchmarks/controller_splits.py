"""How long a job with a million splits makes anybody wait: the longest pause of each of its steps, and its memory.

    python benchmarks/controller_splits.py [--splits 1000000] [--json FILE]

No Ray: these are the steps of `pecan_ray.job.state.JobState` as the controller takes them, with one worker that goes
through all splits of two epochs.  Times are CPU times of the process; collections of garbage are in those of the steps
that they interrupt, and shown by themselves too.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pecan_ray.job import events
from pecan_ray.job.instructions import Response
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import AskAssignment, AskLeases, Assigned, EndAssignment, Reply, WorkerQuestion
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.state import JobState
from pecan_ray.plan.splits import Split
from pecan_ray.sampling.random_keys import SplitOrder

PAGE = 256
LOT = 64
"""Leases that the worker asks for at a time."""
EPOCHS = 2
MIB = 1 << 20


@dataclass
class Pause:
    """What the steps of one kind cost."""

    count: int = 0
    all_ms: float = 0.0
    longest_ms: float = 0.0

    def add(self, seconds: float) -> None:
        """Add a step."""
        self.count += 1
        self.all_ms += 1e3 * seconds
        self.longest_ms = max(self.longest_ms, 1e3 * seconds)


@dataclass
class SplitCosts:
    """A job with so many splits."""

    splits: int
    shuffled: bool
    memory_mib: float = 0.0
    pauses: dict[str, Pause] = field(default_factory=dict)

    def note(self, name: str, seconds: float) -> None:
        """Add a step."""
        self.pauses.setdefault(name, Pause()).add(seconds)

    def __str__(self) -> str:
        order = "shuffled" if self.shuffled else "as listed"
        lines = [f"{self.splits:,} splits, {order}: {self.memory_mib:.0f} MiB"]
        lines.append(f"{'longest, ms':>12} {'all, ms':>10} {'times':>8}")
        for name, pause in sorted(self.pauses.items(), key=lambda item: -item[1].longest_ms):
            lines.append(f"{pause.longest_ms:12.1f} {pause.all_ms:10.0f} {pause.count:8,}  {name}")
        return "\n".join(lines)


class Bench:
    """A job, and the only worker that it has."""

    def __init__(self, measured: SplitCosts) -> None:
        self._measured = measured
        self._job = JobState(
            JobSpec("bench", LedgerShape(epochs=EPOCHS, split_order=(SplitOrder(3),) if measured.shuffled else ())), 0
        )
        self._requested = 0
        for event in (events.TrainerRegistered(0, "t", "node"), events.RoomFound((("node", 1.0),), ())):
            self._job.handle(event, 0)
        (self._worker,) = self._job.worker_table.workers
        self._job.handle(events.WorkerPlaced(self._worker, "node", 1), 0)
        self._job.handle(events.WorkerReady(self._worker), 0)

    def run(self) -> None:
        """List all splits and take them in each epoch."""
        for first in range(0, self._measured.splits, PAGE):
            stop = min(first + PAGE, self._measured.splits)
            page = tuple(Split(index, f"/data/part-{index:07d}.parquet", 0, 1000) for index in range(first, stop))
            self._timed("a page is listed", events.SplitPageReceived(0, page))
        self._timed("the listing ends", events.ListingEnded(0))
        for epoch in range(EPOCHS):
            assert isinstance(self._ask(f"epoch {epoch}: assignment", AskAssignment()), Assigned)
            self._take_all(epoch)
        assert self._job.ledger.finished

    def _take_all(self, epoch: int) -> None:
        name, request = f"epoch {epoch}: first leases", AskLeases(epoch, 0, LOT)
        while isinstance(leases := self._ask(name, request), tuple) and leases:
            # Splits without elements are dealt with once their length is known.
            name, request = (
                f"epoch {epoch}: leases",
                AskLeases(epoch, 0, LOT, tuple((one.key, 0) for one in leases)),
            )
        self._ask(f"epoch {epoch}: ends", EndAssignment(epoch))

    def _ask(self, name: str, request: WorkerQuestion) -> Reply:
        self._requested += 1
        (answer,) = self._timed(name, events.WorkerRequestReceived(self._worker, "main", self._requested, request))
        return answer.reply

    def _timed(self, name: str, event: events.Event) -> list[Response]:
        began = time.process_time()
        done = self._job.handle(event, 0)
        self._measured.note(name, time.process_time() - began)
        return [instruction for instruction in done if isinstance(instruction, Response)]


def measure(splits: int, *, shuffled: bool) -> SplitCosts:
    """Run a job and return what its steps cost."""
    measured = SplitCosts(splits, shuffled)
    began = 0.0

    def collection(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.process_time()
        else:
            measured.note(f"garbage of generation {info['generation']}", time.process_time() - began)

    gc.collect()
    before = psutil.Process().memory_info().rss
    bench = Bench(measured)
    gc.callbacks.append(collection)
    try:
        bench.run()
    finally:
        gc.callbacks.remove(collection)
    measured.memory_mib = (psutil.Process().memory_info().rss - before) / MIB
    return measured


def main() -> None:
    """Measure both orders of splits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--splits", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}")
    results = []
    for shuffled in (False, True):
        results.append(measure(options.splits, shuffled=shuffled))
        print(f"\n{results[-1]}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2))


if __name__ == "__main__":
    main()
