"""What functions remember is found in their code, and nothing that changes what they are given passes them."""

from __future__ import annotations

import bisect
import collections
import contextlib
import contextvars
import functools
import heapq
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.python.remembering import memory_of
from pecan_ray.plan.splits import Element
from pecan_ray.reorder import Mode
from tests.unit.autoorder.sampled_orders import gain, order

SEEN: set[Any] = set()
HEAP: list[int] = []
TABLE = {"a": 1}
SUMS = np.zeros(3)
NUMBERS = itertools.count()
LOCK = threading.Lock()
WORDS: dict[str, int] = collections.defaultdict(itertools.count().__next__)


class Quota:
    """At most 2,000 elements of a class: none is over it in a sample."""

    def __init__(self) -> None:
        self.seen: collections.Counter[int] = collections.Counter()

    def __call__(self, element: Element) -> bool:
        self.seen[element["label"]] += 1
        return self.seen[element["label"]] <= 2000

    def count(self, label: int) -> None:
        self.seen.update([label])


class Schedule:
    """Another function after 500 calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, element: Element) -> Element:
        self.calls += 1
        return {**element, "x": np.sqrt(element["x"] * (1 + self.calls // 500))}


class Inherits(Schedule):
    def __call__(self, element: Element) -> Element:
        return super().__call__(element)


class OfClass:
    calls = 0

    def __call__(self, element: Element) -> Element:
        type(self).calls += 1
        return element


class Holds:
    """Hands on what it holds."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __call__(self, element: Element) -> Any:
        return self.held(element)

    def by_helper(self, element: Element) -> Element:
        count(self.held, key=element["label"])
        return element

    def by_loop(self, element: Element) -> Element:
        for one in self.held.values():
            one.append(1)
        return element


LIBRARY: dict[str, Any] = {"__name__": "numpy"}
exec(
    """
class Compose:
    # Its own attributes change, too, which counts for nothing.
    def __init__(self, *steps):
        self.steps = list(steps)

    def __call__(self, element):
        self.last = element
""",
    LIBRARY,
)
Compose = LIBRARY["Compose"]


def count(counts: Any, key: int) -> None:
    counts[key] = counts.get(key, 0) + 1


LIMITS = [Quota(), Quota()]
PLACE: contextvars.ContextVar[int] = contextvars.ContextVar("place")
TABLES = np.zeros((4, 3))


def of_closure() -> Callable[[Element], Element]:
    calls = 0

    def counts(element: Element) -> Element:
        nonlocal calls
        calls += 1
        return element

    return counts


def in_generator(element: Element) -> Iterator[Element]:
    SEEN.update(element)
    yield element


def nested(element: Element) -> Element:
    def inner() -> None:
        SEEN.add(element["label"])

    inner()
    return element


def first_of(element: Element) -> Element:
    for number in NUMBERS:
        return {**element, "n": number}
    return element


def row_in_place(element: Element) -> Element:
    row = TABLES[element["label"]]
    row += element["x"]
    return element


def handed_on(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **named: Any) -> Any:
        return fn(*args, **named)

    return wrapper


class Many:
    """Forms in which a class remembers what it has called."""

    called: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.calls = 0
        self.seen: dict[Any, Any] = {}

    def __enter__(self) -> dict[Any, Any]:
        return self.seen

    def __exit__(self, *error: object) -> None:
        self.calls += 1

    def held(self, element: Element) -> dict[Any, Any]:
        return {} if element["label"] else self.seen

    def fresh(self) -> dict[Any, Any]:
        return dict(self.seen)

    def count(self, by: int, element: Element) -> Element:
        self.calls += by
        return element

    by_one = functools.partialmethod(count, 1)

    @functools.singledispatchmethod
    def dispatched(self, element: Any) -> Any:
        return element

    @dispatched.register(dict)
    def _(self, element: dict[str, Any]) -> Any:
        self.calls += 1
        return element

    def by_type(self, element: Element) -> Any:
        return self.dispatched(element)

    @handed_on
    def wrapped(self, element: Element) -> Element:
        self.calls += 1
        return element

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        self.calls += 1
        yield

    @staticmethod
    def static(element: Element) -> Element:
        Many.called.append(element)
        return element

    def in_scope(self, element: Element) -> Element:
        with self.scope():
            return element

    def in_context(self, element: Element) -> Element:
        with self as seen:
            seen["label"] = 1
        return element

    def by_result(self, element: Element) -> Element:
        self.held(element).update(element)
        return element

    def plainly(self, element: Element) -> Element:
        made = self.fresh()
        made["label"] = 1
        return {**element, **made}


