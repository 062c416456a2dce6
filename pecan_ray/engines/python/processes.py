"""Processes for functions that hold the GIL: as many as the engine has threads, each with a pipe of its own.

A thread that calls a function sends its argument to a free process and waits for the answer itself.  An executor of
the standard library hands both through two further threads and a queue, which costs more than a small function does.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from queue import LifoQueue
from typing import Any

import cloudpickle

from pecan_ray.by_value import dumps
from pecan_ray.engines.fork_tracker import ForkError, forks
from pecan_ray.engines.freed_memory import keep_freed_memory
from pecan_ray.engines.global_generators import SeedKey, global_generators
from pecan_ray.engines.python.call_results import CallResponse, ResponseWriter, unpack_results
from pecan_ray.engines.python.tensor_pickling import pickled
from pecan_ray.errors import OpError, describe_error, is_interrupt

AT_EXIT = 10
"""Before the interpreter waits for its children, which end when their pipes are closed."""

_numbers = itertools.count()
"""Numbers the processes that this one starts: no two of them draw the same random numbers."""


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    connection: Connection


class Processes:
    """Runs functions in processes that are started when they are first needed."""

    def __init__(self, functions: dict[str, Callable[..., Any]], count: int) -> None:
        self._functions = {name: dumps(function) for name, function in functions.items()}
        # Last in, first out: a process that runs is used again before another one is started.
        self._free: LifoQueue[_Worker | None] = LifoQueue()
        for _ in range(count):
            self._free.put(None)
        self._closed = False
        self._started: list[Connection] = []
        self._at_exit = Finalize(self, _close_all, (self._started,), exitpriority=AT_EXIT)

    def function(self, name: str) -> InProcess:
        """Return one of the functions, to be called from any thread."""
        return InProcess(self, name)

    def call(self, name: str, value: Any, keywords: dict[str, Any]) -> Any:
        """Call a function in a free process; raises what it raises, or RuntimeError if its process ended."""
        (answer,) = self.call_all(name, [(value, keywords)])
        return answer.value()

    def call_all(self, name: str, arguments: Sequence[tuple[Any, dict[str, Any]]]) -> list[CallResponse]:
        """Call a function several times, one after the other, in a free process.

        Raises RuntimeError if the process ended, and what pickle raises for arguments that it cannot send.
        """
        # Before a process is taken: what cannot be sent must not keep one busy, or end it.
        message = pickled((name, arguments))
        worker = self._free.get()
        alive: _Worker | None = None
        try:
            worker = worker or self._start()
            worker.connection.send_bytes(message)
            answer = worker.connection.recv_bytes()
            alive = worker
        except (EOFError, OSError) as error:
            raise RuntimeError(f"the process that ran {name} ended{_exit_code(worker)}") from error
        finally:
            self._release(alive)
        answers = list(unpack_results(answer))
        # A message that could not be read has one answer, an error, which stands for all of its calls.
        return answers if len(answers) == len(arguments) else answers * len(arguments)

    def _start(self) -> _Worker:
        # Not by a fork: this process has threads, and a child would inherit their locks as they are at that moment.
        context = get_context("spawn")
        mine, theirs = context.Pipe()
        own = global_generators.key
        key = None if own is None else (*own, "process", next(_numbers))
        process = context.Process(target=_serve, args=(theirs, self._functions, key), name="pecan-process")
        process.start()
        # If this end stayed open here, `recv_bytes` would wait for ever for a process that has died.
        theirs.close()
        self._started.append(mine)
        return _Worker(process, mine)

    def _release(self, worker: _Worker | None) -> None:
        """Let others use a process; one that ended is replaced when it is needed."""
        if self._closed and worker is not None:
            worker.connection.close()
            worker = None
        self._free.put(worker)

    def close(self) -> None:
        """End the processes: idle ones at once, others when they are done with their call."""
        self._closed = True
        for _ in range(self._free.qsize()):
            worker = self._free.get()
            if worker is not None:
                worker.connection.close()
            self._free.put(None)


_NONE: deque[tuple[Any, CallResponse]] = deque(maxlen=0)


class InProcess:
    """A function that runs in another process."""

    def __init__(self, processes: Processes, name: str) -> None:
        self._processes, self._name = processes, name
        self._prefetched = threading.local()

    def prefetch(self, arguments: Sequence[tuple[Any, dict[str, Any]]]) -> None:
        """Send the arguments of calls that this thread is about to make in one message, and keep the answers.

        Where that fails nothing is kept: the calls are then made one by one, and the one to blame shows.
        """
        self._prefetched.responses = deque[tuple[Any, CallResponse]]()
        try:
            answers = self._processes.call_all(self._name, arguments)
        except BaseException as error:
            if is_interrupt(error):
                raise
            return
        self._prefetched.responses.extend(
            (value, answer) for (value, _), answer in zip(arguments, answers, strict=True)
        )

    def __call__(self, value: Any, **keywords: Any) -> Any:
        """Return what the function returns; raises what it raises, or RuntimeError if its process ended."""
        answers: deque[tuple[Any, CallResponse]] = getattr(self._prefetched, "responses", _NONE)
        # By identity: answers belong to the very values that were sent ahead. A call with any other one is made anew.
        if answers and answers[0][0] is value:
            return answers.popleft()[1].value()
        return self._processes.call(self._name, value, keywords)


def _close_all(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()


def _exit_code(worker: _Worker | None) -> str:
    if worker is None:
        return ""
    # The pipe closes a moment before the system tells the exit code.
    worker.process.join(1.0)
    return f" with exit code {worker.process.exitcode}"


def _serve(connection: Connection, pickled: dict[str, bytes], key: SeedKey | None) -> None:
    """Answer calls until the other end is closed; functions are unpickled when they are first called.

    `key`: what global generators are seeded from.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent's to handle
    _leave_sigterm_to_parent()
    threading.Thread(target=_end_with_parent, name="pecan-parent", daemon=True).start()
    keep_freed_memory()
    global_generators.begin(key)
    functions: dict[str, Callable[..., Any]] = {}
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            # The parent has closed its end, or is gone: nobody waits for results.
            return
        connection.send_bytes(_responses(functions, pickled, message))


