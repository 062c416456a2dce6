"""Arithmetic on bytes of images as a table: which functions can be one, and that pixels are equal to the last bit."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray import images
from pecan_ray.autoorder.adopted import Ordering
from pecan_ray.autoorder.explain import explain
from pecan_ray.autoorder.kept_order import KeptOrder, check_decoders
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.push_down import BY_TABLE, TABLE, choices, push_down
from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.engines.python.lookup_table import LookupTable, can_be_looked_up
from pecan_ray.engines.python.rows import NotInRowsError
from pecan_ray.plan.operators import Plan
from pecan_ray.reorder import Mode
from tests.long_form import some_later

MEAN = np.array([123.7, 116.3, 103.5], np.float32)
DEVIATION = np.array([58.4, 57.1, 57.4], np.float32)
PICTURE = np.random.default_rng(5).integers(0, 256, (64, 48, 3), dtype=np.uint8)
PICTURE[0, 0], PICTURE[0, 1] = 0, 255
Fn = Callable[..., Any]


def cast(image: Any) -> Any:
    return image.astype(np.float32)


def normalize(image: Any) -> Any:
    return (image - MEAN) / DEVIATION


def in_place(image: Any) -> Any:
    image = image.astype(np.float32)
    image /= 255
    image -= MEAN / 255
    return image


def writes_into_what_it_is_given(image: Any) -> Any:
    image //= 2
    image += 1
    return image


def brighten(image: Any, rng: np.random.Generator) -> Any:
    return np.clip(image * rng.uniform(0.5, 1.5) + rng.normal(), 0, 255).astype(np.uint8)


def tint(image: Any, rng: np.random.Generator) -> Any:
    return image * rng.uniform(0.5, 1.5, size=image.shape[-1])


def sometimes(image: Any, rng: np.random.Generator) -> Any:
    return 255 - image if rng.random() < 0.5 else image


def gamma(image: Any) -> Any:
    return (image / 255.0) ** 2.2


def solarize(image: Any) -> Any:
    return np.where(image < 128, image, 255 - image)


def aliased(image: Any) -> Any:
    same = image.astype(np.uint8, copy=False)
    same += 3
    return image


def of_one_dtype(image: Any) -> Any:
    return image / 255 if image.dtype == np.uint8 else image


def rng(name: str) -> np.random.Generator:
    return np.random.default_rng(sum(map(ord, name)))


def alone(functions: tuple[Fn, ...], image: Any) -> Any:
    for fn in functions:
        image = fn(image, rng=rng(fn.__name__)) if "rng" in fn.__code__.co_varnames else fn(image)
    return image


def steps(*functions: Fn) -> tuple[tuple[str, Fn], ...]:
    return tuple((fn.__name__, fn) for fn in functions)


def assert_equal_bits(some: Any, others: Any) -> None:
    assert (some.dtype, some.shape, some.tobytes()) == (others.dtype, others.shape, others.tobytes())


ARITHMETIC = [
    (cast,),
    (cast, normalize),
    (normalize,),
    (in_place,),
    (writes_into_what_it_is_given,),
    (brighten,),
    (brighten, cast, normalize),
    (tint,),
    (sometimes, cast),
    (solarize, normalize),
    (aliased,),
    (of_one_dtype,),
]


@pytest.mark.parametrize("functions", ARITHMETIC, ids=lambda fns: "+".join(fn.__name__ for fn in fns))
@pytest.mark.parametrize("view", ["whole", "mirrored", "upside down", "part", "transposed"])
def test_a_table_gives_what_the_functions_give_to_the_last_bit(functions: tuple[Fn, ...], view: str) -> None:
    seen = {
        "whole": PICTURE,
        "mirrored": PICTURE[:, ::-1],
        "upside down": PICTURE[::-1],
        "part": np.tile(PICTURE, (2, 2, 1))[3:70, 5:60],
        "transposed": PICTURE.transpose(1, 0, 2),
    }[view]
    found = LookupTable(steps(*functions), exactly=True)
    assert found.table(seen.shape, rng).values.shape == (256, 3)
    assert_equal_bits(found(seen.copy(), rng), alone(functions, seen.copy()))
    if functions not in ((writes_into_what_it_is_given,), (aliased,)):
        assert_equal_bits(found(seen, rng), alone(functions, seen))


@pytest.mark.parametrize("shape", [(64, 64), (64, 64, 1), (80, 60, 4), (40, 60, 2)])
def test_images_of_other_channels(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    for functions in ((cast,), (brighten, cast), (in_place,) if shape[-1] == 3 else (gamma,)):
        found = LookupTable(steps(*functions))
        found.table(shape, rng)
        assert_equal_bits(found(image.copy(), rng), alone(functions, image.copy()))


def test_rounded_functions_are_for_modes_that_may_change_the_last_bit() -> None:
    LookupTable(steps(gamma)).table(PICTURE.shape, rng)
    with pytest.raises(NotInRowsError, match="power, whose last bit may differ"):
        LookupTable(steps(gamma), exactly=True).table(PICTURE.shape, rng)
    np.testing.assert_allclose(LookupTable(steps(gamma))(PICTURE, rng), gamma(PICTURE), rtol=1e-14)


OTHER_THINGS: dict[str, tuple[Fn, str]] = {
    "mean": (lambda image: image - image.mean(), "mean"),
    "extremes": (lambda image: image / 255 if image.max() > 1 else image, "max"),
    "noise": (lambda image, rng: image + rng.normal(size=image.shape), "not the same for all pixels"),
    "vignette": (lambda image: image * np.linspace(0, 1, 48)[None, :, None], "not the same for all pixels"),
    "wide": (lambda image: image[..., :1] * MEAN, "not the same for all pixels"),
    "mirrored": (lambda image: image[:, ::-1], "parts of it"),
    "a part": (lambda image: image[2:, 3:], "parts of it"),
    "a channel": (lambda image: image[..., 0], "parts of it"),
    "a new axis": (lambda image: image[None], "parts of it"),
    "chosen": (lambda image: image[image > 3], "parts of it"),
    "set": (lambda image: image.__setitem__((0, 0), 3) or image, "parts of it"),
    "two orders": (lambda image: image + image[..., ::-1] * 0.5, "in another order"),
    "one for three": (lambda image: image * 0.5 + image[..., :1], "in another order"),
    "constant of rows": (lambda image: image.transpose(2, 0, 1) * np.ones((1, 64, 1)), "not the same for all pixels"),
    "a square's axes": (lambda image: image * 0.5 + image[..., ::-1].transpose(0, 1, 2), "in another order"),
    "a table of its own": (lambda image: np.arange(256, dtype=np.uint8)[image], "__array|hands it"),
    "blurred": (lambda image: cv2.blur(image, (3, 3)), "blurred: "),
    "sorted": (lambda image: np.sort(image), "sort"),
    "tuple": (lambda image: (image, image), "tuple"),
    "constant": (lambda image: MEAN, "ndarray"),
    "beyond": (lambda image: (image * 2.0).astype(np.uint8), "beyond its range"),
    "zero": (lambda image: np.log(image), "divide by zero"),
    "wide numbers": (lambda image: image.astype(np.int64), "int64"),
    "fails": (lambda image: image * [1, 2], "computes with a list"),
}


@pytest.mark.parametrize("name", OTHER_THINGS)
def test_what_is_no_arithmetic_on_bytes_runs_as_it_is(name: str) -> None:
    fn, why = OTHER_THINGS[name]
    found = LookupTable(((name, fn),))
    with pytest.raises(NotInRowsError, match=why):
        found.table(PICTURE.shape, rng)
    if name == "fails":
        with pytest.raises(ValueError, match="broadcast"):
            found(PICTURE, rng)
        return
    keywords = {"rng": rng(name)} if name == "noise" else {}
    with np.errstate(divide="ignore", invalid="ignore"):
        made, plain = found(PICTURE, rng), fn(PICTURE, **keywords)
    if name == "tuple":
        assert type(made) is tuple
        made, plain = made[0], plain[0]
    assert_equal_bits(made, np.ascontiguousarray(plain))


def test_after_several_failures_no_more_tables_are_tried() -> None:
    asked = []

    def counted(image: Any) -> Any:
        asked.append(type(image))
        return cv2.blur(image, (3, 3))

    found = LookupTable((("counted", counted),))
    for _ in range(5):
        assert_equal_bits(found(PICTURE, rng), cv2.blur(PICTURE, (3, 3)))
    assert len(asked) == 3 + 5


def test_what_is_no_image_of_bytes_is_no_matter_of_tables() -> None:
    for value in (
        PICTURE.astype(np.float32),
        PICTURE[:8, :8],
        PICTURE.tobytes(),
        None,
        PICTURE[None],
        PICTURE[..., 0, 0],
    ):
        assert not can_be_looked_up(value)
    found = LookupTable(steps(cast))
    assert_equal_bits(found(PICTURE[:8, :8], rng), cast(PICTURE[:8, :8]))


def test_it_can_be_sent_and_forgets_its_failures() -> None:
    found = pickle.loads(pickle.dumps(LookupTable(steps(cast, normalize), exactly=True)))
    assert found.exactly and [name for name, _ in found.steps] == ["cast", "normalize"]
    assert_equal_bits(found(PICTURE, rng), normalize(cast(PICTURE)))


# --- channels and axes -------------------------------------------------------------------------------------------


def written_through_a_view(image: Any) -> Any:
    backwards = image[..., ::-1]
    backwards += np.array([1, 2, 3], np.uint8)
    return image


MOVING: dict[str, tuple[Fn, ...]] = {
    "other order": (lambda image: image[..., ::-1],),
    "other order, then floats": (lambda image: image[:, :, ::-1], cast, normalize),
    "floats, then other order": (cast, normalize, lambda image: image[..., [2, 0, 1]]),
    "flip": (lambda image: np.flip(image, axis=-1), normalize),
    "back again": (lambda image: image[..., ::-1], normalize, lambda image: image[..., ::-1]),
    "planes": (cast, normalize, lambda image: image.transpose(2, 0, 1)),
    "planes, then floats": (
        lambda image: np.moveaxis(image, -1, 0),
        lambda image: (image - MEAN[:, None, None]) / DEVIATION.reshape(3, 1, 1),
    ),
    "planes of other channels": (lambda image: image[..., ::-1], cast, lambda image: np.transpose(image, (2, 0, 1))),
    "planes, exchanged": (lambda image: image.transpose([2, 0, 1])[::-1] * 0.5,),
    "some channels": (lambda image: image[..., :2], lambda image: image * np.array([0.5, 2])),
    "one channel": (lambda image: image[..., 1:2] / 255,),
    "all axes": (lambda image: image.T, cast),
    "two axes": (lambda image: np.swapaxes(image, 0, 2), lambda image: image.swapaxes(0, 1) * 2.5),
    "red and blue": (functools.partial(cv2.cvtColor, code=cv2.COLOR_BGR2RGB), cast, normalize),
    "floats, red and blue": (cast, functools.partial(cv2.cvtColor, code=cv2.COLOR_RGB2BGR), normalize),
    "shape": (lambda image: image.transpose(2, 0, 1), lambda image: image / image.shape[0] + image.ndim * image.size),
    "through a view": (written_through_a_view,),
}


@pytest.mark.parametrize("name", MOVING)
@pytest.mark.parametrize("view", ["whole", "mirrored", "part"])
def test_channels_and_axes_may_be_moved(name: str, view: str) -> None:
    functions = MOVING[name]
    seen = {"whole": PICTURE, "mirrored": PICTURE[:, ::-1], "part": np.tile(PICTURE, (2, 2, 1))[3:70, 5:60]}[view]
    found = LookupTable(tuple((str(number), fn) for number, fn in enumerate(functions)), exactly=True)
    found.table(seen.shape, rng)
    expected = seen.copy()
    for fn in functions:
        expected = fn(expected)
    assert_equal_bits(found(seen.copy(), rng), np.ascontiguousarray(expected))


@pytest.mark.parametrize("shape", [(64, 70), (64, 70, 1), (64, 70, 2), (40, 60, 4)])
def test_axes_of_images_of_other_channels(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    order = (2, 0, 1)[: len(shape)] if len(shape) == 3 else (1, 0)
    found = LookupTable((("turn", lambda image: image.transpose(order)), ("halve", lambda image: image / 2)))
    found.table(shape, rng)
    assert_equal_bits(found(image, rng), np.ascontiguousarray(image.transpose(order) / 2))


@pytest.mark.parametrize("code", [cv2.COLOR_RGB2GRAY, cv2.COLOR_BGR2HSV])
def test_other_colours_are_no_table(code: int) -> None:
    found = LookupTable((("colour", functools.partial(cv2.cvtColor, code=code)),))
    with pytest.raises(NotInRowsError):
        found.table(PICTURE.shape, rng)
    assert_equal_bits(found(PICTURE, rng), cv2.cvtColor(PICTURE, code))


# --- AutoOrder ---------------------------------------------------------------------------------------------------


def mirror(image: Any, rng: np.random.Generator) -> Any:
    return image[:, ::-1] if rng.random() < 0.5 else image


def pipeline(count: int = 48, *functions: Fn) -> pecan.PecanPipeline:
    encoded = []
    for number in range(count):
        smooth = cv2.resize(np.roll(PICTURE, number, 0)[::8, ::8], (192, 256), interpolation=cv2.INTER_CUBIC)
        encoded.append({"image": bytes(cv2.imencode(".png", smooth)[1]), "label": number})
    pipe = pecan.PecanPipeline(pecan.sources.Items(encoded), name="tables").map(images.Decode(), on="image")
    for fn in functions or (mirror, cast, normalize):
        pipe = pipe.map(fn, on="image")
    return pipe.batch(8)


def ordered(pipe: pecan.PecanPipeline, mode: Mode) -> Ordering:
    return order_plan(OrderRequest(pipe.plan, "python", mode, seed=0, seconds=120.0, elements=48))


def pictures(plan: Plan, seed: int = 3) -> Any:
    return np.concatenate([batch["image"] for batch in run_inprocess(plan, seed=seed)])


@pytest.mark.parametrize("mode", some_later(["cost", "strict"], "cost"))
def test_autoorder_finds_the_arithmetic_behind_a_mirror(mode: Mode) -> None:
    pipe = pipeline()
    found = ordered(pipe, mode)
    (name,) = found.decoders  # of the two one may come first: they are equal either way
    ops, by_table, exactly = name.partition(BY_TABLE)
    assert sorted(ops.split("+")) == ["cast", "normalize"] and by_table, explain("tables", found)
    assert (exactly == " exactly") == (mode == "strict")
    assert f"look up what becomes of each byte (rule {TABLE})" in explain("tables", found)
    plan, _ = push_down(found.plan, "python", found.decoders)
    assert [op.name for op in plan.ops] == ["Decode", "mirror", ops.split("+")[0], "batch"]
    assert_equal_bits(pictures(plan), pictures(pipe.plan))


def test_the_cast_alone_where_what_follows_is_no_arithmetic() -> None:
    def centre(image: Any) -> Any:
        return image - image.mean()

    names = [way.decoder for ways in choices(pipeline(8, cast, centre).plan.ops, "python") for way in ways]
    assert f"cast+centre{BY_TABLE}" in names and f"cast{BY_TABLE}" in names
    found = ordered(pipeline(48, cast, centre), "cost")
    assert all("centre" not in one for one in found.decoders), explain("tables", found)


def test_state_and_shared_generators_are_left_alone() -> None:
    shared = np.random.default_rng(0)

    def jitter(image: Any) -> Any:
        return image * np.float32(shared.uniform(0.9, 1.1))

    found = ordered(pipeline(48, mirror, jitter), "cost")
    assert found.decoders == (), explain("tables", found)


def test_a_file_can_pin_a_table() -> None:
    pipe = pipeline()
    found = KeptOrder((("Decode", "mirror", "cast", "normalize"),), "tables", decoders=(f"cast+normalize{BY_TABLE}",))
    ordering = found.ordering(pipe.plan, "cost")
    assert ordering is not None
    check_decoders(ordering, "python", "order.json", "tables")


def test_what_a_function_raises_is_raised() -> None:
    def refuses(image: Any) -> Any:
        if image.shape[0] == 256:
            raise ValueError("no image of 256 rows")
        return image * 2

    pipe = pipeline(8, cast, refuses)
    plan, pushed = push_down(pipe.plan, "python", [f"cast+refuses{BY_TABLE}"])
    assert pushed
    with pytest.raises(ValueError, match="no image of 256 rows"):
        pictures(plan)
