"""The pool of an engine: a number of threads that can be changed while they work, and what they do with their time."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar

from pecan_ray.engines.autotune import ROUNDS, State, ThreadLimits, ThreadWindow, decide
from pecan_ray.engines.contract import EngineOptions, Slot, Slots
from pecan_ray.engines.counting import element_bytes
from pecan_ray.engines.thread_times import cpu_times

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

SAMPLE_S = 0.02
"""A thread reads its CPU time from the system this often: so reading, which takes some microseconds, is less than a
thousandth of its time."""
STALL_S = 1.0
"""A piece of work that takes longer may have been held up by the system: its process, or the machine, was stopped."""
STALL_TIMES = 100.0
"""It was, if it took so many times as long as usual too."""
AHEAD = 8
"""Pieces of work that wait beside two for each thread: they last while more are fetched."""
WEIGHED = 16
"""One of so many pieces of work is weighed: adding up the bytes of a nested element takes as long as a tiny one."""


class ThreadTask(NamedTuple):
    """A piece of work, and how many elements it finishes."""

    call: Callable[[], None]
    elements: int
    future: Future[Any] | None = None
    """Where its result is waited for."""


class Threads:
    """Runs calls on so many threads; a thread takes the next call itself when it is done with one.

    A pool of the standard library stands behind, with as many threads as there may ever be: it starts them when they
    are first needed.
    """

    def __init__(self, count: int, tuner: Tuner | None = None) -> None:
        self.count = count
        """Threads that may be at work."""
        self.tuner = tuner
        self._pool = ThreadPoolExecutor(tuner.limits.most if tuner else count, thread_name_prefix="pecan")
        self._lock = threading.Lock()
        """Guards the line, how many are at work, changes of `count`, and the end."""
        self._line: deque[ThreadTask] = deque()
        self._at_work = 0
        self._closed = False

    @property
    def target_in_flight(self) -> int:
        """How many pieces of work had better be in progress, so that no thread waits for one."""
        return 2 * self.count + AHEAD

    @property
    def queue_limit(self) -> int:
        """As long as more than so many pieces of work wait for a thread, their feeder need not bring more."""
        return (self.count + AHEAD) // 2

    def start(self, call: Callable[[], None], elements: int = 1) -> None:
        """Run a call that raises nothing on the next free thread; it finishes so many elements."""
        self._start(ThreadTask(call, elements))

    def _start(self, task: ThreadTask) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine was closed while it was working")
            self._line.append(task)
            if self._at_work >= self.count:
                return
            # Counted before the thread runs, so that two callers cannot start one too many.
            self._at_work += 1
        self._pool.submit(self._work)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function on the next free thread; a future that was cancelled meanwhile is left out."""
        future: Future[T] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        self._start(ThreadTask(call, 1, future))
        return future

    def _work(self) -> None:
        tuner = self.tuner
        if tuner is not None:
            tuner.begin()
        # The executor only starts threads. Work comes from our own line, so that `count` can change while it waits.
        while (task := self._take()) is not None:
            task.call()
            if tuner is not None and (wanted := tuner.finished(task.elements)) is not None:
                self.resize(wanted)

    def _take(self) -> ThreadTask | None:
        """Return the next piece of work; None lets the thread go."""
        with self._lock:
            if self._line and self._at_work <= self.count:
                return self._line.popleft()
            self._at_work -= 1
            return None

    def resize(self, count: int) -> None:
        """Let so many threads work from now on; those that are too many leave when they are done with their call."""
        with self._lock:
            if self._closed:
                return
            self.count = count
            # No more than there is work for: a thread that finds nothing in line leaves at once.
            more = max(0, min(count - self._at_work, len(self._line)))
            self._at_work += more
        for _ in range(more):
            self._pool.submit(self._work)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Enclose a stretch: what lies between stretches is no time of work."""
        if self.tuner is None:
            yield
            return
        self.tuner.go_on()
        try:
            yield
        finally:
            self.tuner.pause()

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Enclose what waits until finished batches are taken."""
        started = time.perf_counter()
        try:
            yield
        finally:
            if self.tuner is not None:
                self.tuner.blocked(time.perf_counter() - started)

    def note_size(self, element: Mapping[str, Any], count: int = 1) -> None:
        """Look at the size of an element in progress; `count` of them are one piece of work."""
        if self.tuner is not None:
            self.tuner.note_size(element, count)

    def close(self) -> None:
        """Let nothing new begin."""
        with self._lock:
            self._closed = True
            left = list(self._line)
            self._line.clear()
        for task in left:
            # Nothing takes the line any more: whoever waits for a result would wait for ever.
            if task.future is not None:
                task.future.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass
class WindowAccumulator:
    """Sums since a window began."""

    elements: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    queued_s: float = 0.0
    blocked_s: float = 0.0


