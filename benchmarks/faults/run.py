"""A run on a real cluster: trainers and workers as processes, signals and lost nodes as faults, and what is left."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import psutil
import ray
from ray.core.generated import autoscaler_pb2

from benchmarks.faults.case import BUCKET, FaultCase, LiveFault, released, to_hang, torn_files
from benchmarks.faults.judgement import TrainerStory, problems, recoveries
from benchmarks.faults.machine import Machine, fill
from benchmarks.faults.processes import CONTROLLER, WORKER, left_behind, ours, send_signal, take_files
from benchmarks.faults.trainer import SAVED, Beginning, train
from pecan_ray import journal_state
from pecan_ray.errors import JournalError, StateError
from pecan_ray.job.stats import JobStats
from pecan_ray.plan.windows import Deployment

ROOT = Path(__file__).resolve().parents[2]
FAILURES: dict[str, tuple[int | str, ...]] = {
    "storage outage": (503,),
    "storage errors": (500,),
    "storage resets": ("reset", "short"),
    "journal outage": (503, "reset"),
}
"""What a store answers, or does in place of an answer."""
FEW_FILES = 4
"""Fewer than so many descriptors are left to a process that runs short of them."""
LOOK_S = 0.1
UP_S = 1.5
CLEAN_S = 40.0
"""A frozen process that Ray has asked to end is killed within this time."""


@dataclass
class FaultOutcome:
    """How a run went."""

    case: FaultCase
    seconds: float
    problems: list[str]
    done: list[str] = field(default_factory=list)
    """The faults that found something to hit."""
    lost: int = 0
    batches: int = 0
    recovered_s: list[float] = field(default_factory=list)
    """How long after each loss of a worker one came up."""


class FaultRun:
    """One case on a cluster."""

    def __init__(self, case: FaultCase, machine: Machine, folder: Path) -> None:
        self.case, self._machine, self._nodes = case, machine, machine.nodes
        self.job = f"faults-{case.number}-{time.time_ns():x}"
        self.folder = folder / self.job
        self._rng = random.Random(case.number)
        self._tasks: list[Any] = []
        self._programs: list[subprocess.Popen[bytes]] = []
        self._victim: Any = None
        self._paused: list[tuple[float, int]] = []
        """When which process goes on."""
        self._passing: list[tuple[float, Callable[[], None]]] = []
        """When what else has failed works again, and how."""
        self._gone: set[int] = set()
        """Processes of trainers in whose place others go on."""
        self._errors: list[str] = []
        self._seen: dict[int, float] = {}
        """Since when workers are there."""
        self.killed: set[int] = set()
        """Ranks."""
        self.done: list[str] = []

    def go(self, deadline_s: float) -> FaultOutcome:
        """Run it to its end, or until nothing has come for so long."""
        began = time.monotonic()
        self.folder.mkdir(parents=True)
        (self.folder / "case.pickle").write_bytes(pickle.dumps(self.case))
        if self.case.plan == "torn":
            torn_files(self.folder / "data")
        if self.case.stored and self._machine.store is not None:
            self._machine.store.put(self.folder.name, self.case.rows)
        if self.case.loses_node:
            self._victim = self._machine.add_victim()
        self._begin(None)
        self._start_trainers()
        hung = not self._watch(deadline_s)
        self._go_on(math.inf)  # what stands still cannot end
        told = [TrainerStory.read(self._file(rank)) for rank in range(self.case.world_size)]
        if hung:
            found = [f"hang: {[len(one.batches) for one in told]} batches came; see {self.folder}"]
            self._dump()
            self._end_by_force()
        else:
            found = problems(self.case, told, self.killed)
            found += self._left()
        found += self._errors
        if self._victim is not None:
            self._nodes.remove_node(self._victim)
        if self.case.stored and self._machine.store is not None:
            self._machine.store.remove(self.folder.name)
        if self.case.keeps_journal_in_bucket and self._machine.store is not None:
            self._machine.store.remove(self._journals.name)
        shutil.rmtree(self._journals, ignore_errors=True)
        self.done = [one for one in self.done if one]
        (self.folder / "problems.txt").write_text("\n".join([str(self.case), *self.done, *found]))
        lost = max((int(one.stats.get("lost", 0)) for one in told), default=0)
        batches = sum(len(one.batches) for one in told)
        return FaultOutcome(self.case, time.monotonic() - began, found, self.done, lost, batches, recoveries(told))

    def _file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.jsonl"

    # --- trainers ------------------------------------------------------------------------------------------

    def _start_trainers(self) -> None:
        for rank in range(self.case.world_size):
            self._start_trainer(rank)

    def _start_trainer(self, rank: int) -> None:
        if self.case.separate:
            environment = {**os.environ, "RAY_ADDRESS": self._nodes.address, "PYTHONPATH": str(ROOT)}
            program = [sys.executable, "-m", "benchmarks.faults.trainer", str(self.folder), str(rank)]
            with (self.folder / f"rank-{rank}.log").open("wb") as log:
                self._programs.append(subprocess.Popen(program, env=environment, stdout=log, stderr=log))
        else:
            place = self._nodes.worker_nodes if self.case.spread and rank % 2 else {self._nodes.head_node}
            node = min(one.node_id for one in place if one is not self._victim)
            remote: Any = ray.remote(num_cpus=0, max_retries=0, label_selector={"ray.io/node-id": node})
            self._tasks.append(remote(train).remote(str(self.folder), rank))

    @property
    def _journals(self) -> Path:
        """Where controllers write, in runs that need to know it."""
        return (self._machine.disk or self.folder) / f"journals-{self.folder.name}"

    def _begin(self, state: dict[str, Any] | None) -> None:
        """Write down with what trainers begin."""
        own = self.case.has("restart from journal") or self.case.has("full disk")
        journals = str(self._journals) if own else None
        if self.case.keeps_journal_in_bucket and self._machine.store is not None:
            journals = f"s3://{BUCKET}/{self._journals.name}"
        Beginning(self.job, journals, state).write(self.folder)

    def _ended(self) -> bool:
        if self._programs:
            return all(program.poll() is not None for program in self._programs)
        return len(ray.wait(self._tasks, num_returns=len(self._tasks), timeout=0)[0]) == len(self._tasks)

    def _received(self) -> int:
        """Return how many batches the trainers have."""
        files = [self._file(rank) for rank in range(self.case.world_size)]
        return sum(file.read_bytes().count(b'"ids"') for file in files if file.exists())

    # --- what happens to it --------------------------------------------------------------------------------

    def _watch(self, deadline_s: float) -> bool:
        """Let the faults happen in time; return whether all trainers ended, or nothing came for too long."""
        due = [fault for fault in self.case.faults if self._machine.allows(fault.kind)]
        received, came = 0, time.monotonic()
        while not self._ended():
            now, before = time.monotonic(), received
            received = self._received()
            came = now if received > before else came
            if now - came > deadline_s:
                return False
            self._go_on(now)
            if due and due[0].kind in ("freeze", "pause", "terminate", "few files"):
                self._seen |= {one.pid: now for one in ours(WORKER) if one.pid not in self._seen}
            if due and received >= due[0].at * self.case.batches() and self._all_there() and self._happens(due[0]):
                fault = due.pop(0)
                self.done.append(f"{fault.kind} at {received} batches")
            if self.case.held is not None and not due and not self._paused:
                self._release(self.case.held.losses)
            time.sleep(LOOK_S)
        return True

    def _go_on(self, now: float) -> None:
        """Let those go on whose pause is over."""
        while self._paused and self._paused[0][0] < now:
            send_signal(self._paused.pop(0)[1], signal.SIGCONT)
        while self._passing and self._passing[0][0] < now:
            self._passing.pop(0)[1]()

    def _later(self, seconds: float, end: Callable[[], None]) -> None:
        """Let something work again after a while."""
        self._passing = sorted([*self._passing, (time.monotonic() + seconds, end)], key=lambda one: one[0])

    def _happens(self, fault: LiveFault) -> bool:
        """Let a fault happen; False if there is nothing to hit as yet."""
        act: dict[str, Callable[[LiveFault], bool]] = {
            "scale": self._scale,
            "node": self._lose_node,
            "preempt node": self._preempt_node,
            "terminate": self._terminate,
            "pause node": self._pause_node,
            "hang": self._hang,
            "kill controller": self._stop_controller,
            "pause controller": self._stop_controller,
            "restart from state": self._restart,
            "restart from journal": self._restart,
            "slow link": self._hurt_link,
            "cut link": self._hurt_link,
            "full disk": self._fill_disk,
            "full shm": self._fill_shm,
            "few files": self._take_files,
            "pause gcs": self._pause_gcs,
            **dict.fromkeys(FAILURES, self._fail_store),
        }
        if fault.kind in act:
            return act[fault.kind](fault)
        if "trainer" in fault.kind:
            pids = self._trainer_pids()
        else:
            pids = [one.pid for one in ours(WORKER) if fault.kind == "kill" or self._is_up(one.pid)]
        if not pids:
            return False
        pid = self._rng.choice(pids)
        if fault.kind in ("kill", "kill trainer"):
            send_signal(pid, signal.SIGKILL)
        else:
            send_signal(pid, signal.SIGSTOP)
        if fault.kind in ("pause", "pause trainer"):
            self._paused = sorted([*self._paused, (time.monotonic() + fault.seconds, pid)])
        if fault.kind == "kill trainer":
            self.killed |= {rank for rank in range(self.case.world_size) if self._pid(rank) == pid}
        return True

    def _all_there(self) -> bool:
        """Tell whether all workers run; where nothing is held faults may come earlier."""
        if self.case.held is None:
            return True
        facts = self._stats()
        wanted = self.case.workers
        return (
            facts is not None
            and bool(facts.deployments)
            and facts.deployments[-1][1] == Deployment(wanted.local, wanted.remote)
        )

    def _release(self, losses: int) -> None:
        """Let the rest of the run come, once the job knows of so many losses."""
        file = released(self.folder)
        if not file.exists() and (facts := self._stats()) is not None and facts.workers_lost >= losses:
            file.touch()

    def _stats(self) -> JobStats | None:
        """Return what the job knows of itself; None if it cannot be asked."""
        try:
            controller = ray.get_actor(f"pecan:{self.job}:controller", namespace="pecan")
            facts: Any = ray.get(controller.stats.remote(), timeout=30)
        except (ValueError, ray.exceptions.RayError):
            return None
        known: JobStats = facts
        return known

    def _is_up(self, pid: int) -> bool:
        """Tell whether a worker's actor was made some time ago: one that freezes before is Ray's to find."""
        return pid in self._seen and time.monotonic() - self._seen[pid] > UP_S

    def _pid(self, rank: int) -> int:
        return TrainerStory.read(self._file(rank)).pid

    def _trainer_pids(self) -> list[int]:
        """Return the processes of all trainers, once they have begun and none has ended."""
        told = [TrainerStory.read(self._file(rank)) for rank in range(self.case.world_size)]
        ready = (
            all(one.pid and one.pid not in self._gone for one in told)
            and not any(one.ended for one in told)
            and any(one.batches for one in told)
        )
        return [one.pid for one in told] if ready else []

    def _hang(self, fault: LiveFault) -> bool:
        """Let the next call of a worker's function never come back."""
        to_hang(self.folder).touch()
        return True

    def _pause_node(self, fault: LiveFault) -> bool:
        """Let all processes of a node stand still: to the others its network is cut off, for a while."""
        raylet = psutil.Process(self._rng.choice(self._lasting_nodes()).all_processes["raylet"][0].process.pid)
        until = time.monotonic() + fault.seconds
        for process in (raylet, *raylet.children(recursive=True)):
            send_signal(process.pid, signal.SIGSTOP)
            self._paused.append((until, process.pid))
        self._paused.sort()
        return True

    def _pause_gcs(self, fault: LiveFault) -> bool:
        """Let the process stand still that knows all of Ray's actors and nodes."""
        pid = self._nodes.head_node.all_processes["gcs_server"][0].process.pid
        send_signal(pid, signal.SIGSTOP)
        self._paused = sorted([*self._paused, (time.monotonic() + fault.seconds, pid)])
        return True

    def _take_files(self, fault: LiveFault) -> bool:
        """Let a worker have next to no descriptors for a while beside those that it has open (EMFILE)."""
        processes = [one for one in ours(WORKER) if self._is_up(one.pid)]
        if not processes:
            return False
        process, spare = self._rng.choice(processes), self._rng.randrange(FEW_FILES)
        with suppress(psutil.Error, OSError):  # it has ended meanwhile
            self._later(fault.seconds, take_files(process, spare))
            return True
        return False

    def _stop_controller(self, fault: LiveFault) -> bool:
        """Kill it or let it stand still, once all trainers know it: none is told of one that was gone before."""
        pids = [one.pid for one in ours(CONTROLLER)]
        if not (pids and self._trainer_pids()):
            return False
        for pid in pids:
            send_signal(pid, signal.SIGKILL if fault.kind == "kill controller" else signal.SIGSTOP)
            if fault.kind == "pause controller":
                self._paused = sorted([*self._paused, (time.monotonic() + fault.seconds, pid)])
        return True

    def _restart(self, fault: LiveFault) -> bool:
        """Kill the only trainer, and let another one go on from what is kept, as a job of its own."""
        pids, by_journal = self._trainer_pids(), fault.kind == "restart from journal"
        if not pids or self._kept_state(by_journal) is None:
            return False
        for pid in pids:
            send_signal(pid, signal.SIGKILL)
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).wait(CLEAN_S)
        self._gone.update(pids)
        state = self._kept_state(by_journal)
        if state is None:
            self._errors.append(f"error: job {self.job} has no state any more, now that its trainer is killed")
        self.job = f"{self.folder.name}-{len(self._gone)}"
        self._begin(state)
        self._start_trainer(0)
        return True

    def _kept_state(self, by_journal: bool) -> dict[str, Any] | None:
        """Return the last state that the trainer has saved, or the one that the journal holds, if there is one."""
        if by_journal:
            with suppress(JournalError, StateError):
                return journal_state(self._journals, self.job)
        elif (file := self.folder / SAVED).exists():
            found: dict[str, Any] = json.loads(file.read_text())
            return found
        return None

    def _hurt_link(self, fault: LiveFault) -> bool:
        """Let packets to and from a node be late, and some of them lost; or lose all of them."""
        links = self._machine.links
        assert links is not None
        number = self._rng.choice(sorted(map(self._machine.number, self._lasting_nodes())))
        links.set(number, *((0.0, 1.0) if fault.kind == "cut link" else (fault.delay_s, fault.share_lost)))
        self._later(fault.seconds, lambda: links.restore(number))
        return True

    def _lasting_nodes(self) -> list[Any]:
        return [one for one in self._nodes.worker_nodes if one is not self._victim]

    def _fail_store(self, fault: LiveFault) -> bool:
        """Let every request fail for a while; what meets no request is no fault that was done."""
        store = self._machine.store
        assert store is not None
        proxy = store.proxy
        if proxy.outage is not None:
            return False
        before, place = proxy.rejected, len(self.done)
        proxy.outage = self._rng.choice(FAILURES[fault.kind])

        def end() -> None:
            proxy.outage = None
            if proxy.rejected == before:
                self.done[place] = ""

        self._later(fault.seconds, end)
        return True

    def _fill_disk(self, fault: LiveFault) -> bool:
        """Fill the disk that the journal is on."""
        assert self._machine.disk is not None
        return self._filled(self._machine.disk / "filler", fault)

    def _fill_shm(self, fault: LiveFault) -> bool:
        """Fill the /dev/shm of the node that may be lost, and may so be lost."""
        shm = self._machine.shm(self._victim)
        return bool(ours(WORKER)) and shm is not None and self._filled(shm / "filler", fault)

    def _filled(self, file: Path, fault: LiveFault) -> bool:
        fill(file)

        def end() -> None:
            with suppress(OSError):  # what held it is gone
                file.unlink()

        self._later(fault.seconds, end)
        return True

    def _scale(self, fault: LiveFault) -> bool:
        if self._paused:
            return False  # whoever is to answer may stand still, and goes on only if this does
        try:
            controller = ray.get_actor(f"pecan:{self.job}:controller", namespace="pecan")
            ray.get(controller.scale.remote(fault.local, fault.remote), timeout=30)
        except (ValueError, ray.exceptions.RayError):
            return False
        return True

    def _lose_node(self, fault: LiveFault) -> bool:
        if not ours(WORKER):
            return False
        self._nodes.remove_node(self._victim, allow_graceful=False)
        self._victim = None
        return True

    def _preempt_node(self, fault: LiveFault) -> bool:
        """Let Ray know that a node will be taken away, and take it away then."""
        if not ours(WORKER):
            return False
        node = self._victim
        raylet, words = cast(Any, ray._raylet), cast(Any, autoscaler_pb2)
        reason = words.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        try:
            client = raylet.GcsClient(address=self._nodes.address)
            client.drain_node(node.node_id, reason, "preempted", int(1000 * (time.time() + fault.seconds)))
        except ray.exceptions.RpcError:  # the GCS gets too little CPU to answer in time: it is told again
            return False
        self._victim = None
        self._later(fault.seconds, lambda: self._nodes.remove_node(node, allow_graceful=False))
        return True

    def _terminate(self, fault: LiveFault) -> bool:
        """Ask a worker's process to end, and end it some time later."""
        processes = [one for one in ours(WORKER) if self._is_up(one.pid)]
        if not processes:
            return False
        process = self._rng.choice(processes)
        send_signal(process.pid, signal.SIGTERM)

        def end() -> None:
            with suppress(psutil.NoSuchProcess):  # it has handed over what it had
                process.kill()

        self._later(fault.seconds, end)
        return True

    # --- afterwards ----------------------------------------------------------------------------------------

    def _left(self) -> list[str]:
        """Name what a run has left behind."""
        deadline = time.monotonic() + CLEAN_S
        while (left := left_behind()) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        for process in (*ours(WORKER), *ours(CONTROLLER)):
            send_signal(process.pid, signal.SIGKILL)
        return [f"left: {one}" for one in left]

    def _dump(self) -> None:
        """Write what everybody is doing into the run's folder."""
        for rank in range(self.case.world_size):
            (self.folder / f"rank-{rank}.ask").touch()
        spy = Path(sys.executable).parent / "py-spy"
        pids = [self._pid(rank) for rank in range(self.case.world_size)]
        for pid in [pid for pid in pids if pid] + [one.pid for one in (*ours(WORKER), *ours(CONTROLLER))]:
            with suppress(OSError, subprocess.TimeoutExpired), (self.folder / f"stacks-{pid}.txt").open("wb") as out:
                subprocess.run([spy, "dump", "--nonblocking", "--pid", str(pid)], stdout=out, stderr=out, timeout=20)
        try:
            controller = ray.get_actor(f"pecan:{self.job}:controller", namespace="pecan")
            facts: Any = ray.get(controller.stats.remote(), timeout=20)
            text = "\n".join(f"{event.seconds:7.2f} {event.kind:10} {event.text}" for event in facts.events)
        except (ValueError, ray.exceptions.RayError) as error:
            text = f"{type(error).__name__}: {error}"
        (self.folder / "controller.txt").write_text(text)
        time.sleep(2.0)

    def _end_by_force(self) -> None:
        for rank in range(self.case.world_size):
            if pid := self._pid(rank):
                send_signal(pid, signal.SIGKILL)
        for process in (*ours(WORKER), *ours(CONTROLLER)):
            send_signal(process.pid, signal.SIGKILL)
