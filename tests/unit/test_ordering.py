"""AutoOrder at work: what is adopted, what is refused and why, on real functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from examples import asr_transformer, resnet50, retinanet, simclr
from examples.photographs import parent_photographs
from pecan_ray.autoorder.adopted import Ordering, StretchOrder
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.search import suspected_exchange
from pecan_ray.errors import ColumnError, OpError, PlanError
from pecan_ray.options import EngineName
from pecan_ray.plan.splits import Element
from pecan_ray.reorder import Mode

ELEMENTS = 48
SIDE = 256
TRIES = 4
RESNET50 = ("random_flip", "random_rotate", "random_shear")
AUGMENTATIONS = ("random_flip_views", "color_jitter", "gaussian_blur", "clip")


def order(pipe: pecan.PecanPipeline, mode: Mode = "cost", **options: Any) -> StretchOrder:
    """What became of the only stretch of a pipeline."""
    (found,) = ordering(pipe, mode, **options).stretches
    return found


def ordering(pipe: pecan.PecanPipeline, mode: Mode = "cost", **options: Any) -> Ordering:
    return order_plan(OrderRequest(pipe.plan, pipe.engine, mode, pipe.seed, ELEMENTS, 60.0, **options))


def measured_order(pipe: pecan.PecanPipeline, mode: Mode = "cost", *, moved: str) -> StretchOrder:
    """What became of the only stretch of a pipeline, sampled again while other load hid the gain of moving `moved`."""
    for _ in range(TRIES):
        found = order(pipe, mode)
        assert not found.adopted.changed or mode == "paper" or (found.measured is not None and found.measured.faster)
        if any(move.name == moved for move in found.adopted.moves):
            break
    return found


def images(**options: Any) -> pecan.PecanPipeline:
    """Photographs of one size, and some columns beside them."""
    photograph = cv2.imread(str(parent_photographs()[0]))
    assert photograph is not None
    items = [{"image": photograph[n : n + SIDE, n : n + SIDE], "number": n} for n in range(ELEMENTS)]
    return pecan.PecanPipeline(pecan.sources.Items(items), name="images", **options)


def blur(image: Any) -> Any:
    """Work that takes its time with every pixel."""
    return cv2.GaussianBlur(image, (15, 15), 3.0)


def half(image: Any) -> Any:
    """Work that makes all that follows cheaper."""
    return cv2.resize(image, (image.shape[1] // 2, image.shape[0] // 2))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large photographs, several times each, in a class folder."""
    folder = tmp_path_factory.mktemp("large") / "photographs"
    folder.mkdir()
    for number in range(ELEMENTS):
        parents = parent_photographs()
        image = cv2.imread(str(parents[number % len(parents)]))
        assert image is not None
        image = cv2.resize(image, (720, 640))
        assert cv2.imwrite(str(folder / f"{number:03}.jpg"), image)
    return folder.parent


# --- the pipelines of the paper ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["paper", "cost"])
@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_resnet50_resizes_before_it_flips_rotates_and_shears(photographs: Path, engine: EngineName, mode: Mode) -> None:
    if engine == "tensorflow":
        pytest.importorskip("tensorflow")
    found = measured_order(resnet50.pipeline(photographs, engine=engine), mode, moved="resize")
    names = found.adopted.order
    first = ("decode_and_random_crop", "resize", *RESNET50)
    if mode == "cost":
        # A flip takes so little that it may stay where it is.
        assert names[0] == first[0] and names.index("resize") < min(map(names.index, ("random_rotate", "random_shear")))
    else:
        assert names[:5] == first
    assert names[5:] == ("subtract_mean", "cast_and_one_hot")
    assert [move.name for move in found.adopted.moves] == ["resize"]


def test_simclr_turns_gray_before_all_other_augmentations(photographs: Path) -> None:
    found = order(simclr.pipeline(photographs), "paper")
    assert found.adopted.order == (
        *("decode", "duplicate_and_cast"),
        *("to_grayscale", "crop_and_resize", *AUGMENTATIONS),
        *("tile", "reshape"),
    )


