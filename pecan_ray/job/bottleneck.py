"""What holds a run up, how much would be gained without it, and what to change: numbers in, words out.

A run is its start, and then batch after batch.  Of these, either the trainer sets the pace, which then never waits, or
the input does.  Of the input the stage sets the pace that is busy all the time: the source's reader, or the threads
that run operators and put elements together; where neither is, and finished batches lie at the workers, it is the way
between these and the trainer.

Decisions: docs/decisions/observing.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from pecan_ray.job.run_time import RunTime
from pecan_ray.plan.stage_seconds import StageSeconds

BottleneckKind: TypeAlias = Literal[
    "start", "storage", "operator", "batching", "network", "conversion", "trainer", "headspace", "unknown"
]
MOSTLY = 0.5
"""A start that takes more than this share of a run is what to look at."""
LONG_START_S = 1.0
"""A start is only looked at if it takes so long."""
TELLING = 10
"""Batches from which on something can be said of what follows the start."""
KEEPS_UP = 0.05
"""Input keeps up with a trainer that waits for a smaller share of its time: no change could save more than that."""
BUSY = 0.3
"""Where no stage of a worker has work for this share of the time, it is none of them."""
SEEN_S = 0.5
"""Workers that were looked at for less have shown nothing: ten looks of `engines.stages`."""
BLOCKED = 0.3
"""Workers whose finished batches were not taken for this share of their time wait for the way to the trainer."""
COMPUTES = 0.5
"""Threads in operators that are on a CPU for a smaller share of the time wait inside of functions."""
LOCKED = 0.7
"""Threads wait for Python's lock if it is held for a larger share of the time than this."""
SEVERAL = 1.5
"""They only wait for it if more of them than this are inside of functions."""
ON_CPUS = 0.75
"""They only wait for it if they are on CPUs for a smaller share of their time.

Measured with two threads on two CPUs: functions in Python hold the lock for 0.84 to 1.0 of the time and are on CPUs for
0.5 of theirs, functions that release it hold it for 0.02 and less; half and half 0.36.
"""
SHARED_LOCK = 0.5
"""Threads that hold the lock for this share of the time together hardly wait for each other."""
WORTH_TELLING = 1.2
"""Other numbers of workers and threads are told if they promise so many times the speed."""


@dataclass(frozen=True)
class RunNumbers:
    """What is known of a run."""

    time: RunTime
    batches: int
    stages: StageSeconds = field(default_factory=StageSeconds)
    """Sums over all workers."""
    op_seconds: tuple[tuple[str, float], ...] = ()
    """Seconds of each operator for an element, in AutoOrder's sample: used where workers have seen none."""
    local: int = 0
    """Workers on the trainers' nodes."""
    remote: int = 0
    """Workers on other nodes."""
    placed: bool = False
    """AutoPlacement chooses their numbers."""
    cpus: float = 0.0
    """CPUs of the trainers' nodes that the job may use; 0: unknown."""
    remote_bytes: int = 0
    """Read of object stores."""
    in_process: bool = False
    """Everything ran in this process (``debug=True``)."""
    headspace: bool = False
    """It was one batch again and again."""


@dataclass(frozen=True)
class Bottleneck:
    """What holds a run up."""

    kind: BottleneckKind
    text: str
    """One sentence: what it is, what would be gained without it, what to change."""
    gain: float = 0.0
    """The share of the run's time that would be saved at most if it took none."""
    operator: str = ""
    """Where it is one."""
    longer: Bottleneck | None = None
    """Where it is the start: what would hold up a run that goes on for longer."""


