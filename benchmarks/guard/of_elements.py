"""Exchanges of operators on several columns: masks, boxes, landmarks; filters, several of one, and state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

from benchmarks.guard import ops
from benchmarks.guard.exchange import Exchange, ExchangeKind, on_element, on_image, on_mask
from benchmarks.guard.joint import FIT, SharedFlip, flip_all, resize_all
from benchmarks.guard.of_pixels import OTHER_CUT, SAME_PICTURE, SMOOTHLY, SQUEEZED, STRONGER
from benchmarks.guard.ops import GuardStep
from pecan_ray.plan.splits import Element

RESIZE_ALL = on_element("resize_all", resize_all)
FLIP_ALL = on_element("flip_all", flip_all, random=True)
SMALL_MASK = on_mask("small_mask", lambda x: cv2.resize(x, (ops.SIDE, ops.SIDE), None, 0, 0, cv2.INTER_NEAREST))
BOXES = ExchangeKind("boxes", second=FIT)
BOTH = ExchangeKind("image and mask", second=RESIZE_ALL)
MASKS = ExchangeKind("mask", second=SMALL_MASK)
FITTED = ExchangeKind("fitted", before=(FIT,))


def exchanges() -> Iterator[Exchange]:
    """Yield all of this file."""
    yield from _of_both()
    yield from _of_boxes()
    yield from _of_hidden_regions()
    yield from _of_points()
    yield from _of_masks()
    yield from _of_records()
    yield from _of_filters()
    yield from _of_several()
    yield from _of_state()


def _rotate_all(element: Element, rng: Any) -> Element:
    height, width = element["mask"].shape
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), rng.uniform(-8, 8), 1.0)
    mask = cv2.warpAffine(element["mask"], matrix, (width, height), flags=cv2.INTER_NEAREST)
    return {**element, "image": ops.transform_image(element["image"], matrix), "mask": mask}


def _crop_all(element: Element, rng: Any) -> Element:
    height, width = element["mask"].shape
    tall, wide = int(height * 0.7), int(width * 0.7)
    top, left = int(rng.uniform(0, height - tall)), int(rng.uniform(0, width - wide))
    window = slice(top, top + tall), slice(left, left + wide)
    return {**element, "image": element["image"][window].copy(), "mask": element["mask"][window].copy()}


def _of_both() -> Iterator[Exchange]:
    yield BOTH.exchange("harmless", FLIP_ALL, "mirroring and resizing commute, for both")
    yield BOTH.exchange("doubtful", on_element("rotate_all", _rotate_all, random=True), SQUEEZED)
    yield BOTH.exchange("harmless", ops.brightness, SAME_PICTURE)
    yield BOTH.exchange("harmful", ops.blur, STRONGER)
    yield BOTH.exchange("harmless", FLIP_ALL, SAME_PICTURE, second=ops.normalise, before=[RESIZE_ALL])
    crop = on_element("crop_all", _crop_all, random=True)
    yield BOTH.exchange("doubtful", FLIP_ALL, OTHER_CUT, second=crop, behind=[RESIZE_ALL])
    shared = SharedFlip()
    draws = on_element("draws_flip", shared.flip_image, random=True)
    follows = "it mirrors by what was drawn for the element before"
    yield BOTH.exchange("harmful", draws, follows, second=on_mask("follows", shared.flip_mask), before=[RESIZE_ALL])
    boxes = on_element("boxes_follow", shared.flip_boxes)
    yield BOTH.exchange("harmful", draws, follows, second=boxes, before=[RESIZE_ALL])


# --- boxes and what they hide


def _outline(element: Element) -> Element:
    image = element["image"].copy()
    for left, top, right, bottom in element["pixels"].astype(int):
        cv2.rectangle(image, (int(left), int(top)), (int(right), int(bottom)), (255, 0, 0), 2)
    return {**element, "image": image}


def _scale_boxes(element: Element) -> Element:
    height, width = element["image"].shape[:2]
    scale = np.array([ops.SIDE / width, ops.SIDE / height] * 2, np.float32)
    return {**element, "image": FIT.fn(element["image"]), "pixels": element["pixels"] * scale}


def _large(boxes: Any, least: float) -> Any:
    return boxes[((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])) >= least]


def _clip(element: Element) -> Element:
    height, width = element["image"].shape[:2]
    inner = np.clip(element["pixels"] * 1.2 - 0.1 * width, 0, [width - 1, height - 1] * 2).astype(np.float32)
    return {**element, "pixels": inner}


def _in_shares(element: Element) -> Element:
    height, width = element["image"].shape[:2]
    shares = element["pixels"] / np.array([width, height, width, height])
    return {**element, "image": ops.blur.fn(element["image"]), "boxes": shares.astype(np.float32)}


def _suppressed(boxes: Any) -> Any:
    kept: list[Any] = []
    for box in boxes:
        if all(_overlap(box, other) < 0.5 for other in kept):
            kept.append(box)
    return np.array(kept, np.float32)


def _overlap(a: Any, b: Any) -> float:
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    both = float(np.prod(np.maximum(high - low, 0)))
    union = float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2])) - both
    return both / max(union, 1e-9)


def _of_boxes() -> Iterator[Exchange]:
    pixels = "boxes are in pixels of the photograph, and the small picture has fewer"
    scaled = ExchangeKind("boxes", second=on_element("resize_with_boxes", _scale_boxes))
    yield BOXES.exchange("harmful", on_element("outlined", _outline), pixels)
    yield BOXES.exchange("harmful", on_element("boxes_in_shares", _in_shares), pixels)
    small = on_element("large_boxes", lambda e: {**e, "pixels": _large(e["pixels"], 2500.0)})
    yield scaled.exchange(
        "harmful", small, "boxes of 50 x 50 pixels in the small picture are the largest: most are lost"
    )
    yield scaled.exchange("harmless", on_element("clipped_boxes", _clip), "the border is scaled with the boxes")
    kept = on_element("suppressed", lambda e: {**e, "pixels": _suppressed(e["pixels"])})
    yield scaled.exchange("harmless", kept, "shares of an overlap do not depend on the scale")
    jitter = on_element(
        "jittered_boxes",
        lambda e, rng: {**e, "pixels": (e["pixels"] + rng.normal(0, 4, e["pixels"].shape)).astype(np.float32)},
        random=True,
    )
    yield scaled.exchange("harmful", jitter, "4 pixels are three times as much for the small picture")
    count = on_element("counted", lambda e: {**e, "boxes_count": len(e["pixels"]), "image": e["image"] // 2})
    yield scaled.exchange("harmful", count, "boxes are counted that are removed", second=small)
    yield scaled.exchange("harmful", ops.blur, STRONGER)
    yield scaled.exchange("harmless", ops.brightness, SAME_PICTURE)
    largest = on_element("largest_box", _crop_to_largest)
    yield BOXES.exchange("harmful", largest, "another part of the picture is cut, or nothing", behind=[FIT])
    yield BOXES.exchange("harmless", FLIP_ALL, SAME_PICTURE, second=ops.hue, before=[RESIZE_ALL])


def _crop_to_largest(element: Element) -> Element:
    boxes = element["pixels"]
    left, top, right, bottom = boxes[np.argmax((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))].astype(int)
    part = element["image"][top : bottom + 1, left : right + 1]
    return {**element, "image": part.copy() if part.size else element["image"]}


def _hide(element: Element, hidden: Any, *, shares: bool = False, rare: int = 1) -> Element:
    """Take regions of 32 pixels at the boxes' corners, or the boxes, from another picture."""
    if element["label"] % rare:
        return element
    height, width = element["image"].shape[:2]
    mask = np.zeros((height, width), bool)
    for box, (left, top) in zip(element["boxes"], element["pixels"][:, :2].astype(int), strict=True):
        if shares:
            x0, y0, x1, y1 = (box * [width, height, width, height]).astype(int)
            mask[y0:y1, x0:x1] = True
        else:
            mask[top : top + 32, left : left + 32] = True
    return {**element, "image": np.where(mask[..., np.newaxis], hidden(element["image"]), element["image"])}


