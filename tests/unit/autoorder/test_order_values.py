"""The default order changes no values, work or shared state, and only for gains that count for the whole pipeline."""

from __future__ import annotations

import dataclasses
from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.accepted import OpSequenceOrder, Ordering, apply_pipeline_threshold
from pecan_ray.autoorder.element_spec import ElementSpec, equal, kind_of, rank_of
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.speed import SpeedComparison
from pecan_ray.engines.counting import column_bytes
from pecan_ray.engines.foreign import as_array, copy_value, type_name
from pecan_ray.plan.splits import Element
from pecan_ray.reorder import Mode
from tests.unit.autoorder.sampled_orders import ELEMENTS, SIDE, half, images, order, rejects, tone

DEFAULT: Mode = "safe"


def look(pipe: pecan.PecanPipeline, mode: Mode = DEFAULT, seconds: float = 20.0, **options: Any) -> Ordering:
    """What a job finds in a short look."""
    return order_plan(OrderRequest(pipe.plan, mode=mode, elements=16, seconds=seconds, **options))


def small(image: Any) -> Any:
    return cv2.resize(image, (96, 96))


def noise_images() -> pecan.PecanPipeline:
    """Images that little time goes into."""
    noise = np.random.default_rng(0).integers(0, 256, (16, 96, 96, 3), np.uint8)
    return pecan.PecanPipeline(pecan.sources.Arrays(image=noise))


def with_boxes(element: Element) -> Element:
    """Say where something is that must not be seen."""
    left = element["number"] % (SIDE - 32)
    return {**element, "boxes": np.array([[left, 40, left + 32, 72]], np.int32)}


def hide(element: Element) -> Element:
    """Blur what is within boxes, which are given in pixels, if any are."""
    image = slow(slow(element["image"]))  # takes its time, and changes nothing
    for left, top, right, bottom in element.get("boxes", ()):
        image[top:bottom, left:right] = cv2.GaussianBlur(image, (31, 31), 10)[top:bottom, left:right]
    return {**element, "image": image}


def slow(image: Any) -> Any:
    """Arithmetic on bytes that a crop can go before."""
    for _ in range(21):
        image = 255 - (255 - (255 - image))
    return image


def crop(image: Any) -> Any:
    return image[:64, :64].copy()


def test_the_default_puts_no_resize_before_a_blur_of_regions_in_pixels() -> None:
    assert pecan.Config().reorder == DEFAULT
    (found,) = look(images().map(with_boxes).map(hide).map(half, on="image")).sequences
    assert not found.accepted.changed
    assert found.rejected


@pytest.mark.parametrize("mode", ["safe", "strict"])
def test_an_operator_that_changed_nothing_of_the_sample_is_not_crossed(mode: Mode) -> None:
    """Its results are equal in every order there, and are not where it has something to do."""
    (found,) = look(noise_images().map(hide).map(crop, on="image"), mode).sequences
    assert found.accepted.order == ("hide", "crop")


def test_a_recorded_size_is_that_of_the_users_order() -> None:
    def record(element: Element) -> Element:
        return {**element, "image": tone(element["image"]), "size": np.array(element["image"].shape[:2])}

    pipe = images().map(record).map(small, on="image")
    found = order(pipe)
    assert not found.accepted.changed and "column 'size' of element" in rejects(found)
    assert order(pipe, "pecan").accepted.changed, "the paper asks for the form alone"


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
    assert not found.accepted.changed and "column 'mask'" in rejects(found)


def brighter(image: Any, rng: np.random.Generator) -> Any:
    return np.clip(image * rng.uniform(0.8, 1.2), 0, 255).astype(np.uint8)


def with_mask(element: Element) -> Element:
    return {**element, "mask": (element["image"][..., 0] > 128).astype(np.uint8)}


def mirror(element: Element, rng: np.random.Generator) -> Element:
    step = -1 if rng.random() < 0.5 else 1
    return {**element, **{name: np.ascontiguousarray(element[name][:, ::step]) for name in ("image", "mask")}}


@pytest.mark.parametrize("mode", ["safe", "strict"])
def test_a_column_that_is_made_between_two_operators_ends_no_trial(mode: Mode) -> None:
    pipe = noise_images().map(brighter, on="image").map(with_mask).map(mirror)
    pipe = pipe.map(half, on="mask", name="half_mask").map(half, on="image")
    found = look(pipe, mode, seconds=4.0)
    assert found.sequences[0].sample.complete
    order_of = found.sequences[0].accepted.order
    assert order_of.index("with_mask") < order_of.index("half_mask")


@pytest.mark.parametrize("mode", ["safe", "strict"])
def test_an_error_of_a_trial_leaves_the_order_and_is_told_and_ctrl_c_passes(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*given: Any) -> Any:
        raise error

    monkeypatch.setattr("pecan_ray.autoorder.trial.compare_speed", ended)
    pipe = noise_images().map(slow, on="image").map(crop, on="image")
    error: BaseException = SystemExit("no such order")
    found = look(pipe, mode)
    assert not found.changed
    assert any("ended with SystemExit: no such order: the order stays as it is written" in one for one in found.notes)
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        look(pipe, mode)


# --- worth it, or not at all -------------------------------------------------------------------------------


def test_without_time_nothing_is_adopted_in_any_mode() -> None:
    pipe = images().map(tone, on="image").map(small, on="image")
    modes: tuple[Mode, ...] = ("pecan", "safe", "strict")
    for mode in modes:
        quick = order_plan(OrderRequest(pipe.plan, "python", mode, 0, ELEMENTS, 1e-6))
        assert not quick.changed and quick.notes


def test_the_gain_of_a_stretch_is_told_and_judged_of_the_whole_pipeline() -> None:
    pipe = images().map(tone, on="image").map(small, on="image")
    one = order(pipe, "pecan")
    fast = SpeedComparison(2.0, 0.01, 1e-3, 5e-4, ELEMENTS)
    seconds = one.sample.seconds
    assert one.accepted.changed and seconds is not None
    adopted = dataclasses.replace(one.accepted, mode="safe")

    def beside(reading_s: float) -> OpSequenceOrder:
        sample = dataclasses.replace(one.sample, reading_s=reading_s)
        return dataclasses.replace(one, accepted=adopted, measured=fast, sample=sample)

    (half,) = apply_pipeline_threshold([beside(seconds)])
    assert half.share == pytest.approx(0.5) and half.whole_speedup == pytest.approx(1 / 0.75)
    (none,) = apply_pipeline_threshold([beside(49 * seconds)])
    assert not none.accepted.changed and none.measured is None and "1.01 times as fast" in rejects(none)
    assert "the whole pipeline" in rejects(none) and "not worth another order" in rejects(none)


# --- any value ---------------------------------------------------------------------------------------------


def test_images_of_pillow_and_tensors_have_sizes_shapes_and_equality() -> None:
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
    assert not found.accepted.changed and "column 'image.info.original" in rejects(found)


def test_tensors_that_are_written_into_are_no_state() -> None:
    torch = pytest.importorskip("torch")

    def to_tensor(image: Any) -> Any:
        return torch.from_numpy(np.moveaxis(image, -1, 0).copy()).float()

    def darker(tensor: Any) -> Any:
        return tensor.mul_(0.9)

    found = order(images().map(to_tensor, on="image").map(darker, on="image").map(torch.clone, on="image"), "pecan")
    assert not any(op.profiled.fixed for op in found.sample.ops)
    assert [round(op.bytes_out / op.bytes_in) for op in found.sample.ops] == [4, 1, 1]