def bottleneck(run: RunNumbers) -> Bottleneck:
    """Say what holds a run up."""
    time = run.time
    if not run.batches or time.total_s <= 0:
        return Bottleneck("unknown", "no batch has come yet, so that nothing can be said about what is slow")
    if run.headspace:
        return Bottleneck("headspace", _headspace(time, run.batches))
    if run.in_process:
        share = (time.first_batch_s + time.waited_s) / time.total_s
        text = (
            f"everything ran in this process, where input took {share:.0%} of the time; without debug=True workers "
            "make batches while the loop trains"
        )
        return Bottleneck("unknown", text, share)
    if time.start_s > MOSTLY * time.total_s and time.start_s >= LONG_START_S:
        longer = _behind_the_start(run) if run.batches >= TELLING and time.running_s >= SEEN_S else None
        return replace(_start(time), longer=longer)
    return _behind_the_start(run)


def _headspace(time: RunTime, batches: int) -> str:
    step_s = time.running_s / batches
    rate = "" if step_s <= 0 else f" ({1 / step_s:,.1f} batches/s)"
    return (
        f"headspace: no run, but one batch {batches} times; the training loop takes {1e3 * step_s:.2f} ms for a batch"
        f"{rate}, which no input can make less: compare a run's batches/s behind the first"
    )


def _behind_the_start(run: RunNumbers) -> Bottleneck:
    time = run.time
    waits = time.waited_s / max(time.running_s, 1e-9)
    converts = time.converted_s / max(time.running_s, 1e-9)
    if max(waits, converts) < KEEPS_UP:
        return _trainer(waits)
    if converts > waits:
        text = "converting batches and bringing them to the device takes {:.0%} of the time behind the first batch"
        change = "let workers make what the step needs (its dtype, contiguous arrays), so that nothing is copied here"
        return _make_bottleneck("conversion", text.format(converts), time.converted_s / time.total_s, change)
    return _input(run, waits)


def _start(time: RunTime) -> Bottleneck:
    parts = {
        "Ray's start": (time.ray_s, "begin the program on a cluster that runs already (ray start --head)"),
        "the job's controller": (time.controller_s, "let a job run for more epochs: each has one start"),
        "AutoOrder's sample": (
            time.order_s,
            "pin the order that it finds (pecan explain FILE --save ORDER, Config(order_file=...))",
        ),
        "the wait for the first batch": (
            time.first_batch_s,
            "let a job run for more epochs, or make batches smaller: workers start once, and the first batch is whole",
        ),
    }
    name, (seconds, change) = max(parts.items(), key=lambda part: part[1][0])
    text = f"the start took {time.start_s:.1f} s of {time.total_s:.1f} s, most of it {name} ({seconds:.1f} s)"
    return _make_bottleneck("start", text, seconds / time.total_s, change)


def _trainer(waits: float) -> Bottleneck:
    text = (
        f"the training loop sets the pace: input keeps up, and was waited for {waits:.0%} of the time behind the first "
        "batch; nothing is gained by faster input, only by a faster step, and fewer workers might do"
    )
    return Bottleneck("trainer", text)


def _input(run: RunNumbers, waits: float) -> Bottleneck:
    """Say which part of the input holds a run up whose trainer waits."""
    where = f"the trainer waited {waits:.0%} of the time behind the first batch"
    seen = run.stages
    reading = seen.reading_s / max(seen.observed_s, 1e-9)
    pool = (seen.computing_s + seen.batching_s) / max(seen.threads_s, 1e-9)
    if seen.observed_s >= SEEN_S:  # else shares of it tell nothing
        other_than_operators = _outside_operators(run, where, reading, pool)
        if other_than_operators is not None:
            return other_than_operators
    # Decision 58: C code without our Python frames (graphs of TensorFlow) is seen as nothing. There the times of
    # AutoOrder's sample stand in.
    operators = dict(seen.operators) or dict(run.op_seconds)
    if not operators or (seen.observed_s < SEEN_S and not run.op_seconds):
        text = f"input: {where}, and workers were seen at work too shortly to tell at what"
        return _make_bottleneck("unknown", text, run.time.waited_s / run.time.total_s, _more_workers(run))
    stages = {**operators, "": seen.batching_s if seen.operators else 0.0}
    name = max(stages, key=lambda one: stages[one])
    share = stages[name] / max(sum(stages.values()), 1e-9)
    # A reader that waits for Python's lock is slow as long as the lock is held.
    other = 0.0 if _lock_is_held(seen) else reading
    # At most until the source's reader sets the pace: what would be saved beyond that is not gained.
    gain = _saved(run, min(share, 1 - other / pool) if pool > 0 else share)
    if not name:
        text = f"batching: {where}, and workers spend {share:.0%} of their work on putting elements together"
        change = "let elements be smaller where they are batched (uint8 instead of float32, fewer columns)"
        return _make_bottleneck("batching", text, gain, change)
    return _operator(run, name, share, gain, where)