class Tuner:
    """Measures windows for the policy in `pecan_ray.engines.autotune`."""

    def __init__(self, threads: int, limits: ThreadLimits) -> None:
        self.limits = limits
        self.state = State(threads)
        self._lock = threading.Lock()
        """Guards the state, the tally and the window's times; the weight of elements is an estimate and needs none."""
        self._mine = ThreadClock()
        self._accumulator = WindowAccumulator()
        self._started = time.perf_counter()
        self._process_cpu_s = time.process_time()
        self._paused: float | None = self._started
        self._bytes = 0.0
        self._until_size_sample = 0
        self._mean_task_s = 0.0
        """How long a piece of work takes."""

    def begin(self) -> None:
        """The calling thread begins to work."""
        self._mine.mark = time.perf_counter()

    def finished(self, elements: int) -> int | None:
        """The calling thread has finished a piece of work; return how many threads there shall be, if that changes."""
        mine, now = self._mine, time.perf_counter()
        # Reading /proc for each piece of work would cost as much as tiny elements do.
        cpu_s, queued_s = mine.sample() if now - mine.sampled > SAMPLE_S else (0.0, 0.0)
        with self._lock:
            if self._stalled(now - mine.mark):
                # A process that was stopped tells nothing of its threads, so all of the window is dropped.
                mine.mark = self._started = now
                self._accumulator, self._process_cpu_s = WindowAccumulator(), time.process_time()
                return None
            tally = self._accumulator
            tally.elements += elements
            tally.busy_s += now - mine.mark
            tally.cpu_s += cpu_s
            tally.queued_s += queued_s
            mine.mark = now
            if now - self._started < self.state.window_s or tally.elements < ROUNDS * elements * self.state.threads:
                return None
            before = self.state
            decision, self.state = decide(self.state, self._window(now), self.limits)
            after = self.state
        if after.threads != before.threads or after.phase != before.phase:
            logger.debug("threads %d -> %d: %s", before.threads, decision.threads, decision.reason)
        return decision.threads if after.threads != before.threads else None

    def _stalled(self, took_s: float) -> bool:
        """Tell whether something that says nothing about the threads has held up a piece of work."""
        usual = self._mean_task_s or took_s
        stalled = took_s > max(STALL_S, STALL_TIMES * usual)
        # If such pieces turn out to be usual, they count after a few.
        self._mean_task_s = 2.0 * usual if stalled else usual + 0.1 * (took_s - usual)
        return stalled

    def _window(self, now: float) -> ThreadWindow:
        """Return what was seen since the last window, and begin the next one."""
        tally, process_cpu_s = self._accumulator, time.process_time()
        window = ThreadWindow(
            self.state.threads,
            tally.elements,
            now - self._started,
            tally.busy_s,
            tally.cpu_s,
            tally.queued_s,
            process_cpu_s - self._process_cpu_s,
            tally.blocked_s,
            self._bytes,
        )
        self._accumulator, self._started, self._process_cpu_s = WindowAccumulator(), now, process_cpu_s
        return window

    def blocked(self, seconds: float) -> None:
        """Finished batches that nobody took have held up the work for so long."""
        with self._lock:
            self._accumulator.blocked_s += seconds

    def note_size(self, element: Mapping[str, Any], count: int) -> None:
        """Look at the size of an element, if it is its turn; `count` of them are one piece of work."""
        # Without a lock: a lost count weighs one piece more or less.
        self._until_size_sample -= 1
        if self._until_size_sample >= 0:
            return
        self._until_size_sample = WEIGHED
        # Two pieces of work for each thread (`Threads.target_in_flight`), weighed in turn as they go in and as they
        # come out.
        self._bytes += 0.2 * (2 * count * element_bytes(element) - self._bytes)

    def go_on(self) -> None:
        """A stretch begins: the time since the last one is no time of work."""
        with self._lock:
            now = time.perf_counter()
            if self._paused is not None:
                # The window is moved and not begun anew: short stretches would otherwise never fill one.
                self._started += now - self._paused
            self._paused = None

    def pause(self) -> None:
        """A stretch is over."""
        with self._lock:
            self._paused = time.perf_counter()


class ThreadClock(threading.local):
    """What a thread knows of its own time."""

    def __init__(self) -> None:
        self.mark = self.sampled = time.perf_counter()
        """When its last piece of work ended, and when it looked at its CPU time."""
        self._cpu_s, self._queued_s = cpu_times()

    def sample(self) -> tuple[float, float]:
        """Return the seconds on a CPU, and in line for one, since the last time."""
        before = self._cpu_s, self._queued_s
        self._cpu_s, self._queued_s = cpu_times()
        self.sampled = time.perf_counter()
        return self._cpu_s - before[0], self._queued_s - before[1]


class TimedSlots:
    """Slots that tell how long batches waited for memory, that is for the trainer."""

    def __init__(self, slots: Slots, threads: Threads) -> None:
        self._slots, self._threads = slots, threads

    def acquire(self, nbytes: int) -> Slot:
        """Return a slot of at least `nbytes` bytes."""
        with self._threads.blocked():
            return self._slots.acquire(nbytes)


def engine_threads(options: EngineOptions, slots: Slots) -> tuple[Threads, Slots]:
    """Return the threads that an engine's options ask for, and slots that their tuner listens to, if there is one."""
    if options.most_threads is None:
        return Threads(options.threads), slots
    limits = ThreadLimits(options.threads, max(options.threads, options.most_threads), options.memory_bytes)
    threads = Threads(options.threads, Tuner(options.threads, limits))
    return threads, TimedSlots(slots, threads)
