"""`PecanPipeline`: building, names, arguments, a look at the data, runs in this process, and words of other loaders."""

from __future__ import annotations

import functools
import inspect
import os
import re
import threading
import traceback
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError
from pecan_ray.peer_names import ARGUMENTS, METHODS
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays, Items


def numbers(rows: int = 10, name: str = "i", **options: Any) -> PecanPipeline:
    return PecanPipeline(Arrays({name: np.arange(rows)}), **options)


def add_one(i: Any) -> Any:
    return i + 1


def names(pipe: PecanPipeline) -> list[str]:
    return [op.name for op in pipe.plan.all_ops()]


def test_every_method_returns_a_new_pipeline_and_leaves_the_old_one() -> None:
    base = numbers(name="i", seed=3)
    steps = [base.map(add_one, on="i"), base.batch(2), base.shuffle(2), base.repeat(2), base.zip(numbers(name="j"))]
    steps.append(base.mix(numbers(), weights=[1, 1]))
    assert names(base) == [] and len(base) == 10
    assert all(step.plan is not base.plan and step.name == base.name for step in steps)
    for frozen, name in ((base.plan, "ops"), (base, "name")):
        with pytest.raises(AttributeError):  # which FrozenInstanceError is
            setattr(frozen, name, None)


def test_operators_are_named_by_their_functions_and_names_are_unique() -> None:
    scale = functools.partial(add_one)
    pipe = numbers().map(add_one).map(add_one).map(lambda e: e).map(lambda e: e).map(scale).map(str.upper, on="i")
    pipe = pipe.map(add_one, name="mine").filter(bool).batch(2).unbatch().batch(3)
    of_functions = ["add_one", "add_one_2", "map", "map_2", "add_one_3", "upper", "mine", "bool"]
    assert names(pipe) == [*of_functions, "batch", "unbatch", "batch_2"]
    nameless = numbers().filter(lambda e: True).flat_map(lambda e: [e]).filter(functools.partial(lambda n, e: True, 1))
    assert names(nameless.batch(2, collate=lambda e: e[0])) == ["filter", "flat_map", "filter_2", "batch", "collate"]
    with pytest.raises(PlanError, match="the name 'mine' is taken by another operator of the pipeline pipeline"):
        pipe.map(add_one, name="mine")
    side = numbers().map(add_one, on="i").map(add_one, on="i").batch(2)
    joined = side.concat(side, side.map(dict, name="add_one_3")).map(add_one, on="i")
    assert names(joined)[:3] == names(side) == ["add_one", "add_one_2", "batch"]
    assert len(set(names(joined))) == len(names(joined)) == 11, "a join renames what both sides have"