def _outside_operators(run: RunNumbers, where: str, reading: float, pool: float) -> Bottleneck | None:
    """Say what holds a run up, if workers were seen to wait for something other than operators and batching."""
    seen = run.stages
    # Before the next check, because workers that are blocked have no work to do either.
    if seen.blocked_s > BLOCKED * seen.observed_s:
        return _network(run, where)
    if seen.operators and max(reading, pool) < BUSY:
        return _dispatch_overhead(run, where)
    if reading > pool and not _lock_is_held(seen):
        return _storage(run, where, reading, pool)
    return None


def _network(run: RunNumbers, where: str) -> Bottleneck:
    blocked = run.stages.blocked_s / run.stages.observed_s
    text = f"the way of batches to the trainer: {where}, while workers had finished ones for {blocked:.0%} of theirs"
    change = (
        "send fewer bytes (cast and crop before batch(), to uint8 if it can be), or let workers run on the "
        "trainer's node (workers=Workers(local=...))"
    )
    return _make_bottleneck("network", text, _saved(run, blocked), change)


def _dispatch_overhead(run: RunNumbers, where: str) -> Bottleneck:
    text = f"handing out work: {where}, and workers had nothing to do for most of theirs"
    change = "make splits larger (split_bytes=..., fewer and larger files), or let fewer workers run"
    return _make_bottleneck("unknown", text, run.time.waited_s / run.time.total_s, change)


def _operator(run: RunNumbers, name: str, share: float, gain: float, where: str) -> Bottleneck:
    seen = run.stages
    busy_s = seen.busy_s
    cheaper = f"make {name} cheaper, keep what it gives (autocache() behind it), or {_more_workers(run)}"
    # First, because neither CPU time nor the lock of the worker says anything about processes of their own.
    if name in seen.in_processes:
        text = f"operator {name}, in processes of its own: {where}, and {share:.0%} of the workers' work is there"
        return _make_bottleneck("operator", text, gain, cheaper, name)
    if _lock_is_held(seen):
        return _make_bottleneck("operator", *_lock(run, name, share, gain, where), name)
    if seen.operators and seen.cpu_s < COMPUTES * min(busy_s, seen.threads_s):
        text = f"operator {name}, which waits: {where}, and workers spend {share:.0%} of their work inside of it, "
        text += f"though they use CPUs for {seen.cpu_s / max(busy_s, 1e-9):.0%} of that only"
        change = "let more threads run it (Config(threads_per_worker=...)), or processes (map(..., processes=True))"
        return _make_bottleneck("operator", text, gain, f"{change} if it holds Python's lock", name)
    by = "" if seen.operators else " in AutoOrder's sample"
    text = f"the CPU, by operator {name}: {where}, and it is {share:.0%} of the workers' work{by}"
    return _make_bottleneck("operator", text, gain, cheaper, name)


