"""A controller under the calls of many workers and trainers, with batches flowing, and what Ray's calls alone cost.

    python benchmarks/controller_load.py [--members 10 100 300 1000] [--rounds 3] [--json FILE]
    python benchmarks/controller_load.py --splits 1000000

Workers and trainers are simulated (benchmarks/simulated_members.py), the controller and the calls are real.  The CPU
time is that of the controller's process alone.  The bound is an actor whose methods are empty and that gets as many
calls from the same process: what is above it is ours.

With `--splits` the longest pause of the controller's loop is measured instead, and its memory, while so many splits
are listed and taken, shuffled and not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import pickle
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import ray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pecan_ray as pecan
from benchmarks.simulated_members import ELEMENTS, MemberPace, SimulatedMembers
from pecan_ray.job.events import WorkerPlaced, WorkerReady
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import WorkerProgress
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import AutoWorkers, Config, IterOptions
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Element, Split
from pecan_ray.runtime.cluster import NAMESPACE
from pecan_ray.runtime.controller import JobController
from pecan_ray.runtime.messages import Job, WorkerInfo
from pecan_ray.runtime.session import MOST_CALLS
from pecan_ray.runtime.worker_actors import WorkerActors
from pecan_ray.sampling.random_keys import SplitOrder

SETTLING_S = 15.0
"""After the trainers' first steps, so long nothing is measured: reports have fallen into step;"""
MEASURED_S = 40.0
"""then everything, for so long: longer than any interval between two calls."""
FEW = 4
"""Workers, and trainers, where splits are many."""
FEEL_S = 0.002
"""A loop without pauses wakes up this often."""


@dataclass(frozen=True)
class Regime:
    """Who waits for whom."""

    name: str
    step_s: float
    stock: int
    queue: int = 60


TRAINER_BOUND = Regime("trainers keep up with nothing: their queues are full", step_s=0.5, stock=30)
INPUT_BOUND = Regime("workers cannot keep up: queues are empty", step_s=0.1, stock=1)
SMALL_QUEUES = Regime("workers cannot keep up, and queues hold two batches", step_s=0.1, stock=1, queue=2)


@dataclass(frozen=True)
class ControllerLoad:
    """What was measured for one actor."""

    share: float
    """Of one core."""
    calls: dict[str, float] = field(default_factory=dict)
    """Calls a second, by kind."""
    batches: float = 0.0
    """Batches a second that training loops had."""
    memory_mib: float = 0.0
    pause_ms: float = 0.0
    """Longest of the loop."""

    @property
    def all_calls(self) -> float:
        """Calls a second."""
        return sum(self.calls.values())


