"""Elements that fail in another order than the user's: run in that one, with nothing lost and nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.kept_order import KeptOrder, keep_order, load_kept
from pecan_ray.engines.in_process import InProcessEpoch, run_in_process
from pecan_ray.engines.users_order import UsersOrder, run_order_of
from pecan_ray.errors import BatchShapeError, OpError, OrderError
from pecan_ray.plan.op_sequences import Names, apply_op_order
from pecan_ray.plan.operators import Plan
from tests.unit.engines.engine_leases import ListedLeases, bad_of, delivered, exact, run_engine, running, whole_leases

ELEMENTS, GRAY = 64, 40
BOTH: dict[Names, Names] = {("to_rgb", "darken"): ("darken", "to_rgb")}


def to_rgb(image: Any) -> Any:
    return np.stack([image] * 3, axis=-1) if image.ndim == 2 else image


def darken(image: Any) -> Any:
    image[...] //= 2  # in place, as functions may
    height, width, _ = image.shape
    assert height == width
    return image


def items(gray: int | None = GRAY) -> list[dict[str, Any]]:
    shapes = [(4, 4) if number == gray else (4, 4, 3) for number in range(ELEMENTS)]
    return [{"image": np.full(shape, number, np.uint8), "n": number} for number, shape in enumerate(shapes)]


def pipeline(gray: int | None = GRAY) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Items(items(gray))).map(to_rgb, on="image").map(darken, on="image")


def in_another_order(plan: Plan, orders: dict[Names, Names] = BOTH) -> tuple[Plan, UsersOrder]:
    other = apply_op_order(plan, orders)
    return other, UsersOrder(other, run_order_of(plan), lambda: plan)


def found(produced: list[Any]) -> list[tuple[int, int]]:
    columns = [zip(one.columns["n"], one.columns["image"], strict=True) for one in produced if one.rows]
    return sorted((int(n), int(image.max())) for rows in columns for n, image in rows)


EXPECTED = [(number, number // 2) for number in range(ELEMENTS)]


@pytest.mark.parametrize("on_error", ["raise", "skip", "quarantine"])
@pytest.mark.parametrize("fused", [True, False])
def test_an_element_that_fails_is_run_in_the_users_order_and_so_are_the_others(fused: bool, on_error: str) -> None:
    pipe = pipeline().batch(8) if fused else pipeline().shuffle(1).batch(8)
    plan, users = in_another_order(pipe.plan)
    leases = ListedLeases(whole_leases(tuple(plan.sources())))
    produced = run_engine(plan, leases, users_order=users, on_error=on_error, threads=2)
    assert found(produced) == EXPECTED and delivered(produced) == leases.target()
    assert not any(batch.bad for batch in produced)
    assert users.taken
    assert "element 0 of split 10 fails in AutoOrder's order darken -> to_rgb (darken failed on" in users.reason
    assert "but not in yours, to_rgb -> darken: the job goes back to your order" in users.reason


def test_a_job_goes_back_to_the_users_order_and_later_ones_begin_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = pecan.Config(order_folder=tmp_path, reorder="safe")
    pipe = pecan.PecanPipeline(pecan.sources.Items(items()), config=config)
    pipe = pipe.map(to_rgb, on="image").map(darken, on="image").batch(8)
    key = pipe._order._key
    keep_order(tmp_path / f"{key}.json", KeptOrder((("darken", "to_rgb"),)), instead=True)
    with pipe.iter_batches(debug=True) as batches:
        assert "AutoOrder runs darken -> to_rgb -> batch" in batches.report().events[0].text
        rows = [(int(n), int(i.max())) for batch in batches for n, i in zip(batch["n"], batch["image"], strict=True)]
    assert sorted(rows) == EXPECTED and "the job goes back to your order" in caplog.text
    kept = load_kept(tmp_path / f"{key}.json")
    assert kept is not None and kept.orders == (("to_rgb", "darken"),)
    assert "element 0 of split 10 fails in AutoOrder's order darken -> to_rgb" in kept.why


def wide(image: Any) -> Any:
    return np.concatenate([image, image], axis=1)


def turn_wide(image: Any) -> Any:
    """Turn one of the images, which is as high as it is wide unless it was made wide before."""
    return np.swapaxes(image, 0, 1) if image.max() == GRAY else image


def test_a_batch_that_cannot_be_made_in_this_process_is_made_in_the_users_order() -> None:
    pipe = pecan.PecanPipeline(pecan.sources.Items(items(None))).map(turn_wide, on="image").map(wide, on="image")
    pipe = pipe.shuffle(16).batch(8)
    plan, users = in_another_order(pipe.plan, {("turn_wide", "wide"): ("wide", "turn_wide")})
    produced = [one.columns for one in InProcessEpoch(plan, users_order=users).produced() if one.rows]
    assert exact(produced) == exact(list(run_in_process(pipe.plan))) and len(produced) == ELEMENTS // 8
    assert users.taken and users.reason.startswith("AutoOrder's order of operators led to this: batch: column 'image'")
    assert users.reason.endswith("The job goes back to your order")


def test_behind_other_operators_a_copy_is_kept_of_what_functions_write_into() -> None:
    def halve(image: Any) -> Any:
        image[...] //= 2
        return to_rgb(image)

    def refuse(image: Any) -> Any:
        image[...] += 0
        if image.ndim == 2:
            raise ValueError("gray")
        return image

    pipe = pecan.PecanPipeline(pecan.sources.Items(items())).map(lambda e: e).batch(1).unbatch()
    pipe = pipe.map(halve, on="image").map(refuse, on="image").batch(8)
    plan, users = in_another_order(pipe.plan, {("halve", "refuse"): ("refuse", "halve")})
    assert found(run_engine(plan, users_order=users)) == EXPECTED
    assert users.taken


def test_what_fails_in_both_orders_is_an_error_of_the_users_order() -> None:
    broken = items()
    broken[GRAY]["image"] = np.zeros((4, 5), np.uint8)
    pipe = pecan.PecanPipeline(pecan.sources.Items(broken)).map(to_rgb, on="image").map(darken, on="image").batch(8)
    plan, users = in_another_order(pipe.plan)
    with pytest.raises(OpError, match="darken failed on element 0 of split 10: AssertionError"):
        run_engine(plan, users_order=users)
    assert not users.taken and not users.reason
    produced = run_engine(plan, users_order=users, on_error="quarantine")
    assert found(produced) == [row for row in EXPECTED if row[0] != GRAY]
    (bad,) = bad_of(produced)
    assert bad.op == "darken" and bad.element["image"].shape == (4, 5)
    twice = pecan.PecanPipeline(pecan.sources.Items(items())).map(wide, on="image").map(abs, on="image").batch(8)
    plan, users = in_another_order(twice.plan, {("wide", "abs"): ("abs", "wide")})
    with pytest.raises(BatchShapeError):
        list(InProcessEpoch(plan, users_order=users).produced())
    assert not users.reason, "and so is a batch that cannot be made in either"


def test_the_users_plan_is_not_loaded_before_it_is_needed_and_run_when_that_is_told() -> None:
    def load() -> Plan:
        raise AssertionError("nothing has failed")

    pipe = pipeline(gray=None).batch(8)
    plan = apply_op_order(pipe.plan, BOTH)
    assert found(run_engine(plan, users_order=UsersOrder(plan, run_order_of(pipe.plan), load))) == EXPECTED
    plan, users = in_another_order(pipeline().batch(8).plan)
    users.taken = True
    assert found(run_engine(plan, users_order=users)) == EXPECTED and not users.reason


def test_a_graph_says_that_the_order_failed() -> None:
    tf: Any = pytest.importorskip("tensorflow")

    def checked(x: Any) -> Any:
        tf.debugging.assert_less(x, tf.constant(100, tf.int64))
        return x

    def halved(x: Any) -> Any:
        return x // 2

    rows = [{"x": np.int64(150 if number == GRAY else number)} for number in range(ELEMENTS)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(rows), engine="tensorflow")
    pipe = pipe.map(halved, on="x").map(checked, on="x").batch(8)
    plan, users = in_another_order(pipe.plan, {("halved", "checked"): ("checked", "halved")})
    produced: list[Any] = []
    with (
        running(plan, engine="tensorflow", order="strict", on_error="skip", users_order=users) as (_, batches),
        pytest.raises(OrderError, match=r"checked failed on .* goes back to your order"),
    ):
        produced.extend(batches)
    spans = [span for key, found in delivered(produced).items() if key[2] == 10 for span in found]
    assert not any(start <= 0 < stop for start, stop in spans), "the element does not count as done"