def test_simclr_should_turn_gray_behind_the_crop_by_measured_times_and_is_never_made_slower(photographs: Path) -> None:
    found = order(simclr.pipeline(photographs))
    for names in {found.proposed.order, found.adopted.order} - {found.names}:
        # A flip takes so little that it may stay where it is.
        assert names[:3] == ("decode", "duplicate_and_cast", "crop_and_resize") and names[-2:] == ("tile", "reshape")
        assert names.index("to_grayscale") < names.index("color_jitter") < names.index("gaussian_blur")
    assert found.proposed.changed, "one image in five has a third of its bytes behind it"
    # Whether so small a gain can be told from other load is the machine's affair.
    assert not found.adopted.changed or (found.measured is not None and found.measured.faster)


def test_simclr_as_a_graph_turns_gray_first_in_mode_paper_and_is_never_made_slower(photographs: Path) -> None:
    pytest.importorskip("tensorflow")
    paper = order(simclr.pipeline(photographs, engine="tensorflow"), "paper")
    assert paper.adopted.order[2:8] == ("to_grayscale", "crop_and_resize", *AUGMENTATIONS)
    cost = order(simclr.pipeline(photographs, engine="tensorflow"))
    assert not cost.adopted.changed or (cost.measured is not None and cost.measured.faster)


def test_retinanet_casts_and_normalizes_right_after_the_flip() -> None:
    found = order(retinanet.pipeline(images=10, dtype="bfloat16"), "paper")
    assert found.adopted.order == (
        *("decode", "random_flip_with_boxes", "normalize"),
        *("resize_and_crop", "label_extract", "cast"),
    )


def test_retinanet_with_a_cast_that_algorithm_2_would_move_keeps_its_result() -> None:
    found = order(retinanet.pipeline(images=10), "paper")
    # Cast first, the normalization would make float32 of it: the order without that move is the paper's.
    assert found.proposed.order[1] == "cast"
    assert "dtype is float32 instead of float16" in found.refused[0].reason
    assert found.adopted.order[1:3] == ("random_flip_with_boxes", "normalize")
    assert found.adopted.order.index("cast") > found.adopted.order.index("normalize")


def test_retinanet_by_cost_never_labels_before_it_resizes() -> None:
    found = order(retinanet.pipeline(images=10))
    names = found.adopted.order
    assert names.index("resize_and_crop") < names.index("label_extract") and names[-1] == "cast"


@pytest.mark.parametrize("mode", ["paper", "cost"])
def test_asr_pads_after_all_augmentations(mode: Mode) -> None:
    found = measured_order(asr_transformer.pipeline(images=20), mode, moved="pad")
    assert found.adopted.order == (
        *("decode", "add_text", "vectorize", "fourier_transform"),
        *("spec_augment", "speed_perturb", "pitch_perturb", "reverb", "pad"),
    )


# --- what is adopted ---------------------------------------------------------------------------------------


def test_a_faster_order_is_measured_and_adopted() -> None:
    found = ordering(images().map(blur, on="image").map(half, on="image").batch(4))
    assert [op.name for op in found.plan.all_ops()] == ["half", "blur", "batch"]
    assert [op.name for op in found.before.all_ops()] == ["blur", "half", "batch"]
    (stretch,) = found.stretches
    assert stretch.measured is not None and stretch.measured.faster
    assert stretch.adopted.expected_speedup is not None and stretch.adopted.expected_speedup > 1
    said = found.summary()
    assert said.startswith("AutoOrder moved half before blur (") and "x expected" in said
    assert "x measured on" in said and f"sampled {ELEMENTS} elements" in said


