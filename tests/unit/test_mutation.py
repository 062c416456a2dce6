"""What `make mutate` changes in a module, and that it finds the tests that run a line."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.mutation.sites import drawn, mutations
from tests.mutation.tests_of_lines import TestsOfLines

ROOT = Path(__file__).resolve().parents[2]


def changes(text: str) -> set[str]:
    return {one.applied(text) for one in mutations(text)}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x = a < b", {"x = (a <= b)"}),
        ("x = a + b", {"x = (a - b)"}),
        ("x = 'a' + b", set()),
        ("x = a and b", {"x = (a or b)"}),
        ("x = not a", {"x = (a)"}),
        ("x = a if b else c", {"x = (a)", "x = (c)"}),
        ("x = 3", {"x = 4"}),
        ("x = True", {"x = False"}),
        ("def f():\n    return 'a'", {"def f():\n    return None"}),
        ("def f():\n    g()", {"def f():\n    pass"}),
        ("for x in y:\n    break", {"for x in y:\n    continue"}),
        ("def f(x: int = 3) -> 'a < b': ...", {"def f(x: int = 4) -> 'a < b': ..."}),
        ("'''A docstring of 3 < 4.'''", set()),
        ("x = f'{a + 1}'", set()),
        ("if TYPE_CHECKING:\n    x = 3", set()),
        ("def f():\n    raise ValueError(3)", set()),
        ("ä = 'ö' if b else c", {"ä = 'ö'", "ä = (c)"}),
    ],
)
def test_each_kind_of_place_is_changed_in_its_own_way(text: str, wanted: set[str]) -> None:
    assert changes(text) == wanted


def test_every_change_to_a_module_of_ours_is_another_program() -> None:
    text = (ROOT / "pecan_ray" / "job" / "turns.py").read_text()
    programs = [ast.dump(ast.parse(one.applied(text))) for one in mutations(text)]
    assert len(programs) > 20
    assert ast.dump(ast.parse(text)) not in programs


def test_a_seed_draws_the_same_mutations_again() -> None:
    by_file = {name: mutations("x = a < b + 3") for name in ("b.py", "a.py")}
    assert drawn(by_file, 4, 7) == drawn(dict(reversed(by_file.items())), 4, 7)
    assert len(drawn(by_file, 100, 7)) == len(set(drawn(by_file, 100, 7))) == 6


def test_a_line_is_run_by_the_tests_that_were_seen_on_it(tmp_path: Path) -> None:
    data = CoverageData(str(tmp_path / "data"))
    for test, lines in {
        "tests/a.py::one|run": [1, 2],
        "tests/a.py::one|setup": [3],
        "tests/b.py::two|run": [2],
    }.items():
        data.set_context(test)
        data.add_lines({"/of/code.py": lines})
    data.set_context("")
    data.add_lines({"/of/code.py": [9]})
    data.write()
    tests = TestsOfLines(tmp_path / "data")
    assert tests.of("/of/code.py", 1) == ["tests/a.py::one"]
    assert tests.of("/of/code.py", 2) == ["tests/a.py::one", "tests/b.py::two"]
    assert tests.of("/of/code.py", 3) == ["tests/a.py::one"]
    assert tests.of("/of/code.py", 9) == ["tests/a.py::one", "tests/b.py::two"], "of what an import runs: all"
    assert tests.of("/of/code.py", 5) == [] and tests.of("/of/other.py", 1) == []
