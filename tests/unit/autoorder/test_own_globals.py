"""A sample leaves the user's modules as they were; functions that return no result are refused."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError
from pecan_ray.observe.read_program import load

MODULE = """
import threading
from collections import Counter, deque

import numpy as np
import helper_of_counts

calls = 0
seen = []
by_label = Counter()
last = deque(maxlen=3)
table = {"a": {"b": [1]}}
noise = np.random.default_rng(0)
lock = threading.Lock()
large = np.zeros(40 << 20, np.uint8)


class Running:
    total = 0

    def __init__(self):
        self.mean = 0.0

    def __call__(self, x):
        Running.total += 1
        mean.mean += 1
        return x


mean = Running()


def count(x):
    global calls, added
    with lock:
        calls += 1
        added = calls
        seen.append(float(x))
        by_label["x"] += 1
        last.append(x)
        table["a"]["b"].append(x)
        large[0] += 0
        helper_of_counts.held.append(x)
        helper_of_counts.note(x)
    return x + noise.random() * 0


def plain(x):
    return x * 2
"""
HELPER = """
held = []
noted = {}


def note(x):
    noted[float(x)] = noted.get(float(x), 0) + 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """An imported module of the user's whose functions change its globals."""
    (tmp_path / "helper_of_counts.py").write_text(HELPER)
    (tmp_path / "module_of_counts.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    import importlib

    yield importlib.import_module("module_of_counts")
    for name in ("module_of_counts", "helper_of_counts"):
        sys.modules.pop(name, None)


def test_globals_are_as_they_were_after_a_sample(module: Any) -> None:
    before, noise = module.noise, module.noise.bit_generator.state
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(x=np.arange(32.0))).map(module.count, on="x")
    found = pecan.sample_profile(pipe.map(module.Running(), on="x").map(module.plain, on="x"), 32)
    assert found["count"].elements_in == 32
    assert module.calls == 0 and module.seen == [] and not module.by_label and not module.last
    assert module.table == {"a": {"b": [1]}} and not hasattr(module, "added")
    assert module.noise is before and module.noise.bit_generator.state == noise
    assert sys.modules["helper_of_counts"].held == [] and sys.modules["helper_of_counts"].noted == {}
    assert module.Running.total == 0 and module.mean.mean == 0.0
    module.count(1.0)
    assert module.calls == module.added == 1 and module.seen == [1.0]


def test_globals_are_as_they_were_after_a_sample_that_fails(module: Any) -> None:
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(x=np.arange(32.0))).map(module.count, on="x")
    with pytest.raises(pecan.errors.OpError):
        pecan.sample_profile(pipe.map(lambda x: x.nothing, on="x"), 32)
    assert module.calls == 0 and module.seen == []


def test_functions_of_a_program_are_copied_for_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "program_of_counts.py").write_text("seen = []\ndef note(x):\n    seen.append(x)\n    return x\n")
    program: Any = load(tmp_path / "program_of_counts.py")
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(x=np.arange(9.0))).map(program.note, on="x")
    assert pecan.sample_profile(pipe)["note"].elements_in == 9
    assert program.seen == []
    sys.modules.pop("program_of_counts")


# --- functions that return no result -------------------------------------------------------------------------


async def fetch(x: Any) -> Any:
    return x


async def fetch_all(x: Any) -> Any:
    yield x


def several(x: Any) -> Iterator[Any]:
    yield x


class Fetcher:
    """An object whose call is async."""

    async def __call__(self, x: Any) -> Any:
        """Return it later."""
        return x


PIPE = pecan.PecanPipeline(pecan.sources.Items([1, 2]))


@pytest.mark.parametrize("add", [PIPE.map, PIPE.filter, PIPE.flat_map])
@pytest.mark.parametrize("fn", [fetch, fetch_all, functools.partial(fetch), Fetcher()])
def test_an_async_function_is_refused_by_name(add: Callable[..., Any], fn: Any) -> None:
    name = {"partial": "fetch", "Fetcher": r"Fetcher\.__call__"}.get(type(fn).__name__) or fn.__name__
    with pytest.raises(PlanError, match=rf"{add.__name__}: {name} is an `async def`.*asyncio\.run"):
        add(fn)


def test_a_generator_function_is_for_flat_map() -> None:
    for add in (PIPE.map, PIPE.filter):
        with pytest.raises(PlanError, match=r"several is a generator function.*use flat_map"):
            add(several)
    assert PIPE.flat_map(several).plan.ops[0].name == "several"


def test_a_length_is_no_coroutine_either() -> None:
    with pytest.raises(PlanError, match=r"bucket_by_length\(length=\.\.\.\): fetch is an `async def`"):
        PIPE.bucket_by_length([4], sizes=2, length=fetch)