WRONG: list[tuple[Any, str]] = [
    (lambda p: type(p)([1, 2]), r"needs a source of pecan_ray\.sources, but got list\. Wrap Python objects"),
    (lambda p: numbers(engine="torch"), "engine must be 'python' or 'tensorflow', but got 'torch'"),
    (lambda p: p.map("f"), "map needs a function, but got str"),
    (lambda p: p.batch(2.0), r"batch needs a whole number >= 1, but got 2\.0"),
    (lambda p: p.bucket_by_length([], sizes=1, length="i"), r"boundaries must rise, but got \[\]"),
    (lambda p: p.bucket_by_length([3], sizes=[1], length="i"), "1 boundaries make 2 buckets, but sizes has 1"),
    (lambda p: p.group_by("i", 2, tail="pad"), r"tail=\.\.\.\) must be one of 'keep', 'fill', .* but got 'pad'"),
    (lambda p: p.group_by(3, 2), r"group_by\(key=\.\.\.\) needs a function, but got int"),
    (lambda p: p.zip(), "zip needs at least one other pipeline"),
    (lambda p: p.concat([1, 2]), "concat needs pipelines, but got list"),
    (lambda p: p.concat(numbers(engine="tensorflow")), r"pipelines of different engines \(python, tensorflow\)"),
    (lambda p: p.mix(p, weights=[1]), r"mix\(weights=\.\.\.\) needs one number >= 0 .* \(2\), .*, but got \[1\]"),
    (lambda p: p.mix(p, weights=[1, 1], stop="last"), "mix: stop must be 'first' or 'all', but got 'last'"),
    (lambda p: type(p)(Items([]), name=5), r"PecanPipeline\(name=\.\.\.\) must be a text or None, but got 5"),
    (lambda p: type(p)(Items([]), config={"reorder": "off"}), r"must be Config\(\.\.\.\) or None, but got {"),
    (lambda p: p.map(len, on=5), r"map\(on=\.\.\.\) must be a text or None, but got 5"),
    (lambda p: p.batch(2, 1), r"batch\(drop_remainder=\.\.\.\) must be True or False, but got 1"),
    (lambda p: p.padded_batch(2, shapes=[3]), r"padded_batch\(shapes=\.\.\.\) must be a mapping from a text to a list"),
    (lambda p: p.shuffle(4, seed="0"), r"shuffle\(seed=\.\.\.\) must be a whole number or None, but got '0'"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_a_wrong_argument_is_refused_at_once(call: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        call(numbers())


def test_peek_returns_the_first_element_or_batch_or_an_error_and_reads_no_further() -> None:
    calls: list[int] = []

    def noted(i: Any) -> Any:
        calls.append(int(i))
        return i

    pipe = numbers(1000).map(noted, on="i")
    assert pipe.peek() == {"i": 0} and len(calls) <= 2
    batch = pipe.batch(3).peek()
    assert isinstance(batch, dict) and batch["i"].tolist() == [0, 1, 2]
    several: Any = pipe.batch(2).peek(2)
    assert [batch["i"].tolist() for batch in several] == [[0, 1], [2, 3]]
    assert len(pipe.take(2).peek(5)) == 2
    with pytest.raises(PlanError, match="peek: the pipeline empty yields nothing"):
        PecanPipeline(Items([]), name="empty").repeat().peek()
    with pytest.raises(PlanError, match="peek: the pipeline pipeline yields nothing"):
        numbers().filter(lambda e: False).batch(2).peek()


def test_debug_runs_in_this_process_and_thread_in_the_order_of_the_source_and_reports() -> None:
    where: set[tuple[int, int]] = set()

    def noted(i: Any) -> Any:
        where.add((os.getpid(), threading.get_ident()))
        return i

    with numbers(7).map(noted, on="i", processes=True).batch(3).iter_batches(epochs=2, debug=True) as batches:
        found = [batch["i"].tolist() for batch in batches]
        report = batches.report()
        with pytest.raises(PlanError, match="scale: there are no workers in debug mode"):
            batches.scale(local=2, remote=0)
    assert found == [[0, 1, 2], [3, 4, 5], [6]] * 2
    assert where == {(os.getpid(), threading.get_ident())}
    assert (report.batches, report.elements) == (6, 14)
    said = "pecan job pipeline (debug, in this process): 6 batches, 14 elements of 2 finished epochs in"
    assert str(report).startswith(said)
    with pytest.raises(pecan.errors.ClusterError, match="move it to tests/ray"):
        numbers().batch(2).iter_batches(workers=pecan.Workers())  # unit tests cannot start Ray


def fails(i: Any) -> Any:
    try:
        return int("key")
    except ValueError as error:
        raise ZeroDivisionError(f"for {i}") from error


def test_debug_raises_the_functions_own_exception_with_a_note() -> None:
    with pytest.raises(ZeroDivisionError, match="for 0") as caught:
        list(numbers().map(fails, on="i").batch(3).iter_batches(debug=True))
    assert isinstance(caught.value.__cause__, ValueError), "its own cause is kept"
    assert caught.value.__notes__ == ["fails failed on element 0 of split 0: ZeroDivisionError: for 0"]
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].name == "fails" and frames[0].name == "test_debug_raises_the_functions_own_exception_with_a_note"
    text = "".join(traceback.format_exception(caught.value))
    assert "OpError" not in text and "The above exception was the direct cause" in text


TENS = numbers(100).batch(10)
PIPE: Any = numbers(8).batch(2)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: iter(PIPE), TypeError, r"for batch in pipe\.iter_batches"),
        (lambda: PIPE.map_batches, AttributeError, r"'map_batches': \.map\(fn, rows=n\)"),
        (lambda: PIPE.mapp, AttributeError, r"has no attribute 'mapp'$"),
        (lambda: PIPE.batch(4, drop_last=True), TypeError, r"batch\(drop_last=.*drop_remainder=True"),
        (lambda: PIPE.iter_batches(num_workers=4), TypeError, r"iter_batches\(num_workers=.*workers=4"),
        (lambda: PIPE.to_torch(num_workers=4), PlanError, r"to_torch\(num_workers=.*workers=4"),
        (lambda: PIPE.map(print, other=4), TypeError, "unexpected keyword argument 'other'"),
        (lambda: PIPE.iter_batches(workers=0), PlanError, r"workers=0: .*debug=True"),
        (lambda: PIPE.iter_batches(workers=True), PlanError, "workers=True"),
        (lambda: PIPE.iter_batches(workers="4"), PlanError, "workers must be"),
    ],
)
def test_a_word_of_another_loader_is_answered_by_ours(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()


def test_what_the_answers_name_exists() -> None:
    known: dict[str, Any] = {"pipe": PecanPipeline, "pecan": pecan, "functools": functools, "list": list, "make": print}
    for answer in {*ARGUMENTS.values(), *METHODS.values()}:
        for path, given in re.findall(r"([\w.]+)\((?=([^()]*))", answer):
            first, *inner = (f"pipe{path}" if path.startswith(".") else path).split(".")
            named = functools.reduce(getattr, inner, known.get(first) or getattr(pecan, first))
            for word in re.findall(r"(\w+)=", given):
                assert word in inspect.signature(named).parameters, answer


def test_no_word_of_others_is_one_of_ours() -> None:
    methods = {name: method for name, method in vars(PecanPipeline).items() if inspect.isfunction(method)}
    del methods["__init__"]  # it takes a sampler, and answers nobody
    own = {name: set(inspect.signature(method).parameters) for name, method in methods.items()}
    assert not [word for word in METHODS if hasattr(PecanPipeline, word)]
    assert not [(name, word) for name, names in own.items() for word in ARGUMENTS if word in names]
    assert "epochs" in own["iter_batches"], "what answers has the signature of what it answers for"
    with PIPE.iter_batches(workers=4, debug=True) as batches:  # a number of workers is of local ones
        assert len(list(batches)) == 4


def test_an_error_within_a_property_is_the_one_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PecanPipeline, "seed", property(lambda self: self.plan.no_such_part))
    with pytest.raises(AttributeError, match="no_such_part"):
        _ = PIPE.seed