class Descriptor:
    def __get__(self, owner: Any, kind: Any = None) -> int:
        SEEN.add(1)
        return 1


class Described:
    described = Descriptor()

    def __call__(self, element: Element) -> Element:
        return {**element, "n": self.described}


def imports(element: Element) -> Element:
    from tests.unit.engines import test_remembering as here

    here.SEEN.add(1)
    return element


def imports_plainly(element: Element) -> Element:
    import json

    made = json.loads(element["text"])
    made["label"] = 1
    return {**element, **made}


@functools.singledispatch
def dispatched(element: Any) -> Any:
    return element


@dispatched.register(dict)
def _(element: dict[str, Any]) -> Any:
    SEEN.add(1)
    return element


def of_several(element: Element) -> Element:
    held: tuple[Any, ...] = (HEAP, SEEN)
    for one in held:
        one.clear()
    return element


def held() -> set[Any]:
    return SEEN


def through(count: int) -> Callable[[Element], Any]:
    def last(element: Element) -> Any:
        SEEN.add(1)

    def calls(element: Element, fn: Callable[[Element], Any]) -> Any:
        return fn(element)

    fn: Callable[[Element], Any] = last
    for _ in range(count):
        fn = functools.partial(calls, fn=fn)
    return fn


class Forward(Schedule):
    """Called by a library's `__call__`."""

    def forward(self, element: Element) -> Element:
        self.calls += 1
        return element

    __call__ = len  # type: ignore[assignment]


def plain(element: Element) -> Element:
    """Writes into what is its own, and reads what lives longer."""
    made, sums = dict[str, Any](TABLE), SUMS.copy()
    sums[0] = TABLE["a"]
    element["y"] = [TABLE["a"]]
    element["y"].append(2)
    with LOCK:
        made.update(x=np.append(SUMS, sums))
    return {**element, **made}


