"""Type checkers accept README's program, and see what `peek` and `iter_batches` give."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = next(re.finditer(r"```python run\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)).group(1)
SEEN = """
from collections.abc import Iterator
from typing import Any

import jax
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import pecan_ray as pecan
from pecan_ray.options import Format


def check(pipe: pecan.PecanPipeline, format: Format, count: int) -> None:
    assert_type(pipe.peek(), dict[str, Any])
    assert_type(pipe.peek(1), dict[str, Any])
    assert_type(pipe.peek(3), list[dict[str, Any]])
    assert_type(pipe.peek(count), list[dict[str, Any]])
    assert_type(pipe.iter_batches(), pecan.Batches[dict[str, NDArray[Any]]])
    assert_type(pipe.iter_batches(format="numpy", epochs=2), pecan.Batches[dict[str, NDArray[Any]]])
    assert_type(pipe.iter_batches(format="torch", device="cuda"), pecan.Batches[dict[str, torch.Tensor]])
    assert_type(pipe.iter_batches(format="jax"), pecan.Batches[dict[str, jax.Array]])
    assert_type(pipe.iter_batches(format=format), pecan.Batches[dict[str, Any]])
    with pipe.iter_batches(format="torch") as batches:
        for batch in batches:
            assert_type(batch["image"], torch.Tensor)
        assert_type(next(batches), dict[str, torch.Tensor])
        assert_type(batches.one_epoch(), Iterator[dict[str, torch.Tensor]])
        assert_type(batches.report(), pecan.Report)
    texts: pecan.Batches = pipe.iter_batches(workers=pecan.Workers(local=2))  # columns of any type
    assert_type(next(texts), dict[str, Any])
"""
WRONG = """
import pecan_ray as pecan


def check(pipe: pecan.PecanPipeline) -> None:
    pipe.iter_batches(workers="4")
    pipe.iter_batches(epochs="2")
    pipe.iter_batches(format="numpi")
    pipe.iter_batches(epoch=2)
    pipe.batch("32")
"""


def checked(folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Have `mypy --strict` check programs of a user, who has no settings of ours."""
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "mypy.ini").write_text("[mypy]\n[mypy-jax.*]\nfollow_imports = skip\n")  # its sources are long
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *(f"{name}.py" for name in programs)],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_type_checkers_see_what_is_meant_and_refuse_what_is_not(tmp_path: Path) -> None:
    done = checked(tmp_path, first=README, seen=SEEN, wrong=WRONG)
    found = re.findall(r"^(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert {file for file, _, _ in found} == {"wrong"}, done.stdout
    assert [int(line) for _, line, _ in found] == [6, 7, 8, 9, 10], done.stdout


PYRIGHT = shutil.which("pyright") or shutil.which("basedpyright")


@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed")
def test_pyright_accepts_the_first_program_strictly_and_refuses_the_wrong_one(tmp_path: Path) -> None:
    assert PYRIGHT is not None
    for name, text in (("first.py", README), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(text)
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)], "include": ["first.py", "wrong.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [PYRIGHT, "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)["generalDiagnostics"]
    errors = [(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in told if one["severity"] == "error"]
    assert sorted(set(errors)) == [("wrong.py", line) for line in (6, 7, 8, 9, 10)], done.stdout
