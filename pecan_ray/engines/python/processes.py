"""Processes for functions that hold the GIL: as many as the engine has threads, each with a pipe of its own.

A thread that calls a function sends its argument to a free process and waits for the answer itself.  An executor of
the standard library hands both through two further threads and a queue, which costs more than a small function does.
"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from queue import LifoQueue
from typing import Any

import cloudpickle

PICKLE_PROTOCOL = 5
AT_EXIT = 10
"""Before the interpreter waits for its children, which end when their pipes are closed."""


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    connection: Connection


class Processes:
    """Runs functions in processes that are started when they are first needed."""

    def __init__(self, functions: dict[str, Callable[..., Any]], count: int) -> None:
        self._functions = {name: cloudpickle.dumps(function) for name, function in functions.items()}
        self._free: LifoQueue[_Worker | None] = LifoQueue()
        for _ in range(count):
            self._free.put(None)
        self._closed = False
        self._started: list[Connection] = []
        self._at_exit = Finalize(self, _close_all, (self._started,), exitpriority=AT_EXIT)

    def call(self, name: str, value: Any, keywords: dict[str, Any]) -> Any:
        """Call a function in a free process; raises what it raises, or RuntimeError if its process ended."""
        message = pickle.dumps((name, value, keywords), PICKLE_PROTOCOL)
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
            self._give_back(alive)
        returned, result = pickle.loads(answer)
        if returned:
            return result
        raise result

    def _start(self) -> _Worker:
        context = get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._functions), name="pecan-process")
        process.start()
        theirs.close()
        self._started.append(mine)
        return _Worker(process, mine)

    def _give_back(self, worker: _Worker | None) -> None:
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


def _close_all(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()


def _exit_code(worker: _Worker | None) -> str:
    if worker is None:
        return ""
    worker.process.join(1.0)
    return f" with exit code {worker.process.exitcode}"


def _serve(connection: Connection, pickled: dict[str, bytes]) -> None:
    """Answer calls until the other end is closed; functions are unpickled when they are first called."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent's to handle
    functions: dict[str, Callable[..., Any]] = {}
    while True:
        try:
            name, value, keywords = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            if name not in functions:
                functions[name] = cloudpickle.loads(pickled[name])
            answer = pickle.dumps((True, functions[name](value, **keywords)), PICKLE_PROTOCOL)
        except Exception as error:
            answer = pickle.dumps((False, _portable(error)), PICKLE_PROTOCOL)
        connection.send_bytes(answer)


def _portable(error: Exception) -> Exception:
    """Return an exception that survives pickling: itself, or one that tells its name and text."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return RuntimeError(f"{type(error).__name__}: {error}")
