"""Random pipelines of operators as users write them, and what each operator takes for granted of its input."""

from __future__ import annotations

import copy
import io
import math
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import cv2
import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

import pecan_ray as pecan
from benchmarks.guard import ops
from benchmarks.guard.joint import SharedFlip, flip_all, resize_all
from benchmarks.guard.ops import GuardedKind, GuardStep
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.plan.op_sequences import with_ops
from pecan_ray.plan.operators import ElementOp, Op, Plan
from pecan_ray.plan.splits import Element

Sees: TypeAlias = Callable[[Any], Hashable]


@dataclass
class Notes:
    """What operators were given in the orders of one pipeline, by their names; empty unless `on`."""

    on: bool = False
    seen: dict[str, set[Hashable]] = field(default_factory=dict)
    arrays: dict[str, list[Any]] = field(default_factory=dict)
    """The first arrays that they were given, which are those of the user's order."""
    apart: dict[str, float] = field(default_factory=dict)
    """Of operators that were given another dtype: by how much results of equal numbers in both dtypes differ at most
    (one value in a thousand apart), as a share of their span."""

    def begin(self) -> None:
        """Begin with another pipeline."""
        self.on, self.seen, self.arrays, self.apart = True, {}, {}, {}

    def note(self, name: str, array: Any, fn: Callable[[Any], Any]) -> None:
        """Keep an array, or compare what becomes of it in the dtype of the user's order."""
        first = self.arrays.setdefault(name, [])
        if len(first) < KEPT and (not first or first[0].dtype == array.dtype):
            first.append(array.copy())
        elif first[0].dtype != array.dtype:
            usual, new = first[0].dtype, array.dtype
            wider = usual.kind == "f" and (new.kind != "f" or new.itemsize < usual.itemsize)
            pairs = [(array, usual)] if wider else [(one, new) for one in first]
            apart = [_apart(fn(one.astype(dtype)), fn(one.copy())) for one, dtype in pairs]
            self.apart[name] = max(*apart, self.apart.get(name, 0.0))


KEPT = 8
NOTES = Notes()


@dataclass(frozen=True)
class Watched:
    """A function of a value, and what it takes for granted."""

    name: str
    fn: Callable[..., Any]
    sees: Sees | None = None

    def __call__(self, value: Any) -> Any:
        """Call it."""
        if NOTES.on:
            self._note(value, self.fn)
        return self.fn(value)

    def _note(self, value: Any, fn: Callable[[Any], Any]) -> None:
        if self.sees is not None:
            NOTES.seen.setdefault(self.name, set()).add(self.sees(value))
        if isinstance(value, np.ndarray):
            NOTES.note(self.name, value, fn)


@dataclass(frozen=True)
class WatchedRandom(Watched):
    """One that draws random numbers."""

    def __call__(self, value: Any, rng: np.random.Generator) -> Any:  # type: ignore[override]  # the engine's protocol
        """Call it."""
        if NOTES.on:
            self._note(value, lambda given: self.fn(given, copy.deepcopy(rng)))
        return self.fn(value, rng)


def _apart(expected: Any, made: Any) -> float:
    """Return by how much two results differ, one value of a thousand apart."""
    if isinstance(expected, (list, tuple)):  # of an operator that makes several of one
        return max((_apart(*one) for one in zip(expected, made, strict=True)), default=0.0)
    if not isinstance(expected, np.ndarray):
        return float(expected != made)
    if expected.shape != made.shape:
        return math.inf
    first, second = (np.nan_to_num(one.astype(np.float64)) for one in (expected, made))
    span = max(float(np.ptp(first)), 1e-3 * float(np.abs(first).max()), 1e-9)
    return float(np.quantile(np.abs(first - second), 0.999)) / span


@dataclass(frozen=True)
class PlanPart:
    """One operator that a pipeline may have."""

    step: GuardStep
    sees: Sees | None = None
    kind: GuardedKind = "map"


@dataclass(frozen=True)
class Family:
    """Operators that fit together."""

    name: str
    columns: tuple[str, ...]
    first: tuple[PlanPart, ...]
    parts: tuple[PlanPart, ...]
    last: tuple[PlanPart, ...] = ()


