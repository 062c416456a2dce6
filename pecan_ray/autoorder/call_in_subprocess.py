"""Calling a function in a fresh process that sees no accelerator.

TensorFlow takes the whole memory of every accelerator that it sees as soon as it computes anything, and its devices
cannot be configured any more after that: where the trainer has one, a sample must not be run in the trainer's process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import cloudpickle

from pecan_ray.engines.registry import ENGINES, load_framework
from pecan_ray.errors import PecanError
from pecan_ray.options import EngineName

T = TypeVar("T")

START_S = 120.0
"""Time for starting Python and importing frameworks, beside that of the call."""
WITHOUT_ACCELERATORS = {"CUDA_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
LAST_WORDS = 2000


def needs_own_process(engine: EngineName) -> bool:
    """Tell whether running an engine here could take an accelerator away from the trainer."""
    framework = ENGINES[engine].framework
    if framework is None:
        return False
    tensorflow = sys.modules.get(framework)
    if tensorflow is None:
        return True  # a trainer that does without it stays without it
    return any(device.device_type != "CPU" for device in tensorflow.config.list_physical_devices())


def call_in_subprocess(function: Callable[..., T], *arguments: Any, engine: EngineName, seconds: float) -> T:
    """Return what a function returns in a process of its own, with an engine's framework, or raise what it raises.

    Raises `PecanError` when it takes much longer than `seconds`, or the process dies.
    """
    payload = cloudpickle.dumps((function, arguments))
    paths = [os.getcwd() if path == "" else path for path in sys.path]
    env = {**os.environ, **WITHOUT_ACCELERATORS, "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory(prefix="pecan-") as folder:
        answer = Path(folder) / "answer"
        command = [sys.executable, "-m", "pecan_ray.autoorder.call_in_subprocess", engine, str(answer)]
        try:
            done = subprocess.run(
                command, input=payload, env=env, capture_output=True, timeout=seconds + START_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise PecanError(f"a process of its own has not ended within {error.timeout:.0f} s.") from error
        if not answer.exists():
            words = done.stderr.decode(errors="replace")[-LAST_WORDS:].strip()
            raise PecanError(f"a process of its own ended with status {done.returncode}: {words}")
        succeeded, result = cloudpickle.loads(answer.read_bytes())
    if not succeeded:
        raise result
    found: T = result
    return found


def _answer(engine: EngineName, path: Path) -> None:
    """Make the call that comes on the standard input, and write its answer to a file."""
    try:
        load_framework(engine)
        function, arguments = cloudpickle.loads(sys.stdin.buffer.read())
        answer: tuple[bool, Any] = True, function(*arguments)
        written = cloudpickle.dumps(answer)
    except Exception as error:
        try:
            written = cloudpickle.dumps((False, error))
            cloudpickle.loads(written)
        except Exception:  # an exception that cannot be sent
            written = cloudpickle.dumps((False, PecanError(f"{type(error).__name__}: {error}")))
    path.write_bytes(written)


if __name__ == "__main__":
    _answer(cast(EngineName, sys.argv[1]), Path(sys.argv[2]))