@functools.lru_cache
def cached(size: int) -> Any:
    return np.arange(size)


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (Quota(), "it writes into a Counter"),
        (Schedule(), "it sets 'calls' of a Schedule"),
        (Inherits(), "it sets 'calls' of a Inherits"),
        (OfClass(), "it sets 'calls' of a OfClass"),
        (Holds(Quota()), "it writes into a Counter"),
        (Holds({}).by_helper, "it writes into a dict"),
        (Holds({1: []}).by_loop, "it calls 'append' of a dict"),
        (Compose(np.sqrt, Schedule()), "it sets 'calls' of a Schedule"),
        (functools.partial(count, {}), "it writes into a dict"),
        (of_closure(), "it sets 'calls', which lives longer than a call"),
        (lambda e, seen=[]: seen.append(1), "it calls 'append' of a list"),
        (in_generator, "it calls 'update' of a set"),
        (nested, "it calls 'add' of a set"),
        (lambda e: e["label"] in SEEN or SEEN.pop(), "it calls 'pop' of a set"),
        (lambda e: {**e, "n": next(NUMBERS)}, "it calls 'next' with a count"),
        (lambda e: heapq.heappush(HEAP, e["label"]), "it calls 'heappush' with a list"),
        (functools.wraps(plain)(of_closure()), "it sets 'calls'"),
        (lambda e: LIMITS[e["label"]](e), "it writes into a Counter"),
        (lambda e: LIMITS[e["label"]].count(e["label"]), "it calls 'update' of a Counter"),
        (first_of, "it takes from a count"),
        (lambda e: {**e, "n": list(itertools.islice(NUMBERS, 2))}, "it takes from a count"),
        (row_in_place, "it changes a ndarray"),
        (Forward(), "it sets 'calls' of a Forward"),
        (lambda e: np.add(SUMS, 1, SUMS), "it calls 'add' with a ndarray"),
        (lambda e: PLACE.set(e["label"]), "it calls 'set' of a ContextVar"),
        (lambda e: {**e, "first": next(iter(TABLE))}, ""),
        (Many().by_one, "it sets 'calls' of a Many"),
        (Many().by_type, "it sets 'calls' of a Many"),
        (Many().wrapped, "it sets 'calls' of a Many"),
        (Many().in_scope, "it sets 'calls' of a Many"),
        (Many().in_context, "it writes into a Many"),
        (Many().by_result, "it calls 'update' of a dict"),
        (Many().static, "it calls 'append' of a list"),
        (Many().plainly, ""),
        (Described(), "it calls 'add' of a set"),
        (imports, "it calls 'add' of a set"),
        (imports_plainly, ""),
        (dispatched, "it calls 'add' of a set"),
        (through(400), "it calls 'add' of a set"),
        (lambda e: held().add(1), "it calls 'add' of a set"),
        (lambda e: (SEEN or set[int]()).add(1), "it calls 'add' of a set"),
        (lambda e: set.add(SEEN, 1), "it calls 'add' with a set"),
        (lambda e: np.add.at(SUMS, [0], 1), "it calls 'at' with a ndarray"),
        (lambda e: np.add(1, 1, out=(SUMS,)), "it writes into a ndarray"),
        (lambda e: bisect.insort(HEAP, e["label"]), "it calls 'insort_right' with a list"),
        (lambda e: {**e, "n": WORDS[e["word"]]}, "it asks for what may be missing of a defaultdict"),
        (of_several, "it calls 'clear' of a list"),
        (plain, ""),
        (lambda e: {**e, "x": cached(3) + e["x"]}, ""),
        (Compose(plain), ""),
        (Holds(plain), ""),
        (np.sqrt, ""),
    ],
)
def test_what_a_function_remembers_is_told_by_its_code(fn: Any, why: str) -> None:
    told = memory_of(fn).why()
    assert (why in told) if why else not told, told


def test_functions_that_share_what_one_of_them_changes() -> None:
    table = Holds({})
    assert memory_of(table.by_helper).shared(memory_of(lambda e: table.held))
    assert memory_of(lambda e: TABLE["a"]).shared(memory_of(lambda e: TABLE.clear()))
    assert not memory_of(of_closure()).shared(memory_of(of_closure()))
    assert not memory_of(in_generator).shared(memory_of(plain))


def first_label(element: Element) -> bool:
    return bool(element["label"] == 0)


def cut(element: Element) -> Element:
    return {**element, "x": element["x"][:10]}


def root(element: Element) -> Element:
    for _ in range(200):  # what is cheaper than its call is not moved
        made = np.sqrt(element["x"])
    return {**element, "x": made}


def elements() -> pecan.PecanPipeline:
    items = [{"x": np.arange(400.0) + n, "label": n % 4} for n in range(48)]
    return pecan.PecanPipeline(pecan.sources.Items(items))


@pytest.mark.parametrize("mode", ["safe", "strict"])
def test_no_filter_passes_what_remembers_and_nothing_that_meets_it(monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    gain(monkeypatch, 2.0)
    plain_order = order(elements().map(root).filter(first_label), mode)
    assert plain_order.accepted.order == ("first_label", "root")
    found = order(elements().map(Schedule()).filter(first_label), mode)
    assert found.accepted.order == ("Schedule", "first_label")
    told = " ".join(one.reason for one in found.rejected)
    assert "'Schedule' remembers something from call to call (it sets 'calls' of a Schedule" in told
    assert "and 'first_label' decides which elements it is given" in told
    found = order(elements().map(Schedule()).map(cut), mode)
    assert found.accepted.order == ("Schedule", "cut")
    assert "'cut' works on the same columns" in " ".join(one.reason for one in found.rejected)