def test_what_the_decoder_can_take_over_is_brought_to_it_and_measured(photographs: Path) -> None:
    def flip(image: Any) -> Any:
        return image[:, ::-1]  # a view: of no cost, wherever it comes

    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(photographs))
    for op in (pecan.images.Decode(), pecan.images.RandomCrop((0.5, 1.0)), flip, pecan.images.Resize(96, 96)):
        pipe = pipe.map(op, on="image")
    found = measured_order(pipe, moved="Resize")
    assert found.adopted.order == ("Decode", "RandomCrop", "Resize", "flip")
    assert found.measured is not None and found.measured.faster
    assert any("decode+random_crop+resize" in note for note in ordering(pipe).notes)


def test_a_form_that_the_best_order_would_change_does_not_end_the_search_for_what_the_decoder_takes_over(
    photographs: Path,
) -> None:
    pytest.importorskip("tensorflow")
    import tensorflow as tf

    def turn(image: Any) -> Any:
        for _ in range(8):
            image = tf.cast(tf.round(tf.sqrt(tf.cast(image, tf.float32) ** 2)), tf.uint8)
        return image

    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(photographs), engine="tensorflow")
    pipe = pipe.map(pecan.images.Decode(), on="image").map(pecan.images.RandomCrop((0.5, 1.0)), on="image", name="crop")
    pipe = pipe.map(turn, on="image").map(pecan.images.Resize(96, 96), on="image", name="resize")
    found = measured_order(pipe, "cost", moved="resize")
    # Resizing shrinks most, and in front of the crop it would leave images of unequal shapes.
    assert any("shape" in refused.reason for refused in found.refused)
    assert found.adopted.order == ("Decode", "crop", "resize", "turn")


def test_the_rewritten_plan_has_the_users_own_operators() -> None:
    pipe = images().map(blur, on="image").map(half, on="image").batch(4)
    found = ordering(pipe)
    assert {op.name: op for op in found.plan.all_ops()} == {op.name: op for op in pipe.plan.all_ops()}
    assert found.plan.head is pipe.plan.head
    assert {op.op.fn for op in found.stretches[0].sample.ops} == {blur, half}


def test_random_numbers_stay_those_of_the_operator_and_the_element() -> None:
    def shift(image: Any, rng: np.random.Generator) -> Any:
        return image + np.uint8(rng.integers(100))

    def crop(image: Any) -> Any:
        return image[:8, :8].copy()

    pipe = images().map(shift, on="image").map(crop, on="image").batch(4)
    changed = ordering(pipe, "paper")
    assert changed.changed
    for mode in ("paper", "off"):
        config = pecan.Config(reorder=mode, sample_elements=ELEMENTS)
        again = images(config=config).map(shift, on="image").map(crop, on="image").batch(4)
        batches = list(again.iter_batches(debug=True))
        assert len(batches) == ELEMENTS // 4
        if mode == "paper":
            expected = batches
    for one, other in zip(batches, expected, strict=True):
        assert np.array_equal(one["image"], other["image"])


@pytest.mark.parametrize("mode", ["off", "cost", "paper", "strict"])
def test_what_cannot_be_improved_stays_as_it_is_written(mode: Mode) -> None:
    found = ordering(images().map(half, on="image").map(blur, on="image").batch(4), mode)
    assert not found.changed and [op.name for op in found.plan.all_ops()] == ["half", "blur", "batch"]


def test_fewer_than_two_operators_that_may_move_are_not_sampled() -> None:
    def explode(image: Any) -> Any:
        raise AssertionError("the sample has called a function that it had no reason to call")

    one = ordering(images().map(explode, on="image").batch(2).map(explode, name="on_batches"))
    pinned = ordering(images().map(explode, on="image").map(explode, on="image", name="b", keep_position=True))
    off = ordering(images().map(explode, on="image").map(explode, on="image", name="b"), "off")
    for found in (one, pinned, off):
        assert found.stretches == () and found.summary() == "" and found.plan is found.before