def _leave_sigterm_to_parent() -> None:
    """Work on where all processes are asked to end: this one ends with its parent, which hands over what it has.

    What is started here, and asked to end, ends: programs have no handler of ours, and forked processes none either.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: None) or signal.SIG_DFL
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, before))


def _end_with_parent() -> None:
    """End this process with its parent, also in the middle of a call that would never end."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _responses(functions: dict[str, Callable[..., Any]], pickled: dict[str, bytes], message: bytes) -> bytes:
    """Return the answers to a message's calls, or a single one if the message cannot be read."""
    is_new = False
    try:
        name, arguments = pickle.loads(message)
        if name not in functions:
            # Decision 96: modules seed generators when functions load, and those that the first call imports.
            is_new, functions[name] = True, cloudpickle.loads(pickled[name])
            global_generators.reset_seeds()
    except BaseException as error:
        answers = ResponseWriter(1)
        answers.add_error(_picklable_error(error))
        return answers.message()
    answers = ResponseWriter(len(arguments))
    for value, keywords in arguments:
        _run_call(name, functions[name], value, keywords, answers)
        if is_new:
            is_new = False
            global_generators.reset_seeds()
    return answers.message()


def _run_call(
    name: str, function: Callable[..., Any], value: Any, keywords: dict[str, Any], answers: ResponseWriter
) -> None:
    generation, returned, result = forks.generation, False, None
    try:
        returned, result = True, function(value, **keywords)
    except BaseException as error:
        returned, result = False, error
    if forks.generation != generation:
        forks.end_child(name, "one of its elements", None if returned else result)
    try:
        forks.raise_reported()
        if returned:
            # Within the `try`: a result that cannot be pickled is an error of its own call alone.
            answers.add(result)
            return
    except OpError as error:
        result = ForkError(error.message)
    except BaseException as error:
        result = error
    answers.add_error(_picklable_error(result))


def _picklable_error(error: BaseException) -> BaseException:
    """Return an exception that survives pickling: itself, or one that tells its name and text."""
    plain = RuntimeError(describe_error(error))
    try:
        # Both ways are tried: an exception with arguments of its own may be pickled and then not be made again.
        return error if type(pickle.loads(pickle.dumps(error))) is type(error) else plain
    except BaseException:
        return plain
