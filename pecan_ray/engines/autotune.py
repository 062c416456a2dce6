"""How many threads an engine shall use: a search by throughput, in the manner of tf.data's AUTOTUNE.

A number of threads is judged by the elements that they finish per second.  The search doubles or halves it, keeps a
step that pays by more than chance explains, goes back from one that does not, and then leaves it alone until the
throughput changes or a while has passed.  Before it tries anything it looks at what threads do with their time:

- They are on a CPU, or stand in line for one: with as many threads as CPUs, more would only be in each other's way.
- They wait, and the process uses about one CPU: maybe they wait for the GIL, so fewer are tried first.
- They wait otherwise, as for files or a network: more are tried.
- They have no work, or the trainer leaves batches waiting: other things than threads decide.

Everything here is a function of numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

# Seconds and shares of docs/decisions/python-engine.md#12-threads-are-tuned-at-run-time, measured by
# benchmarks/threads.py.
WINDOW_S = 0.1
"""Shortest window of the search."""
CALM_WINDOW_S = 1.0
"""Shortest window once the number is settled."""
ROUNDS = 4
"""A window ends when each thread has finished so many pieces of work too: else where it ends decides."""
LEAST_WINDOWS = 2
"""Windows in which a number is tried, where the difference is plain."""
MOST_WINDOWS = 6
"""Windows in which a number is tried, where it is not."""
BASE_WINDOWS = 3
"""Windows before the search, if they agree."""
STEADY = 0.15
"""Windows agree whose spread is below this share of their mean."""
PATIENT_WINDOWS = 8
"""Windows before the search, if they do not agree."""
LEAST_SPREAD = 0.02
"""Share of a rate that two windows may always differ by: a few windows that happen to agree prove little."""
WORTH = 0.06
"""Twice the threads must bring so much more."""
LOSS = 0.02
"""Half of the threads may cost this share of the rate."""
DOUBTFUL_LOSS = 0.05
"""Half of the threads may cost up to this share, where chance explains it."""
SURELY = 0.9
"""Threads that are fewer than this share of the CPUs that were used would surely finish less."""
BLOCKED = 0.1
"""Share of a window in which finished batches were in the way: from here on the trainer is what is waited for."""
AT_WORK = 0.7
"""Threads that have work for less than this share of their time are too many for what is read."""
WANTS_CPU = 0.85
"""Threads that are on a CPU, or in line for one, for this share of their time wait for little else."""
ONE_CPU = (0.75, 1.25)
"""CPUs that a process uses whose threads wait for each other by the GIL."""
CHANGED = 0.3
"""A throughput that differs by this share is another one, if it lasts for `LASTS` windows."""
LASTS = 3
"""Windows for which a throughput must differ to be another one."""
LOOK_AGAIN_S = 60.0
"""The search looks again after this time, which doubles with each look that changed nothing."""
LONGEST_CALM_S = 600.0
"""The longest time between two looks."""
MOST_PER_CPU = 16
"""Threads for each CPU at most."""

Direction = Literal["more", "fewer"]
Phase = Literal["measuring", "trying", "settled"]


@dataclass(frozen=True)
class ThreadLimits:
    """Bounds of the search."""

    cpus: int
    """CPUs that the engine may use."""
    most: int
    """Threads."""
    memory_bytes: float = math.inf
    """Of the elements that are in progress."""


@dataclass(frozen=True)
class ThreadWindow:
    """What happened while the number of threads was the same."""

    threads: int
    elements: int
    seconds: float
    busy_s: float
    """Sum over the threads: at work, waiting inside of a function included."""
    cpu_s: float
    """Of this, on a CPU."""
    queued_s: float = 0.0
    """Of this, ready to run, but no CPU was free."""
    process_cpu_s: float = 0.0
    """CPU time of the whole process, reading included."""
    blocked_s: float = 0.0
    """Time in which nothing could be placed since finished batches were not taken."""
    bytes_per_thread: float = 0.0
    """Of elements in progress, estimated."""

    def __add__(self, other: ThreadWindow) -> ThreadWindow:
        return ThreadWindow(
            self.threads,
            self.elements + other.elements,
            self.seconds + other.seconds,
            self.busy_s + other.busy_s,
            self.cpu_s + other.cpu_s,
            self.queued_s + other.queued_s,
            self.process_cpu_s + other.process_cpu_s,
            self.blocked_s + other.blocked_s,
            max(self.bytes_per_thread, other.bytes_per_thread),
        )

    @property
    def rate(self) -> float:
        """Elements per second."""
        return self.elements / self.seconds

    @property
    def blocked(self) -> bool:
        """Return whether the trainer was what was waited for."""
        return self.blocked_s > BLOCKED * self.seconds

    @property
    def at_work(self) -> float:
        """Share of the threads' time in which they had work."""
        return self.busy_s / (self.threads * self.seconds)

    @property
    def wants_cpu(self) -> float:
        """Share of the work in which it was on a CPU or in line for one."""
        return (self.cpu_s + self.queued_s) / self.busy_s if self.busy_s > 0 else 1.0