def test_what_makes_another_operator_slow_is_left_out_and_the_rest_is_done() -> None:
    def work(image: Any) -> Any:
        for _ in range(6 if image.dtype == np.float32 else 60):
            image = image + image.dtype.type(1)
        return image

    def half(image: Any) -> Any:
        return image[::2].copy()

    def narrow(image: Any) -> Any:
        return image.astype(np.float16)

    noise = np.random.default_rng(0).random((48, 128, 128, 3), np.float32)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(image=noise))
    for op in (work, half, narrow):
        pipe = pipe.map(op, on="image")
    found = measured_order(pipe.batch(8), moved="half")
    assert found.proposed.order == ("half", "narrow", "work"), "half of the bytes should take half of the time"
    assert found.adopted.order == ("half", "work", "narrow")
    assert "'work' would become slower" in refusals(found)


def test_a_pinned_operator_is_not_crossed() -> None:
    pipe = images().map(blur, on="image").map(lambda image: image, on="image", name="pin", keep_position=True)
    found = order(pipe.map(half, on="image").map(lambda image: image, on="image", name="last"), "paper")
    assert found.adopted.order == ("blur", "pin", "half", "last")
    assert [fixed.reason for fixed in found.adopted.fixed] == ["keep_position=True"]


def test_stretches_on_both_sides_of_a_join_are_ordered_by_themselves() -> None:
    left = images().map(blur, on="image").map(half, on="image")
    right = images().map(blur, on="image", name="blur_right").map(half, on="image", name="half_right")
    pipe = left.concat(right).shuffle(8).map(blur, on="image", name="blur_all").map(half, on="image", name="half_all")
    found = ordering(pipe.batch(4), "paper")
    assert [op.name for op in found.plan.all_ops()] == [
        *("half", "blur", "half_right", "blur_right"),
        *("shuffle", "half_all", "blur_all", "batch"),
    ]


def test_a_filter_is_run_first_where_that_leaves_the_same_elements() -> None:
    def even(element: Element) -> bool:
        return bool(element["number"] % 4 == 0)

    found = order(images().map(blur, on="image").filter(even).batch(4))
    assert found.adopted.order == ("even", "blur")
    assert found.measured is not None and found.measured.faster


# --- what is refused ---------------------------------------------------------------------------------------


def refusals(found: StretchOrder) -> str:
    return " | ".join(one.reason for one in found.refused)


@pytest.mark.parametrize("mode", ["paper", "cost", "strict"])
def test_an_operator_stays_behind_the_one_that_creates_what_it_reads(mode: Mode) -> None:
    def mask(element: Element) -> Element:
        return {**element, "mask": np.ones((512, 512), np.float32)}

    def crop(element: Element) -> Element:
        return {**element, "mask": element["mask"][:4, :4], "image": element["image"][:4, :4]}

    found = order(images().map(blur, on="image").map(mask).map(crop), mode)
    names = found.adopted.order
    assert names.index("mask") < names.index("crop")
    assert any("'mask' creates column 'mask'" in entry.reason for entry in found.proposed.rejected)


def test_a_reading_that_no_recording_shows_is_found_when_the_order_is_run() -> None:
    def mask(element: Element) -> Element:
        return {**element, "mask": np.ones((512, 512), np.float32)}

    def crop(element: Element) -> Element:
        # The recording is asked for nothing: only an element without the column fails.
        own = {**element}
        own["image"] = own["image"][: len(own["mask"][:4]), :4]
        return own

    found = order(images().map(mask).map(crop), "paper")
    assert found.adopted.order == ("mask", "crop")


def test_an_order_that_fails_is_refused_with_the_operator_and_the_element() -> None:
    def pick(image: Any) -> Any:
        return image[:200, :200]

    def demanding(image: Any) -> Any:
        if image.shape[0] < SIDE:
            raise ValueError("too small")
        return blur(image)

    found = order(images().map(demanding, on="image").map(pick, on="image"), "paper")
    assert not found.adopted.changed
    assert "it fails: demanding failed on element 0" in refusals(found) and "too small" in refusals(found)


