"""The default order changes no values, work or shared state, and only for gains that count for the whole pipeline."""

from __future__ import annotations

import dataclasses
from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder import accepted
from pecan_ray.autoorder.accepted import OpSequenceOrder, Ordering, apply_pipeline_threshold
from pecan_ray.autoorder.element_spec import ElementSpec, equal, kind_of, rank_of
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.speed import SpeedComparison
from pecan_ray.engines.counting import column_bytes
from pecan_ray.engines.foreign import as_array, type_name
from pecan_ray.plan.splits import Element
from pecan_ray.reorder import Mode
from pecan_ray.sources.copies import copy_value
from tests.unit.autoorder.sampled_orders import ELEMENTS, half, images, order, rejects, tone

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


def slow(image: Any) -> Any:
    """Arithmetic on bytes that a crop can go before."""
    for _ in range(21):
        image = 255 - (255 - (255 - image))
    return image


def crop(image: Any) -> Any:
    return image[:64, :64].copy()


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
    assert not found.accepted.changed and "'draw' and 'follow' use what one" in rejects(found)


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
    assert found.sequences[0].sample.seconds is not None
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


def test_the_gain_of_a_stretch_is_told_and_judged_of_the_whole_pipeline() -> None:
    pipe = images().map(tone, on="image").map(small, on="image")
    one = order(pipe, "pecan")
    fast = SpeedComparison(2.0, 0.01, ELEMENTS)
    seconds = one.sample.seconds
    assert one.accepted.changed and seconds is not None
    adopted = dataclasses.replace(one.accepted, mode="safe")

    def beside(reading_s: float) -> OpSequenceOrder:
        sample = dataclasses.replace(one.sample, reading_s=reading_s)
        return dataclasses.replace(one, accepted=adopted, measured=fast, sample=sample)

    (half,) = apply_pipeline_threshold([beside(seconds)])
    assert half.share == pytest.approx(0.5) and half.whole_speedup == pytest.approx(1 / 0.75)
    (none,) = apply_pipeline_threshold([beside(49 * seconds)])
    assert not none.accepted.changed and none.measured is None and "1.010 times as fast" in rejects(none)
    assert "not worth another order: that needs 1.05 times" in rejects(none)


def test_a_gain_above_the_bound_that_saves_next_to_nothing_is_refused_with_what_it_saves() -> None:
    assert "of an element's 4.0 us it saves 0.6, and calls alone differ by as much" in accepted._too_little(4e-6, 1.17)


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


def test_tensors_that_are_written_into_are_no_state() -> None:
    torch = pytest.importorskip("torch")

    def to_tensor(image: Any) -> Any:
        return torch.from_numpy(np.moveaxis(image, -1, 0).copy()).float()

    def darker(tensor: Any) -> Any:
        return tensor.mul_(0.9)

    found = order(images().map(to_tensor, on="image").map(darker, on="image").map(torch.clone, on="image"), "pecan")
    assert not any(op.profiled.fixed for op in found.sample.ops)
    assert [round(op.bytes_out / op.bytes_in) for op in found.sample.ops] == [4, 1, 1]
