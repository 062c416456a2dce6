"""Reads images with boxes in COCO's format, and derives a set from the repository's aerial photograph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from examples.photographs import random_crop_box

FIXTURE = Path(__file__).resolve().parent / "data" / "detection"


def coco_items(root: Path) -> list[dict[str, Any]]:
    """Return path, boxes (shares of the image) and classes of every image that annotations.json lists."""
    annotations = json.loads((root / "annotations.json").read_text())
    rows: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in annotations["images"]}
    for row in annotations["annotations"]:
        if not row.get("iscrowd"):
            rows[row["image_id"]].append(row)
    return [_item(root, image, rows[image["id"]]) for image in annotations["images"]]


def _item(root: Path, image: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    corners = np.array(
        [
            [row["bbox"][1], row["bbox"][0], row["bbox"][1] + row["bbox"][3], row["bbox"][0] + row["bbox"][2]]
            for row in rows
        ],
        np.float32,
    ).reshape(-1, 4)
    sides = np.array([image["height"], image["width"]] * 2, np.float32)
    classes = np.array([row["category_id"] for row in rows], np.int32)
    return {"path": str(root / image["file_name"]), "boxes": corners / sides, "classes": classes}


def derived_items(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Return `count` seeded JPEG crops of the aerial photograph, with the boxes whose centres they hold."""
    (original,) = coco_items(FIXTURE)
    photograph = cv2.imread(original["path"], cv2.IMREAD_COLOR)
    if photograph is None:
        raise FileNotFoundError(f"{original['path']} is missing: it is part of the repository.")
    sides = np.array(photograph.shape[:2] * 2, np.float32)
    boxes = original["boxes"] * sides
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    items = []
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        top, left, height, width = random_crop_box(photograph.shape, rng)
        begin, size = np.array([top, left], np.float32), np.array([height, width], np.float32)
        held = ((centres >= begin) & (centres < begin + size)).all(axis=1)
        shares = (boxes[held] - np.tile(begin, 2)) / np.tile(size, 2)
        _, encoded = cv2.imencode(".jpg", photograph[top : top + height, left : left + width])
        items.append(
            {
                "path": f"crop-{number:05d}.jpg",
                "image": encoded.tobytes(),
                "boxes": np.clip(shares, 0.0, 1.0),
                "classes": original["classes"][held],
            }
        )
    return items
