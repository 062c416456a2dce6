"""What AutoOrder makes of pipelines of every kind, as `explain` tells it: which it exchanges, and which never, and why.

Time is a meter that an operator's call moves by the bytes that it is given, so no load on a machine decides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.accepted import AS_WRITTEN, Ordering
from pecan_ray.autoorder.exchange_check import ExchangeCheck
from pecan_ray.autoorder.explain import explain
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.sample import sample_op_sequence
from pecan_ray.plan.op_sequences import op_sequences
from pecan_ray.plan.splits import Array, Element
from pecan_ray.reorder import Mode, ProfiledOp
from tests.unit.autoorder.meter import Stored, count_calls

WRITTEN = Path(__file__).with_name("decided.txt")
"""A paragraph for each case; `python -m tests.unit.autoorder.test_autoorder_decided` writes all anew."""
COUNT, SIDE = 24, 64
pytestmark = pytest.mark.usefixtures("on_the_meter")


def half(image: Array) -> Array:
    """Halve the sides by means of four."""
    mean = sum(image[top::2, left::2].astype(np.float64) for top in (0, 1) for left in (0, 1)) / 4
    return np.asarray(np.rint(mean) if image.dtype.kind == "u" else mean).astype(image.dtype)


def gamma(image: Array) -> Array:
    return np.rint(255 * (image / 255.0) ** 0.8).astype(image.dtype)


def blurred(image: Array) -> Array:
    made: Any = image
    for axis in (0, 1):
        made = np.mean([np.roll(made, shift, axis) for shift in range(-2, 3)], axis=0)
    return np.asarray(np.rint(made).astype(image.dtype))


def without_square(image: Array, rng: np.random.Generator) -> Array:
    """Blacken 12 x 12 pixels somewhere."""
    top, left = (int(rng.integers(0, side - 12)) for side in image.shape[:2])
    image = image.copy()
    image[top : top + 12, left : left + 12] = 0
    return image


def marked(image: Array) -> Array:
    """Write a known pattern into the lowest bits."""
    pattern = np.random.default_rng(9).integers(0, 2, (SIDE, SIDE, 3), np.uint8)
    return np.asarray(image & np.uint8(254) | pattern[: image.shape[0], : image.shape[1]])


def red_where_bright(image: Array) -> Array:
    made = gamma(image)
    made[image[..., 0] > 200] = (255, 0, 0)
    return made


def hide(element: Element) -> Element:
    """Blacken what the boxes hold."""
    image = element["image"].copy()
    for left, top, right, bottom in element["boxes"]:
        image[top:bottom, left:right] = 0
    return {**element, "image": image}


def hide_in_the_last(element: Element) -> Element:
    image = gamma(element["image"])
    if element["number"] == COUNT - 1:
        image[8:20, 8:40] = 0
    return {**element, "image": image}


def mirror_both(element: Element, rng: np.random.Generator) -> Element:
    step = -1 if rng.random() < 0.5 else 1
    return {**element, **{name: element[name][:, ::step].copy() for name in ("image", "mask")}}


def fragile(element: Element) -> Element:
    if element["number"] == 5:
        raise ValueError("broken")
    return element


def demanding(image: Array) -> Array:
    if image.shape[0] < SIDE:
        raise ValueError("too small")
    return image // 2


SHARED = {"flipped": False}


def draw(image: Array, rng: np.random.Generator) -> Array:
    SHARED["flipped"] = bool(rng.random() < 0.5)
    return image[:, ::-1] // 2 if SHARED["flipped"] else image // 2


def follow(image: Array) -> Array:
    return (image[:, ::-1] if SHARED["flipped"] else image)[:32, :32].copy()


def counted(image: Array, calls: list[int] = [0]) -> Array:  # noqa: B006 - the state that is meant
    calls[0] += 1
    return image + np.uint8(calls[0] % 3)


NAMED = (half, gamma, blurred, without_square, marked, red_where_bright, hide, hide_in_the_last, mirror_both, fragile)
OPERATORS: dict[str, Callable[..., Any]] = {
    **{fn.__name__: fn for fn in (*NAMED, demanding, draw, follow, counted)},
    "corner": lambda image: image[3:35, 3:35].copy(),
    "trimmed": lambda image: image[5:-5, 5:-5],
    "fitted": lambda image: image[:32, :32].copy(),
    "dim": lambda image: np.rint(image * 0.7).astype(image.dtype),
    "threshold": lambda image: np.where(image > 128, np.uint8(255), image),
    "shaded": lambda image: np.rint(image * np.linspace(0.2, 1, len(image))[:, None, None]).astype(image.dtype),
    "noisy": lambda image, rng: np.clip(image + rng.normal(0, 12, image.shape), 0, 255).astype(np.uint8),
    "mirror": lambda image, rng: image[:, ::-1].copy() if rng.random() < 0.5 else image,
    "wider": lambda image: image.astype(np.float32),
    "narrow": lambda image: half(image).astype(np.uint8),
    "grey": lambda image: image.mean(axis=-1),
    "by_numpy": lambda image: image // 2 + np.uint8(np.random.randint(9)),
    "by_python": lambda image: image[:32, :32] + np.uint8(random.randrange(9)),
    "of_the_epoch": lambda image, epoch: image + np.uint8(epoch),
    "half_mask": lambda mask: mask[::2, ::2].copy(),
    "next_number": lambda number: number + 1,
    "with_boxes": lambda element: {**element, "boxes": np.array([[4, 8, 30, 40]], np.int32)},
    "with_mask": lambda element: {**element, "mask": element["image"][..., 0] > 128},
    "selected": lambda element: {"image": element["image"]},
    "seldom": lambda element: {
        **element,
        "image": gamma(element["image"]) if element["number"] % 10 == 9 else element["image"],
    },
    "without_tags": lambda text: text.replace("<p>", ""),
    "upper": lambda text: text.upper(),
    "cut": lambda text: text[:1000],
    "first_letters": lambda text: text[:100],
    "parsed": lambda text: np.frombuffer(text.encode(), np.uint8),
    "scale": lambda rows: (rows - np.float32(0.5)) / np.float32(2),
    "clip": lambda rows: np.clip(rows, -1, 1),
    "centre": lambda rows: rows - rows.mean(),
    "random_scale": lambda rows: rows * np.float32(np.random.random()),
    "first_numbers": lambda text: text[:1000].copy(),
}
FILTERS: dict[str, Callable[..., Any]] = {
    "bright": lambda image: bool(image.mean() > 88),
    "odd": lambda number: bool(number % 2),
    "none": lambda number: bool(number < 0),
}
FLAT_MAPS: dict[str, Callable[..., Any]] = {
    "views": lambda element: [element, {**element, "image": element["image"][::-1].copy()}],
}


def picture(seed: int) -> Array:
    """Smooth shapes with edges."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    waves = sum(np.sin(2 * np.pi * (a * x + b * y + c)) for a, b, c in rng.uniform(0, 3, (6, 3)))
    made = 128 + 20 * np.stack([waves, np.roll(waves, 9, 0), (x > 0.4) * 4.0 + y - 2], axis=-1)
    return np.asarray(np.clip(made, 0, 255).astype(np.uint8))