@dataclass
class GuardCase:
    """A pipeline drawn at random."""

    seed: int
    family: str
    pipe: pecan.PecanPipeline
    parts: dict[str, PlanPart] = field(default_factory=dict)
    """Its operators by their names."""

    def watched(self, plan: Plan) -> Plan:
        """Return its plan, in whatever order, with functions that note what they are given.

        AutoOrder is not given those: they remember, which keeps operators where they are.
        """
        watched = dict[str, Op]()
        for op in plan.all_ops():
            part = self.parts[op.name]
            kind = WatchedRandom if part.step.random else Watched
            assert isinstance(op, ElementOp)
            watched[op.name] = replace(op, fn=kind(op.name, op.fn, part.sees))
        return with_ops(plan, watched)


def draw(seed: int, given: Sequence[Element], **options: Any) -> GuardCase:
    """Return a random pipeline over these elements that runs as it is written."""
    rng = np.random.default_rng(seed)
    while True:
        families = all_families()
        family = families[int(rng.choice(len(families), p=_weights(families)))]
        count = int(rng.integers(2, 7))
        chosen = [family.parts[n] for n in rng.permutation(len(family.parts))[:count]]
        items = [{name: element[name] for name in family.columns} for element in given]
        pipe = pecan.PecanPipeline(pecan.sources.Items(items), name=f"random{seed}", seed=seed, **options)
        parts = (*family.first, *chosen, *family.last)
        for part in parts:
            pipe = add(pipe, part)
        try:
            list(run_in_process(pipe.plan, seed=seed))
        except Exception:  # whatever a function can raise: it fails as it is written, so another one is drawn
            continue
        return GuardCase(seed, family.name, pipe, {part.step.name: part for part in parts})


def add(pipe: pecan.PecanPipeline, part: PlanPart) -> pecan.PecanPipeline:
    """Return the pipeline with one more operator."""
    step = part.step
    kinds = {"map": pipe.map, "filter": pipe.filter, "flat_map": pipe.flat_map}
    return kinds[part.kind](step.fn, on=step.column, name=step.name)


def _weights(families: Sequence[Family]) -> Any:
    weights = np.array([len(family.parts) ** 0.5 for family in families])
    return weights / weights.sum()


# --- what operators take for granted


def layout(x: Any) -> Hashable:
    """Which dimension is that of the channels."""
    return bool(x.shape[-1] <= 4)


def scale(x: Any) -> Hashable:
    """Whether values are out of 255, and the layout."""
    return bool(np.abs(x).max() > 4), layout(x)


def size(x: Any) -> Hashable:
    """Height and width."""
    return tuple(x.shape[:2])


def oblong(x: Any) -> Hashable:
    """Whether an image is a square."""
    return bool(x.shape[0] == x.shape[1])


# --- images as arrays


def _decode(encoded: bytes) -> Any:
    image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def _record_size(element: Element) -> Element:
    return {**element, "image": ops.blur.fn(element["image"]), "orig_size": np.array(element["image"].shape[:2])}


def _bright_enough(x: Any) -> bool:
    return bool(x.mean() > 60)


def _some_labels(label: int) -> bool:
    return label != 3