def test_what_fails_in_one_order_is_left_out_of_the_next() -> None:
    def cast(image: Any) -> Any:
        return image.astype(np.float16)

    noise = np.random.default_rng(0).integers(0, 255, (48, 96, 96, 3), np.uint8).astype(np.float32)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(image=noise))
    for op in (blur, half, cast):
        pipe = pipe.map(op, on="image")
    found = order(pipe.map(lambda image: image[:, ::-1], on="image", name="flip").batch(8), "paper")
    assert found.adopted.order.index("half") < found.adopted.order.index("blur"), "what works is adopted"
    assert found.adopted.order.index("blur") < found.adopted.order.index("cast"), "OpenCV takes no float16"
    assert "it fails" in refusals(found)


@pytest.mark.parametrize("mode", ["cost", "paper"])
def test_what_changes_the_form_of_the_result_is_left_out_and_the_rest_is_done(mode: Mode) -> None:
    def crop(image: Any) -> Any:
        return image[5:-5, 5:-5]

    noise = np.random.default_rng(0).integers(0, 255, (48, 96, 96, 3), np.uint8)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(image=noise))
    for op in (crop, blur, lambda image: cv2.resize(image, (32, 32))):
        pipe = pipe.map(op, on="image", name="fit" if op not in (crop, blur) else None)
    found = order(pipe.batch(8), mode)
    assert found.adopted.order == ("crop", "fit", "blur"), "a crop behind the resize would be too small"


@pytest.mark.parametrize(
    ("failed", "tried", "suspect"),
    [
        ("b", "cab", ("b", "c")),
        ("a", "bca", ("a", "c")),
        ("c", "cab", ("b", "c")),
        ("a", "abc", None),
        ("", "cab", None),
    ],
)
def test_a_failure_tells_which_exchange_to_leave_out(failed: str, tried: str, suspect: tuple[str, str] | None) -> None:
    assert suspected_exchange(failed, tuple("abc"), tuple(tried)) == suspect


def test_an_order_with_another_dtype_is_refused() -> None:
    def wider(image: Any) -> Any:
        return blur(image.astype(np.float32))

    def narrow(image: Any) -> Any:
        return image[:64, :64].astype(np.uint8)

    found = order(images().map(wider, on="image").map(narrow, on="image"), "paper")
    assert not found.adopted.changed
    assert "the result differs in column 'image': its dtype is float32 instead of uint8" in refusals(found)


def test_an_order_with_another_shape_is_refused_where_shapes_were_fixed() -> None:
    def square(image: Any) -> Any:
        return blur(image)[:100, :100]

    found = order(images().map(square, on="image").map(half, on="image"), "paper")
    assert "its shape is [100, 100, 3] instead of [50, 50, 3]" in refusals(found)


@pytest.mark.parametrize("mode", ["paper", "cost"])
def test_check_refuses_an_order_whose_values_have_another_range(mode: Mode) -> None:
    def brighten(image: Any) -> Any:
        return blur(image) // 2 + np.uint8(100)

    def dark_half(image: Any) -> Any:
        return np.minimum(half(image), np.uint8(120))

    pipe = images().map(brighten, on="image").map(dark_half, on="image")
    assert order(pipe, mode).adopted.changed == (mode == "paper"), "by cost values are compared anyway"

    def bounded(before: Element, after: Element) -> bool:
        return bool(abs(int(before["image"].max()) - int(after["image"].max())) < 8)

    def asserted(before: Element, after: Element) -> None:
        assert bounded(before, after), "another range"

    for check, said in ((bounded, "check= returned False"), (asserted, "check= raised AssertionError: another range")):
        found = order(pipe, mode, check=check)
        assert not found.adopted.changed and said in refusals(found)


def test_an_operator_with_state_is_not_moved_and_nothing_crosses_it() -> None:
    def counting() -> Callable[[Any], Any]:
        seen = [0]

        def count(image: Any) -> Any:
            seen[0] += 1
            return image + np.uint8(seen[0] % 256)

        return count

    found = order(images().map(blur, on="image").map(counting(), on="image").map(half, on="image"), "paper")
    assert found.adopted.order == ("blur", "count", "half")
    assert "hold state" in found.adopted.fixed[0].reason
    vouched = images().map(blur, on="image").map(counting(), on="image", random=True).map(half, on="image")
    assert order(vouched, "paper").adopted.order == ("half", "blur", "count")


