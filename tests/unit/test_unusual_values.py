"""Values that a sample seldom has: the ends of a range, other dtypes, decisions by size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from benchmarks.guard import ops
from benchmarks.guard.elements import elements
from benchmarks.guard.exchange import Exchange
from benchmarks.guard.joint import FIT
from benchmarks.guard.ops import GuardStep
from benchmarks.value_guard import look
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.sample import sample_stretch
from pecan_ray.autoorder.trial import Trial
from pecan_ray.engines.foreign import with_array
from pecan_ray.plan.splits import Element
from pecan_ray.plan.splits import Element as Columns
from pecan_ray.plan.stretches import stretches
from pecan_ray.reorder.decides import jumps
from pecan_ray.reorder.exposure import alike, ends, exposable, exposed, holds
from tests.unit.sampled_orders import ELEMENTS, SIDE, blur, half, images, order, refusals

U8, I16, F16, F32 = (np.dtype(name) for name in ("uint8", "int16", "float16", "float32"))


@pytest.fixture(scope="module")
def photographs() -> list[Element]:
    return [{"image": one["image"]} for one in elements(16)]


def refused(photographs: list[Element], *steps: GuardStep, before: tuple[GuardStep, ...] = ()) -> str:
    first, second = steps
    return look(Exchange("", first, second, before=before, columns=tuple(photographs[0])), photographs)[0]


# --- orders ------------------------------------------------------------------------------------------------


def test_what_would_be_clipped_as_bytes_stays_behind_a_cast(photographs: list[Element]) -> None:
    dark = [{"image": one["image"] // 4} for one in photographs]  # nothing of which is clipped
    assert "'1-brightness' is given 'image' as uint8" in refused(dark, ops.to_half, ops.brightness)
    assert "'1-sharpen'" in refused(dark, ops.to_float, ops.sharpen)


def test_what_makes_the_same_of_bytes_goes_before_a_cast(photographs: list[Element]) -> None:
    for step in (ops.gamma, ops.flip, ops.median, ops.random_rotate, FIT):
        assert refused(photographs, ops.to_float, step) == "", step.name


def test_a_clipping_of_nothing_in_the_sample_is_seen_at_the_ends_of_the_range(photographs: list[Element]) -> None:
    dark = [{"image": (one["image"] / np.float32(1000))} for one in photographs]
    found = refused(dark, ops.jitter_unit, ops.clip_unit, before=(FIT,))
    assert "where they reach the ends of their range: column 'image': the largest value moves" in found


def test_equal_results_are_asked_for_at_the_ends_of_the_range_too(photographs: list[Element]) -> None:
    def lift(image: Any) -> Any:
        return np.where(image < 128, image * 2, 255).astype(np.uint8)

    def dim(image: Any) -> Any:
        return image // 2

    dark = [{"image": one["image"] // 4 * 2} for one in photographs]
    pipe = pecan.PecanPipeline(pecan.sources.Items(dark)).map(lift, on="image").map(dim, on="image")
    (stretch,) = stretches(pipe.plan)
    trial = Trial(sample_stretch(stretch, "python", 0, SampleLimits()), None, "python", mode="strict")
    assert trial.look_at_form(("dim", "lift")) == "", "on the sample they are equal"
    assert "column 'image' is not equal where values reach the ends" in trial.look(("dim", "lift"))


def test_an_operator_that_decides_by_size_is_given_the_values_of_the_users_order(photographs: list[Element]) -> None:
    found = refused(photographs, ops.unit_if_large, ops.crop_centre, before=(FIT, ops.standardise))
    assert "'2-unit_if_large' decides by how large 'image' is" in found


def test_an_order_that_fails_while_it_is_timed_is_refused() -> None:
    def careful(element: Columns) -> Columns:
        if element["number"] == ELEMENTS - 4 and len(element["image"]) < SIDE:
            raise ValueError("too small")
        return {**element, "image": blur(element["image"])}

    found = order(images().map(careful).map(half, on="image"))
    assert not found.adopted.changed and "it fails: careful failed on" in refusals(found)


# --- single facts ------------------------------------------------------------------------------------------


def test_ranges_are_those_of_narrow_dtypes_and_natural_ones_of_floats() -> None:
    assert ends(U8, 3, 90) == (0, 255) and ends(I16, -5, 90) == (-32768, 32767)
    assert ends(F32, 0, 0.4) == (0, 1) and ends(F32, -0.3, 0.2) == (-1, 1) and ends(F16, 0, 200) == (0, 255)
    assert ends(F32, 0, 0.01) == (0, 0.01) and ends(F32, -2.1, 2.6) == (-2.6, 2.6) and ends(F32, 0, 1e6) == (0, 1e6)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.65])
def test_a_share_of_an_exposed_array_reaches_the_end(share: float) -> None:
    ramp = np.linspace(40, 120, 1000)
    bright, dark = (exposed(ramp.astype(np.uint8), 0, 255, bright=one, share=share) for one in (True, False))
    assert bright.dtype == U8 and (bright == 255).mean() == pytest.approx(share, abs=0.05)
    assert (dark == 0).mean() == pytest.approx(share, abs=0.05)
    wave = np.sin(ramp).astype(np.float32) / 4
    loud = exposed(wave, -1, 1, bright=True, share=share)
    assert (np.abs(loud) == 1).mean() == pytest.approx(share, abs=0.05) and loud.dtype == F32
    assert exposed(np.zeros(100, np.float32), -1, 1, bright=True).max() == 0


def test_labels_words_and_classes_are_not_exposed() -> None:
    assert not exposable(np.arange(50, dtype=np.float32)) and not exposable(np.arange(1000))
    assert not exposable(np.arange(1000, dtype=np.uint8) % 3) and not exposable(np.ones(100, bool))
    assert exposable(np.arange(1000).astype(np.uint8)) and exposable(np.ones(100, np.float16))


def test_results_are_alike_but_for_rounding() -> None:
    bytes_ = np.arange(256, dtype=np.uint8)
    floats = bytes_ + np.float32(0.5)
    assert alike(bytes_, floats, U8) and not alike(bytes_, floats * 1.1, U8) and not alike(bytes_, floats[1:], U8)
    assert not alike(bytes_, floats + 1, F16) and alike(floats.astype(F16), floats, F16)
    assert alike(np.array(["a"]), np.array(["a"]), U8) and not alike(np.array(["a"]), np.array(["b"]), U8)
    assert alike(np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), F32) and alike(np.zeros(0), np.zeros(0), F32)


def test_wider_dtypes_hold_the_numbers_of_narrower_ones() -> None:
    assert holds(F16, U8) and holds(F32, F16) and holds(I16, U8) and not holds(U8, I16) and not holds(F16, F32)


@pytest.mark.parametrize(("fn", "expected"), [
    (lambda x: x / 255 if x.max() > 1 else x, True),
    (lambda x: x if abs(x).mean() < 0.3 else x * 100, True),
    (lambda x: np.maximum(x, 0) ** 0.6, False),
    (lambda x: (x > 0.5) * 1.0, False),
    (lambda x: np.clip(x, 0, 1), False),
    (lambda x: (x - x.mean()) / x.std(), False),
    (lambda x: np.log1p(abs(x)), False),
    (lambda x: x * 0, False),
])  # fmt: skip
def test_decisions_by_size_are_jumps(fn: Any, expected: bool) -> None:
    array = np.random.default_rng(0).uniform(0, 1.5, 4000)
    assert jumps(lambda scale: float(np.sqrt((fn(array * scale) ** 2).mean()))) is expected


def test_arrays_become_values_of_their_library() -> None:
    array = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    assert with_array(array, array * 2) is not array
    image = pytest.importorskip("PIL.Image").fromarray(array)
    assert with_array(image, array * 2).getpixel((1, 0)) == (6, 8, 10)
    torch = pytest.importorskip("torch")
    assert with_array(torch.zeros(2), np.ones(2, np.float16)).dtype == torch.float16


def test_pictures_and_tensors_are_exposed_too(photographs: list[Element]) -> None:
    image, enhance = pytest.importorskip("PIL.Image"), pytest.importorskip("PIL.ImageEnhance")
    dim = [{"image": image.fromarray(one["image"] // 4)} for one in photographs]
    lift = GuardStep("lift", lambda x: enhance.Brightness(x).enhance(2.0), "image")
    lower = GuardStep("lower", lambda x: enhance.Brightness(x).enhance(0.5), "image")
    assert "the ends of their range" in refused(dim, lift, lower)


@pytest.mark.parametrize("bright", [True, False])
def test_zeros_alone_are_not_exposed(bright: bool) -> None:
    zeros = np.zeros((50, 50))
    np.testing.assert_array_equal(exposed(zeros, *ends(zeros.dtype, 0.0, 0.0), bright=bright), zeros)


def test_elements_that_are_empty_or_nothing_but_zeros_do_not_end_a_look() -> None:
    def zeros(number: int) -> Any:
        return np.zeros((0 if number % 9 == 0 else 50, 50))

    pipe = pecan.PecanPipeline(pecan.sources.Items([{"x": n} for n in range(ELEMENTS)]))
    pipe = pipe.map(zeros, on="x", keep_position=True).map(np.sin, on="x").map(lambda x: x[:5].copy(), on="x")
    assert order(pipe).sample.elements == ELEMENTS
