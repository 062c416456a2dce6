"""Running orders where no other order has run before: what one has left in a variable, another one cannot find there.

A stretch is run in the user's order first, and other orders are tried in the same process.  An operator that keeps
something for each element (a dict by its id) would find in it what the user's order has put there, and give the right
values on the sample alone.  So this process is copied (`fork`) before any operator of a stretch has run; each order
that is asked for runs in a copy of that copy, and what becomes of elements comes back as summaries.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeAlias

from pecan_ray.autoorder.element_spec import ElementSpec
from pecan_ray.autoorder.op_runner import OP_FAILURES, GlobalRandomness, OpRunner, Token, run_through
from pecan_ray.autoorder.value_check import OpOrder
from pecan_ray.autoorder.values import summaries
from pecan_ray.reorder.value_guard import Summaries
from pecan_ray.reorder.value_summary import Text

GRACE_S = 2.0
"""A run may take so much longer than it should, since an operator that runs is not interrupted; then it is ended."""
FEW = 8
"""Elements that are run however long they take."""
MOST_ASKED = 1 << 16
"""Bytes of what is asked of a copy."""
READ_BYTES = 1 << 20

Outputs: TypeAlias = "tuple[Summaries, ...]"
"""What has become of one element."""


@dataclass(frozen=True)
class RunLimits:
    """How long an order may run."""

    enough_s: float
    """After so much of a CPU's time a few elements are enough,"""
    most_s: float
    """and after so long there is no more time."""


@dataclass
class FreshRun:
    """What an order has made of elements where nothing else had run."""

    made: list[Outputs] = field(default_factory=list)
    """By element, in the order in which they were asked for; fewer where the time was over."""
    spec: ElementSpec = field(default_factory=ElementSpec)
    """What those have in common."""
    failed: str = "its process ended"
    """How the order failed on the next one; empty if it did not."""


class FreshRuns:
    """A copy of this process from before a stretch ran, which runs orders in copies of itself."""

    def __init__(self, runner: OpRunner, held: Sequence[Token]) -> None:
        """`held`: the elements that enter the stretch, as they were read."""
        self._asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = _forked()
        if not self._process:
            self._asking.close()
            _serve(asked, runner, held)
        asked.close()

    def run(self, orders: Sequence[OpOrder], places: Sequence[int], limits: RunLimits) -> list[FreshRun]:
        """Run orders, all at a time, on the elements at some places of those that were read."""
        answers = [self._begin(order, places, limits) for order in orders]
        written = {answer: bytearray() for answer in answers}
        until = time.monotonic() + limits.most_s + 2 * GRACE_S
        left = set(answers)
        try:
            while left and (ready := select.select(list(left), [], [], max(until - time.monotonic(), 0.0))[0]):
                for answer in ready:
                    part = os.read(answer, READ_BYTES)
                    written[answer] += part
                    if not part:
                        left.discard(answer)
        finally:
            for answer in answers:
                os.close(answer)
        return [_read(bytes(written[answer])) for answer in answers]

    def _begin(self, order: OpOrder, places: Sequence[int], limits: RunLimits) -> int:
        """Have an order run; return the end of the pipe by which its answer comes."""
        answers, answer = os.pipe()
        with suppress(OSError):  # the copy is gone, and so is then the other end of the pipe
            socket.send_fds(self._asking, [pickle.dumps((order, list(places), limits))], [answer])
        os.close(answer)
        return answers

    def close(self) -> None:
        """End the copy."""
        self._asking.close()
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        with suppress(ChildProcessError):  # a program that reaps all its children was quicker
            os.waitpid(self._process, 0)


@dataclass(frozen=True)
class RunEnd:
    """What a run says in the end."""

    spec: ElementSpec
    failed: str


def _read(written: bytes) -> FreshRun:
    found, file = FreshRun(), io.BytesIO(written)
    while True:
        try:
            one = pickle.load(file)
        except (EOFError, pickle.UnpicklingError):
            return found
        if isinstance(one, RunEnd):
            return replace(found, spec=one.spec, failed=one.failed)
        found.made.append(one)


# --- in the copies ---------------------------------------------------------------------------------------------


def _forked() -> int:
    with warnings.catch_warnings():
        # Python and JAX warn of threads, which a copy has not: it runs functions of the user's and nothing else.
        warnings.simplefilter("ignore")
        return os.fork()


def _serve(asked: socket.socket, runner: OpRunner, held: Sequence[Token]) -> NoReturn:
    """Be the copy: have orders run until nobody asks any more."""
    try:
        gc.disable()  # what others hold is left as it is
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the runs
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)  # its threads are not in the copy
        while True:
            payload, files, _, _ = socket.recv_fds(asked, MOST_ASKED, 1)
            if not payload:
                break
            if not _forked():
                asked.close()
                _run(files[0], runner, held, *pickle.loads(payload))
            os.close(files[0])
    finally:
        os._exit(0)


def _run(
    answer: int, runner: OpRunner, held: Sequence[Token], order: OpOrder, places: Sequence[int], limits: RunLimits
) -> NoReturn:
    """Be the copy for one run."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limits.most_s + GRACE_S)  # ends it, whatever it waits for
        gc.enable()
        with os.fdopen(answer, "wb") as file:
            for one in _outcomes(runner, held, order, places, limits):
                pickle.dump(one, file)
                file.flush()
    finally:
        os._exit(0)


def _outcomes(
    runner: OpRunner, held: Sequence[Token], order: OpOrder, places: Sequence[int], limits: RunLimits
) -> Iterator[Outputs | RunEnd]:
    """Yield what becomes of each element, and then how the order has failed, if it has."""
    spec, failed = ElementSpec(), ""
    try:
        stages, began, until = runner.stages(order), time.process_time(), time.monotonic() + limits.most_s
        for number, place in enumerate(places):
            if time.monotonic() > until or (number >= FEW and time.process_time() - began > limits.enough_s):
                break
            GlobalRandomness.seed(place)
            made = [runner.columns(output) for output in run_through(stages, runner.fresh(held[place]))]
            for element in made:
                spec.add(element)
            yield tuple(_sendable(summaries(element)) for element in made)
    except OP_FAILURES as error:
        failed = error.message.splitlines()[0]
    yield RunEnd(spec, failed)


def _sendable(found: Summaries) -> dict[Any, Any]:
    """Return summaries without objects of the user's, which need not be picklable: equal ones have the same hash."""
    return {
        path: replace(one, identity=hash(one.identity)) if isinstance(one, Text) else one for path, one in found.items()
    }
