"""Reduced copies: smaller photographs that are kept in place of large ones, by the user's own doing and AutoOrder's."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from skimage import data

import pecan_ray as pecan
from pecan_ray import images
from pecan_ray.autoorder import copies_tried, keeping
from pecan_ray.autoorder.copies_tried import CopiesKept, CopiesTried, try_copies, with_copies_if_better
from pecan_ray.autoorder.job_order import rewritten
from pecan_ray.autoorder.keeping import Kept, Promise, prefix_key
from pecan_ray.autoorder.order_request import JobSize, OrderRequest
from pecan_ray.autoorder.push_down import push_down
from pecan_ray.autoorder.reduced_copies import can_keep_copies, copy_place, kinds
from pecan_ray.averaging import averaged
from pecan_ray.cache.store import EntryStore
from pecan_ray.engines.inprocess import run_inprocess, run_produced
from pecan_ray.engines.users_order import UsersOrder, given_copies, orders_of
from pecan_ray.errors import PlanError
from pecan_ray.options import Cache, EngineName
from pecan_ray.orientation import orientation
from pecan_ray.plan.operators import Map, Plan

CROP, RESIZE = images.RandomCrop(area=(0.5, 1.0)), images.Resize(64, 64)
DECODE = images.Decode()
TRIES = 4


def photograph(height: int, width: int, name: str = "coffee") -> Any:
    return cv2.resize(getattr(data, name)(), (width, height))


def encoded(height: int, width: int, suffix: str = ".jpg", name: str = "coffee") -> bytes:
    done, file = cv2.imencode(suffix, cv2.cvtColor(photograph(height, width, name), cv2.COLOR_RGB2BGR))
    assert done
    return bytes(file)


def pipeline(files: list[bytes], *ops: Any, engine: EngineName = "python", **config: Any) -> pecan.PecanPipeline:
    """Functions on photographs; None: a point."""
    items = [{"image": file, "number": number} for number, file in enumerate(files)]
    pipe = pecan.PecanPipeline(
        pecan.sources.Items(items, split_rows=4), name="album", engine=engine, config=pecan.Config(**config)
    )
    for op in ops:
        pipe = pipe.autocache() if op is None else pipe.map(op, on="image")
    return pipe


def made(plan: Plan) -> list[Any]:
    return [np.asarray(element["image"]) for element in run_inprocess(plan)]


def apart(one: Any, other: Any) -> float:
    return float(np.abs(one.astype(int) - other).mean())


def alike(one: Any, other: Any) -> bool:
    """Tell whether two images show the same, but for what is finer than a few pixels."""
    return apart(*(cv2.GaussianBlur(image, (0, 0), 3) for image in (one, other))) < 6


# --- images.Reduce -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_an_encoded_photograph_becomes_a_jpeg_of_its_shape(suffix: str) -> None:
    copy = images.Reduce(200)(encoded(600, 900, suffix))
    assert images.jpeg_shape(copy) == (133, 200)
    assert apart(images.decoded(copy), averaged(photograph(600, 900), (133, 200))) < 4


def test_what_is_no_larger_stays_as_it_is() -> None:
    for file in (encoded(120, 200), encoded(120, 200, ".png")):
        assert images.Reduce(200)(file) == file
    pixels = photograph(120, 200)
    assert images.Reduce(200)(pixels) is pixels


@pytest.mark.parametrize(("shape", "dtype"), [((400, 300, 3), np.uint8), ((300, 400, 1), np.float32), ((9, 600), int)])
def test_pixels_become_the_means_of_their_areas(shape: tuple[int, ...], dtype: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.int16 if dtype is int else dtype)
    small = images.Reduce(100)(pixels)
    assert max(small.shape[:2]) == 100 and small.shape[2:] == pixels.shape[2:] and small.dtype == pixels.dtype
    assert abs(float(small.mean()) - float(pixels.mean())) < 2


def test_what_is_no_image_is_an_error_as_with_the_decoder() -> None:
    for fn in (images.Reduce(10), images.ReducedCopy(100), DECODE):
        for file in (b"", b"no image", encoded(90, 90)[:30]):
            with pytest.raises(ValueError, match="not an image"):
                fn(file)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"at_most": 0}, "at_most=...) must be a positive whole number, but got 0"),
        ({"at_most": 1.5}, "at_most"),
        ({"at_most": 9, "quality": 101}, "quality=...) must be a whole number from 1 to 100, but got 101"),
    ],
)
def test_what_cannot_be_a_size_or_a_quality_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError) as error:
        images.Reduce(**wrong)
    assert said in error.value.message


@pytest.mark.parametrize("suffix", ["JPEG", "PNG", "WEBP"])
def test_an_encoded_photograph_is_turned_as_before(suffix: str) -> None:
    """No decoder here turns it; who shows it, or another library, does."""
    exif = Image.Exif()
    exif[0x010F], exif[0x0112] = "a maker", 6
    file = io.BytesIO()
    Image.fromarray(photograph(300, 450)).save(file, suffix, exif=exif)
    for encoded_file in (file.getvalue(), bytearray(file.getvalue())):
        copy = images.Reduce(200)(encoded_file)
        turned = Image.open(io.BytesIO(copy))
        assert turned.size == (200, 133) and turned.getexif()[0x0112] == 6
        assert images.jpeg_shape(copy) == (133, 200) and images.decoded(copy).shape == (133, 200, 3)
    assert not Image.open(io.BytesIO(images.Reduce(200)(encoded(300, 450)))).getexif()


def test_exif_data_that_are_broken_say_nothing() -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    for suffix in ("JPEG", "PNG", "WEBP"):
        file = io.BytesIO()
        Image.fromarray(photograph(20, 30)).save(file, suffix, exif=exif)
        whole = file.getvalue()
        assert orientation(whole) == 8
        assert {orientation(whole[:end]) for end in range(len(whole))} <= {1, 8}
    for number in (0, 9, 700):
        exif[0x0112] = number
        Image.fromarray(photograph(20, 30)).save(file := io.BytesIO(), "JPEG", exif=exif)
        assert orientation(file.getvalue()) == 1


def test_encoded_photographs_may_be_in_any_memory() -> None:
    file = encoded(300, 450)
    for same in (bytearray(file), memoryview(file), np.frombuffer(file, np.uint8)):
        assert images.Reduce(200)(same) == images.Reduce(200)(file)
        assert images.Reduce(450)(same) is same and DECODE(same).shape == (300, 450, 3)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((300, 450, 3), one) for one in ("int32", "int64", "uint32", "bool", "float16", ">u2")]
    + [
        ((2, 300, 450, 3), "uint8"),
        ((0, 450, 3), "uint8"),
        ((300, 450, 600), "uint8"),
        ((300,), "float32"),
        ((), "u1"),
    ],
)
def test_arrays_that_cannot_be_resized_are_named(shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"shape {shape} and dtype {np.dtype(dtype)}")):
        images.Reduce(200)(np.zeros(shape, dtype))


def test_the_same_random_numbers_give_the_same_part_of_a_copy() -> None:
    whole = images.decoded(encoded(900, 1200))
    copy = images.Reduce(600)(whole)
    for number in range(20):
        parts = [RESIZE(CROP(image, np.random.default_rng(number))) for image in (whole, copy)]
        assert apart(*parts) < 8


def test_a_decoder_takes_over_what_reduces() -> None:
    pipe = pipeline([encoded(900, 1200)], DECODE, images.Reduce(300))
    plan, [done] = push_down(pipe.plan, "python")
    assert done.rule == "decode+reduce" and done.reduces
    [before], [after] = made(pipe.plan), made(plan)
    assert before.shape == after.shape == (225, 300, 3) and apart(before, after) < 2


@pytest.mark.parametrize("of_pixels", [False, True])
def test_both_engines_make_copies_of_one_size(of_pixels: bool) -> None:
    files = [encoded(300, 450), encoded(90, 120), encoded(301, 77)]
    ops = (DECODE, images.Reduce(150)) if of_pixels else (images.Reduce(150), DECODE)
    sides = [
        [element["image"] for element in pipeline(files, *ops, engine=engine).iter_batches(debug=True)]
        for engine in ("python", "tensorflow")
    ]
    for one, other in zip(*sides, strict=True):
        assert np.shape(one) == np.shape(other) and apart(np.asarray(one), np.asarray(other)) < 12


# --- where a plan can keep them ------------------------------------------------------------------------------


@given(st.integers(300, 3000), st.integers(300, 3000), st.floats(0.02, 1.0), st.integers(8, 300), st.integers(8, 300))
def test_the_smallest_part_of_a_copy_covers_the_target(
    height: int, width: int, area: float, rows: int, columns: int
) -> None:
    crop, resize = images.RandomCrop(area=(area, 1.0)), images.Resize(rows, columns)
    small = images.ReducedCopy(images.pixels_for(crop, resize)).size((height, width))
    assert small[0] <= height and small[1] <= width
    if small != (height, width):
        pixels = small[0] * small[1] * area
        assert round(np.sqrt(pixels / crop.aspect[1])) >= rows and round(np.sqrt(pixels * crop.aspect[0])) >= columns
        assert abs(small[0] / small[1] / (height / width) - 1) < 2 / min(small)


@given(st.integers(100, 600), st.integers(4000, 40_000), st.integers(0, 2**32))
def test_no_part_is_enlarged_that_was_not(height: int, width: int, seed: int) -> None:
    """Also where none of ten attempts fits, and the part is the whole."""
    crop, resize = images.RandomCrop(), images.Resize(224, 160)
    place = copy_place(pipeline([], DECODE, None, crop, resize).plan)
    assert place is not None
    copy = place.ops[0]
    assert isinstance(copy, Map) and isinstance(copy.fn, images.ReducedCopy)
    small = copy.fn.size((height, width))
    whole, part = (crop.box(shape, np.random.default_rng(seed))[2:] for shape in ((height, width), small))
    for before, after, wanted in zip(whole, part, (224, 160), strict=True):
        assert after >= min(before, wanted), (small, whole, part)


def test_a_panorama_is_as_high_as_the_target() -> None:
    crop, resize = images.RandomCrop(), images.Resize(224, 224)
    copy = images.ReducedCopy(images.pixels_for(crop, resize), (224, 224))
    assert copy.size((700, 7000)) == (290, 2892) and copy.size((500, 9000)) == (224, 4032)
    assert copy.size((200, 9000)) == (200, 9000)


def test_what_no_jpeg_can_be_of_stays_as_it_is() -> None:
    file = encoded(4, 300_000, ".png")
    copy = images.ReducedCopy(1_000_000)
    assert max(copy.size((4, 300_000))) > 65_500 and copy(file) is file
    with pytest.raises(ValueError, match="could not write"):
        images.Reduce(100_000)(file)
    assert images.jpeg_shape(images.Reduce(1000)(file)) == (1, 1000)


def test_a_point_between_the_decoder_and_a_random_crop_can_keep_copies() -> None:
    for behind in ((CROP, RESIZE), (CROP, images.RandomFlip(), images.RandomRotate(), RESIZE)):
        place = copy_place(pipeline([], DECODE, None, *behind, images.RandomFlip()).plan)
        assert place is not None and place.name == "Decode as reduced copies"
        assert [op.name for op in place.ops] == ["Decode", "autocache", "RandomCrop"]
        _, told = rewritten(pipeline([], DECODE, None, *behind).plan, "python", (place.name,))
        assert "(rule reduced copies)" in told[0] and f"{place.pixels:,} pixels" in told[0]


@pytest.mark.parametrize(
    "ops",
    [
        (DECODE, CROP, None, RESIZE),
        (None, DECODE, CROP, RESIZE),
        (DECODE, None, RESIZE),
        (DECODE, None, images.CenterCrop(64, 64), RESIZE),
        (DECODE, None, CROP, images.CenterCrop(64, 64), RESIZE),
        (DECODE, None, CROP),
        (DECODE, None),
    ],
)
def test_where_other_pixels_are_needed_none_are_kept(ops: tuple[Any, ...]) -> None:
    plan = pipeline([], *ops).plan
    assert copy_place(plan) is None
    assert rewritten(plan, "python", ("Decode as reduced copies",)) == (plan, ())


def test_what_keeps_its_position_or_is_on_another_column_is_left_alone() -> None:
    pipe = pipeline([], DECODE, None)
    for options in ({"on": "other"}, {"on": "image", "keep_position": True}, {"on": "image", "processes": True}):
        assert copy_place(pipe.map(CROP, **options).map(RESIZE, on="image").plan) is None


def test_an_order_whose_crop_is_another_than_the_users_keeps_none() -> None:
    ordered = pipeline([], DECODE, None, CROP, images.RandomFlip(), RESIZE).plan
    users = pipeline([], DECODE, None, images.RandomFlip(), CROP, RESIZE).plan
    assert can_keep_copies(ordered, ordered) is not None and can_keep_copies(ordered, users) is None


@pytest.fixture(scope="module")
def large() -> list[bytes]:
    names = ("coffee", "astronaut", "chelsea")
    return [encoded(900 + 20 * number, 1200, name=names[number % 3]) for number in range(12)]


def test_results_are_those_of_whole_photographs_but_for_pixels(large: list[bytes]) -> None:
    pipe = pipeline(large, DECODE, None, CROP, images.RandomFlip(), RESIZE)
    usual = list(run_inprocess(pipe.plan))
    for kind, names in (("copies", ["RandomCrop"]), ("pixels", ["RandomCrop", "RandomFlip", "Resize"])):
        plan, told = rewritten(pipe.plan, "python", (f"Decode as reduced {kind}",))
        assert [op.name for op in plan.ops] == ["Decode", "autocache", *names] and len(told) == 1
        for before, after in zip(usual, run_inprocess(plan), strict=True):
            assert before["number"] == after["number"] and alike(before["image"], after["image"])


def test_entries_of_copies_are_others_than_those_of_whole_photographs(large: list[bytes]) -> None:
    plans = [pipeline(large, fn).plan for fn in (DECODE, images.ReducedCopy(100), images.ReducedCopy(101))]
    plans += [pipeline(large, fn).plan for fn in (images.Reduce(100), images.Reduce(100, quality=80))]
    assert len({prefix_key(plan, "python", 0) for plan in plans}) == len(plans)


# --- elements that fail --------------------------------------------------------------------------------------


def test_the_users_order_beside_it_is_given_the_copies(large: list[bytes]) -> None:
    users = pipeline(large, DECODE, None, CROP, RESIZE).plan
    running, _ = rewritten(users, "python", ("Decode as reduced copies",))
    given_users = given_copies(users, running)
    assert [op.name for op in given_users.ops] == ["Decode", "autocache", "RandomCrop", "Resize"]
    for one, other in zip(made(given_users), made(running), strict=True):
        assert one.shape == (64, 64, 3) and alike(one, other)
    assert given_copies(users, users) == users


def test_the_users_order_makes_the_pixels_that_entries_hold(large: list[bytes]) -> None:
    users = pipeline(large, DECODE, None, CROP, RESIZE).plan
    running, _ = rewritten(users, "python", ("Decode as reduced pixels",))
    assert given_copies(users, running) == running
    reducing = pipeline(large, DECODE, images.Reduce(100), None, CROP, RESIZE).plan
    merged, [done] = push_down(reducing, "python", ["Decode"])
    assert merged.ops[0].name == "Reduce" and done.rule == "decode+reduce"
    assert given_copies(reducing, merged) == reducing, "its own functions make them"


def test_an_element_that_fails_behind_copies_goes_through_the_users_order(large: list[bytes]) -> None:
    pipe = pipeline(large, DECODE, None, CROP, RESIZE)
    running, _ = rewritten(pipe.plan, "python", ("Decode as reduced copies",))

    def fails(encoded: Any, rng: Any) -> Any:
        raise ValueError("planted")

    broken = tuple(Map(name=op.name, fn=fails, on="image") if op.name == "RandomCrop" else op for op in running.ops)
    running = Plan(head=running.head, ops=broken)
    order = UsersOrder(running, orders_of(pipe.plan), lambda: pipe.plan)
    found = [one.columns["image"] for one in run_produced(running, users_order=order) if one.rows]
    assert len(found) == len(large) and order.taken and "planted" in order.said
    assert all(image.shape[-3:] == (64, 64, 3) for image in found)


def test_a_broken_photograph_is_the_decoders_error(large: list[bytes]) -> None:
    users = pipeline([b"\xff\xd8 broken"], DECODE, None, CROP, RESIZE).plan
    running, _ = rewritten(users, "python", ("Decode as reduced copies",))
    said = []
    for plan in (users, running):
        with pytest.raises(ValueError, match="not an image") as error:
            list(run_inprocess(plan))
        said.append((str(error.value), error.value.__notes__))
    assert said[0] == said[1]


# --- the choice ----------------------------------------------------------------------------------------------


def kept(plan: Plan, seconds: float) -> Kept:
    return Kept(plan, said=(f"{seconds} s",), promise=Promise(seconds, 12, "note", Cache()))


def test_they_are_kept_where_that_is_faster_and_results_may_differ_so(large: list[bytes], tmp_path: Path) -> None:
    users = pipeline(large, DECODE, None, CROP, RESIZE).plan
    place = copy_place(users)
    assert place is not None
    plans = [rewritten(users, "python", (one.name,))[0] for one in kinds(place)]
    request, cache = OrderRequest(users, seconds=60.0), Cache(tmp_path)

    def choose(usual_s: float, jpegs_s: float, pixels_s: float, asked: OrderRequest = request) -> Kept:
        found = zip(kinds(place), plans, (jpegs_s, pixels_s), strict=True)
        copies = [CopiesKept(one, plan, kept(plan, seconds)) for one, plan, seconds in found]
        return with_copies_if_better(kept(users, usual_s), copies, asked, cache)

    taken = choose(3.0, 1.0, 2.0)
    assert taken.plan is plans[0] and taken.decoders == ("Decode as reduced copies",)
    assert "1 s an epoch as JPEGs, 2 s an epoch as pixels, against 3 s without them" in taken.said[-1]
    assert "'image': 12 of 12 elements" in taken.said[-1]
    assert choose(3.0, 2.0, 1.0).decoders == ("Decode as reduced pixels",)
    slower = choose(1.02, 1.0, 1.0)
    assert slower.plan is users and slower.decoders == () and "no reduced copies: 1 s" in slower.said[-1]
    assert choose(3.0, 1.0, 2.0, OrderRequest(users, seconds=1e-9)).plan is plans[0], "what was tried is written down"
    checked = choose(3.0, 1.0, 2.0, OrderRequest(users, seconds=60.0, check=lambda before, after: False))
    assert checked.plan is users and any("check= returned False" in text for text in checked.said)


def test_what_was_tried_is_forgotten_with_the_data_and_where_it_cannot_be_read(
    large: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Plan] = []

    def count(request: OrderRequest, copies: Plan) -> CopiesTried:
        tried.append(copies)
        return CopiesTried("planted")

    monkeypatch.setattr(copies_tried, "try_copies", count)
    for number, file in enumerate(large[:2]):
        (tmp_path / "album" / "one").mkdir(parents=True, exist_ok=True)
        (tmp_path / "album" / "one" / f"{number}.jpg").write_bytes(file)
        pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(tmp_path / "album"))
        for op in (DECODE, None, CROP, RESIZE):
            pipe = pipe.autocache() if op is None else pipe.map(op, on="image")
        place = copy_place(pipe.plan)
        assert place is not None
        plan, _ = rewritten(pipe.plan, "python", (place.name,))
        cache = Cache(tmp_path / "cache")
        copies = [CopiesKept(place, plan, kept(plan, 1.0))]
        before = len(tried)
        for _ in range(2):
            found = with_copies_if_better(kept(pipe.plan, 3.0), copies, OrderRequest(pipe.plan), cache)
            assert "planted" in found.said[1]
        assert len(tried) == before + 1, "once for each state of the data"
        for written in ("no JSON", "[]", '{"refused": ""}', '{"refused": "", "told": 3}'):
            with EntryStore(cache.folder, max_bytes=cache.max_bytes) as store:
                store.note(copies_tried.note_of(OrderRequest(pipe.plan), plan), written)
            with_copies_if_better(kept(pipe.plan, 3.0), copies, OrderRequest(pipe.plan), cache)
        assert len(tried) == before + 5


def test_a_difference_that_may_not_be_refuses_them(large: list[bytes]) -> None:
    users = pipeline(large, DECODE, None, CROP, RESIZE).map(lambda image: {"mean": int(image.mean())}, on="image").plan
    copies, _ = rewritten(users, "python", ("Decode as reduced copies",))
    assert "mean" in try_copies(OrderRequest(users, seconds=60.0), copies).refused
    users = pipeline(large, DECODE, None, CROP, RESIZE).plan
    copies, _ = rewritten(users, "python", ("Decode as reduced copies",))
    refusing = OrderRequest(users, seconds=60.0, check=lambda before, after: False)
    assert try_copies(refusing, copies).refused == "check= returned False"
    few = pipeline(large[:3], DECODE, None, CROP, RESIZE).plan
    copies, _ = rewritten(few, "python", ("Decode as reduced copies",))
    assert "no time" in try_copies(OrderRequest(few, seconds=60.0), copies).refused


def test_a_job_keeps_them_and_explain_tells_it(large: list[bytes], tmp_path: Path) -> None:
    pipe = pipeline(large, DECODE, None, CROP, RESIZE, cache=Cache(tmp_path), sample_seconds=60.0).batch(4)
    text = str(pipe.explain())
    assert "Decode keeps large photographs at 'autocache' as " in text, text
    assert "autocache: reduced copies: " in text and "'number': equal on" in text
    ordered = pipe._order.ordered(skip_bad=False, once=False, job=None)
    assert [op.name for op in ordered.plan.ops][:3] == ["Decode", "autocache", "RandomCrop"]
    assert ordered.decoders[-1].startswith("Decode as reduced ") and ordered.reorder_after_epoch is None
    exact = pipeline(large, DECODE, None, CROP, RESIZE, cache=Cache(tmp_path), reorder="strict").batch(4)
    assert "reduced copies" not in str(exact.explain())


def test_a_state_and_a_file_pin_them(large: list[bytes], tmp_path: Path) -> None:
    config: dict[str, Any] = {"cache": Cache(tmp_path / "cache"), "sample_seconds": 60.0}
    pipe = pipeline(large, DECODE, None, CROP, RESIZE, **config)
    names, copies = (("RandomCrop", "Resize"),), ("Decode as reduced copies",)
    pinned = pipe._order.pinned(names, copies, cuts_elements=False).ordered(skip_bad=False, once=True, job=None)
    assert [op.name for op in pinned.plan.ops] == ["Decode", "autocache", "RandomCrop"]
    assert pinned.decoders == copies and any("rule reduced copies" in text for text in pinned.said)
    whole = pipe._order.pinned(names, (), cuts_elements=False).ordered(skip_bad=False, once=True, job=None)
    assert [op.name for op in whole.plan.ops] == ["Decode", "autocache", "RandomCrop", "Resize"]
    path = tmp_path / "order.json"
    path.write_text(json.dumps({"format": 1, "orders": [list(names[0])], "decoders": list(copies)}))
    from_file = pipeline(large, DECODE, None, CROP, RESIZE, order_file=path, **config)
    assert from_file._order.ordered(skip_bad=False, once=True, job=None).decoders == copies
    other = pipeline(large, None, DECODE, CROP, RESIZE, order_file=path, **config)
    path.write_text(json.dumps({"format": 1, "orders": [["Decode", *names[0]]], "decoders": list(copies)}))
    with pytest.raises(PlanError, match="lets 'Decode as reduced copies' take over"):
        other._order.ordered(skip_bad=False, once=True, job=None)


def test_what_pinned_pixels_take_is_sampled_with_them(large: list[bytes], tmp_path: Path) -> None:
    pipe = pipeline(large, DECODE, None, CROP, RESIZE, cache=Cache(tmp_path), sample_seconds=60.0)
    pinned = pipe._order.pinned((("RandomCrop", "Resize"),), ("Decode as reduced pixels",), cuts_elements=False)
    ordering = pinned._ordering(skip_bad=False, job=None, here=True)
    [choice] = pinned._keeps(pipe.plan, ordering, JobSize(1.0, 1.0)).choices
    [nbytes] = [option.nbytes for option in choice.options if option.point == "autocache"]
    place = copy_place(pipe.plan)
    assert place is not None and nbytes < 2 * 3 * place.pixels * len(large), "all pixels are 99 times as many"


def test_copies_that_no_entry_may_hold_are_not_kept(
    large: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A split has four photographs: of all pixels 13 MB, of reduced ones 130 KB, of JPEGs less."""
    place = copy_place(pipeline(large, DECODE, None, CROP, RESIZE).plan)
    assert place is not None
    config: dict[str, Any] = {"cache": Cache(tmp_path), "sample_seconds": 60.0}
    pipe = pipeline(large, DECODE, None, CROP, RESIZE, **config).batch(4)
    monkeypatch.setattr(keeping, "MOST_ENTRY_BYTES", 3 * 3 * place.pixels)
    ordered = pipe._order.ordered(skip_bad=False, once=False, job=None)
    assert "Decode as reduced pixels" not in ordered.decoders
    [said] = [text for text in ordered.said if "not Decode as reduced pixels" in text]
    assert "nothing of it can be kept" in said
    monkeypatch.setattr(keeping, "MOST_ENTRY_BYTES", 1000)
    ordered = pipe._order.ordered(skip_bad=False, once=False, job=None)
    assert not any("as reduced" in name for name in ordered.decoders)
    assert ordered.plan == pipe.plan and sum("nothing of it can be kept" in text for text in ordered.said) == 4


def test_a_rewritten_order_is_the_plan_itself_where_nothing_is_named(large: list[bytes]) -> None:
    plan = pipeline(large, DECODE, None, CROP, RESIZE).plan
    assert rewritten(plan, "python", ()) == (plan, ())
