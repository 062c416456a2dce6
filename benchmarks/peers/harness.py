"""Runs the sides of a case in turn, each in a process of its own, and measures time, CPU, memory and other load."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import tree
from benchmarks.peers.cases import PeerCase
from benchmarks.peers.judgement import MOST_FOREIGN, Measurement, rotated
from benchmarks.peers.keeper import Keeper
from benchmarks.peers.sides import SIDES

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0
STOP_S = 20.0
STARTERS = 2
"""Peers that are started, or stopped, at a time."""
SayLine = Callable[[str], None]


class SideError(Exception):
    """A side did not do what it was asked."""


@dataclass(frozen=True)
class PeerSettings:
    """How to measure."""

    rounds: int = 5
    launches: int = 1
    """All sides are started so many times, for so many rounds each: two starts of the same code can differ by more
    than two rounds of one."""
    seconds: float = 1.6
    warm_s: float = 2.0
    """A side's daemons make up for the time in which they were frozen, Ray's for a second or two."""
    data: str = ""
    most_foreign: float = MOST_FOREIGN
    """Share of the machine's processors that other programs may use meanwhile."""
    tries: int = 3
    """A measurement during which they used more is made again, up to so many times in all."""


@dataclass
class CaseResult:
    """What came out of a case."""

    case: PeerCase
    measured: dict[str, list[Measurement]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Sides that could not take part, and why."""
    shapes: dict[str, dict[str, str]] = field(default_factory=dict)
    starts: dict[str, dict[str, float]] = field(default_factory=dict)
    """Seconds until a side was prepared, and from there to its first batch."""
    notes: dict[str, str] = field(default_factory=dict)
    batch_bytes: dict[str, int] = field(default_factory=dict)


class RunningSide:
    """A child process that runs one side."""

    def __init__(self, name: str, case: PeerCase, settings: PeerSettings, log: Path) -> None:
        self.name = name
        side = SIDES[name]
        mine, theirs = os.pipe()
        request = {
            "module": side.path,
            "function": side.function,
            "case": case.key,
            "data": settings.data,
            "options": dict(side.options),
            "answers": theirs,
        }
        self._log = log
        with open(log, "w") as words:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.peers.child", json.dumps(request)],
                stdin=subprocess.PIPE,
                stdout=words,
                stderr=words,
                pass_fds=(theirs,),
                cwd=side.checkout or ROOT,
                env={**os.environ, **_environment(side.checkout or str(ROOT))},
                text=True,
                bufsize=1,
                start_new_session=True,
            )
        os.close(theirs)
        self._answers = os.fdopen(mine, "rb", buffering=0)  # nothing read ahead: poll() sees every answer
        self.pid = self._process.pid
        self._keeper = Keeper(self.pid)

    def ask(self, **command: Any) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its last answer, or the end of its answers, says why
            self._process.stdin.write(json.dumps(command) + "\n")

    def response(self, timeout_s: float) -> dict[str, Any]:
        """Wait for an answer; raises SideError if there is none, or if it is a failure."""
        waiting = select.poll()  # select() takes no descriptor beyond 1023
        waiting.register(self._answers, select.POLLIN | select.POLLHUP)
        if not waiting.poll(1000 * timeout_s):
            raise SideError(f"no answer within {timeout_s:.0f} s")
        line = self._answers.readline()
        if not line:
            raise SideError(f"its process ended: {_last_line(self._log)}")
        answer: dict[str, Any] = json.loads(line)
        if answer["event"] in ("failed", "missing"):
            raise SideError(answer["error"])
        return answer

    def freeze(self) -> None:
        """Stop the clock of all its processes: a side that waits fills no buffers and polls nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let all its processes go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in tree.descendants(self.pid, tree.processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        """End the side and all that it started."""
        self.thaw()
        family = tree.descendants(self.pid, tree.processes())
        self.ask(do="stop")
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        for pid in family & tree.processes().keys():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._keeper.let_go()
        self._answers.close()


def _environment(checkout: str) -> dict[str, str]:
    """Environment of a side: its checkout, no accelerator, no words of frameworks."""
    path = os.pathsep.join(filter(None, (checkout, os.environ.get("PYTHONPATH"))))
    return {
        "PYTHONPATH": path,
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_DEDUP_LOGS": "0",
    }


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "without a word"


@dataclass(frozen=True)
class CpuClock:
    """CPU time so far of the machine, of all of the benchmark, and of one side."""

    wall: float
    busy: float
    idle: float
    ours: float
    side: float

    @classmethod
    def read(cls, pid: int) -> CpuClock:
        """Look now."""
        found = tree.processes()
        busy, idle = tree.machine_seconds()
        return cls(time.perf_counter(), busy, idle, tree.cpu_seconds(os.getpid(), found), tree.cpu_seconds(pid, found))

    def shares_since(self, before: CpuClock, seconds: float) -> tuple[float, float]:
        """Return the shares of the processors that foreign programs and that our other processes used.

        Where the harness looked too late to see all of `seconds`, what it missed counts as used by foreign programs:
        one of them had the processor that it needed.
        """
        missed = max(0.0, 1.0 - (self.wall - before.wall) / seconds)
        busy, ours, side = self.busy - before.busy, self.ours - before.ours, self.side - before.side
        everything = busy + self.idle - before.idle
        if everything == 0.0:  # less than the kernel's tick
            return missed, 0.0
        return max(missed, (busy - ours) / everything), max(0.0, ours - side) / everything


def run_case(case: PeerCase, names: Sequence[str], settings: PeerSettings, say: SayLine) -> CaseResult:
    """Start all sides, let them measure in turn in an order that rotates, and stop them."""
    result = CaseResult(case)
    for name in names:
        if SIDES[name].missing is not None:
            result.missing[name] = f"{SIDES[name].missing} is not installed"
    able = [name for name in names if name not in result.missing]
    with tempfile.TemporaryDirectory(prefix="pecan-peers-") as logs:
        run = _first_batches if case.first_batch else _rates
        run(case, able, settings, result, Path(logs), say)
    return result


def _rates(
    case: PeerCase, names: list[str], settings: PeerSettings, result: CaseResult, logs: Path, say: SayLine
) -> None:
    for launch in range(settings.launches):
        able = [name for name in rotated(names, launch) if name not in result.missing]
        _launched(case, able, launch, settings, result, logs, say)


def _launched(
    case: PeerCase, names: list[str], launch: int, settings: PeerSettings, result: CaseResult, logs: Path, say: SayLine
) -> None:
    running: dict[str, RunningSide] = {}
    first = launch * settings.rounds
    try:
        _start_all(case, names, settings, result, logs, say, running)
        for number in range(first, first + settings.rounds):
            for name in rotated([name for name in names if name in running], number):
                measurement = _least_disturbed(running[name], number, settings)
                result.measured.setdefault(name, []).append(measurement)
                say(f"round {number + 1}: {name}: {_told(measurement, case)}")
                if measurement.error is not None:
                    running.pop(name).stop()
    finally:
        with ThreadPoolExecutor(STARTERS) as pool:
            list(pool.map(RunningSide.stop, running.values()))


def _start_all(
    case: PeerCase,
    names: list[str],
    settings: PeerSettings,
    result: CaseResult,
    logs: Path,
    say: SayLine,
    running: dict[str, RunningSide],
) -> None:
    """Start ours one after the other, for they measure operators first, and the rest two at a time."""

    def start(name: str) -> None:
        side = _started(name, case, settings, result, logs, say)
        if side is not None:
            running[name] = side
            side.freeze()

    rest = [name for name in names if SIDES[name].kind != "ours"]
    for name in names:
        if name not in rest:
            start(name)
    with ThreadPoolExecutor(STARTERS) as pool:
        for done in [pool.submit(start, name) for name in rest]:
            done.result()


def _started(
    name: str, case: PeerCase, settings: PeerSettings, result: CaseResult, logs: Path, say: SayLine
) -> RunningSide | None:
    side = RunningSide(name, case, settings, logs / f"{time.monotonic_ns()}.log")
    try:
        ready = side.response(START_S)
    except SideError as error:
        say(f"{name} could not start: {error}")
        result.missing[name] = f"could not start: {error}"
        side.stop()
        return None
    result.shapes[name] = ready["shapes"]
    result.starts[name] = {"prepare_s": ready["prepare_s"], "first_batch_s": ready["first_batch_s"]}
    if ready["note"]:
        result.notes[name] = ready["note"]
    return side


def _least_disturbed(side: RunningSide, number: int, settings: PeerSettings) -> Measurement:
    """Measure until other programs leave the machine to the side, or else take the time when they did most."""
    best = _measured(side, number, settings)
    for _ in range(settings.tries - 1):
        if best.error is not None or best.foreign <= settings.most_foreign:
            break
        again = _measured(side, number, settings)
        if again.error is not None or again.foreign < best.foreign:
            best = again
    return best


def _measured(side: RunningSide, number: int, settings: PeerSettings) -> Measurement:
    side.thaw()
    try:
        side.ask(do="measure", warm_s=settings.warm_s, seconds=settings.seconds)
        side.response(START_S)
        before = CpuClock.read(side.pid)
        done = side.response(START_S)
        after = CpuClock.read(side.pid)
    except SideError as error:
        return Measurement(number, error=str(error))
    finally:
        side.freeze()
    foreign, others = after.shares_since(before, done["seconds"])
    # Looked at while nothing moves: walking the pages of a process holds up its own allocations.
    taken = tree.memory(tree.descendants(side.pid, tree.processes()))
    return Measurement(
        number,
        rate=done["elements"] / done["seconds"],
        cpu_s=(after.side - before.side) / max(done["elements"], 1),
        memory=taken.total,
        daemons=taken.daemons,
        worker=taken.worker,
        foreign=foreign,
        others=others,
        longest_wait_s=done["longest_wait_s"],
    )


def _first_batches(
    case: PeerCase, names: list[str], settings: PeerSettings, result: CaseResult, logs: Path, say: SayLine
) -> None:
    for number in range(settings.rounds):
        for name in rotated(names, number):
            if name in result.missing:
                continue
            before = CpuClock.read(os.getpid())
            began = time.perf_counter()
            side = _started(name, case, settings, result, logs, say)
            if side is None:
                continue
            seconds = time.perf_counter() - began
            after = CpuClock.read(side.pid)
            foreign, _ = after.shares_since(before, seconds)
            taken = tree.memory(tree.descendants(side.pid, tree.processes()))
            side.stop()
            first = result.starts[name]["first_batch_s"]
            measurement = Measurement(
                number, 1 / first, after.side, taken.total, taken.daemons, taken.worker, foreign, longest_wait_s=seconds
            )
            result.measured.setdefault(name, []).append(measurement)
            say(f"round {number + 1}: {name}: {_told(measurement, case)}, {seconds:.1f} s from the process's start on")


def _told(m: Measurement, case: PeerCase) -> str:
    if m.rate is None:
        return f"failed: {m.error}"
    what = f"{1 / m.rate:.2f} s" if case.first_batch else f"{m.rate:,.0f} {case.unit}/s"
    return f"{what}, {m.memory >> 20} MB, other load {m.foreign:.0%}"


def quiet_machine(seconds: float = 1.0) -> float:
    """Return the share of the processors that other programs use while this one waits."""
    before = CpuClock.read(os.getpid())
    time.sleep(seconds)
    return CpuClock.read(os.getpid()).shares_since(before, seconds)[0]


def sides_of(cases: Sequence[PeerCase], only: Sequence[str]) -> Iterator[tuple[PeerCase, list[str]]]:
    """Yield each case with those of its sides whose names hold one of the words; bounds and ours always stay."""
    for case in cases:
        names = [
            name
            for name in case.sides
            if not only or SIDES[name].kind != "peer" or any(word.lower() in name.lower() for word in only)
        ]
        yield case, names