@dataclass(frozen=True)
class NamedSplits:
    """A source of files that do not exist."""

    count: int

    def splits(self) -> Iterator[Split]:
        """Yield them."""
        for index in range(self.count):
            yield Split(index, f"s3://a-bucket/a-data-set-of-usual-name/train/part-{index:08d}.tar")

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Refuse: the files do not exist."""
        raise FileNotFoundError(split.path)

    def num_elements(self) -> int | None:
        """Return nothing, as for files."""
        return None

    def identity(self) -> str:
        """Name the source."""
        return f"{self.count} files"


class SimulatedActors(WorkerActors):
    """Workers that are up as soon as they are asked for, and are nowhere."""

    def start(self, instruction: StartWorker) -> None:
        """Let the job know that a worker runs."""
        asyncio.get_running_loop().call_soon(self._up, instruction)

    def _up(self, instruction: StartWorker) -> None:
        self._happened(WorkerPlaced(instruction.worker, "a-node", 1))
        self._met(WorkerInfo(instruction.worker, "a-node", 1, None, instruction.placement))
        self._happened(WorkerReady(instruction.worker))


class Felt:
    """How an actor's process does: its CPU time, its memory, and the longest pause of its loop."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._longest = 0.0
        self._feeling: asyncio.Task[None] | None = None

    def look(self, feel: bool) -> tuple[float, float, float]:
        """Return CPU seconds so far, MiB, and the longest pause since the last look in ms; `feel`: watch pauses."""
        if feel and self._feeling is None:
            self._feeling = asyncio.ensure_future(self._feel())
        longest, self._longest = self._longest, 0.0
        times = os.times()
        return times.user + times.system, self._process.memory_full_info().uss / (1 << 20), 1000 * longest

    async def _feel(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(FEEL_S)
            self._longest = max(self._longest, time.monotonic() - before - FEEL_S)


class LoadedController(JobController):
    """The controller of a job whose workers are simulated."""

    def __init__(self, name: str, journal: str | None) -> None:
        super().__init__(name, journal)
        self._felt = Felt()

    async def open(self, job: bytes, arrays: Any) -> None:
        """Begin with a job whose workers are simulated."""
        await super().open(job, arrays)
        host = self._host
        host.workers = SimulatedActors(
            host.job, job, None, None, host.happened, host.update_calls.add_worker, host.fail
        )

    async def running(self) -> list[str]:
        """Return the names of the workers that run."""
        return [worker.name for worker in self._host.state.worker_table.workers.values() if worker.running]

    async def listed(self) -> bool:
        """Return whether all splits are known."""
        return self._host.state.ledger.queues.is_complete

    async def look(self, feel: bool = False) -> tuple[float, float, float]:
        """Say how this process does."""
        return self._felt.look(feel)


class EmptyController:
    """Takes the same calls and does nothing."""

    def __init__(self) -> None:
        self._felt = Felt()

    async def report(self, pickled: bytes) -> bytes:
        """Take a report."""
        return b""

    async def note_progress(self, worker: str, progress: WorkerProgress, counts: dict[str, Any]) -> None:
        """Take a heartbeat."""

    async def listen(self, rank: int, incarnation: str, number: int, met: int) -> bytes:
        """Answer at once."""
        return b""

    async def ask(self, pickled: bytes) -> bytes:
        """Answer at once."""
        return b""

    async def look(self, feel: bool = False) -> tuple[float, float, float]:
        """Say how this process does."""
        return self._felt.look(feel)


EXAMPLES: dict[str, tuple[Any, ...]] = {
    "report": (b"0" * 1000,),
    "note_progress": ("pecan:controller-load:remote-0", WorkerProgress(), {}),
    "listen": (0, "process-0", 0, 0),
    "ask": (b"0" * 500,),
}
"""What the empty actor gets."""


def loaded_job(members: tuple[int, int], splits: int, *, shuffled: bool = False) -> Job:
    """Return a job of so many workers and trainers."""
    workers, trainers = members
    source = NamedSplits(splits)
    plan = pecan.PecanPipeline(source).batch(ELEMENTS).plan
    auto = AutoWorkers(max_local=0, min_remote=workers, max_remote=workers)
    options = IterOptions(epochs=None, workers=auto, world_size=trainers)
    shape = LedgerShape(
        epochs=None, world_size=trainers, batch_size=ELEMENTS, split_order=(SplitOrder(0),) if shuffled else ()
    )
    spec = JobSpec("controller-load", shape, auto)
    return Job(
        spec,
        cloudpickle.dumps(plan),
        cloudpickle.dumps([source]),
        plan_shape(plan),
        "python",
        0,
        options,
        Config(reorder="off"),
    )


def started(cls: type, *arguments: object, name: str | None = None) -> Any:
    """Start an actor as a session starts its controller."""
    make: Any = ray.remote(cls)
    options = {"num_cpus": 0, "max_concurrency": MOST_CALLS, "enable_task_events": False}
    return make.options(name=name, namespace=NAMESPACE, **options).remote(*arguments)


def opened(job: Job) -> Any:
    """Start the controller of a job, with its journal."""
    name = job.spec.name
    controller = started(LoadedController, name, None, name=f"pecan:{name}:controller")
    ray.get(controller.open.remote(pickle.dumps(job)))
    return controller


def controller_load(count: int, regime: Regime = TRAINER_BOUND) -> ControllerLoad:
    """Return what the controller of so many workers and as many trainers takes."""
    splits = max(10_000, int(count / 0.5 * (SETTLING_S + MEASURED_S + 60)))
    controller = opened(loaded_job((count, count), splits))
    pace = MemberPace(count, count, step_s=regime.step_s, stock=regime.stock, queue=regime.queue)
    try:
        return asyncio.run(_measure_members(controller, pace))
    finally:
        ray.kill(controller)


async def _measure_members(controller: Any, pace: MemberPace) -> ControllerLoad:
    members = SimulatedMembers(controller, pace)
    try:
        await members.begin(this_node(), pace.workers)
        await members.pass_time(SETTLING_S)
        calls, used = Counter(members.calls), members.used
        load = await _measure(controller, members.pass_time)
        rates = {kind: (number - calls[kind]) / MEASURED_S for kind, number in members.calls.items()}
        rates = {kind: rate for kind, rate in rates.items() if rate}
        return ControllerLoad(load.share, rates, (members.used - used) / MEASURED_S, load.memory_mib, load.pause_ms)
    finally:
        await members.end()


async def _measure_splits(controller: Any) -> tuple[ControllerLoad, ControllerLoad]:
    """Return how the controller does while it lists, and while leases are taken after that."""
    await controller.look.remote(feel=True)
    members = SimulatedMembers(controller, MemberPace(FEW, FEW, batch_s=0.02, step_s=0.02, stock=1))
    try:
        await members.begin(this_node(), FEW)
        while not await controller.listed.remote():
            await members.pass_time(0.1)
        _, memory, pause = await controller.look.remote()
        listing = ControllerLoad(0.0, memory_mib=memory, pause_ms=pause)
        return listing, await _measure(controller, members.pass_time)
    finally:
        await members.end()


def measure_splits(splits: int) -> None:
    """Print the longest pauses with so many splits, shuffled and not."""
    for shuffled in (False, True):
        controller = opened(loaded_job((FEW, FEW), splits, shuffled=shuffled))
        try:
            listing, taking = asyncio.run(_measure_splits(controller))
        finally:
            ray.kill(controller)
        print(
            f"{splits:,} splits, {'shuffled' if shuffled else 'in order'}: longest pause {listing.pause_ms:.0f} ms "
            f"while they are listed, {taking.pause_ms:.0f} ms while they are taken; {taking.memory_mib:.0f} MiB",
            flush=True,
        )


async def _measure(actor: Any, pass_time: Callable[[float], Awaitable[None]]) -> ControllerLoad:
    before, _, _ = await actor.look.remote()
    began = time.monotonic()
    await pass_time(MEASURED_S)
    after, memory, pause = await actor.look.remote()
    return ControllerLoad((after - before) / (time.monotonic() - began), memory_mib=memory, pause_ms=pause)


def empty_load(calls: dict[str, float]) -> ControllerLoad:
    """Return what an actor takes that is called as often and does nothing."""
    actor = started(EmptyController)
    try:
        ray.get(actor.look.remote())
        return asyncio.run(_measure(actor, lambda seconds: _call(actor, calls, seconds)))
    finally:
        ray.kill(actor)


async def _call(actor: Any, calls: dict[str, float], seconds: float) -> None:
    """Make calls at these rates, evenly spread."""
    began = time.monotonic()
    turns: set[asyncio.Task[Any]] = set()
    made = dict.fromkeys(calls, 0)
    while (passed := time.monotonic() - began) < seconds:
        for kind, rate in calls.items():
            while made[kind] < passed * rate:
                made[kind] += 1
                turns.add(asyncio.create_task(_await(getattr(actor, kind).remote(*EXAMPLES[kind]))))
        await asyncio.sleep(0.005)
        turns = {turn for turn in turns if not turn.done()}
    await asyncio.gather(*turns)


async def _await(answer: Any) -> None:
    await answer


def this_node() -> str:
    """Return the id of this node."""
    return str(ray.get_runtime_context().get_node_id())


def table(regime: Regime, found: dict[int, list[tuple[ControllerLoad, ControllerLoad]]]) -> str:
    """Return the medians for one regime as a table in Markdown."""
    kinds = ("report", "listen", "ask", "note_progress")
    lines = [
        f"### {regime.name.capitalize()}",
        "",
        "| workers, and as many trainers | batches used per second | "
        + " | ".join(f"{kind}/s" for kind in kinds)
        + " | share of a core | empty actor, as many calls | ours |",
        "| ---: |" + " ---: |" * (len(kinds) + 4),
    ]
    for count, loads in found.items():
        share = statistics.median(load.share for load, _ in loads)
        bound = statistics.median(load.share for _, load in loads)
        batches = statistics.median(load.batches for load, _ in loads)
        rates = [statistics.median(load.calls.get(kind, 0.0) for load, _ in loads) for kind in kinds]
        cells = [f"{count:,}", f"{batches:,.0f}", *(f"{rate:.0f}" for rate in rates)]
        lines.append(f"| {' | '.join(cells)} | {share:.1%} | {bound:.1%} | {share - bound:.1%} |")
    return "\n".join(lines)


def measure(
    regime: Regime, members: Sequence[int], rounds: int
) -> dict[int, list[tuple[ControllerLoad, ControllerLoad]]]:
    """Measure the controller and the empty actor in turn."""
    found: dict[int, list[tuple[ControllerLoad, ControllerLoad]]] = {count: [] for count in members}
    for _ in range(rounds):
        for count in members:
            ours = controller_load(count, regime)
            bound = empty_load(ours.calls)
            found[count].append((ours, bound))
            rates = ", ".join(f"{rate:.0f} {kind}" for kind, rate in ours.calls.items())
            print(
                f"{regime.name}, {count}: {ours.share:.1%} of a core, empty actor {bound.share:.1%}; "
                f"{ours.batches:.0f} batches/s; {rates}; {ours.memory_mib:.0f} MiB",
                flush=True,
            )
    return found


REGIMES = {"trainer": TRAINER_BOUND, "input": INPUT_BOUND, "small": SMALL_QUEUES}


def main() -> None:
    """Measure both regimes and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", nargs="+", type=int, default=[10, 100, 300, 1000])
    parser.add_argument("--regimes", nargs="+", choices=list(REGIMES), default=list(REGIMES))
    parser.add_argument("--splits", type=int, help="measure pauses with so many splits instead")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    ray.init(
        "local",
        num_cpus=os.cpu_count(),
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    if args.splits:
        measure_splits(args.splits)
        return
    found = {regime: measure(regime, args.members, args.rounds) for regime in map(REGIMES.get, args.regimes) if regime}
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, Ray {ray.__version__}"
    print(f"\n{machine}; medians of {args.rounds} rounds\n")
    for regime, loads in found.items():
        print(table(regime, loads) + "\n")
    if args.json:
        shares = {
            regime.name: {
                count: [(ours.share, bound.share, ours.calls, ours.batches) for ours, bound in pairs]
                for count, pairs in loads.items()
            }
            for regime, loads in found.items()
        }
        args.json.write_text(json.dumps({"machine": machine, "shares": shares}, indent=1))


if __name__ == "__main__":
    main()
