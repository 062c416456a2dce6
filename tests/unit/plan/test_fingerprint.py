"""Fingerprints: equal for plans that compute the same, in any process, and different for all others; odd functions."""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
import re
import sys
import textwrap
import threading
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.fingerprint import canonical_text, describe_plan
from pecan_ray.plan.operators import wants_rng
from pecan_ray.runtime.pickling import held_by
from pecan_ray.sources import Arrays, Items
from tests.programs import run_python


def numbers(rows: int = 4) -> PecanPipeline:
    return PecanPipeline(Arrays(i=np.arange(rows)))


def test_states_of_shuffles_whose_order_has_changed_are_refused_and_no_others() -> None:
    """One that reads several splits at a time, or has a seed of its own, or is fixed, has another order than before."""
    before = ("operator shuffle", "597c2e578947")
    assert describe_plan(numbers().shuffle(9, splits=1).plan)[1] == before
    assert describe_plan(numbers().shuffle(9).plan)[1] != before
    assert describe_plan(numbers().shuffle(9, seed=1, splits=1).plan)[1] != ("operator shuffle", "84a4a2eaea91")
    assert describe_plan(numbers().shuffle(9, reshuffle=False, splits=1).plan)[1] != before


def of(fn: Callable[..., Any]) -> str:
    """Fingerprint of a pipeline with one function."""
    return numbers().map(fn, name="f").fingerprint()


def defined(text: str, **used: Any) -> Any:
    """Run a text that defines `f`, as if it stood in a module of its own with some globals."""
    namespace = {"__name__": "somewhere", **used}
    exec(textwrap.dedent(text), namespace)
    return namespace["f"]


def adding(amount: Any) -> Any:
    return lambda i: i + amount


class Scale:
    """A function with state."""

    def __init__(self, by: Any) -> None:
        self.by = by

    def __call__(self, i: Any) -> Any:
        return i * self.by

    def double(self, i: Any) -> Any:
        """Return twice the scaled value."""
        return 2 * self(i)


class Slim:
    """A function whose state lies in slots."""

    __slots__ = ("by",)

    def __init__(self, by: Any) -> None:
        self.by = by

    def __call__(self, i: Any) -> Any:
        return i * self.by