def _lock(run: RunNumbers, name: str, share: float, gain: float, where: str) -> tuple[str, float, str]:
    """Say that an operator holds Python's lock, what would be gained, and what to change."""
    seen = run.stages
    change = f"let processes run {name} (map(..., processes=True)), or write it with functions that release the lock"
    held = f"Python's lock, held by operator {name}: {where}, and "
    if _locked(seen):
        at_work, cpus = seen.busy_s / seen.observed_s, seen.cpu_s / seen.observed_s
        held += f"{at_work:.1f} threads at a time are at work, {share:.0%} of it inside of {name}, but use {cpus:.1f} "
        held += "CPUs together"
    else:
        held += f"{share:.0%} of the workers' work is inside of it, by one thread that holds the lock for "
        held += f"{min(1.0, seen.locked_s / seen.observed_s):.0%} of the time, so that more threads would wait for it"
    return f"{held}{_other_numbers(run)}", gain, f"{change} (NumPy, OpenCV, Pillow)"


def _other_numbers(run: RunNumbers) -> str:
    """Say how much faster other numbers of workers and threads would be on the same CPUs; empty if hardly.

    A worker whose lock is held all the time gives its functions as many CPUs as they can use at once: `used`.  With
    SHARED_LOCK of these as threads, each thread has a CPU's work to do.
    """
    seen = run.stages
    used = max(1.0, seen.cpu_s / seen.observed_s)
    threads = max(1, int(SHARED_LOCK * used))
    workers = int(run.cpus / threads)
    times = workers * threads / (used * max(1, run.local))
    if run.remote or times < WORTH_TELLING:  # nothing is known of the CPUs of other nodes
        return ""
    message = f"{workers} workers of {threads} thread{'s' * (threads > 1)} would be up to {times:.1f} times as fast"
    return f"; {message}" + ("" if run.placed else " (workers=None lets AutoPlacement find their number)")


def _lock_is_held(seen: StageSeconds) -> bool:
    """Return whether functions hold Python's lock so that other threads, the source's reader too, wait for it."""
    known = seen.observed_s >= SEEN_S and seen.locked_s >= LOCKED * seen.observed_s
    # Decision 111: where a second thread gains nothing, the engine runs one. That one may hold the lock as well.
    return known and (_locked(seen) or LOCKED * seen.observed_s <= _in_threads_s(seen) < SEVERAL * seen.observed_s)


def _locked(seen: StageSeconds) -> bool:
    """Return whether several threads inside of functions wait for a lock that is held."""
    return _in_threads_s(seen) >= SEVERAL * seen.observed_s and seen.cpu_s <= ON_CPUS * seen.busy_s


def _in_threads_s(seen: StageSeconds) -> float:
    """Return the seconds of threads inside of functions that run in the worker's own process."""
    return sum(seconds for name, seconds in seen.operators if name not in seen.in_processes)


def _storage(run: RunNumbers, where: str, reading: float, pool: float) -> Bottleneck:
    kept = "keep what is read on the nodes (Config(cache=Cache(source_bytes=...)))"
    change = f"{kept}, or {_more_workers(run)}" if run.remote_bytes else f"use a faster disk, or {_more_workers(run)}"
    # Several threads of a worker may read at a time, so the sum can be more than its time.
    text = f"storage: {where}, and {min(1.0, reading):.0%} of the workers' time a thread of theirs was reading, "
    text += f"while those for operators had work for {min(1.0, pool):.0%} of theirs"
    return _make_bottleneck("storage", text, _saved(run, 1 - pool / reading), change)


def _more_workers(run: RunNumbers) -> str:
    if run.placed:
        return "give AutoPlacement more room (nodes, AutoWorkers(max_remote=...))"
    return f"run more workers than {run.local} local and {run.remote} remote ones (workers=None lets them be found)"


def _saved(run: RunNumbers, share: float) -> float:
    """Return the share of a run's time that is saved if input takes so much less of it.

    No more than the trainer waits: then it sets the pace.
    """
    faster_s = max(0.0, share) * (run.time.waited_s + run.time.trained_s + run.time.converted_s)
    return min(faster_s, run.time.waited_s) / run.time.total_s


def _make_bottleneck(kind: BottleneckKind, text: str, gain: float, change: str, operator: str = "") -> Bottleneck:
    return Bottleneck(
        kind, f"{text}; without it the run would take up to {gain:.0%} less time; {change}", gain, operator
    )
