"""`pecan` reads the pipeline out of a program without running its loop."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import ray

from pecan_ray.cli import main

ROOT = Path(__file__).resolve().parents[3]
README = next(re.finditer(r"```python run\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)).group(1)
HEAD = """
import numpy as np
import pecan_ray as pecan

def double(i):
    return 2 * i

def made():
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(40)), name="read").map(double, on="i").batch(4)
"""


Explained = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Explained:
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


def test_the_program_of_the_readme_is_explained(explained: Explained) -> None:
    status, said, errors = explained(README)
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
def test_a_program_is_read_up_to_its_first_job(explained: Explained, loop: str) -> None:
    status, said, errors = explained(HEAD + loop)
    assert status == 0, errors
    assert "double" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import numpy as np\nx = np.no_such_thing\n", r"train\.py, line 2: .*no_such_thing"),
        ("x = (\n", r"train\.py, line 1: '\(' was never closed"),
        ("import no_such_module\n", r"train\.py, line 1: .*no_such_module"),
        ("raise SystemExit('give --data')\n", r"has ended with status 'give --data' before it called iter_batches"),
        ("x = 1\n", r"has no pipeline: give it a function"),
    ],
    ids=["an error", "no Python", "a missing module", "an end", "no pipeline"],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(explained: Explained, text: str, words: str) -> None:
    status, said, errors = explained(text)
    assert (status, said) == (2, "") and errors.count("\n") == 1 and errors.startswith("pecan: ")
    assert re.search(words, errors), errors


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"pecan_ray {version('pecan_ray')}\n"