LENGTHS: list[tuple[PecanPipeline, dict[str, Any], list[int]]] = [
    (TENS, {"epochs": 3, "epoch_batches": 4}, [4, 4, 4]),
    (TENS, {"epochs": 2, "epoch_batches": 11}, [10, 10]),
    (TENS.repeat(), {"epochs": 2, "epoch_batches": 25}, [25, 25]),
    (TENS, {"epochs": None, "epoch_batches": 4, "steps": 9}, [4, 4, 1]),
    (TENS, {"epochs": None, "steps": 20}, [10, 10]),
    (TENS, {"epochs": 2, "steps": 3}, [3]),
]


def test_an_epoch_has_so_many_batches_and_is_a_pass_of_its_own_and_a_run_has_so_many_steps() -> None:
    for pipe, options, epochs in LENGTHS:
        with pipe.iter_batches(debug=True, **options) as batches:
            assert len(batches) == sum(epochs)
            assert [len(list(batches.one_epoch())) for _ in [*epochs, "the end"]] == [*epochs, 0]
        assert len(list(pipe.iter_batches(debug=True, **options))) == sum(epochs)
    pipe = TENS.map(lambda i, epoch: i * 0 + epoch, on="i")
    batches = pipe.iter_batches(debug=True, epochs=3, first_epoch=0, epoch_batches=2)
    assert [int(batch["i"][0]) for batch in batches] == [0, 0, 1, 1, 2, 2]
    limits: list[dict[str, Any]] = [{"epoch_batches": 0}, {"steps": -1}, {"steps": 2.5}, {"steps": 1, "share": True}]
    for given in limits:
        with pytest.raises(PlanError, match=r"epoch_batches|steps"):
            TENS.iter_batches(**given)