def _strong_blur(x: Any) -> Any:
    return cv2.GaussianBlur(x, (31, 31), 10)


def _of_hidden_regions() -> Iterator[Exchange]:
    seen = "faces are in pixels of the photograph: they are visible, and something else is hidden"
    area = ExchangeKind("faces", second=SMOOTHLY)
    for name, hidden in (("blurred", _strong_blur), ("black", np.zeros_like), ("pixelated", _pixelated)):
        step = on_element(f"faces_{name}", lambda e, hidden=hidden: _hide(e, hidden))
        yield area.exchange("harmful", step, seen)
    rare = on_element("rare_faces_blurred", lambda e: _hide(e, _strong_blur, rare=5))
    yield area.exchange("harmful", rare, f"{seen}; one photograph in five has any")
    shares = on_element("boxes_black", lambda e: _hide(e, np.zeros_like, shares=True))
    yield area.exchange("harmless", shares, "boxes are in shares of the sides: borders move by half a pixel")
    blurred = on_element("boxes_blurred", lambda e: _hide(e, _strong_blur, shares=True))
    yield area.exchange("doubtful", blurred, "the right places, three times as strongly")
    hide = on_element("faces_blurred", lambda e: _hide(e, _strong_blur))
    yield area.exchange("harmful", hide, "the boxes are those of the other side", second=ops.flip)
    yield area.exchange("harmless", hide, "nearly linear", second=ops.brightness)


