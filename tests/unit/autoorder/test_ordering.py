"""AutoOrder at work on real functions: what a job runs, the paper's pipelines, where time is over, and bad input.

What is exchanged, and what never, is in decided.txt.
"""

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
from pecan_ray.autoorder.accepted import OpSequenceOrder, apply_pipeline_threshold
from pecan_ray.autoorder.exchange_check import FIRST_ELEMENTS, NO_TIME, OpOrder
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.sample import Sampled, sample_op_sequence
from pecan_ray.autoorder.speed import SpeedComparison
from pecan_ray.autoorder.trial import Trial
from pecan_ray.errors import ColumnError, OpError
from pecan_ray.options import EngineName
from pecan_ray.plan.op_sequences import op_sequences
from pecan_ray.plan.splits import Element
from pecan_ray.reorder import Mode
from pecan_ray.reorder.policy import Pair
from tests.long_form import some_later
from tests.unit.autoorder.sampled_orders import (
    ELEMENTS,
    FEW,
    images,
    large_photographs,
    order,
    ordering,
    rejects,
    tone,
)
from tests.unit.autoorder.test_autoorder_decided import fragile, half

pytestmark = pytest.mark.usefixtures("on_the_meter")


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
    assert "x, measured on" in event.text and f"sampled {ELEMENTS} elements" in event.text
    assert pipe.iter_batches(debug=True).report().events == (event,)
    assert re.search(r"1 +2 +half", pipe.explain())


def test_random_numbers_stay_those_of_the_operator_and_the_element() -> None:
    def shift(image: Any, rng: np.random.Generator) -> Any:
        return image + np.uint8(rng.integers(100))

    def crop(image: Any) -> Any:
        return image[:8, :8].copy()

    def batches(mode: Mode) -> list[Any]:
        config = pecan.Config(reorder=mode, sample_elements=ELEMENTS)
        pipe = images(config=config).map(shift, on="image").map(crop, on="image").batch(4)
        assert ordering(pipe, mode).changed == (mode == "pecan")
        return [batch["image"] for batch in pipe.iter_batches(debug=True)]

    assert np.array_equal(batches("pecan"), batches("off"))


def test_functions_that_cannot_move_are_not_called() -> None:
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


def test_tensors_that_are_written_into_are_no_state() -> None:
    torch = pytest.importorskip("torch")

    def to_tensor(image: Any) -> Any:
        return torch.from_numpy(np.moveaxis(image, -1, 0).copy()).float()

    def darker(tensor: Any) -> Any:
        return tensor.mul_(0.9)

    found = order(images().map(to_tensor, on="image").map(darker, on="image").map(torch.clone, on="image"), "pecan")
    assert not any(op.profiled.fixed for op in found.sample.ops)
    assert [round(op.bytes_out / op.bytes_in) for op in found.sample.ops] == [4, 1, 1]


def test_each_kind_of_changes_can_be_switched_off() -> None:
    pipe = images().map(tone, on="image").map(half, on="image")
    request = OrderRequest(pipe.plan, elements=FEW, seconds=60.0)
    (found,) = order_plan(replace(request, exchanges=False)).sequences
    assert not found.accepted.changed and not any("tone" in one.order for one in found.rejected)
    encoded: list[dict[str, Any]] = [
        {"image": bytes(cv2.imencode(".jpg", np.full((512, 512, 3), 9 * n, np.uint8))[1])} for n in range(FEW)
    ]
    decoding = pecan.PecanPipeline(pecan.sources.Items(encoded), config=pecan.Config(reorder_rewrites=False))
    decoding = decoding.map(pecan.images.Decode(), on="image").map(pecan.images.Resize(64, 64), on="image")
    asked = decoding._order._request(skip_bad=False)
    assert not asked.rewrites and asked.exchanges
    assert order_plan(replace(asked, elements=FEW, seconds=60.0)).decoders == ()


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_photographs(tmp_path_factory.mktemp("large"))


@pytest.mark.parametrize("engine", some_later(["python", "tensorflow"], "tensorflow"))
def test_resnet50_resizes_before_it_flips_rotates_and_shears(photographs: Path, engine: EngineName) -> None:
    if engine == "tensorflow":
        pytest.importorskip("tensorflow")
    found = order(resnet50.pipeline(photographs, engine=engine), "pecan", FEW).accepted
    assert found.order == (
        *("decode_and_random_crop", "resize", "random_flip", "random_rotate", "random_shear"),
        *("subtract_mean", "cast_and_one_hot"),
    )
    assert [move.name for move in found.moves] == ["resize"]


def test_simclr_turns_gray_before_all_other_augmentations(photographs: Path) -> None:
    assert order(simclr.pipeline(photographs), "pecan", FEW).accepted.order == (
        *("decode", "duplicate_and_cast", "to_grayscale"),
        *("crop_and_resize", "random_flip_views", "color_jitter", "gaussian_blur", "clip", "tile", "reshape"),
    )


def test_retinanet_casts_and_normalizes_right_after_the_flip() -> None:
    assert order(retinanet.pipeline(images=8, dtype="bfloat16"), "pecan", FEW).accepted.order == (
        *("decode", "random_flip_with_boxes", "normalize"),
        *("resize_and_crop", "label_extract", "cast"),
    )


