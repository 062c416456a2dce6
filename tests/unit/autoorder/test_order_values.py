"""AutoOrder keeps what the user meant: values, work and shared state; and gains that count for the whole pipeline."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.adopted import OpSequenceOrder
from pecan_ray.autoorder.element_spec import ElementSpec, equal, kind_of, rank_of
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.push_down import push_down
from pecan_ray.autoorder.speed import SpeedComparison
from pecan_ray.autoorder.whole import apply_pipeline_threshold
from pecan_ray.engines.counting import column_bytes
from pecan_ray.engines.foreign import as_array, copy_value, type_name
from pecan_ray.plan.splits import Element
from tests.unit.autoorder.sampled_orders import ELEMENTS, images, order, ordering, rejects, tone


def small(image: Any) -> Any:
    return cv2.resize(image, (96, 96))


# --- values ------------------------------------------------------------------------------------------------


def test_a_recorded_size_is_that_of_the_users_order() -> None:
    def record(element: Element) -> Element:
        return {**element, "image": tone(element["image"]), "size": np.array(element["image"].shape[:2])}

    pipe = images().map(record).map(small, on="image")
    found = order(pipe)
    assert not found.adopted.changed and "column 'size' of element" in rejects(found)
    assert order(pipe, "pecan").adopted.changed, "the paper asks for the form alone"


def test_what_follows_another_operator_by_a_variable_stays_behind_it() -> None:
    shared = {"flipped": False}
    given: Any = images().peek(ELEMENTS)
    items = [{**one, "mask": (one["image"][..., 0] > 128).astype(np.uint8)} for one in given]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items))

    def draw(element: Element, rng: np.random.Generator) -> Element:
        shared["flipped"] = bool(rng.random() < 0.5)
        image = element["image"][:, ::-1] if shared["flipped"] else element["image"]
        return {**element, "image": tone(image)}

    def follow(mask: Any) -> Any:
        return np.ascontiguousarray((mask[:, ::-1] if shared["flipped"] else mask)[:64, :64])

    found = order(pipe.map(draw).map(follow, on="mask"))
    assert not found.adopted.changed and "column 'mask'" in rejects(found)


# --- worth it, or not at all -------------------------------------------------------------------------------


def test_without_time_nothing_is_adopted_in_any_mode() -> None:
    pipe = images().map(tone, on="image").map(small, on="image")
    for mode in ("pecan", "safe", "strict"):
        found = ordering(pipe, mode)
        sampled = found.stretches[0]
        assert sampled.sample.elements == ELEMENTS
        quick = order_plan(OrderRequest(pipe.plan, "python", mode, 0, ELEMENTS, 1e-6))
        assert not quick.changed and quick.notes


def test_the_gain_is_told_and_judged_of_the_whole_pipeline() -> None:
    def slow(image: Any) -> Any:
        for _ in range(300):  # 0.4 % for what follows: no load makes a twentieth of it
            tone(image)
        return image

    pipe = images().map(slow, on="image").shuffle(4).map(tone, on="image", name="again").map(small, on="image")
    found = ordering(pipe)
    stretch = next(one for one in found.stretches if len(one.names) == 2)
    assert not found.changed and stretch.share < 0.2
    assert "the whole pipeline" in rejects(stretch) and "not worth another order" in rejects(stretch)


def test_stretches_weigh_by_their_share() -> None:
    pipe = images().map(tone, on="image").map(small, on="image")
    one = order(pipe, "pecan")
    fast = SpeedComparison(2.0, 0.01, 1e-3, 5e-4, ELEMENTS)
    seconds = one.sample.seconds
    assert one.adopted.changed and seconds is not None
    adopted = dataclasses.replace(one.adopted, mode="safe")

    def beside(reading_s: float) -> OpSequenceOrder:
        sample = dataclasses.replace(one.sample, reading_s=reading_s)
        return dataclasses.replace(one, adopted=adopted, measured=fast, sample=sample)

    (half,) = apply_pipeline_threshold(pipe.plan, [beside(seconds)])
    assert half.share == pytest.approx(0.5) and half.whole_speedup == pytest.approx(1 / 0.75)
    (none,) = apply_pipeline_threshold(pipe.plan, [beside(49 * seconds)])
    assert not none.adopted.changed and none.measured is None and "1.01 times as fast" in rejects(none)


# --- any value ---------------------------------------------------------------------------------------------


def test_images_of_pillow_have_sizes_shapes_and_equality() -> None:
    image = pytest.importorskip("PIL.Image")
    one = image.fromarray(np.arange(60, dtype=np.uint8).reshape(4, 5, 3))
    assert column_bytes(one) == 60 and column_bytes(one.convert("L")) == 20 and column_bytes(one.convert("F")) == 80
    assert kind_of(one) == "picture" and rank_of(one) is None and type_name(one) == "Image[RGB]"
    assert equal(one, one.copy()) and not equal(one, one.rotate(90)) and not equal(one, one.convert("L"))
    noted = one.copy()
    noted.info["size"] = (5, 4)
    assert not equal(one, noted) and equal(noted, noted.copy())
    noted.taken, noted.format = "by hand", "PNG"
    assert not equal(noted, noted.copy()) and equal(noted, copy_value(noted))
    spec, other = ElementSpec(), ElementSpec()
    spec.add({"x": one})
    other.add({"x": one.resize((9, 9))})
    assert "shape is [9, 9] instead of [4, 5]" in spec.difference(other)


def test_tensors_have_sizes_shapes_and_equality() -> None:
    torch = pytest.importorskip("torch")
    one = torch.arange(6.0).reshape(2, 3)
    assert column_bytes(one) == 24 and kind_of(one) == "number" and rank_of(one) == 2
    assert equal(one, one.clone()) and not equal(one, one + 1) and not equal(one, one.double())
    assert equal(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    for odd in (one.bfloat16(), one.requires_grad_(), one.detach().to_sparse(), one.detach().T):
        assert as_array(odd) is not None and np.isfinite(np.asarray(as_array(odd))).all()


def test_what_an_image_of_pillow_notes_is_that_of_the_users_order() -> None:
    image = pytest.importorskip("PIL.Image")

    def darken(picture: Any) -> Any:
        made = picture.point([round(0.7 * value) for value in range(256)] * 3)
        made.info["original"] = picture.size
        return made

    def resized(picture: Any) -> Any:
        return picture.resize((96, 96), image.Resampling.BILINEAR)

    pipe = images().map(image.fromarray, on="image").map(darken, on="image").map(resized, on="image")
    found = order(pipe)
    assert not found.adopted.changed and "column 'image.info.original" in rejects(found)


def test_tensors_that_are_written_into_are_no_state() -> None:
    torch = pytest.importorskip("torch")

    def to_tensor(image: Any) -> Any:
        return torch.from_numpy(np.moveaxis(image, -1, 0).copy()).float()

    def darker(tensor: Any) -> Any:
        return tensor.mul_(0.9)

    found = order(images().map(to_tensor, on="image").map(darker, on="image").map(torch.clone, on="image"), "pecan")
    assert not any(op.stateful for op in found.sample.ops)
    assert [round(op.bytes_out / op.bytes_in) for op in found.sample.ops] == [4, 1, 1]


def test_text_that_becomes_an_object_is_a_change_of_kind() -> None:
    pipe = pecan.PecanPipeline(pecan.sources.Items([{"text": json.dumps({"n": n})} for n in range(ELEMENTS)]))
    pipe = pipe.map(json.loads, on="text").map(lambda record: record, on="text", name="same")
    assert [op.changes_kind for op in order(pipe, "pecan").sample.ops] == [True, False]


def test_decoders_in_the_inputs_of_joins_take_over_too() -> None:
    given: Any = images().peek(4)

    def branch(name: str) -> pecan.PecanPipeline:
        items = [{"image": cv2.imencode(".jpg", element["image"])[1].tobytes()} for element in given]
        pipe = pecan.PecanPipeline(pecan.sources.Items(items)).map(pecan.images.Decode(), on="image", name=f"{name}1")
        return pipe.map(pecan.images.Resize(64, 64), on="image", name=f"{name}2")

    joined = branch("a").concat(branch("b"))
    plan, done = push_down(joined.plan, "python")
    assert [one.ops for one in done] == [("a1", "a2"), ("b1", "b2")]
    assert [op.name for op in plan.all_ops()] == ["a2", "b2"]