def _pixelated(x: Any) -> Any:
    small = cv2.resize(x, (max(1, x.shape[1] // 12), max(1, x.shape[0] // 12)), interpolation=cv2.INTER_AREA)
    return cv2.resize(small, x.shape[1::-1], interpolation=cv2.INTER_NEAREST)


# --- landmarks, masks, records


def _heat(element: Element) -> Element:
    heat = np.zeros(element["image"].shape[:2], np.float32)
    for x, y in element["points"].astype(int):
        cv2.circle(heat, (int(x), int(y)), 8, 1.0, -1)
    return {**element, "heat": cv2.resize(heat, (24, 24), interpolation=cv2.INTER_AREA)}


def _relative_points(element: Element) -> Element:
    height, width = element["image"].shape[:2]
    return {**element, "points": (element["points"] / [width, height]).astype(np.float32)}


def _mirrored_points(element: Element, rng: Any) -> Element:
    if rng.random() < 0.5:
        return element
    points = element["points"] * np.array([-1, 1], np.float32)
    points = points + np.array([element["image"].shape[1], 0], np.float32)
    return {**element, "image": element["image"][:, ::-1].copy(), "points": points}


def _of_points() -> Iterator[Exchange]:
    group = ExchangeKind("landmarks", second=FIT)
    yield group.exchange("harmful", on_element("heat_map", _heat), "landmarks are in pixels of the photograph")
    yield group.exchange(
        "harmful", on_element("relative_points", _relative_points), "the size is that of the small one"
    )
    mirrored = on_element("mirrored_points", _mirrored_points, random=True)
    yield group.exchange("harmful", mirrored, "points are mirrored in a picture of 96 pixels: they lie far outside")
    yield group.exchange("harmless", mirrored, SAME_PICTURE, second=ops.gamma)
    jitter = GuardStep(
        "jittered_points", lambda x, rng: (x + rng.normal(0, 1.5, x.shape)).astype(np.float32), "points", True
    )
    scaled = GuardStep("scaled_points", lambda x: x * np.float32(0.3), "points")
    yield group.exchange("harmful", jitter, "1.5 pixels of the small picture are 5 of the photograph", second=scaled)
    rounded = GuardStep("rounded_points", lambda x: np.rint(x), "points")
    yield group.exchange("harmful", rounded, "landmarks of whole pixels, or of thirds", second=scaled)
    nearest = GuardStep("sorted_points", lambda x: x[np.argsort(x[:, 0])].copy(), "points")
    yield group.exchange("harmless", nearest, "the order does not depend on the scale", second=scaled)
    first = GuardStep("three_points", lambda x: x[:3].copy(), "points")
    yield group.exchange("harmful", nearest, "other landmarks are kept", second=first)
    yield group.exchange("harmless", scaled, "each number by itself", second=first)


def _of_masks() -> Iterator[Exchange]:
    disc = np.ones((9, 9), np.uint8)
    for name, fn in (
        ("dilated", lambda x: cv2.dilate(x, disc)),
        ("opened", lambda x: cv2.morphologyEx(x, cv2.MORPH_OPEN, disc)),
        ("edges", lambda x: cv2.morphologyEx(x, cv2.MORPH_GRADIENT, disc)),
    ):
        yield MASKS.exchange("harmful", on_mask(name, fn), STRONGER)
    distance = on_mask("distance", lambda x: cv2.distanceTransform((x > 0).astype(np.uint8), cv2.DIST_L2, 3))
    yield MASKS.exchange("harmful", distance, "distances are in pixels")
    yield MASKS.exchange("harmful", on_mask("large_parts", _large_parts), "small parts are lost")
    classes = np.array([0, 2, 1, 2] + [0] * 252, np.uint8)
    yield MASKS.exchange("harmless", on_mask("remapped", lambda x: classes[x]), "each pixel by itself")
    yield MASKS.exchange("harmless", on_mask("binary", lambda x: (x > 1).astype(np.uint8)), "each pixel by itself")
    linear = on_mask("small_mask_linear", lambda x: cv2.resize(x, (ops.SIDE, ops.SIDE)))
    remap = on_mask("remapped", lambda x: classes[x])
    yield MASKS.exchange("harmful", remap, "mixed numbers of classes are other classes", second=linear)
    palette = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0], [0, 0, 255]] + [[9, 9, 9]] * 252, np.uint8)
    yield MASKS.exchange("harmless", on_mask("palette", lambda x: palette[x]), "each pixel by itself")
    yield MASKS.exchange("harmless", SMALL_MASK, "different columns", second=ops.gamma)