def test_asr_pads_after_all_augmentations() -> None:
    assert order(asr_transformer.pipeline(images=20), "pecan", FEW).accepted.order == (
        *("decode", "add_text", "vectorize", "fourier_transform"),
        *("spec_augment", "speed_perturb", "pitch_perturb", "reverb", "pad"),
    )


def test_the_gain_of_a_stretch_is_told_and_judged_of_the_whole_pipeline() -> None:
    one = order(images().map(tone, on="image").map(half, on="image"), "pecan")
    seconds = one.sample.seconds
    assert one.accepted.changed and seconds is not None
    one = replace(one, accepted=replace(one.accepted, mode="safe"), measured=SpeedComparison(2.0, 0.01, ELEMENTS))

    def beside(reading_s: float) -> OpSequenceOrder:
        (judged,) = apply_pipeline_threshold([replace(one, sample=replace(one.sample, reading_s=reading_s))])
        return judged

    adopted, refused = beside(seconds), beside(49 * seconds)
    assert adopted.share == pytest.approx(0.5) and adopted.whole_speedup == pytest.approx(1 / 0.75)
    assert not refused.accepted.changed and refused.measured is None and "1.010 times as fast" in rejects(refused)
    assert "not worth another order: that needs 1.05 times" in rejects(refused)


def test_mode_paper_adopts_nothing_that_was_not_run_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(sampled: Sampled, request: OrderRequest) -> Trial:
        sampled.limits = replace(sampled.limits, deadline=-1.0)
        return Trial(sampled, request)

    pipe = images().map(tone, on="image").map(half, on="image")
    assert order(pipe, "pecan").accepted.order == ("half", "tone")
    monkeypatch.setattr("pecan_ray.autoorder.order.Trial", late)
    found = order(pipe, "pecan")
    assert found.sample.seconds is not None and found.policy_order.order == ("half", "tone"), "it was sampled"
    assert found.accepted.order == ("tone", "half") and NO_TIME in rejects(found)


def test_elements_whose_exchanges_there_was_no_time_to_compare_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = images().map(tone, on="image").map(half, on="image")
    (stretch,) = op_sequences(pipe.plan)
    found = sample_op_sequence(stretch, pipe.engine, 0, SampleLimits(ELEMENTS))
    trial = Trial(found, OrderRequest(pipe.plan))
    run = trial._rejected_on

    def late(order: OpOrder, numbers: range) -> tuple[str, int]:
        told = run(order, numbers)
        found.limits = replace(found.limits, deadline=0.0)
        return told

    assert trial.verify(("half", "tone")) == ("", None, len(found.held))
    monkeypatch.setattr(trial, "_rejected_on", late)
    assert trial.verify(("half", "tone")) == ("", None, FIRST_ELEMENTS)


def darker(image: Any) -> Any:
    return (255.0 * (image / 255.0) ** 1.3).astype(np.uint8)


def corner(image: Any) -> Any:
    return image[:16, :16]


@pytest.mark.parametrize("faster", [corner, half])
def test_a_look_that_is_cut_short_adopts_only_what_is_equal_and_much_faster(
    faster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = Trial.verify

    def late(trial: Trial, names: OpOrder) -> tuple[str, Pair | None, int]:
        trial._sampled.limits = replace(trial._sampled.limits, deadline=-1.0)
        return verify(trial, names)

    pipe = images().map(darker, on="image").map(faster, on="image", name="faster")
    whole = ordering(pipe)
    assert whole.changed
    (shown,) = whole.sequences[0].exchanges
    assert bool(shown.element) == (faster is not corner), "the element that differs most"
    monkeypatch.setattr(Trial, "verify", late)
    found = order(pipe)
    assert found.accepted.changed == (faster is corner)
    if faster is half:
        assert "it changes values, and there was time to run it on 16 of 24 elements" in rejects(found)


@pytest.mark.parametrize("mode", ["safe", "strict"])
def test_an_error_of_a_trial_leaves_the_order_and_is_told_and_ctrl_c_passes(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*given: Any) -> Any:
        raise error

    monkeypatch.setattr("pecan_ray.autoorder.trial.compare_speed", ended)
    pipe = images().map(darker, on="image").map(corner, on="image")
    error: BaseException = SystemExit("no such order")
    found = ordering(pipe, mode)
    assert not found.changed
    assert any("ended with SystemExit: no such order: the order stays as it is written" in one for one in found.notes)
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        ordering(pipe, mode)


def test_an_error_in_the_sample_is_the_jobs_to_raise_and_explain_leaves_bad_elements_out_and_says_so_once() -> None:
    pipe = configured().map(fragile).map(half, on="image").shuffle(8).map(tone, on="image").batch(4)
    batches = pipe.iter_batches(debug=True)
    (event,) = batches.report().events
    assert "its look ended with OpError: fragile failed on" in event.text
    with pytest.raises(ValueError, match="broken"):
        list(batches)
    assert str(pipe.explain()).count("left out") == 1

    def failing(element: Element) -> Element:
        raise ValueError("broken each time")

    with pytest.raises(OpError, match=r"failing failed on .*broken each time"):
        configured().map(failing).map(half, on="image").batch(4).explain()


def test_a_wrong_column_name_is_told_before_a_job_begins() -> None:
    pipe = configured().map(tone, on="picture").map(half, on="image").batch(4)
    with pytest.raises(ColumnError, match="there is no column 'picture'"):
        pipe.iter_batches(debug=True)