@dataclass(frozen=True)
class Rate:
    """Elements per second with a number of threads: the mean over windows and its standard error."""

    threads: int
    mean: float
    error: float

    @classmethod
    def of(cls, windows: Sequence[ThreadWindow]) -> Rate:
        """Combine windows of one number of threads."""
        rates = [window.rate for window in windows]
        mean = _sum(windows).rate
        # One window says nothing of chance, so its error is the rate itself: no comparison with it is
        # decided.
        spread = statistics.stdev(rates) if len(rates) > 1 else mean
        return cls(windows[0].threads, mean, max(spread, LEAST_SPREAD * mean) / math.sqrt(len(rates)))


@dataclass(frozen=True)
class State:
    """How far the search is."""

    threads: int
    """In use."""
    phase: Phase = "measuring"
    windows: tuple[ThreadWindow, ...] = ()
    """Of the number in use, as far as they count."""
    skip: int = 2
    """Windows to come that do not count: they began under another number, or while things were being loaded."""
    best: Rate | None = None
    """The best number so far, while others are tried."""
    initial: int = 0
    """The number that the search began with."""
    plan: tuple[Direction, ...] = ()
    """Directions to try, the current one first."""
    blocked: int = 0
    """Windows in a row in which the trainer was waited for, while another number is tried."""
    stable_s: float = 0.0
    """Time since the number was settled."""
    irregular: int = 0
    """Windows in a row with another throughput than when the number was settled."""
    looks_without_change: int = 0
    """Looks in a row that changed nothing."""

    @property
    def window_s(self) -> float:
        """How long the next window shall be at least."""
        return CALM_WINDOW_S if self.phase == "settled" else WINDOW_S


@dataclass(frozen=True)
class ThreadDecision:
    """The number of threads from now on."""

    threads: int
    reason: str


def decide(state: State, seen: ThreadWindow, limits: ThreadLimits) -> tuple[ThreadDecision, State]:
    """Return the number of threads after a window that was measured with `state.threads` of them."""
    # Memory comes first: what is measured with too many threads is of no use.
    room = most_threads(seen, limits)
    if state.threads > room:
        held = seen.bytes_per_thread / 2**20
        return _begin(replace(state, threads=room, skip=1), f"a thread's elements hold {held:.1f} MiB")
    if state.skip:
        return _hold(replace(state, skip=state.skip - 1), "the window began under other conditions")
    if state.phase == "measuring":
        return _measure(state, seen, limits)
    if state.phase == "trying":
        return _try(state, seen, limits)
    return _watch(state, seen)


def most_threads(seen: ThreadWindow, limits: ThreadLimits) -> int:
    """Return the largest number that memory and `limits.most` allow; it is at least 1."""
    fits = limits.memory_bytes / seen.bytes_per_thread if seen.bytes_per_thread > 0 else math.inf
    return max(1, int(min(limits.most, fits)))


def _hold(state: State, reason: str) -> tuple[ThreadDecision, State]:
    return ThreadDecision(state.threads, reason), state


def _begin(state: State, reason: str) -> tuple[ThreadDecision, State]:
    """Measure the number in use, from scratch."""
    return _hold(replace(state, phase="measuring", windows=(), best=None, plan=(), blocked=0), reason)


