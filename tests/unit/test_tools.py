"""The tools of the tests: what is quick, which changes of the code are noticed, and the model of the control plane."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.model.__main__ import FAULTS, WITHOUT_FAULT, Check, run
from tests.programs import run_python
from tests.tiers import ROOT, is_quick


def test_decisions_and_the_job_are_tested_in_make_check() -> None:
    quick = {file.name for file in Path(__file__).parent.rglob("test_*.py") if is_quick(file)}
    assert {"test_ledger.py", "test_placement_control.py", "test_cache_eviction.py", "test_plan_shape.py"} <= quick
    assert not {"test_storage_s3.py", "test_tensorflow_engine.py", "test_ring.py", "test_python_processes.py"} & quick


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
command.ROOT = command.Path.cwd()
for skipped in ("0", "4"):
    sys.argv[1:] = ["--folders", "code", "--tests", "tests", "--processes", "1", "--most-s", "60", "--seen", "seen"]
    sys.argv += ["--skip", skipped]
    command.main()
"""


def test_what_tests_notice_is_counted_and_the_rest_is_told(tmp_path: Path) -> None:
    rules = "MOST = 3\ndef most(a, b):\n    return a if a >= b else b\ndef more(a):\n    return +a\n"
    ini = "[pytest]\npythonpath = code"
    # Tests that lie above others, and are run behind them.
    above = "def test_that_two_is_two():\n    assert 2 == 2\n"
    files = {"pytest.ini": ini, "code/rules.py": rules, "tests/rules/test_rules.py": TESTS_OF_RULES}
    for name, text in {**files, "tests/test_two.py": above}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    done = run_python("-c", COMMAND, finding=tmp_path, env={"PYTHONPATH": str(ROOT)})
    *told, logic, constants, share = done.stdout.partition("%)\n")[0].splitlines()
    assert share == "noticed: 2 of 6 = 33.3% (of all changes 10% to 70", done.stdout + done.stderr
    assert logic == "logic: missed 2, hung 0, tests 2, run by none 1"
    assert constants == "named constants: missed 1, hung 0, tests 0, run by none 0"
    assert sorted(told) == [
        "missed by 0 tests: code/rules.py:5: 'return +a' -> 'return None'",
        "missed by 2 tests: code/rules.py:3: 'a >= b' -> '(a > b)'",
        "missed by 2 tests: code/rules.py:3: 'a if a >= b else b' -> '(a)'",
        "missed by 3 tests: code/rules.py:1: '3' -> '6'",
    ]
    assert " of 2 = " in done.stdout.splitlines()[-1], "what is left of the draw when four are skipped"


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("spin") and shutil.which("gcc")), reason="needs Debian's packages spin and gcc")
@pytest.mark.parametrize("check", [*WITHOUT_FAULT, *FAULTS], ids=str)
def test_spin_finds_each_planted_fault_and_nothing_else(check: Check) -> None:
    errors, _ = run(check)
    assert bool(errors) == bool(check.fault)
