"""`pecan run` and `pecan explain`: a program is run as Python does, or read up to its first job."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import ray

from pecan_ray.cli import main
from tests.programs import Programs, started_programs

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
    print("so far:", batches.report())
    list(batches)
    if "print" in sys.argv:
        print(batches.report())
open("at_the_end", "w").write(batches.report().to_json())
print(sys.stdout.fileno(), sys.stdout.encoding, sys.stdout.isatty())
"""


@pytest.mark.parametrize("arguments", [["print"], []], ids=["printed", "not printed"])
def test_a_whole_report_comes_once_whether_the_program_prints_it_or_not(
    ran: Callable[..., Ran], arguments: list[str]
) -> None:
    done = ran(HEAD + PRINTS, *arguments)
    assert done.returncode == 0, done.stderr
    heads = [line for line in done.stdout.splitlines() if "pecan job" in line]
    assert [line.split(" batches")[0].rpartition(" ")[2] for line in heads] == ["1", "10"], "one of the middle is none"
    assert "1 utf-8 False" in done.stdout


def test_a_run_that_is_left_is_ended_and_reported(ran: Callable[..., Ran]) -> None:
    done = ran(HEAD + "batches = pipe.iter_batches(debug=True)\nnext(batches)\nsys.exit(5)\n")
    assert done.returncode == 5, done.stderr
    assert "ran (debug, in this process): 1 batches, 4 elements" in done.stdout


def test_what_the_program_raises_is_told_without_the_commands_own_lines(ran: Callable[..., Ran]) -> None:
    done = ran(HEAD + "for batch in pipe.iter_batches(debug=True):\n    1 / 0\n")
    assert done.returncode == 1
    assert "train.py" in done.stderr and "ZeroDivisionError" in done.stderr and "run_command.py" not in done.stderr
    assert "ran (debug, in this process): 1 batches, 4 elements" in done.stdout


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


ROOT = Path(__file__).resolve().parents[3]
README = next(re.finditer(r"```python run\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)).group(1)
READ_HEAD = """
import numpy as np
import pecan_ray as pecan

def double(i):
    return 2 * i

def made():
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(40)), name="read").map(double, on="i").batch(4)
"""


Explained = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def order_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Explained:
    """Explains a program from another folder; gives the exit status, and what was written."""

    def explain(text: str) -> tuple[int, str, str]:
        (tmp_path / "train.py").write_text(text)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        status = main(["explain", "../train.py"])
        written = capsys.readouterr()
        assert not ray.is_initialized(), "no job has begun"
        return status, written.out, written.err

    return explain


def test_the_program_of_the_readme_is_explained(order_text: Explained) -> None:
    status, said, errors = order_text(README)
    assert status == 0, errors
    assert "random_flip" in said and "normalize" in said and "float32 (64" not in said, "its loop has not run"


@pytest.mark.parametrize(
    "loop",
    [
        "for batch in made().iter_batches(): raise SystemExit(3)\n",
        "try:\n    list(made().iter_batches())\nexcept Exception:\n    raise SystemExit(3)\n",
        "def main():\n    list(made().iter_batches())\n\nif __name__ == '__main__':\n    main()\n",
    ],
    ids=["a loop", "a loop in a try", "a main function"],
)
def test_a_program_is_read_up_to_its_first_job(order_text: Explained, loop: str) -> None:
    status, said, errors = order_text(READ_HEAD + loop)
    assert status == 0, errors
    assert "double" in said


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"pecan_ray {version('pecan_ray')}\n"