PICTURES = [{"image": picture(n), "number": np.int64(n), "name": f"picture {n}"} for n in range(COUNT)]
NOISE = [{"image": np.random.default_rng(n).integers(0, 256, (SIDE, SIDE, 3), np.uint8)} for n in range(COUNT)]
TEXTS = [{"text": "<p>" * (n % 5) + "word " * (1000 + 9 * n)} for n in range(COUNT)]
ROWS = [{"rows": np.random.default_rng(n).normal(size=99).astype(np.float32)} for n in range(COUNT)]
LONG = [{"rows": np.full(20_000, n, np.float32)} for n in range(COUNT)]
SHORT = [{"text": "word " * 60 + "x" * n} for n in range(COUNT)]


def through(names: str, items: Sequence[Element] = PICTURES, **options: Any) -> pecan.PecanPipeline:
    """Run items through operators, each on the column that its argument is named by."""
    pipe = pecan.PecanPipeline(Stored(items))
    for name in names.split(" -> "):
        kind = next(one for one in (OPERATORS, FILTERS, FLAT_MAPS) if name in one)
        column = kind[name].__code__.co_varnames[0]
        on = None if column == "element" else column
        add = pipe.map if kind is OPERATORS else pipe.filter if kind is FILTERS else pipe.flat_map
        pipe = add(kind[name], on=on, name=name, **options)
    return pipe


