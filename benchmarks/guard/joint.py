"""Steps on a photograph together with its mask and its boxes."""

from __future__ import annotations

import cv2
import numpy as np

from benchmarks.guard import ops
from pecan_ray.plan.splits import Element

FIT = ops.resize_to(ops.SIDE)


def resize_all(element: Element) -> Element:
    """Make a square of the image and of the mask."""
    small = cv2.resize(element["mask"], (ops.SIDE, ops.SIDE), None, 0, 0, cv2.INTER_NEAREST)
    return {**element, "image": FIT.fn(element["image"]), "mask": small}


def flip_all(element: Element, rng: np.random.Generator) -> Element:
    """Mirror whatever there is half of the time."""
    if rng.random() < 0.5:
        return element
    flipped = {name: element[name][:, ::-1].copy() for name in ("image", "mask")}
    return {**element, **flipped, **mirrored_boxes(element)}


def mirrored_boxes(element: Element) -> Element:
    """Return the boxes, in shares, mirrored left and right; nothing where there are none."""
    if "boxes" not in element:
        return {}
    boxes = element["boxes"].copy()
    boxes[:, [0, 2]] = 1 - boxes[:, [2, 0]]
    return {"boxes": boxes}


class SharedFlip:
    """An image's flip that others follow by a variable."""

    def __init__(self) -> None:
        self.state = {"flipped": False}

    def flip_image(self, element: Element, rng: np.random.Generator) -> Element:
        """Draw, and mirror the image."""
        self.state["flipped"] = bool(rng.random() < 0.5)
        return {**element, "image": ops.flip.fn(element["image"])} if self.state["flipped"] else element

    def flip_mask(self, mask: np.ndarray) -> np.ndarray:
        """Mirror a mask, if the image was."""
        return mask[:, ::-1].copy() if self.state["flipped"] else mask

    def flip_boxes(self, element: Element) -> Element:
        """Mirror the boxes, if the image was."""
        return {**element, **mirrored_boxes(element)} if self.state["flipped"] else element
