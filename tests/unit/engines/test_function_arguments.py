"""What functions are given: a generator and the epoch by the names of their parameters, and what was set up."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import OpError, PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.fingerprint import fingerprint
from pecan_ray.plan.operators import ElementOp, is_pass_dependent, wants_epoch, wants_rng
from pecan_ray.sources import Items
from tests.unit.engines.engine_leases import column, numbers, run_engine, whole_leases


def drawn(i: Any, rng: Any) -> float:
    return float(rng.random())


@functools.wraps(drawn)
def with_its_own(i: Any) -> float:
    return drawn(i, rng=np.random.default_rng(7))


@functools.wraps(drawn)
def passing_on(*args: Any, **keywords: Any) -> float:
    return drawn(*args, **keywords)


def bound() -> Any:
    return functools.partial(drawn, rng=np.random.default_rng(7))


def test_which_functions_are_given_a_generator_or_the_epoch() -> None:
    given: list[Any] = [drawn, passing_on, functools.partial(drawn, 1), functools.partial(passing_on, 1)]
    assert [wants_rng(function) for function in given] == [True] * len(given)
    left = [bound(), functools.partial(bound()), functools.partial(drawn, 1, 2), with_its_own, lambda i: drawn(i, 1)]
    assert [wants_rng(function) for function in [*left, len]] == [False] * 6
    of_five = functools.partial(numbered, epoch=5)
    assert wants_epoch(numbered) and not wants_epoch(of_five)
    (batch,) = numbers(ROWS).map(of_five, on="i", name="bound").batch(ROWS).iter_batches(debug=True, first_epoch=2)
    assert batch["i"][0] == 500, "what was given already stays"


def test_the_users_generator_goes_on_from_element_to_element_in_another_process_too() -> None:
    mine = np.random.default_rng(7).random(3).tolist()
    pipe = PecanPipeline(Items([{"i": row} for row in range(3)], split_rows=3))
    for function, processes, wanted in ((bound(), False, mine), (bound(), True, mine), (with_its_own, False, mine[:1])):
        made = run_engine(pipe.map(function, on="i", processes=processes, name="draw").batch(3), order="strict")
        assert column(made, "i") == wanted * (3 // len(wanted))


ROWS = 12


def numbered(i: Any, epoch: int) -> int:
    return 100 * epoch + int(i)


def test_every_kind_of_function_is_given_it_and_a_pass_of_repeat_is_none() -> None:
    both = numbers(ROWS).map(lambda i, rng, epoch: numbered(i, epoch) + 0 * rng.random(), on="i", name="both")
    chains = {
        "map": numbers(ROWS).map(numbered, on="i").batch(5),
        "both": both.batch(5),
        "in processes": numbers(ROWS).map(numbered, on="i", processes=True).batch(5),
        "flat_map": numbers(ROWS).flat_map(lambda i, epoch: [numbered(i, epoch)], on="i").batch(5),
        "behind batch": numbers(ROWS).batch(5).map(lambda batch, epoch: {"i": batch["i"] + 100 * epoch}, name="behind"),
        "collate": numbers(ROWS).batch(
            5, collate=lambda rows, epoch: {"i": [numbered(one["i"], epoch) for one in rows]}
        ),
    }
    for name, chain in chains.items():
        assert sorted(i for b in chain.iter_batches(debug=True, epochs=2, first_epoch=3) for i in b["i"]) == [
            *range(300, 300 + ROWS),
            *range(400, 400 + ROWS),
        ], name
        leases = whole_leases(list(chain.plan.sources()), epoch=7)
        assert sorted(column(run_engine(chain, leases), "i")) == [*range(700, 700 + ROWS)], name
    some = numbers(ROWS).filter(lambda i, epoch: i >= epoch, on="i").repeat(2).batch(50)
    assert [len(batch["i"]) for batch in some.iter_batches(debug=True, epochs=2)] == [2 * ROWS, 2 * ROWS - 2]


def test_nothing_is_kept_behind_it() -> None:
    later = numbers(ROWS).map(numbered, on="i")
    (op,) = later.plan.ops
    assert isinstance(op, ElementOp) and is_pass_dependent(op) and not is_pass_dependent(replace(op, fn=len))
    with pytest.raises(
        PlanError, match=r"autocache: it stands behind numbered, which is given the number of the epoch"
    ):
        later.autocache()
    numbers(ROWS).autocache().map(numbered, on="i")
    numbers(ROWS).map(numbered, on="i", random=False).autocache()


def test_autoorder_leaves_it_where_it_is() -> None:
    chain = numbers(ROWS).map(lambda e: {**e, "x": np.zeros((9, 9))}, name="large").map(numbered, on="i").batch(4)
    assert "numbered" in (text := chain.explain()) and "a sample shows the first epoch alone" in text


PIPE = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(200)))


class RecordedInfo:
    """Makes a number, and notes the process in a folder."""

    def __init__(self, folder: Path, number: int = 7) -> None:
        self.folder, self.number = folder, number

    def __call__(self) -> int:
        """Make it."""
        with (self.folder / str(os.getpid())).open("a") as file:
            file.write("made\n")
        return self.number


def added(value: Any, number: int) -> Any:
    """The value and what was made."""
    return value + number


def _no_model() -> Any:
    raise KeyError("no model")


def with_all(value: Any, number: int, rng: np.random.Generator, epoch: int) -> Any:
    """The value, what was made, and the epoch."""
    return value * 0 + number + 100 * epoch + int(rng.integers(1))


@pytest.mark.parametrize("processes", [False, True])
def test_it_is_made_once_in_each_process(tmp_path: Path, processes: bool) -> None:
    pipe = PIPE.map(added, on="i", setup=RecordedInfo(tmp_path), processes=processes).batch(20)
    assert sorted(column(run_engine(pipe, threads=4))) == [*range(7, 207)]
    made = [file.read_text() for file in tmp_path.iterdir()]
    assert made and set(made) == {"made\n"}


def test_random_numbers_and_the_epoch_come_beside_it_and_pipelines_are_told_apart_by_it(tmp_path: Path) -> None:
    pipe = PIPE.map(with_all, on="i", setup=RecordedInfo(tmp_path)).batch(200)
    before = fingerprint(pipe.plan)
    assert [int(batch["i"][0]) for batch in pipe.iter_batches(debug=True, epochs=2, first_epoch=0)] == [7, 107]
    other = PIPE.map(with_all, on="i", setup=RecordedInfo(tmp_path, 8)).batch(200)
    assert fingerprint(pipe.plan) == before != fingerprint(other.plan), "whether it was made changes nothing"


def test_what_cannot_be_set_up_is_refused_or_named() -> None:
    with pytest.raises(PlanError, match=r"map\(setup=\.\.\.\) needs a function"):
        PIPE.map(added, setup=3)  # type: ignore[arg-type]  # a wrong argument, which must be refused
    with pytest.raises(PlanError, match="the tensorflow engine"):
        pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(2)), engine="tensorflow").map(added, setup=dict)
    with pytest.raises(OpError, match=r"added.*no model") as raised:
        run_engine(PIPE.map(added, on="i", setup=_no_model).batch(5))
    assert raised.value.fields["op"] == "added"