EXCHANGED: dict[str, pecan.PecanPipeline] = {
    "values are rounded elsewhere": through("dim -> half"),
    "little of what they do changes": through("gamma -> half"),
    "a cut behind random flips": through("mirror -> dim -> corner"),
    "one of two goes forward": through("blurred -> dim -> half"),
    "a crop stays before what fits": through("trimmed -> dim -> fitted"),
    "a filter by another column": through("dim -> odd"),
    "capitals of the first words": through("upper -> cut", TEXTS),
    "random numbers stay behind views": through("views -> mirror -> half"),
    "a bad element is left out": through("fragile -> half -> dim"),
    "behind a batch nothing is sampled": through("dim -> half").batch(4).map(half, on="image", name="of_batches"),
}
IN_ROWS: dict[str, pecan.PecanPipeline] = {"arithmetic on tiny rows": through("scale -> clip", ROWS).batch(4)}
NEVER: dict[str, pecan.PecanPipeline] = {
    "a blur": through("blurred -> half"),
    "noise": through("noisy -> half"),
    "a square": through("without_square -> half"),
    "a threshold": through("threshold -> half"),
    "few values become others": through("red_where_bright -> half"),
    "a mark in the lowest bits": through("marked -> trimmed", NOISE),
    "boxes beside an image": through("with_boxes -> hide -> half"),
    "a filter by the image": through("dim -> bright"),
    "a filter by what is changed": through("next_number -> odd"),
    "a mask of the image": through("noisy -> with_mask -> mirror_both -> half_mask -> half"),
    "columns that are selected": through("selected -> half"),
    "two cuts": through("trimmed -> half"),
    "seldom changed": through("seldom -> half"),
    "hidden in the last element": through("hide_in_the_last -> half"),
    "tags taken away": through("without_tags -> cut", TEXTS),
    "a variable of both": through("draw -> follow"),
    "state": through("counted -> half"),
    "one generator each": through("by_numpy -> by_python"),
    "the epoch": through("of_the_epoch -> half"),
    "views of unlike shade": through("views -> shaded -> half"),
    "views and random numbers": through("views -> mirror"),
    "what needs the whole": through("demanding -> half"),
    "another type": through("wider -> narrow"),
    "text becomes numbers": through("upper -> parsed -> first_numbers", TEXTS),
    "fewer dimensions": through("dim -> grey -> fitted"),
    "large rows": through("scale -> clip", LONG).batch(4),
    "a mean of tiny rows": through("scale -> centre -> clip", ROWS).batch(4),
    "random numbers of tiny rows": through("random_scale -> clip", ROWS).batch(4),
    "a place that is kept": through("dim -> half", keep_position=True),
    "nothing to gain": through("half -> dim"),
    "next to nothing is saved": through("upper -> first_letters", SHORT),
    "nothing left": through("dim -> none -> half"),
    "one element": through("dim -> half", PICTURES[:1]),
}
CASES = {**EXCHANGED, **IN_ROWS, **NEVER}


def test_an_operator_that_makes_the_same_of_a_value_at_any_place_is_told_from_others() -> None:
    pipe = through("with_boxes -> hide -> gamma -> dim -> threshold -> noisy -> mirror -> shaded -> blurred -> half")
    (stretch,) = op_sequences(pipe.plan)
    check = ExchangeCheck(sample_op_sequence(stretch, "python", 0, SampleLimits(COUNT)), exactly=False)
    assert {name for name, op in check.op_properties.items() if op.pointwise} == {"gamma", "dim", "threshold"}
    assert check.may(("hide", "dim")), "boxes stay where they are"


def found(pipe: pecan.PecanPipeline, mode: Mode) -> Ordering:
    request = OrderRequest(pipe.plan, mode=mode, elements=COUNT, seconds=600.0, skip_bad=True)
    return replace(order_plan(request), seconds=1.0)


def facts(op: ProfiledOp) -> Iterator[str]:
    """Yield what a sample tells of an operator, but for what `explain` shows."""
    for what in ("reads", "writes", "creates", "drops", "arrays", "filtered_columns", "changed_axes"):
        if columns := getattr(op, what):
            names = (f"{one} {sorted(columns[one])}" if what == "changed_axes" else one for one in sorted(columns))
            yield f"{what} {', '.join(names)}"
    for what in ("random", "decides", "draws", "unequal", "changes_kind", "changes_rank", "custom_dtype_cast"):
        if getattr(op, what):
            yield what
    if op.elements != 1:
        yield f"elements {op.elements:.3g}"


def decided(case: str) -> str:
    """Return what is sampled and decided in a case: all of it in mode "safe", and in one line in others."""
    pipe = CASES[case]
    safe = found(pipe, "safe")
    lines = [explain(case, safe).replace("\n\n", "\n")]
    lines += [f"  {op.name}: {'; '.join(facts(op.profiled))}" for one in safe.sequences for op in one.sample.ops]
    if (row_s := safe.row_seconds()) is not None:
        lines.append(f"  a row takes {1e6 * row_s:.4g} us")
    lines += [f"  {mode}: {found(pipe, mode).summary().partition(' (sampled')[0]}" for mode in ("strict", "pecan")]
    return "\n".join(lines)


def written(case: str) -> str:
    return WRITTEN.read_text().strip().split("\n\n")[list(CASES).index(case)]


@pytest.mark.parametrize("case", CASES)
def test_what_is_decided_in_a_case_is_what_is_written_down(case: str) -> None:
    assert decided(case) == written(case)


@pytest.mark.parametrize("case", EXCHANGED)
def test_what_means_the_same_is_exchanged(case: str) -> None:
    assert f'{case} (mode "safe"): AutoOrder moved ' in written(case)


@pytest.mark.parametrize("case", IN_ROWS)
def test_what_is_done_to_each_number_by_itself_is_run_on_many_rows_at_a_time(case: str) -> None:
    assert f'{case} (mode "safe"): {AS_WRITTEN}, and rewrote it; scale, clip run on many elements' in written(case)


@pytest.mark.parametrize("case", NEVER)
def test_what_would_mean_something_else_is_never_exchanged(case: str) -> None:
    in_safe, _, in_strict = written(case).partition("\n  strict: ")
    assert "AutoOrder moved" not in in_safe + in_strict.splitlines()[0]


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patched:
        count_calls(patched)
        WRITTEN.write_text("\n\n".join(map(decided, CASES)) + "\n")
