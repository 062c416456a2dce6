"""AutoOrder at work on real functions: what is adopted and run, what is refused and why, and bad input."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from examples import asr_transformer, resnet50, retinanet, simclr
from pecan_ray.autoorder.exchange_check import NO_TIME, OpOrder
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.trial import Trial
from pecan_ray.errors import ColumnError, OpError, PlanError
from pecan_ray.options import EngineName
from pecan_ray.plan.splits import Element
from pecan_ray.reorder import Mode
from pecan_ray.reorder.policy import Pair
from tests.long_form import some_later
from tests.unit.autoorder.sampled_orders import (
    ELEMENTS,
    FEW,
    SIDE,
    gain,
    half,
    images,
    large_photographs,
    order,
    ordering,
    rejects,
    tone,
)


def configured(**options: Any) -> pecan.PecanPipeline:
    return images(
        config=pecan.Config(sample_elements=ELEMENTS, **{"reorder": "safe", "sample_seconds": 60.0, **options})
    )


def test_a_faster_order_is_measured_and_a_job_samples_once_runs_it_and_reports_it() -> None:
    pipe = configured().map(tone, on="image").map(half, on="image").batch(4)
    with pipe.iter_batches(debug=True) as batches:
        got = next(batches)["image"]
        (event,) = batches.report().events
    given = [element["image"] for element in images().peek(4)]
    assert np.array_equal(got, [tone(half(image)) for image in given])
    assert not np.array_equal(got, [half(tone(image)) for image in given])
    assert event.kind == "reorder" and event.text in str(batches.report())
    assert event.text.startswith("AutoOrder moved half before tone (") and "(the pipeline " in event.text
    assert "x, measured on" in event.text and "by estimate" not in event.text
    assert f"sampled {ELEMENTS} elements" in event.text
    assert pipe.iter_batches(debug=True).report().events == (event,)
    assert re.search(r"1 +2 +half", pipe.explain())


def test_random_numbers_stay_those_of_the_operator_and_the_element() -> None:
    def shift(image: Any, rng: np.random.Generator) -> Any:
        return image + np.uint8(rng.integers(100))

    def crop(image: Any) -> Any:
        return image[:8, :8].copy()

    pipe = images().map(shift, on="image").map(crop, on="image").batch(4)
    changed = ordering(pipe, "pecan")
    assert changed.changed
    for mode in ("pecan", "off"):
        config = pecan.Config(reorder=mode, sample_elements=ELEMENTS)
        again = images(config=config).map(shift, on="image").map(crop, on="image").batch(4)
        batches = list(again.iter_batches(debug=True))
        assert len(batches) == ELEMENTS // 4
        if mode == "pecan":
            expected = batches
    for one, other in zip(batches, expected, strict=True):
        assert np.array_equal(one["image"], other["image"])


def test_what_cannot_be_improved_or_must_not_move_stays_as_it_is_written() -> None:
    pipe = images().map(half, on="image").map(tone, on="image").batch(4)
    for mode in ("off", "safe", "pecan", "strict"):
        found = ordering(pipe, mode)
        assert not found.changed and [op.name for op in found.plan.all_ops()] == ["half", "tone", "batch"]
    little = images().map(lambda image: image[::-1], on="image", name="reverse")
    assert not ordering(little.map(lambda image: image[:250], on="image", name="first_rows")).changed

    def explode(image: Any) -> Any:
        raise AssertionError("the sample has called a function that it had no reason to call")

    one = ordering(images().map(explode, on="image").batch(2).map(explode, name="on_batches"))
    pinned = ordering(images().map(explode, on="image").map(explode, on="image", name="b", keep_position=True))
    off = ordering(images().map(explode, on="image").map(explode, on="image", name="b"), "off")
    for found in (one, pinned, off):
        assert found.sequences == () and found.summary() == "" and found.plan is found.before


def test_stretches_on_both_sides_of_a_join_are_ordered_by_themselves() -> None:
    left = images().map(tone, on="image").map(half, on="image")
    right = images().map(tone, on="image", name="tone_right").map(half, on="image", name="half_right")
    pipe = left.concat(right).shuffle(8).map(tone, on="image", name="tone_all").map(half, on="image", name="half_all")
    found = ordering(pipe.batch(4), "pecan")
    assert [op.name for op in found.plan.all_ops()] == [
        *("half", "tone", "half_right", "tone_right"),
        *("shuffle", "half_all", "tone_all", "batch"),
    ]


# --- the pipelines of the Pecan paper ----------------------------------------------------------------------


RESNET50 = ("random_flip", "random_rotate", "random_shear")
AUGMENTATIONS = ("random_flip_views", "color_jitter", "gaussian_blur", "clip")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_photographs(tmp_path_factory.mktemp("large"))


@pytest.mark.parametrize("engine", some_later(["python", "tensorflow"], "tensorflow"))
def test_resnet50_resizes_before_it_flips_rotates_and_shears(photographs: Path, engine: EngineName) -> None:
    if engine == "tensorflow":
        pytest.importorskip("tensorflow")
    found = order(resnet50.pipeline(photographs, engine=engine), "pecan", FEW)
    names = found.accepted.order
    assert names[:5] == ("decode_and_random_crop", "resize", *RESNET50)
    assert names[5:] == ("subtract_mean", "cast_and_one_hot")
    assert [move.name for move in found.accepted.moves] == ["resize"]


def test_simclr_turns_gray_before_all_other_augmentations(photographs: Path) -> None:
    found = order(simclr.pipeline(photographs), "pecan", FEW)
    assert found.accepted.order == (
        *("decode", "duplicate_and_cast"),
        *("to_grayscale", "crop_and_resize", *AUGMENTATIONS),
        *("tile", "reshape"),
    )


def test_retinanet_casts_and_normalizes_right_after_the_flip() -> None:
    found = order(retinanet.pipeline(images=8, dtype="bfloat16"), "pecan", FEW)
    assert found.accepted.order == (
        *("decode", "random_flip_with_boxes", "normalize"),
        *("resize_and_crop", "label_extract", "cast"),
    )


def test_asr_pads_after_all_augmentations() -> None:
    found = order(asr_transformer.pipeline(images=20), "pecan", FEW)
    assert found.accepted.order == (
        *("decode", "add_text", "vectorize", "fourier_transform"),
        *("spec_augment", "speed_perturb", "pitch_perturb", "reverb", "pad"),
    )


# --- refused -----------------------------------------------------------------------------------------------


def test_orders_that_fail_or_let_other_elements_through_are_refused() -> None:
    def pick(image: Any) -> Any:
        return image[:200, :200]

    def demanding(image: Any) -> Any:
        if image.shape[0] < SIDE:
            raise ValueError("too small")
        return tone(image)

    found = order(images().map(demanding, on="image").map(pick, on="image"), "pecan")
    assert not found.accepted.changed
    assert "it fails: demanding failed on element" in rejects(found) and "too small" in rejects(found)

    pipe = images().map(lambda number: number + 1, on="number", name="shift")
    found = order(pipe.filter(lambda number: number % 2 == 1, on="number", name="odd"), "pecan")
    assert found.policy_order.order == ("odd", "shift") and not found.accepted.changed
    assert re.search("it lets ([01]) elements through where the user's order lets (?!\\1)[01]", rejects(found))


@pytest.mark.parametrize("mode", ["safe", "pecan"])
def test_what_changes_the_form_of_the_result_is_left_out_and_the_rest_is_done(mode: Mode) -> None:
    def crop(image: Any) -> Any:
        return image[5:-5, 5:-5]

    noise = np.random.default_rng(0).integers(0, 255, (48, 96, 96, 3), np.uint8)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(image=noise))
    for op in (crop, tone, lambda image: cv2.resize(image, (32, 32))):
        pipe = pipe.map(op, on="image", name="fit" if op not in (crop, tone) else None)
    found = order(pipe.batch(8), mode)
    assert found.accepted.order == ("crop", "fit", "tone"), "a crop behind the resize would be too small"


def test_random_operators_and_flat_maps_keep_their_places_to_each_other() -> None:
    def views(image: Any) -> list[Any]:
        return [image, image[::-1].copy()]

    def jitter(image: Any, rng: np.random.Generator) -> Any:
        return tone(image + np.uint8(rng.integers(9)))

    found = order(images().flat_map(views, on="image").map(jitter, on="image").map(half, on="image"), "pecan")
    assert found.accepted.order == ("half", "views", "jitter")
    plain = order(images().flat_map(views, on="image").map(tone, on="image").map(half, on="image"), "pecan")
    assert plain.accepted.order == ("half", "tone", "views")


# --- where time is over ------------------------------------------------------------------------------------


def test_mode_paper_adopts_nothing_that_was_not_run_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(sampled: Sampled, request: OrderRequest) -> Trial:
        sampled.limits = replace(sampled.limits, deadline=0.0)
        return Trial(sampled, request)

    pipe = images().map(tone, on="image").map(half, on="image")
    assert order(pipe, "pecan").accepted.order == ("half", "tone")
    monkeypatch.setattr("pecan_ray.autoorder.order.Trial", late)
    found = order(pipe, "pecan")
    assert found.sample.seconds is not None and found.policy_order.order == ("half", "tone"), "it was sampled"
    assert found.accepted.order == ("tone", "half") and NO_TIME in rejects(found)


def darker(image: Any) -> Any:
    return (255.0 * (image / 255.0) ** 1.3).astype(np.uint8)


def corner(image: Any) -> Any:
    return image[:64, :64]


@pytest.mark.parametrize("faster", [corner, half])
def test_a_look_that_is_cut_short_adopts_only_what_is_equal_and_much_faster(
    faster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = Trial.verify

    def late(trial: Trial, names: OpOrder) -> tuple[str, Pair | None, int]:
        trial._sampled.limits = replace(trial._sampled.limits, deadline=0.0)
        return verify(trial, names)

    pipe = images().map(darker, on="image", name="darker").map(faster, on="image", name="faster")
    gain(monkeypatch, 2.0)
    whole = ordering(pipe)
    assert whole.changed
    (shown,) = whole.sequences[0].exchanges
    assert bool(shown.element) == (faster is not corner), "the element that differs most"
    monkeypatch.setattr(Trial, "verify", late)
    found = order(pipe)
    if faster is corner:
        assert found.accepted.order == ("faster", "darker")
    else:
        assert not found.accepted.changed
        assert "it changes values, and there was time to run it on 16 of 48 elements" in rejects(found)


# --- bad input ---------------------------------------------------------------------------------------------


def test_too_few_elements_and_a_filter_that_lets_nothing_through_keep_the_order_with_a_note() -> None:
    few = pecan.PecanPipeline(pecan.sources.Items([{"image": np.zeros((64, 64, 3), np.uint8)}] * 3))
    pipe = few.map(tone, on="image").map(half, on="image")
    found = ordering(pipe)
    assert not found.changed and any("3 elements are too few" in note for note in found.notes)
    assert ordering(pipe, "pecan").changed
    found = ordering(
        images().map(tone, on="image").filter(lambda n: n < 0, on="number", name="none").map(half, on="image")
    )
    assert not found.changed
    assert any(f"'none' let none of {ELEMENTS} elements through" in note for note in found.notes)


def fragile(element: Element) -> Element:
    if element["number"] == 5:
        raise ValueError("broken")
    return element


def failing(element: Element) -> Element:
    raise ValueError("broken each time")


def test_an_error_in_the_sample_names_operator_and_element_and_is_the_jobs_to_raise() -> None:
    pipe = configured().map(fragile).map(half, on="image").batch(4)
    batches = pipe.iter_batches(debug=True)
    (event,) = batches.report().events
    assert "its look ended with OpError: fragile failed on" in event.text
    with pytest.raises(ValueError, match="broken"):
        list(batches)


def test_explain_leaves_bad_elements_out_and_says_so_once() -> None:
    pipe = configured().map(fragile).map(half, on="image").shuffle(8).map(tone, on="image").batch(4)
    text = str(pipe.explain())
    notes = [line for line in text.splitlines() if "left out" in line]
    assert len(notes) == 1 and f"note: 1 of {ELEMENTS} elements were left out of the sample: fragile failed" in notes[0]
    with pytest.raises(OpError, match=r"failing failed on .*broken each time"):
        configured().map(failing).map(half, on="image").batch(4).explain()


def test_a_wrong_column_name_is_told_before_a_job_begins() -> None:
    pipe = configured().map(tone, on="picture").map(half, on="image").batch(4)
    with pytest.raises(ColumnError, match="there is no column 'picture'"):
        pipe.iter_batches(debug=True)


@pytest.mark.parametrize("wrong", [{"reorder": "fast"}, {"sample_elements": 0}, {"sample_seconds": 0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=next(iter(wrong))):
        pecan.Config(**wrong)