def test_an_order_that_keeps_other_elements_is_refused() -> None:
    pipe = images().map(lambda number: number + 1, on="number", name="shift")
    found = order(pipe.filter(lambda number: number % 2 == 1, on="number", name="odd"), "paper")
    assert found.proposed.order == ("odd", "shift") and not found.adopted.changed
    assert "it lets 0 elements through where the user's order lets 1" in refusals(found)


def test_random_operators_and_flat_maps_keep_their_places_to_each_other() -> None:
    def views(image: Any) -> list[Any]:
        return [image, image[::-1].copy()]

    def jitter(image: Any, rng: np.random.Generator) -> Any:
        return blur(image + np.uint8(rng.integers(9)))

    found = order(images().flat_map(views, on="image").map(jitter, on="image").map(half, on="image"), "paper")
    assert found.adopted.order == ("half", "views", "jitter")
    plain = order(images().flat_map(views, on="image").map(blur, on="image").map(half, on="image"), "paper")
    assert plain.adopted.order == ("half", "blur", "views")


def test_an_order_that_is_not_faster_is_refused() -> None:
    def reverse(image: Any) -> Any:
        return image[::-1]

    def first_rows(image: Any) -> Any:
        return image[:250]

    found = order(images().map(reverse, on="image").map(first_rows, on="image"))
    assert not found.adopted.changed


# --- strict ------------------------------------------------------------------------------------------------


def test_strict_exchanges_what_leaves_results_equal() -> None:
    def invert(image: Any) -> Any:
        for _ in range(20):
            image = 255 - (255 - (255 - image))
        return image

    def crop(image: Any) -> Any:
        return image[:64, :64].copy()

    found = order(images().map(invert, on="image").map(crop, on="image"), "strict")
    assert found.adopted.order == ("crop", "invert")
    assert found.measured is not None and found.measured.faster


def test_strict_keeps_what_changes_a_pixel() -> None:
    found = order(images().map(blur, on="image").map(half, on="image"), "strict")
    assert not found.adopted.changed
    assert any("not known to be equal" in entry.reason for entry in found.proposed.rejected)


def test_strict_gives_random_operators_the_same_numbers_either_way() -> None:
    def add(image: Any, rng: np.random.Generator) -> Any:
        for _ in range(30):
            image = image + np.uint8(rng.integers(9))
        return image

    def crop(image: Any) -> Any:
        return image[:64, :64].copy()

    assert order(images().map(add, on="image").map(crop, on="image"), "strict").adopted.order == ("crop", "add")


# --- bad input ---------------------------------------------------------------------------------------------


def test_an_empty_source_keeps_the_order_with_a_note() -> None:
    pipe = pecan.PecanPipeline(pecan.sources.Items([])).map(blur, on="image").map(half, on="image")
    found = ordering(pipe)
    assert not found.changed and found.plan == pipe.plan
    assert any("no element" in note for note in found.notes)


def test_too_few_elements_for_times_keep_the_order_by_cost_but_not_that_of_the_paper() -> None:
    few = pecan.PecanPipeline(pecan.sources.Items([{"image": np.zeros((64, 64, 3), np.uint8)}] * 3))
    pipe = few.map(blur, on="image").map(half, on="image")
    found = ordering(pipe)
    assert not found.changed and any("3 elements are too few" in note for note in found.notes)
    assert ordering(pipe, "paper").changed


def test_a_filter_that_lets_nothing_through_keeps_the_order_with_a_note() -> None:
    found = ordering(
        images().map(blur, on="image").filter(lambda n: n < 0, on="number", name="none").map(half, on="image")
    )
    assert not found.changed
    assert any(f"'none' let none of {ELEMENTS} elements through" in note for note in found.notes)