def _large_parts(x: Any) -> Any:
    _, parts, sizes, _ = cv2.connectedComponentsWithStats((x > 0).astype(np.uint8))
    return np.where(sizes[parts, cv2.CC_STAT_AREA] >= 1500, x, 0).astype(x.dtype)


def _of_records() -> Iterator[Exchange]:
    size = on_element("size", lambda e: {**e, "image": e["image"] // 2, "size": np.array(e["image"].shape[:2])})
    yield BOXES.exchange("harmful", size, "the size that is recorded is that of the small picture")
    bright = on_element(
        "mean_kept", lambda e: {**e, "image": ops.blur.fn(e["image"]), "mean": float(e["image"].mean())}
    )
    yield FITTED.exchange("harmful", bright, "the mean is that of the brighter picture", second=ops.brighter)
    exposure = on_element("tagged", lambda e: {**e, "tag": "dark" if e["image"].mean() < 90 else "ok"})
    yield BOXES.exchange("doubtful", exposure, "a photograph at the bound may have the other tag")
    yield FITTED.exchange("harmful", exposure, "the tag is that of the changed picture", second=ops.brightness)
    bucket = on_element("bucket", lambda e: {**e, "bucket": int(e["image"].mean())})
    yield BOXES.exchange("harmful", bucket, "whole numbers of the mean are others by one")
    area = on_element("area", lambda e: {**e, "area": int((e["mask"] > 0).sum())})
    yield MASKS.exchange("harmful", area, "the area is that of the small mask")
    yield MASKS.exchange("harmful", on_element("first_pixel", _first_pixel), "colours are those of the changed picture",
                         second=ops.hue, before=[FIT])  # fmt: skip


def _first_pixel(element: Element) -> Element:
    return {**element, "colour": element["image"][0, 0].copy()}


# --- which elements there are, and what is kept between them


def _of_filters() -> Iterator[Exchange]:
    light = on_image("light", lambda x: x.mean() > 100, kind="filter")
    yield FITTED.exchange("harmful", ops.brightness, "other photographs are light enough", second=light)
    sharp = on_image("sharp", lambda x: cv2.Laplacian(x, cv2.CV_64F).var() > 900, kind="filter")
    yield FITTED.exchange("harmful", ops.blur, "photographs are sharp enough that are blurred afterwards", second=sharp)
    yield BOXES.exchange("harmful", sharp, "other photographs are sharp enough when they are small")
    wide = on_image("wide", lambda x: x.shape[1] > 1.2 * x.shape[0], kind="filter")
    yield BOXES.exchange("harmful", wide, "no square is wide: nothing is left")
    some = GuardStep("some_labels", lambda x: x % 3 == 0, "label", kind="filter")
    yield BOXES.exchange("harmless", ops.blur_much, "which ones are left depends on the label alone", second=some)
    drawn = GuardStep("half_of_them", lambda x, rng: rng.random() < 0.5, "label", True, "filter")
    yield BOXES.exchange("harmless", ops.blur_much, "the same ones are drawn", second=drawn)
    boxed = on_element("has_boxes", lambda e: len(e["pixels"]) > 1, kind="filter")
    large = on_element("large_boxes", lambda e: {**e, "pixels": _large(e["pixels"], 9000.0)})
    yield BOXES.exchange("harmful", large, "elements are left whose boxes are too small", second=boxed)


def _of_several() -> Iterator[Exchange]:
    halves = on_image("halves", lambda x: [x[:, : x.shape[1] // 2].copy(), x[:, x.shape[1] // 2 :].copy()],
                      kind="flat_map")  # fmt: skip
    yield FITTED.exchange("harmless", ops.normalise, "each pixel by itself", second=halves)
    yield FITTED.exchange("harmful", halves, "both halves get one draw", second=ops.brightness)
    twice = on_image("twice", lambda x: [x, x.copy()], kind="flat_map")
    yield FITTED.exchange("harmful", twice, "both views are the same one", second=ops.random_crop, behind=[FIT])
    yield FITTED.exchange("harmful", twice, "both views have the same noise", second=ops.noise)
    yield FITTED.exchange("harmless", ops.blur, "both are blurred anyway", second=twice)
    views = on_element("two_views", _two_views, random=True)
    yield FITTED.exchange("harmful", ops.gamma, "the view is made before the gamma, and has none", second=views)
    yield BOXES.exchange("doubtful", views, "both are cut before they are small, and only one is made small")


def _two_views(element: Element, rng: Any) -> Element:
    return {**element, "image": ops.random_flip.fn(element["image"], rng),
            "view": ops.random_flip.fn(element["image"], rng)[::2, ::2].copy()}  # fmt: skip


class MixedWithLast:
    """Mixes each picture with the one before it."""

    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, x: Any) -> Any:
        """Return the mean of both."""
        last, self.last = self.last, x
        return x if last is None or last.shape != x.shape else (x // 2 + last // 2).astype(x.dtype)


class AboveRunningMean:
    """Subtracts the mean of all pictures until now."""

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0

    def __call__(self, x: Any) -> Any:
        """Return the picture, lighter or darker."""
        self.count, self.total = self.count + 1, self.total + float(x.mean())
        return ops.like(np.uint8, x.astype(np.float32) - self.total / self.count + 128)


class Numbered:
    """Numbers elements."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, element: Element) -> Element:
        """Return the element with its number."""
        self.count += 1
        return {**element, "number": self.count}


class SeenBefore:
    """Lets each label through three times."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, label: int) -> bool:
        """Tell whether it is one of the first three."""
        self.seen.append(label)
        return self.seen.count(label) <= 3


def _of_state() -> Iterator[Exchange]:
    mixed, running = on_image("mixed_with_last", MixedWithLast()), on_image("above_mean", AboveRunningMean())
    yield FITTED.exchange("harmful", ops.random_flip, "what is mixed in is mirrored with it", second=mixed)
    yield FITTED.exchange("doubtful", ops.brightness, "the mean is that of the brighter pictures", second=running)
    yield BOXES.exchange("doubtful", running, "means of the smaller pictures are nearly the same, but kept")
    odd = GuardStep("odd_labels", lambda x: x % 2 == 1, "label", kind="filter")
    yield FITTED.exchange("harmful", on_element("numbered", Numbered()), "numbers have no gaps", second=odd)
    first = GuardStep("first_three", SeenBefore(), "label", kind="filter")
    yield FITTED.exchange("harmful", first, "three of each, counted among all labels or odd ones", second=odd)
    own_flip = on_image("flip_by_numpy", lambda x: x[:, ::-1].copy() if np.random.rand() < 0.5 else x)
    own_gain = on_image("gain_by_numpy", lambda x: ops.like(np.uint8, x * np.float32(np.random.uniform(0.5, 1.5))))
    draws = "both draw from one generator: each gets the numbers of the other one"
    yield FITTED.exchange("harmful", own_flip, draws, second=own_gain)
    flips = on_image("flip_by_random", lambda x: x[:, ::-1].copy() if random.random() < 0.5 else x)
    yield BOXES.exchange("harmless", flips, "the same elements are mirrored")
    noise = on_image("noise_by_numpy", lambda x: ops.like(np.uint8, x + np.random.normal(0, 8, x.shape)))
    yield BOXES.exchange("harmful", noise, "other numbers for all that come behind, and three times as strong")
