"""`pecan run` and `pecan explain`, and programs in odd surroundings: closed streams, no terminal, no folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import ray

from pecan_ray.cli import main
from pecan_ray.errors import ClusterError
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.observe import progress
from pecan_ray.observe.progress import Progress
from pecan_ray.observe.trainer_speed import RecentSpeed
from pecan_ray.runtime import cluster
from pecan_ray.runtime.client import BatchClient
from tests.long_form import some_later
from tests.programs import ROOT, Programs, started_programs

HEAD = """
import sys
import numpy as np
import pecan_ray as pecan

pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(40)), name="ran").batch(4)
"""


COUNTS = """
import beside
if __name__ == "__main__":
    print(sum(1 for _ in pipe.iter_batches(debug=True)), sys.argv[1:], beside.VALUE)
"""
COMMAND = """
import sys
from pecan_ray.cli import main

sys.exit(main(["run", *sys.argv[1:]]))
"""
Ran = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with started_programs() as started:
        yield started


@pytest.fixture
def ran(programs: Programs, tmp_path: Path) -> Callable[..., Ran]:
    def run(text: str, *arguments: str) -> Ran:
        (tmp_path / "beside.py").write_text("VALUE = 7\n")
        (tmp_path / "train.py").write_text(text)
        (tmp_path / "elsewhere").mkdir()
        return programs.run(COMMAND, tmp_path / "elsewhere", "../train.py", *arguments, said=tmp_path)

    return run


def test_a_program_is_run_as_python_runs_it_and_reported(ran: Callable[..., Ran]) -> None:
    done = ran(HEAD + COUNTS, "--epochs", "3")
    assert done.returncode == 0, done.stderr
    first, *report = done.stdout.splitlines()
    assert first == "10 ['--epochs', '3'] 7"
    assert report[0].startswith("pecan job ran (debug, in this process): 10 batches, 40 elements")


PRINTS = """
with pipe.iter_batches(debug=True) as batches:
    next(batches)
    if "fail" in sys.argv:
        1 / 0
    print("so far:", batches.report())
    list(batches)
    if "print" in sys.argv:
        print(batches.report())
print(sys.stdout.fileno(), sys.stdout.encoding, sys.stdout.isatty())
"""


@pytest.mark.parametrize("how", ["print", "be silent", "fail"])
def test_a_report_comes_once_whether_the_program_prints_it_or_not_or_fails(ran: Callable[..., Ran], how: str) -> None:
    done = ran(HEAD + PRINTS, how)
    failed = how == "fail"
    assert done.returncode == int(failed), done.stderr
    heads = [line for line in done.stdout.splitlines() if "pecan job" in line]
    counts = ["1"] if failed else ["1", "10"]
    assert [line.split(" batches")[0].rpartition(" ")[2] for line in heads] == counts, "one of the middle is none"
    assert failed == ("ZeroDivisionError" in done.stderr) == ("train.py" in done.stderr)
    assert "run_command.py" not in done.stderr, "the command's own lines are not told"
    assert failed or "1 utf-8 False" in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [("x = (\n", "train.py, line 1: '(' was never closed"), ("\0", "is not a Python file"), (None, "No such file")],
    ids=["no Python", "no text", "no file"],
)
def test_a_file_that_is_no_program_is_refused_in_one_line(
    tmp_path: Path, text: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "train.py").write_text(text)
    assert main(["run", str(tmp_path / "train.py")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("pecan: ") and said.err.count("\n") == 1 and words in said.err


MADE = "def made(pipe=pipe):\n    return pipe.map(dict, name='looked_at')\n\ndel pipe\n"
MAIN = "def main():\n    list(made().iter_batches())\n\nif __name__ == '__main__':\n    main()\n"
TRIED = "try:\n    list(made().iter_batches())\nexcept Exception:\n    raise SystemExit(3)\n"


@pytest.mark.parametrize("loop", [MAIN, TRIED], ids=["in a main function", "in a try"])
def test_a_program_is_explained_up_to_its_first_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], loop: str
) -> None:
    (tmp_path / "train.py").write_text(HEAD + MADE + loop)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    status = main(["explain", "../train.py"])
    said = capsys.readouterr()
    assert status == 0 and "looked_at" in said.out, said.err
    assert not ray.is_initialized(), "no job has begun"


PROGRAM = """
import os
import sys

import numpy as np

import pecan_ray as pecan


def fail(element):
    if element["i"] == 7:
        os.write(2, b"a library says something")
        raise ValueError("ü")
    return element


os.chdir(sys.argv[1])
config = pecan.Config(quarantine_path="bad.jsonl", error_budget=1.0, progress=True)
pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(40)), name="näme", config=config).map(fail).batch(10)
with pipe.iter_batches(debug=True, on_error="quarantine") as batches:
    found = sum(len(batch["i"]) for batch in batches)
with open("found", "w") as file:
    file.write(str(found))
"""
REDIRECTED = some_later(["", ">&-", "2>&-", "<&- >&- 2>&-"], "", ">&-")


@pytest.mark.parametrize("redirected", REDIRECTED)
def test_closed_streams_and_no_environment_change_nothing(redirected: str, tmp_path: Path) -> None:
    command = f'exec "$0" -c "$1" "$2" {redirected}'
    environment = {"PYTHONPATH": str(ROOT), "LANG": "C", "LC_ALL": "C", "HOME": "/nonexistent"}
    ended = subprocess.run(["/bin/sh", "-c", command, sys.executable, PROGRAM, str(tmp_path)], env=environment)
    assert ended.returncode == 0
    assert (tmp_path / "found").read_text() == "39"
    lines = (tmp_path / "bad.jsonl").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith("{") for line in lines), "what was meant for standard error is in the file"
    assert len(lines) == 2 and "element 1 of split 3" in lines[1]


class Gone:
    closed = False

    def __init__(self) -> None:
        self.written = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str = "") -> None:
        self.written += 1
        raise OSError(5, "Input/output error")

    flush = write


def test_a_terminal_that_is_gone_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Gone()
    monkeypatch.setattr(sys, "stderr", gone)
    monkeypatch.setattr(progress, "TERMINAL_S", 0.0)
    shown = Progress("job", None, lambda: RecentSpeed(None, None))
    update = SimpleNamespace(target=(1, 0), running=1, placement_note="")
    state = SimpleNamespace(yielded=1, update=update)
    client = cast(BatchClient, SimpleNamespace(progress=lambda: TrainerProgress(1, 10, 0.0, 1.0), state=state))
    shown.show(client, 0)
    tried = gone.written
    assert tried
    shown.show(client, 0)
    shown.end()
    assert gone.written == tried, "nothing more is written to it"


def test_a_working_directory_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(ClusterError, match="The working directory of this program was deleted"):
        cluster.attach()