def test_time_that_is_over_keeps_the_order() -> None:
    pipe = images().map(blur, on="image").map(half, on="image")
    found = order_plan(OrderRequest(pipe.plan, elements=ELEMENTS, seconds=1e-6))
    assert not found.changed and found.notes


def test_an_error_in_the_sample_names_operator_and_element() -> None:
    def fragile(element: Element) -> Element:
        if element["number"] == 5:
            raise ValueError("broken")
        return element

    pipe = images().map(fragile).map(half, on="image")
    with pytest.raises(OpError, match=r"fragile failed on .*broken"):
        ordering(pipe)
    found = ordering(pipe, skip_bad=True)
    assert found.stretches[0].sample.elements == ELEMENTS - 1
    assert any("1 bad elements were left out" in note for note in found.notes)


def test_wrong_arguments_are_refused() -> None:
    pipe = images().map(blur, on="image").map(half, on="image")
    with pytest.raises(PlanError, match="mode must be one of"):
        OrderRequest(pipe.plan, mode=cast(Mode, "fast"))
    with pytest.raises(PlanError, match="a sample needs"):
        OrderRequest(pipe.plan, elements=0)


# --- in a pipeline -----------------------------------------------------------------------------------------


def configured(**options: Any) -> pecan.PecanPipeline:
    return images(config=pecan.Config(sample_elements=ELEMENTS, **options))


def test_a_job_runs_the_order_that_was_adopted_and_reports_it() -> None:
    seen: list[str] = []

    def note(name: str, fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noting(image: Any) -> Any:
            seen.append(name)
            return fn(image)

        return noting

    pipe = (
        configured().map(note("blur", blur), on="image", name="blur").map(note("half", half), on="image", name="half")
    )
    with pipe.batch(4).iter_batches(debug=True) as batches:
        assert seen == []  # the sample runs copies of the functions
        next(batches)
        (event,) = batches.report().events
    assert seen[:4] == ["half", "blur", "half", "blur"]
    assert event.kind == "reorder" and event.text.startswith("AutoOrder moved half before blur")
    assert "AutoOrder moved half before blur" in str(batches.report())


def test_a_pipeline_is_sampled_once() -> None:
    pipe = configured().map(blur, on="image").map(half, on="image").batch(4)
    first, second = (pipe.iter_batches(debug=True).report().events for _ in range(2))
    assert first == second and first
    assert re.search(r"1 +2 +half", pipe.explain())


def test_switched_off_nothing_is_sampled_or_told() -> None:
    pipe = configured(reorder="off").map(blur, on="image").map(half, on="image").batch(4)
    assert pipe.iter_batches(debug=True).report().events == ()


def test_an_error_in_the_sample_is_the_jobs_to_raise() -> None:
    def fragile(element: Element) -> Element:
        raise ValueError("broken")

    pipe = configured().map(fragile).map(half, on="image").batch(4)
    batches = pipe.iter_batches(debug=True)
    (event,) = batches.report().events
    assert "its sample ended with OpError: fragile failed on" in event.text
    with pytest.raises(ValueError, match="broken"):
        next(batches)
    with pytest.raises(OpError, match="fragile failed on"):
        pipe.explain()


def test_a_wrong_column_name_is_told_before_a_job_begins() -> None:
    pipe = configured().map(blur, on="picture").map(half, on="image").batch(4)
    with pytest.raises(ColumnError, match="there is no column 'picture'"):
        pipe.iter_batches(debug=True)


def test_the_check_of_a_pipeline_is_asked() -> None:
    pipe = configured(reorder_check=lambda before, after: False).map(blur, on="image").map(half, on="image").batch(4)
    (event,) = pipe.iter_batches(debug=True).report().events
    assert "left the order as it is written: check= returned False" in event.text


@pytest.mark.parametrize(
    "wrong", [{"reorder": "fast"}, {"sample_elements": 0}, {"sample_seconds": 0}, {"reorder_check": 3}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=next(iter(wrong))):
        pecan.Config(**wrong)
