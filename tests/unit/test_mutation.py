"""`make mutate` finds the tests that run a line, and tells which changes they do not notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


TESTS_OF_RULES = """
import pytest, rules

def test_the_larger_one_is_taken():
    assert rules.most(3, 2) == 3

def test_a_file_is_read(tmp_path):
    assert rules.most(2, 3) in (2, 3) and tmp_path.exists()
"""
COMMAND = """
import sys
from tests.mutation import __main__ as command

command.LIBRARIES = ()
sys.argv[1:] = ["--folders", "code", "--tests", "tests", "--most-s", "60"]
command.ROOT = command.Path.cwd()
command.main()
"""


def test_what_tests_notice_is_counted_and_the_rest_is_told(tmp_path: Path) -> None:
    for name, text in {
        "pytest.ini": "[pytest]\npythonpath = code",
        "code/rules.py": "MOST = 3\ndef most(a, b):\n    return a if a >= b else b\ndef more(a):\n    return +a\n",
        "tests/test_rules.py": TESTS_OF_RULES,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    *told, share = done.stdout.splitlines()
    assert share == "noticed: 2 of 6 = 33.3%", done.stdout + done.stderr
    assert sorted(told) == [
        "missed by 0 tests: code/rules.py:5: 'return +a' -> 'return None'",
        "missed by 2 tests: code/rules.py:1: '3' -> '4'",
        "missed by 2 tests: code/rules.py:3: 'a >= b' -> '(a > b)'",
        "missed by 2 tests: code/rules.py:3: 'a if a >= b else b' -> '(a)'",
    ]