VALUES: list[tuple[Any, Any]] = [
    (1, True),
    ((1, 2), [1, 2]),
    ({"a": 1}, {"a": 2}),
    (np.float32(1), np.float64(1)),
    (np.dtype(ml_dtypes.bfloat16), np.dtype("V2")),
    (np.arange(4), np.arange(4).reshape(2, 2)),
    (np.array(["a", None], object), np.array(["b", None], object)),
    (np.array([(1, 2)], "i4,i4"), np.array([(1, 2)], [("x", "i4"), ("y", "i4")])),
    (np.ma.masked_equal([1, 2], 1), np.ma.masked_equal([1, 2], 2)),
    (np.random.Generator(np.random.PCG64(1)), np.random.Generator(np.random.PCG64(2))),
    (re.compile("a"), re.compile("b")),
    (operator.itemgetter("a"), operator.itemgetter("b")),
    (functools.partial(pow, 2), functools.partial(divmod, 2)),
    (Scale(1), Scale(2)),
    (Slim(1), Slim(2)),
    (adding(adding(1)), adding(adding(2))),
    (np.add, np.subtract),
    (typing.NoReturn, typing.ClassVar),
    (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
]


@pytest.mark.parametrize(("one", "other"), VALUES)
def test_a_value_that_a_function_holds_counts(one: Any, other: Any) -> None:
    texts = {of(adding(one)), of(adding(other)), of(defined("f = lambda i: by", by=one))}
    assert len(texts) == 3
    assert of(adding(one)) == of(adding(one))


def test_recursion_ends_and_what_cannot_be_pickled_counts_by_its_kind() -> None:
    for text in ("def f(i): return i if i < {0} else f(i - 1)", "def g(i): return f(i) + {0}\ndef f(i): return g(i)"):
        assert of(defined(text.format(1))) == of(defined(text.format(1))) != of(defined(text.format(2)))
    endless, other = list[Any]([1]), list[Any]([2])
    for one in (endless, other):
        one.append(one)
    assert of(adding(endless)) != of(adding(other))
    me = Scale(1)
    me.by = me
    assert of(me) == of(me)
    assert of(adding(threading.Lock())) == of(adding(threading.Lock())) != of(adding(threading.Event()))
    with open(__file__) as file:
        assert of(adding(file)) == of(adding(file))


@pytest.mark.parametrize("text", ["my_ops.scale(i)", "getattr(my_ops, 'scale')(i)", "vars(my_ops)['scale'](i)"])
def test_functions_of_a_users_module_are_followed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def with_module(factor: int) -> str:
        module = types.ModuleType("my_ops")
        exec(f"def scale(i): return i * {factor}\ndef unused(i): return {factor * 0}", module.__dict__)
        monkeypatch.setitem(sys.modules, "my_ops", module)
        return of(defined(f"def f(i): return {text}", my_ops=module))

    assert with_module(1) == with_module(1) != with_module(2)


def test_functions_of_packages_count_by_name_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    fn = defined("def f(i): return dedent(i)", dedent=textwrap.dedent)
    assert canonical_text(np.ravel) != canonical_text(np.mean)
    before = of(defined("def f(i): return np.ravel(i)", np=np)), of(fn)
    monkeypatch.setattr(np, "__version__", "0.1")
    assert of(defined("def f(i): return np.ravel(i)", np=np)) != before[0]
    assert of(fn) == before[1]


def plus(i: Any) -> Any:
    return i + 1


def minus(i: Any) -> Any:
    return i - 1


def test_order_parameters_and_data_count() -> None:
    one = numbers().map(plus, on="i")
    base = one.map(minus, on="i").batch(2)
    others = [
        numbers().map(minus, on="i").map(plus, on="i").batch(2),
        one.map(minus, on="i").batch(2, drop_remainder=True),
        one.map(minus).batch(2),
        one.map(minus, on="i", name="other").batch(2),
        one.filter(minus, on="i").batch(2),
        numbers(5).map(plus, on="i").map(minus, on="i").batch(2),
        PecanPipeline(Items([{"i": n} for n in range(4)])).map(plus, on="i").map(minus, on="i").batch(2),
        base.concat(numbers()),
        base.concat(numbers(5)),
        base.mix(numbers(), weights=[1, 2]),
        base.mix(numbers(), weights=[1, 2], stop="first"),
    ]
    assert len({pipe.fingerprint() for pipe in [base, *others]}) == len(others) + 1


def test_a_fingerprint_up_to_an_operator_ignores_what_follows() -> None:
    pipe = numbers().map(plus, on="i").map(minus, on="i").batch(2)
    assert pipe.fingerprint(upto="plus") == numbers().map(plus, on="i").fingerprint()
    assert pipe.fingerprint(upto="batch") == pipe.fingerprint()
    joined = numbers().map(plus, on="i").zip(numbers().map(minus, on="i")).batch(2)
    assert joined.fingerprint(upto="minus") == numbers().map(minus, on="i").fingerprint()
    with pytest.raises(PlanError, match=r"no operator is named 'x'; there are \['plus', 'minus', 'batch'\]"):
        pipe.fingerprint(upto="x")


PROGRAM = """
import functools, re
import numpy as np
from pecan_ray import PecanPipeline, sources

KNOWN = {"a", "b", "c", "d"}
TABLE = np.array(["x", None, "y"], object)

class Scale:
    names = frozenset({"one", "two", "three"})
    def __init__(self, by): self.by = by
    def __call__(self, i): return i * self.by if i in self.names else again(i)

def again(i): return Scale(3)(i) if i in KNOWN else TABLE

pipe = PecanPipeline(sources.Items([{"i": "a"}, {"i": "b"}]))
pipe = pipe.map(Scale(2), on="i").map(lambda i: i in {"u", "v", "w"}, on="i").filter(again, on="i")
pipe = pipe.map(functools.partial(re.sub, re.compile("a|b"), "c"), on="i").map({"k": {1.5, 2.5}}.get, on="i")
print(pipe.fingerprint())
"""


def test_other_processes_find_the_same_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    found = {run_python(str(tmp_path / "program.py"), env={"PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")}
    assert [len(text.strip()) for text in found] == [32]


def test_pickling_an_instance_does_not_change_what_its_class_is() -> None:
    @dataclasses.dataclass(frozen=True)
    class Add:
        more: int

        def __call__(self, i: int) -> int:
            return i + self.more

    source = Arrays(i=np.arange(3))
    before = PecanPipeline(source).map(Add(1), on="i", name="add").fingerprint()
    copy.copy(Add(1))  # Python notes the names of slots in the class
    assert "__slotnames__" in vars(Add)
    assert PecanPipeline(source).map(Add(1), on="i", name="add").fingerprint() == before


def test_a_tensor_counts_by_its_numbers() -> None:
    torch = pytest.importorskip("torch")

    def to_str(*args: Any, **keywords: Any) -> str:
        return canonical_text(torch.tensor(*args, **keywords))

    assert to_str([1.0, 2.0]) == to_str([1.0, 2.0])
    others: tuple[Any, ...] = ([1.0, 3.0], [[1.0, 2.0]], 1.0, [], [1, 2])
    assert len({to_str([1.0, 2.0]), *map(to_str, others), to_str([1.0, 2.0], dtype=torch.bfloat16)}) == 7
    assert canonical_text(torch.arange(4)[::2]) == to_str([0, 2]), "a view counts by what is seen of it"
    assert canonical_text(torch.tensor([1 + 2j]).conj()) == to_str([1 - 2j])
    sparse = torch.eye(2).to_sparse()
    assert isinstance(canonical_text(sparse), str) and canonical_text(torch.nn.Linear(2, 2)) != canonical_text(sparse)


METHOD = "class A:\n def g(self, i): return %s\na = A()\nf = lambda i: a.g(i)"
INHERITED = "class B:\n def __call__(self, i): return %s\nclass A(B): pass\nf = A()"
ATTRIBUTE = "class A:\n by = %s\n def __call__(self, i): return i * self.by\nf = A()"
PROPERTY = "class A:\n @property\n def by(self): return %s\n def __call__(self, i): return i * self.by\nf = A()"
DIFFERENT = {
    "constant": ("f = lambda i: i + %s", "1", "2"),
    "type of a constant": ("f = lambda i: i + %s", "1", "1.0"),
    "default": ("def f(i, by=%s): return i + by", "1", "2"),
    "keyword default": ("def f(i, *, by=%s): return i + by", "1", "2"),
    "global": ("by = %s\nf = lambda i: i + by", "1", "2"),
    "global by its text": ("by = %s\nf = lambda i: i + globals()['by']", "1", "2"),
    "global in a nested function": ("by = %s\nf = lambda i: (lambda: by)()", "1", "2"),
    "function that is called": ("def g(i): return %s\ndef f(i): return g(i)", "i", "-i"),
    "name of an attribute": ("f = lambda i: i.%s()", "min", "max"),
    "elements of a set": ("f = lambda i: i in {1, %s}", "2", "3"),
    "what an exception handler covers": (
        "def f(i):\n try:\n  i = g(i)\n%s\n return i",
        "  i = h(i)\n except E: pass",
        " except E: pass\n i = h(i)",
    ),
    "method of a global's class": (METHOD, "i", "-i"),
    "inherited method": (INHERITED, "i", "-i"),
    "attribute of a class": (ATTRIBUTE, "1", "2"),
    "property of a class": (PROPERTY, "1", "2"),
    "static method": ("class A:\n @staticmethod\n def f(i): return %s\nf = A.f", "i", "-i"),
    "wrapped function": ("import functools\n@functools.lru_cache\ndef f(i): return %s", "i", "-i"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_behaviour_is_another_fingerprint(what: str) -> None:
    text, *changed = DIFFERENT[what]
    one, other = (text % part for part in changed)
    assert of(defined(one)) != of(defined(other))
    assert of(defined(one)) == of(defined("\n\n" + one)), "defined twice, and where it stands, it is the same"


class Raises:
    """Raises an error of its own for every attribute that it lacks."""

    error: type[Exception] = KeyError

    def __getattr__(self, name: str) -> Any:
        raise self.error(name)

    def __call__(self, element: Any, rng: Any = None) -> Any:
        return element


class RaisesValueError(Raises):
    """Raises what `inspect` takes for an answer."""

    error = ValueError


class Answers:
    """Has every attribute, as mocks and proxies have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and "wrapped" not in name:
            raise AttributeError(name)
        return Answers()

    def __call__(self, element: Any) -> Any:
        return element


def holding(value: Any) -> Callable[[Any], Any]:
    return lambda element: (value, element)[1]


@pytest.mark.parametrize("kind", [Raises, RaisesValueError, Answers])
@pytest.mark.parametrize("place", [lambda one: one, holding, functools.partial], ids=["itself", "held", "partial"])
def test_such_a_function_runs_like_others(kind: Any, place: Callable[[Any], Any]) -> None:
    config = pecan.Config(sample_seconds=1.0)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(12)), name="odd", config=config)
    pipe = pipe.map(place(kind()), on="i").batch(4)
    assert pipe.fingerprint() == pipe.fingerprint()
    op: Any = pipe.plan.ops[0]
    assert dict(held_by(op.fn)).keys() <= {"value"}
    assert wants_rng(op.fn) == (place is not holding and kind is not Answers), "if it declares that"
    assert [int(i) for batch in pipe.iter_batches(debug=True) for i in batch["i"]] == list(range(12))


def test_functions_of_a_program_are_its_own_in_a_process_that_runs_a_librarys_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray's workers do: what a state of theirs tells of a pipeline is what the program tells of it."""
    codes = [fn.__code__ for fn in (lambda x: x, lambda x: x + 1)]
    found = [types.FunctionType(code, {"__name__": "__main__"}) for code in codes]
    here = [canonical_text(fn) for fn in found]
    monkeypatch.setattr(sys.modules["__main__"], "__file__", np.__file__, raising=False)
    assert [canonical_text(fn) for fn in found] == here and here[0] != here[1]