def _split_in_half(x: Any) -> list[Any]:
    return [x[:, : x.shape[1] // 2].copy(), x[:, x.shape[1] // 2 :].copy()]


def _part(step: GuardStep, sees: Sees | None = layout) -> PlanPart:
    return PlanPart(step, sees)


def arrays() -> Family:
    """Return photographs as NumPy and OpenCV work on them."""
    plain = [
        *(ops.flip, ops.random_flip, ops.random_flip_vertical, ops.random_rotate, ops.random_shear, ops.random_shift),
        *(ops.random_perspective, ops.blur, ops.blur_much, ops.crop_centre, ops.random_crop, ops.to_float, ops.to_half),
        *(ops.to_bgr, ops.to_channels_first, ops.resize_to(ops.SIDE), ops.median, ops.erase),
    ]
    whole_valued = [
        *(ops.brightness, ops.contrast, ops.saturation, ops.hue, ops.sometimes_gray, ops.gamma, ops.noise),
        *(ops.solarize, ops.posterize, ops.autocontrast, ops.jpeg_again, ops.sharpen, ops.brighter),
    ]
    scaled = [
        *(ops.unit, ops.unit_if_bytes, ops.unit_if_large, ops.normalise, ops.normalise_unit, ops.gamma_unit),
        *(ops.clip_unit, ops.log, ops.threshold, ops.to_bytes),
    ]
    parts = [
        *(_part(step, None if step in (ops.to_float, ops.to_half) else layout) for step in plain),
        *(_part(step) for step in whole_valued),
        *(_part(step, scale) for step in scaled),
        _part(ops.flip_if_bytes),
        _part(ops.standardise),
        _part(ops.pad_to_square, oblong),
        PlanPart(GuardStep("record_size", _record_size), lambda element: element["image"].shape[:2]),
        PlanPart(GuardStep("bright_enough", _bright_enough, "image"), scale, "filter"),
        PlanPart(GuardStep("some_labels", _some_labels, "label"), None, "filter"),
        PlanPart(GuardStep("halves", _split_in_half, "image"), layout, "flat_map"),
    ]
    first = (PlanPart(GuardStep("decode", _decode, "image")),)
    return Family("arrays", ("image", "label"), first, tuple(parts))


# --- images of Pillow


def _open(encoded: bytes) -> Any:
    return Image.open(io.BytesIO(encoded)).convert("RGB")


def _pil(name: str, fn: Callable[..., Any], *, random: bool = False, sees: Sees | None = None) -> PlanPart:
    return PlanPart(GuardStep(name, fn, "image", random), sees)


def _square(x: Any) -> Any:
    return ImageOps.pad(x, (max(x.size), max(x.size)))


def pictures() -> Family:
    """Return photographs as Pillow works on them."""
    parts = (
        _pil(
            "pil_rotate", lambda x, rng: x.rotate(float(rng.uniform(-15, 15)), Image.Resampling.BILINEAR), random=True
        ),
        _pil(
            "pil_flip",
            lambda x, rng: x.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else x,
            random=True,
        ),
        _pil("pil_blur", lambda x: x.filter(ImageFilter.GaussianBlur(2))),
        _pil("pil_median", lambda x: x.filter(ImageFilter.MedianFilter(3))),
        _pil("pil_resize", lambda x: x.resize((ops.SIDE, ops.SIDE), Image.Resampling.BILINEAR)),
        _pil("pil_colour", lambda x, rng: ImageEnhance.Color(x).enhance(float(rng.uniform(0.5, 1.5))), random=True),
        _pil(
            "pil_brightness",
            lambda x, rng: ImageEnhance.Brightness(x).enhance(float(rng.uniform(0.6, 1.4))),
            random=True,
        ),
        _pil("pil_autocontrast", ImageOps.autocontrast),
        _pil("pil_sharpen", lambda x: x.filter(ImageFilter.SHARPEN)),
        _pil("pil_centre", lambda x: x.crop((x.width // 8, x.height // 8, x.width * 7 // 8, x.height * 7 // 8))),
        _pil("pil_square", _square, sees=lambda x: x.width == x.height),
        _pil("pil_posterize", lambda x: ImageOps.posterize(x, 4)),
        _pil("pil_equalize", ImageOps.equalize),
    )
    last = (
        PlanPart(GuardStep("to_array", lambda x: np.asarray(x), "image")),
        PlanPart(ops.normalise, scale),
    )
    return Family("pictures", ("image", "label"), (_pil("open", _open),), parts, last)


# --- images with masks and boxes


def _area(element: Element) -> Element:
    return {**element, "area": int((element["mask"] > 0).sum()), "image": ops.blur.fn(element["image"])}


def joint() -> Family:
    """Return photographs with masks."""
    follows = SharedFlip()
    parts = (
        PlanPart(GuardStep("resize_both", resize_all), lambda element: layout(element["image"])),
        PlanPart(GuardStep("flip_both", flip_all, None, True), lambda element: layout(element["image"])),
        PlanPart(GuardStep("area", _area), lambda element: element["mask"].shape),
        *(_part(step) for step in (ops.brightness, ops.contrast, ops.hue, ops.blur, ops.median, ops.noise)),
        _part(ops.normalise, scale),
        _part(ops.to_channels_first),
        _part(ops.to_float, None),
    )
    first = (
        PlanPart(GuardStep("decode", _decode, "image")),
        PlanPart(GuardStep("draw_flip", follows.flip_image, None, True)),
        PlanPart(GuardStep("follow_flip", follows.flip_mask, "mask")),
    )
    return Family("joint", ("image", "mask", "label"), first, parts)


# --- sounds


def _sound(name: str, fn: Callable[..., Any], *, random: bool = False, sees: Sees | None = None) -> PlanPart:
    return PlanPart(GuardStep(name, fn, "audio", random), sees)


def sounds() -> Family:
    """Return sounds as arrays."""
    parts = (
        _sound("gain", lambda x, rng: (x * np.float32(rng.uniform(0.5, 1.5))).astype(x.dtype), random=True),
        _sound("hiss", lambda x, rng: x + rng.normal(0, 0.002, len(x)).astype(np.float32), random=True),
        _sound("fixed", lambda x: np.pad(x[:16000], (0, max(0, 16000 - len(x))))),
        _sound("smooth", lambda x: np.convolve(x, np.ones(9, np.float32) / 9, "same").astype(np.float32)),
        _sound("peak", lambda x: x / max(float(np.abs(x).max()), 1e-6)),
        _sound("every_second", lambda x: x[::2].copy()),
        _sound("int16", lambda x: (x * 32767).clip(-32768, 32767).astype(np.int16)),
        _sound("loud_only", lambda x: np.where(np.abs(x) > 0.01, x, 0).astype(x.dtype)),
        _sound("emphasis", lambda x: np.append(x[:1], x[1:] - np.float32(0.97) * x[:-1]).astype(x.dtype)),
        PlanPart(
            GuardStep(
                "seconds", lambda e: {**e, "seconds": len(e["audio"]) / 16000, "audio": e["audio"] * np.float32(0.9)}
            ),
            lambda e: len(e["audio"]),
        ),
        PlanPart(GuardStep("long_enough", lambda x: len(x) > 12000, "audio"), len, "filter"),
    )
    return Family("sounds", ("audio", "label"), (), parts)


# --- sentences and records


def _numbers(words: Sequence[str]) -> Any:
    return np.array([sum(map(ord, word)) % 30000 for word in words] or [0], np.int64)


def records() -> Family:
    """Return sentences with some fields."""
    text = "text"
    parts = (
        PlanPart(GuardStep("lower", lambda x: x.lower(), text)),
        PlanPart(GuardStep("strip", lambda x: x.strip(" .,;"), text)),
        PlanPart(GuardStep("letters", lambda x: "".join(c for c in x if c.isalpha() or c == " "), text)),
        PlanPart(GuardStep("cut", lambda x: x[:80], text)),
        PlanPart(GuardStep("repeat", lambda x: f"{x} {x}", text)),
        PlanPart(GuardStep("length", lambda e: {**e, "length": len(e["text"]), "text": e["text"].replace("  ", " ")})),
        PlanPart(GuardStep("split", lambda x: x.split(), text)),
        PlanPart(GuardStep("numbers", _numbers, text)),
        PlanPart(GuardStep("padded", lambda x: np.pad(x[:64], (0, max(0, 64 - len(x)))), text)),
        PlanPart(GuardStep("field", lambda e: {**e, "meta": {"label": e["label"], "even": e["label"] % 2 == 0}})),
        PlanPart(GuardStep("shifted", lambda x: x + 1, "label")),
        PlanPart(GuardStep("some_labels", _some_labels, "label"), None, "filter"),
        PlanPart(GuardStep("long_enough", lambda x: len(x) > 40, text), None, "filter"),
        PlanPart(GuardStep("twice", lambda x: [x, x[: len(x) // 2]], text), None, "flat_map"),
    )
    return Family("records", ("text", "label"), (), parts)


# --- tensors


def tensors() -> Family | None:
    """Return photographs as PyTorch works on them, where it is in use."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    functional = torch.nn.functional
    parts = (
        _pil("tensor_flip", lambda x, rng: torch.flip(x, (-1,)) if rng.random() < 0.5 else x, random=True),
        _pil("tensor_in_place", lambda x: x.mul_(0.9), sees=None),
        _pil(
            "tensor_small",
            lambda x: functional.interpolate(x[None].float(), size=(ops.SIDE, ops.SIDE), mode="bilinear")[0],
        ),
        _pil("tensor_unit", lambda x: x / 255 if x.max() > 2 else x, sees=lambda x: bool(x.max() > 2)),
        _pil("tensor_square", lambda x: x * x, sees=lambda x: bool(x.abs().max() > 2)),
        _pil("tensor_half", lambda x: x.half()),
        _pil("tensor_pool", lambda x: functional.avg_pool2d(x.float()[None], 3, 1, 1)[0]),
        _pil("tensor_middle", lambda x: x[:, x.shape[1] // 8 : -x.shape[1] // 8, x.shape[2] // 8 : -x.shape[2] // 8]),
    )
    first = (
        PlanPart(GuardStep("decode", _decode, "image")),
        _pil("to_tensor", lambda x: torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 0))).float()),
    )
    return Family("tensors", ("image", "label"), first, parts)


def all_families() -> list[Family]:
    """Return the families whose libraries are there."""
    torch = tensors()
    return [arrays(), pictures(), joint(), sounds(), records(), *([torch] if torch is not None else [])]
