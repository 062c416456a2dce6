"""Calling a function in a fresh process that sees no accelerator, or beside a job, and ends with it.

A sample runs the user's functions before the job does.  What they may do to their process (end it, hang, change its
folder, its environment or its globals) must not happen to the trainer's.  And TensorFlow takes the whole memory of
every accelerator that it sees as soon as it computes anything; its devices cannot be configured any more after that.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVar

import cloudpickle

from pecan_ray.by_value import dumps
from pecan_ray.engines import call_note
from pecan_ray.engines.registry import ENGINES, load_framework
from pecan_ray.errors import PecanError, describe_error
from pecan_ray.options import EngineName

T = TypeVar("T")

# A fresh process starts in 1.2 s (docs/decisions/faults-and-silence.md#29-elements-that-kill-workers); a busy
# machine takes many times as long.
START_S = 120.0
"""Time for starting Python and importing frameworks, beside that of the call."""
GRACE_S = 10.0
"""A call may take so much longer than it should: an operator that runs is not interrupted earlier."""
WITHOUT_ACCELERATORS = {"CUDA_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
PROGRAM = (
    "import sys; sys.path[0] or sys.path.pop(0); import pecan_ray.autoorder.order; "
    "from pecan_ray.autoorder.call_in_subprocess import serve_call; serve_call(*sys.argv[1:])"
)
"""What most calls need is imported while they are sent.  The working folder counts if the program's own path has it."""
# Of a pickled plan: a larger one would be in memory twice, here and there.
MOST_BYTES = 1 << 30


class JobEnd:
    """The end of a job, and what ends with it; both can come from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards what ends with the job, and whether it is over."""
        self._ending: list[Callable[[], None]] = []
        self._over = False

    def finish(self) -> None:
        """End what was to end; once."""
        with self._lock:
            self._over = True
            ending, self._ending = self._ending, []
        # Outside of the lock: an end may take long.
        for end in ending:
            end()

    @contextlib.contextmanager
    def ends(self, end: Callable[[], None]) -> Iterator[None]:
        """Call this at the end, if that comes in the meantime or has come."""
        with self._lock:
            over = self._over
            self._ending += [] if over else [end]
        if over:
            end()
        try:
            yield
        finally:
            with self._lock:
                self._ending = [one for one in self._ending if one is not end]


def begin_look(look: Callable[[], T]) -> Future[T]:
    """Return what a look is about to find, in a thread of its own which does not keep the program from ending."""
    found = Future[T]()

    def run() -> None:
        try:
            found.set_result(look())
        except BaseException as error:  # who asks for the result gets it
            found.set_exception(error)

    threading.Thread(target=run, name="pecan-look", daemon=True).start()
    return found


def needs_own_process(engine: EngineName) -> bool:
    """Tell whether running an engine here could take an accelerator away from the trainer."""
    framework = ENGINES[engine].framework
    if framework is None:
        return False
    tensorflow = sys.modules.get(framework)
    if tensorflow is None:
        return True  # a trainer that does without it stays without it
    return any(device.device_type != "CPU" for device in tensorflow.config.list_physical_devices())


@contextlib.contextmanager
def own_process(engine: EngineName, note: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process for one call, which ends with this block, or with the program."""
    # The same modules have to be found there, whatever the program has done to its own path.
    paths = [os.getcwd() if path == "" else path for path in sys.path]
    # Decision 29: not a fork, which would copy locks of the trainer's threads in whatever state they are.
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, engine, str(note)],
        pass_fds=(note,),
        env={**os.environ, **WITHOUT_ACCELERATORS, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # what it starts ends with it, and Ctrl-C is the trainer's
    )
    # A program that ends does not wait for a look beside its job.
    end = functools.partial(end_process, process)
    atexit.register(end)
    try:
        with process:
            try:
                yield process
            finally:
                end()
    finally:
        atexit.unregister(end)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process, and all that it has started, if it has not ended: its call fails."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def can_be_sent(value: object) -> bool:
    """Tell whether a process of its own can be given a value: what holds very much data would be there twice."""
    try:
        return len(dumps(value)) <= MOST_BYTES
    except Exception:  # objects may refuse to be pickled in any way: who sends them to workers says why
        return False


def call_in_subprocess(
    function: Callable[..., T], *arguments: Any, engine: EngineName, seconds: float, job: JobEnd | None = None
) -> T:
    """Return what a function returns in a process of its own, with an engine's framework, or raise what it raises.

    Raises `PecanError` when it takes much longer than `seconds`, the process dies, or the `job` ends that it is for.
    """
    payload = dumps((function, arguments, seconds + GRACE_S))
    job = JobEnd() if job is None else job
    with call_note.new_note() as note, own_process(engine, note.fileno()) as process:
        with job.ends(functools.partial(end_process, process)):
            written, errors = call_note.answer(process, payload, START_S, seconds + GRACE_S, note)
        called = call_note.read_note(note)[1]
    if not written or process.returncode:
        raise PecanError(call_note.how_it_ended(process.returncode, errors, called))
    succeeded, result = cloudpickle.loads(written)
    if not succeeded:
        raise result
    found: T = result
    return found


def serve_call(engine: EngineName, note: str) -> NoReturn:
    """Be the process: make the call that comes on the standard input, and answer on the standard output."""
    faulthandler.enable()
    # Functions of the user's print elsewhere.
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        load_framework(engine)
        payload = sys.stdin.buffer.read()
        if not payload:
            os._exit(0)  # nobody calls
        function, arguments, most_s = cloudpickle.loads(payload)
        call_note.keep_in(int(note))
        # A hang ends this process, with a word about where it was, whatever holds Python's lock.
        faulthandler.dump_traceback_later(most_s, exit=True)
        written = dumps((True, function(*arguments)))
    except BaseException as error:
        try:
            written = dumps((False, error if isinstance(error, Exception) else PecanError(describe_error(error))))
            # Loaded here once: an exception may be pickled and then not be made again.
            cloudpickle.loads(written)
        except BaseException:  # an exception that cannot be sent
            written = dumps((False, PecanError(describe_error(error))))
    faulthandler.cancel_dump_traceback_later()
    with open(answers, "wb") as file:
        file.write(written)
    sys.stderr.flush()
    os._exit(0)  # threads and handlers of the user's are not waited for