def _measure(state: State, seen: ThreadWindow, limits: ThreadLimits) -> tuple[ThreadDecision, State]:
    """Wait for a steady throughput, then begin to search."""
    # While the trainer is slower, the throughput is the trainer's and says nothing about threads.
    if seen.blocked:
        return _begin(state, "the trainer takes batches more slowly than they are made")
    state = replace(state, windows=(*state.windows, seen))
    rates = [window.rate for window in state.windows]
    last = rates[-BASE_WINDOWS:]
    steady = len(last) == BASE_WINDOWS and statistics.stdev(last) <= STEADY * statistics.fmean(last)
    if not steady and len(rates) < PATIENT_WINDOWS:
        return _hold(state, "the throughput is not steady yet")
    used = state.windows[-BASE_WINDOWS:] if steady else state.windows
    plan, reason = _candidate_steps(_sum(used), limits)
    return _next(replace(state, best=Rate.of(used), initial=state.threads, plan=plan), _sum(used), limits, reason)


def _candidate_steps(seen: ThreadWindow, limits: ThreadLimits) -> tuple[tuple[Direction, ...], str]:
    """Return what to try, by what the threads do with their time, and why."""
    cpus = seen.process_cpu_s / seen.seconds
    fewer: tuple[Direction, ...] = ("fewer",) if seen.threads > 1 else ()
    on_cpu = f"threads want a CPU for {seen.wants_cpu:.0%} of their work, and the process uses {cpus:.1f}"
    # Decision 12: time in line for a CPU counts like time on one. By throughput alone a worker that shares its CPUs
    # with the trainer would always want more threads, and take those CPUs by sheer numbers.
    if seen.threads >= limits.cpus and (
        seen.wants_cpu >= WANTS_CPU or seen.cpu_s >= WANTS_CPU * limits.cpus * seen.seconds
    ):
        return (fewer if seen.threads > limits.cpus else ()), on_cpu
    # About one CPU in use may be the GIL, which fewer threads hand over less often.
    alone = ONE_CPU[0] <= cpus <= ONE_CPU[1]
    if seen.at_work < AT_WORK:
        return (fewer if alone else ()), f"threads have work for {seen.at_work:.0%} of their time"
    return ((*fewer, "more") if alone else ("more", *fewer)), on_cpu


def _next(state: State, seen: ThreadWindow, limits: ThreadLimits, reason: str) -> tuple[ThreadDecision, State]:
    """Try the next number beside the best one, or settle for that; `seen`: what the best one's threads did."""
    best = state.best
    assert best is not None
    for place, direction in enumerate(state.plan):
        target = _target(best.threads, direction, seen, limits)
        if target != best.threads:
            tried = replace(
                state, threads=target, phase="trying", windows=(), skip=1, plan=state.plan[place:], blocked=0
            )
            return ThreadDecision(target, f"trying {direction}: {reason}"), tried
    return _settle(state, reason)


