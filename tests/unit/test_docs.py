"""The documentation holds: links lead somewhere, code compiles and fits the API, examples run, names exist."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pecan_ray as pecan
from tests.programs import ROOT, started_programs
from tests.unit.test_decisions import anchors

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```python( run)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTSIDE = ("http://", "https://")
RUN_ELSEWHERE = ("README", "docs/tutorial")
"""Below, and in tests/e2e/test_site.py, with what they print."""
REFERENCE = (ROOT / "docs" / "reference.md").read_text()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks() -> Iterator[tuple[str, bool, str]]:
    """(where, whether it can be run, code) of every python block."""
    for page in PAGES:
        text = page.read_text()
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            yield f"{name_of(page)}:{line}", block.group(1) is not None, block.group(2)


Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture(scope="module")
def run_in_debug_mode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a program in a process of its own, its pipelines in debug mode; fails if Ray starts."""
    with started_programs() as programs:

        def run(code: str) -> tuple[int, str, str]:
            folder = tmp_path_factory.mktemp("example")
            code = re.sub(r"iter_batches\((debug=True)?", "iter_batches(debug=True, ", code)
            done = programs.run(code, folder, said=folder)
            return done.returncode, done.stdout, done.stderr

        yield run


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_something(page: Path) -> None:
    broken = []
    for target in LINK.findall(page.read_text()):
        path, _, anchor = target.partition("#")
        if target.startswith(OUTSIDE):
            continue
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", ["reliability", "expected"])
def test_the_tests_that_show_what_is_promised_exist(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    named = re.findall(r"\]\(\.\./(tests/[\w/]+\.py)\): `(test_\w+)`", text)
    assert len(named) > 25
    assert [one for one in named if f"def {one[1]}(" not in (ROOT / one[0]).read_text()] == []


def test_the_index_names_every_page() -> None:
    named = {
        (ROOT / index).parent / target
        for index in ("docs/README.md", "docs/decisions/README.md")
        for target in LINK.findall((ROOT / index).read_text())
    }
    assert {page for page in PAGES if "docs" in page.parts} <= {path.resolve() for path in named} | {
        ROOT / "docs" / "README.md"
    }


@pytest.mark.parametrize("code", [pytest.param(code, id=where) for where, _, code in blocks()])
def test_python_code_compiles_and_fits_the_api(code: str) -> None:
    assert list(misfits(ast.parse(code))) == []
    wrong = "pipe.iter_batches(epoch=2)\npecan.Workers(local=1)\npecan.sources.Csv('a', column=[])\npecan.Pipeline()"
    assert sorted(misfits(ast.parse(wrong))) == ["Csv(column=)", "iter_batches(epoch=)", "pecan.Pipeline"]


def misfits(tree: ast.Module) -> Iterator[str]:
    """Say which calls name an argument, and which expressions an attribute, that the library does not have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pecan":
            if not hasattr(pecan, node.attr):
                yield f"pecan.{node.attr}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            known = parameters(node.func.attr)
            yield from (f"{node.func.attr}({k.arg}=)" for k in node.keywords if known and k.arg not in known)


def parameters(name: str) -> set[str]:
    """Parameters of a public class, source or method of that name; none if it takes any keyword or is not ours."""
    homes: list[Any] = [pecan, pecan.sources, pecan.PecanPipeline, pecan.Batches]
    found: list[Callable[..., Any]] = [getattr(home, name) for home in homes if callable(getattr(home, name, None))]
    taken = [inspect.signature(one).parameters.values() for one in found]
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for each in taken for p in each):
        return set()
    return {p.name for each in taken for p in each}


@pytest.mark.parametrize(
    "code",
    [pytest.param(code, id=where) for where, runs, code in blocks() if runs and not where.startswith(RUN_ELSEWHERE)],
)
def test_an_example_runs(code: str, run_in_debug_mode: Run) -> None:
    status, _, said = run_in_debug_mode(code)
    assert status == 0, said


def test_the_first_example_of_the_readme_runs_and_one_that_fails_is_found(run_in_debug_mode: Run) -> None:
    where, runs, code = next(block for block in blocks() if block[0].startswith("README"))
    assert runs, f"{where} is not marked as one that runs"
    status, printed, said = run_in_debug_mode(code)
    assert status == 0, said
    assert printed.count("float32 (64, 64, 64, 3)") == 16, "two epochs of 512 images in batches of 64"
    status, printed, said = run_in_debug_mode("print(1)\nraise ValueError('no')")
    assert (status, printed) == (1, "1\n") and said.endswith("ValueError: no\n")


def test_the_reference_names_every_public_thing() -> None:
    things = {*(f"pecan.{name}" for name in pecan.__all__), *public(pecan.Batches), *public(pecan.PecanPipeline)}
    things |= {*pecan.sources.__all__, *pecan.Config.__dataclass_fields__, *pecan.Report.__dataclass_fields__}
    things |= {name for name in public(pecan.errors) if name.endswith("Error")}
    assert [thing for thing in sorted(things) if not re.search(rf"\b{re.escape(thing)}\b", REFERENCE)] == []


def test_the_reference_spells_every_signature_and_every_default_of_iter_batches_as_it_is() -> None:
    homes: list[Any] = [pecan, pecan.sources, pecan.PecanPipeline, pecan.Batches]
    to_str = {name: text for text, name in re.findall(r"`((\w+)\([^`]*\))`", REFERENCE)}
    real = {name: (home, getattr(home, name)) for name in to_str for home in homes if hasattr(home, name)}
    assert {"Parquet", "bucket_by_length", "scale", "Workers", "journal_state"} <= set(real)
    for name, (home, thing) in real.items():
        bound = isinstance(thing, type) or inspect.ismethod(thing) or not isinstance(home, type)
        parameters = list(inspect.signature(thing).parameters.values())[0 if bound else 1 :]
        assert spelled_as(parameters) == spelled_as(parameters_in(to_str[name])), name
    table = REFERENCE[REFERENCE.index("## `PecanPipeline.iter_batches`") : REFERENCE.index("## `pecan.Batches`")]
    arguments = ", ".join(re.findall(r"`(\w+=[^`]+)`", table))
    _, *wanted = inspect.signature(pecan.PecanPipeline.iter_batches).parameters.values()
    defaults = [(parameter.name, parameter.default) for parameter in parameters_in(f"iter_batches({arguments})")]
    assert sorted(defaults) == sorted((parameter.name, parameter.default) for parameter in wanted)


def parameters_in(signature: str) -> list[inspect.Parameter]:
    """The parameters of a signature that is spelled as in a definition."""
    names: dict[str, Any] = {}
    exec(f"def {signature}: ...", names)
    return list(inspect.signature(names[signature.partition("(")[0]]).parameters.values())


def spelled_as(parameters: list[inspect.Parameter]) -> list[tuple[str, str, str]]:
    """Name, kind and default; an empty container stands for a factory of one."""
    defaults = ["{}" if "factory" in repr(p.default) else repr(p.default) for p in parameters]
    return [(p.name, p.kind.name, default) for p, default in zip(parameters, defaults, strict=True)]


def public(thing: Any) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}
