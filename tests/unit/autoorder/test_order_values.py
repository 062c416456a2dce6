"""AutoOrder keeps what the user meant: values, work and shared state; and gains that count for the whole pipeline."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from examples.photographs import parent_photographs
from pecan_ray.autoorder.adopted import Ordering, StretchOrder
from pecan_ray.autoorder.element_spec import ElementSpec, equal, kind_of, rank_of
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.push_down import push_down
from pecan_ray.autoorder.speed import SpeedComparison
from pecan_ray.autoorder.whole import weighed
from pecan_ray.engines.counting import column_bytes
from pecan_ray.engines.foreign import as_array, copied_value, type_name
from pecan_ray.plan.splits import Element
from pecan_ray.reorder import Mode

COUNT, SIDE = 32, 256
TRIES = 4


def photographs() -> Iterator[Any]:
    images = [cv2.imread(str(path)) for path in parent_photographs()]
    for number in range(COUNT):
        image = images[number % len(images)]
        assert image is not None
        yield np.ascontiguousarray(image[number : number + SIDE, : SIDE - number // 2])


@pytest.fixture(scope="module")
def given() -> list[Element]:
    return [
        {"image": image, "mask": (image[..., 0] > 128).astype(np.uint8), "number": number}
        for number, image in enumerate(photographs())
    ]


def over(given: list[Element], *columns: str) -> pecan.PecanPipeline:
    items = [{name: element[name] for name in columns or ("image",)} for element in given]
    return pecan.PecanPipeline(
        pecan.sources.Items(items), name="values", config=pecan.Config(reorder="safe", sample_seconds=60.0)
    )


def ordering(pipe: pecan.PecanPipeline, mode: Mode = "safe", **options: Any) -> Ordering:
    return order_plan(OrderRequest(pipe.plan, pipe.engine, mode, pipe.seed, COUNT, 60.0, **options))


def order(pipe: pecan.PecanPipeline, mode: Mode = "safe", **options: Any) -> StretchOrder:
    (found,) = ordering(pipe, mode, **options).stretches
    return found


def refusals(found: StretchOrder) -> str:
    return " | ".join(one.reason for one in found.refused)


def tone(image: Any) -> Any:
    """Work that takes its time with every pixel."""
    return np.rint(image * np.float32(0.7)).astype(image.dtype)


def small(image: Any) -> Any:
    return cv2.resize(image, (96, 96))


# --- values ------------------------------------------------------------------------------------------------


def test_a_scaling_that_asks_for_the_dtype_is_not_put_behind_a_cast(given: list[Element]) -> None:
    def unit(image: Any) -> Any:
        return (image / 255).astype(np.float16) if image.dtype == np.uint8 else image

    def half(image: Any) -> Any:
        return small(image.astype(np.float32)).astype(np.float16)

    found = order(over(given).map(unit, on="image").map(half, on="image", name="half"))
    assert not found.adopted.changed and "column 'image'" in refusals(found)


def test_a_recorded_size_is_that_of_the_users_order(given: list[Element]) -> None:
    def record(element: Element) -> Element:
        return {**element, "image": tone(element["image"]), "size": np.array(element["image"].shape[:2])}

    pipe = over(given).map(record).map(small, on="image")
    found = order(pipe)
    assert not found.adopted.changed and "column 'size' of element" in refusals(found)
    assert order(pipe, "pecan").adopted.changed, "the paper asks for the form alone"


def test_what_follows_another_operator_by_a_variable_stays_behind_it(given: list[Element]) -> None:
    shared = {"flipped": False}

    def draw(element: Element, rng: np.random.Generator) -> Element:
        shared["flipped"] = bool(rng.random() < 0.5)
        image = element["image"][:, ::-1] if shared["flipped"] else element["image"]
        return {**element, "image": tone(image)}

    def follow(mask: Any) -> Any:
        return np.ascontiguousarray((mask[:, ::-1] if shared["flipped"] else mask)[:64, :64])

    found = order(over(given, "image", "mask").map(draw).map(follow, on="mask"))
    assert not found.adopted.changed and "column 'mask'" in refusals(found)


def test_filters_may_let_operators_see_other_elements(given: list[Element]) -> None:
    def even(number: int) -> bool:
        return number % 2 == 0

    # In the tried order `small` runs on elements that the filter dropped before.
    pipe = over(given, "image", "number").filter(even, on="number").map(tone, on="image").map(small, on="image")
    assert "KeyError" not in refusals(order(pipe, "pecan"))


# --- worth it, or not at all -------------------------------------------------------------------------------


def test_without_time_nothing_is_adopted_in_any_mode(given: list[Element]) -> None:
    pipe = over(given).map(tone, on="image").map(small, on="image")
    for mode in ("pecan", "safe", "strict"):
        found = ordering(pipe, mode)
        sampled = found.stretches[0]
        assert sampled.sample.elements == COUNT
        quick = order_plan(OrderRequest(pipe.plan, "python", mode, 0, COUNT, 1e-6))
        assert not quick.changed and quick.notes


def test_the_gain_is_told_and_judged_of_the_whole_pipeline(given: list[Element]) -> None:
    def slow(image: Any) -> Any:
        for _ in range(300):  # 0.4 % for what follows: no load makes a twentieth of it
            tone(image)
        return image

    pipe = over(given).map(slow, on="image").shuffle(4).map(tone, on="image", name="again").map(small, on="image")
    found = ordering(pipe)
    stretch = next(one for one in found.stretches if len(one.names) == 2)
    assert not found.changed and stretch.share < 0.2
    assert "the whole pipeline" in refusals(stretch) and "not worth another order" in refusals(stretch)


def test_stretches_weigh_by_their_share(given: list[Element]) -> None:
    pipe = over(given).map(tone, on="image").map(small, on="image")
    one = order(pipe, "pecan")
    fast = SpeedComparison(2.0, 0.01, 1e-3, 5e-4, COUNT)
    seconds = one.sample.seconds
    assert one.adopted.changed and seconds is not None
    adopted = dataclasses.replace(one.adopted, mode="safe")

    def beside(reading_s: float) -> StretchOrder:
        sample = dataclasses.replace(one.sample, reading_s=reading_s)
        return dataclasses.replace(one, adopted=adopted, measured=fast, sample=sample)

    (half,) = weighed(pipe.plan, [beside(seconds)])
    assert half.share == pytest.approx(0.5) and half.whole_speedup == pytest.approx(1 / 0.75)
    (none,) = weighed(pipe.plan, [beside(49 * seconds)])
    assert not none.adopted.changed and none.measured is None and "1.01 times as fast" in refusals(none)


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
    assert not equal(noted, noted.copy()) and equal(noted, copied_value(noted))
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


def test_a_resize_of_pillow_is_moved_before_slow_work(given: list[Element]) -> None:
    image = pytest.importorskip("PIL.Image")

    def opened(encoded: bytes) -> Any:
        return image.open(io.BytesIO(encoded)).convert("RGB")

    def darken(picture: Any) -> Any:
        for _ in range(5):
            made = picture.point([round(0.7 * value) for value in range(256)] * 3)
        return made

    def resized(picture: Any) -> Any:
        return picture.resize((96, 96), image.Resampling.BILINEAR)

    items = [{"image": cv2.imencode(".jpg", element["image"])[1].tobytes()} for element in given]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items))
    for fn in (opened, darken, resized, np.asarray):
        pipe = pipe.map(fn, on="image")
    for _ in range(TRIES):
        found = order(pipe)
        if found.adopted.changed:
            break
    assert found.adopted.order == ("opened", "resized", "darken", "asarray")
    assert [op.changes_kind for op in found.sample.ops] == [True, False, False, True]


def test_what_an_image_of_pillow_notes_is_that_of_the_users_order(given: list[Element]) -> None:
    image = pytest.importorskip("PIL.Image")

    def darken(picture: Any) -> Any:
        made = picture.point([round(0.7 * value) for value in range(256)] * 3)
        made.info["original"] = picture.size
        return made

    def resized(picture: Any) -> Any:
        return picture.resize((96, 96), image.Resampling.BILINEAR)

    pipe = over(given).map(image.fromarray, on="image").map(darken, on="image").map(resized, on="image")
    found = order(pipe)
    assert not found.adopted.changed and "column 'image.info.original" in refusals(found)


def test_tensors_that_are_written_into_are_no_state(given: list[Element]) -> None:
    torch = pytest.importorskip("torch")

    def to_tensor(image: Any) -> Any:
        return torch.from_numpy(np.moveaxis(image, -1, 0).copy()).float()

    def darker(tensor: Any) -> Any:
        return tensor.mul_(0.9)

    found = order(over(given).map(to_tensor, on="image").map(darker, on="image").map(torch.clone, on="image"), "pecan")
    assert not any(op.stateful for op in found.sample.ops)
    assert [op.bytes_out // op.bytes_in for op in found.sample.ops] == [4, 1, 1]


def test_text_that_becomes_an_object_is_a_change_of_kind() -> None:
    pipe = pecan.PecanPipeline(pecan.sources.Items([{"text": json.dumps({"n": n})} for n in range(COUNT)]))
    pipe = pipe.map(json.loads, on="text").map(lambda record: record, on="text", name="same")
    assert [op.changes_kind for op in order(pipe, "pecan").sample.ops] == [True, False]


def test_decoders_in_the_inputs_of_joins_take_over_too(given: list[Element]) -> None:
    def branch(name: str) -> pecan.PecanPipeline:
        items = [{"image": cv2.imencode(".jpg", element["image"])[1].tobytes()} for element in given[:4]]
        pipe = pecan.PecanPipeline(pecan.sources.Items(items)).map(pecan.images.Decode(), on="image", name=f"{name}1")
        return pipe.map(pecan.images.Resize(64, 64), on="image", name=f"{name}2")

    joined = branch("a").concat(branch("b"))
    plan, done = push_down(joined.plan, "python")
    assert [one.ops for one in done] == [("a1", "a2"), ("b1", "b2")]
    assert [op.name for op in plan.all_ops()] == ["a2", "b2"]


# --- explain -----------------------------------------------------------------------------------------------


def test_an_explanation_tells_of_the_new_order(given: list[Element]) -> None:
    pipe = over(given, "image", "number").map(tone, on="image").map(small, on="image")
    for _ in range(TRIES):
        text = pipe.explain(again=True)
        if text.splitlines()[2].strip() == "now:    small -> tone":
            break
    facts = json.loads(pipe.explain("json"))
    after = {op["name"]: op["in_new_order"] for op in facts["operators"]}
    assert after["tone"]["bytes_in"] == after["tone"]["bytes_out"] == after["small"]["bytes_out"]
    assert after["tone"]["bytes_in"] / after["tone"]["elements_in"] == 96 * 96 * 3 + 8
    assert "27.7 kB -> 27.7 kB" in text and "the whole pipeline" in text
    assert "'small' before 'tone' rounds values elsewhere" in text
    (exchange,) = facts["stretches"][0]["exchanges"]
    assert (exchange["first"], exchange["second"]) == ("tone", "small") and exchange["changed"] > 0
    assert "results beside those" in pipe.explain("html")