def _target(threads: int, direction: Direction, seen: ThreadWindow, limits: ThreadLimits) -> int:
    """Return the next number in a direction: the double, but no more than fill the CPUs, or the half.

    Where half of the threads could not use the CPU time that all of them do, there is nothing to try.
    """
    if direction == "fewer":
        # Threads that want CPUs go down to the number of CPUs and no lower: fewer would leave CPUs idle.
        few = max(1, threads // 2, limits.cpus if threads > limits.cpus and seen.wants_cpu >= WANTS_CPU else 1)
        # A thread uses one CPU at most, so fewer threads than CPUs in use would finish less: there is nothing
        # to try.
        return few if few >= SURELY * seen.cpu_s / seen.seconds else threads
    used = seen.cpu_s / seen.seconds * threads / seen.threads
    fill = math.ceil(threads * limits.cpus / used) if used > 0 else math.inf
    roomy = replace(limits, memory_bytes=limits.memory_bytes / 2)  # so that sizes that vary do not throw it back
    return max(threads, int(min(2 * threads, max(fill, threads + 1), most_threads(seen, roomy))))


def _try(state: State, seen: ThreadWindow, limits: ThreadLimits) -> tuple[ThreadDecision, State]:
    """Collect windows of the number that is tried until it is better, or not, by more than chance."""
    best = state.best
    assert best is not None
    # A few blocked windows are a pause of the trainer and do not count.
    # If they go on, they are what this number yields.
    blocked = state.blocked + 1 if seen.blocked else 0
    if 0 < blocked < LEAST_WINDOWS + 1:
        return _hold(replace(state, blocked=blocked), "the trainer paused")
    state = replace(state, windows=(*state.windows, seen), blocked=blocked)
    if len(state.windows) < LEAST_WINDOWS:
        return _hold(state, "measuring what was tried")
    rate = Rate.of(state.windows)
    gain = rate.mean / best.mean - 1
    # The error of a quotient of two rates, both of which were measured.
    error = math.hypot(rate.error, best.error * (1 + gain)) / best.mean
    needed = WORTH if state.plan[0] == "more" else -LOSS
    if abs(gain - needed) < 2 * error and len(state.windows) < MOST_WINDOWS:
        return _hold(state, "measuring what was tried")
    # More threads take CPUs and memory, so they have to pay. Fewer may cost a little, or what chance explains.
    told = f"{best.threads} -> {rate.threads} threads changed the throughput by {gain:+.0%} (+-{error:.0%})"
    if gain > (max(WORTH, error) if state.plan[0] == "more" else -min(max(LOSS, error), DOUBTFUL_LOSS)):
        return _accept(state, rate, limits, told)
    if best.threads != state.initial:  # it came from the other side of the best
        return _settle(state, told)
    return _next(replace(state, plan=state.plan[1:]), _sum(state.windows), limits, told)


def _accept(state: State, rate: Rate, limits: ThreadLimits, told: str) -> tuple[ThreadDecision, State]:
    """Go on from a better number in the same direction, unless its threads say that there is nothing to gain."""
    seen, direction = _sum(state.windows), state.plan[0]
    assert state.best is not None
    # Small losses must not add up, so fewer threads are compared with the best throughput of all.
    state = replace(state, best=replace(rate, mean=max(rate.mean, state.best.mean)), plan=(direction,))
    sensible, reason = _candidate_steps(seen, limits)
    if direction not in sensible or (direction == "more" and seen.blocked):
        return _settle(state, f"{told}; {reason}")
    return _next(state, seen, limits, told)


def _settle(state: State, reason: str) -> tuple[ThreadDecision, State]:
    """Stay with the best number."""
    best = state.best
    assert best is not None
    # A look costs throughput while it tries, so `_watch` waits twice as long after each that changed nothing.
    changed = best.threads != state.initial
    settled = State(
        best.threads,
        "settled",
        skip=1 if best.threads != state.threads else 0,
        looks_without_change=0 if changed else state.looks_without_change + 1,
    )
    return ThreadDecision(best.threads, f"settled: {reason}"), settled


def _watch(state: State, seen: ThreadWindow) -> tuple[ThreadDecision, State]:
    """Stay settled until the throughput changes or a while has passed."""
    state = replace(state, stable_s=state.stable_s + seen.seconds)
    # The first look is the search itself. 2**4 already reaches LONGEST_CALM_S; the 10 only bounds the number.
    patience = 2 ** min(max(0, state.looks_without_change - 1), 10)
    if state.stable_s >= min(LOOK_AGAIN_S * patience, LONGEST_CALM_S):
        return _begin(replace(state, stable_s=0.0, irregular=0), f"looking again after {state.stable_s:.0f} s")
    if seen.blocked:
        return _hold(replace(state, irregular=0), "the trainer takes batches more slowly than they are made")
    if len(state.windows) < BASE_WINDOWS:
        return _hold(replace(state, windows=(*state.windows, seen)), "settled")
    usual = statistics.fmean(window.rate for window in state.windows)
    change = seen.rate / usual - 1
    if abs(change) < CHANGED:
        return _hold(replace(state, irregular=0), "settled")
    state = replace(state, irregular=state.irregular + 1)
    # Windows last a second here (`CALM_WINDOW_S`), so a bound in seconds bounds their number.
    if state.irregular < min(LASTS * patience, LOOK_AGAIN_S):
        return _hold(state, "settled")
    return _begin(replace(state, stable_s=0.0, irregular=0), f"the throughput has changed by {change:+.0%}")


def _sum(windows: Sequence[ThreadWindow]) -> ThreadWindow:
    total = windows[0]
    for window in windows[1:]:
        total += window
    return total
