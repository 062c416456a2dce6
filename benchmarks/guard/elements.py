"""Elements to try exchanges on: real photographs, sounds, sentences and flights, with masks, boxes and landmarks drawn
beside them, and videos made by moving a window over a photograph."""

from __future__ import annotations

import csv
import json
import math
import wave
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from examples.photographs import parent_photographs, random_crop_box
from pecan_ray.plan.splits import Element

DATA = Path(__file__).resolve().parents[2] / "examples" / "data"
LONGEST = 320


def elements(count: int, *, seed: int = 0, photographs: Sequence[Path] | None = None) -> list[Element]:
    """Return elements with image, mask, boxes (in shares), pixels (boxes), points, label, audio, text, video and row.

    Without `photographs` they are crops of those that scikit-image and scikit-learn carry.
    """
    paths = list(photographs or parent_photographs())
    sounds = [_sound(path) for path in sorted((DATA / "speech").glob("*.wav"))]
    with open(DATA / "text" / "austen_500.jsonl") as file:
        sentences = [json.loads(line)["text"] for line in file]
    with open(DATA / "tabular" / "flights_1000.csv") as file:
        rows = [_row(number, one) for number, one in enumerate(csv.DictReader(file)) if one["air_time"] != "NA"]
    read = {path: cv2.imread(str(path), cv2.IMREAD_COLOR) for path in paths[:count]}
    found = []
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        parent = read[paths[number % len(paths)]]
        if parent is None:
            raise ValueError(f"{paths[number % len(paths)]} is not a photograph that OpenCV can read.")
        top, left, height, width = random_crop_box(parent.shape, rng)
        image = cv2.cvtColor(parent[top : top + height, left : left + width], cv2.COLOR_BGR2RGB)
        scale = LONGEST / max(image.shape[:2])
        image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        given = _element(image, sounds[number % len(sounds)], sentences[(seed + number) % 500], rng)
        found.append({**given, "video": _video(image, rng), "row": rows[(seed + number) % len(rows)]})
    return found


def _video(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return 16 frames of 72 x 96 pixels through which the photograph moves, with a flicker and the camera's noise."""
    wide = cv2.resize(image, (160, 72), interpolation=cv2.INTER_AREA).astype(np.float32)
    speed = int(rng.integers(1, 5))
    frames = np.stack([wide[:, n * speed : n * speed + 96] for n in range(16)])
    flicker = rng.normal(1, 0.03, (16, 1, 1, 1)) * frames + rng.normal(0, 2, frames.shape)
    return np.clip(flicker, 0, 255).astype(np.uint8)


def _row(number: int, flight: dict[str, str]) -> dict[str, float | str]:
    """Return a flight's distance, time in the air, delay and carrier; one delay in four is missing."""
    delay = float(flight["arr_delay"]) if number % 4 else math.nan
    return {
        "distance": float(flight["distance"]),
        "air": float(flight["air_time"]),
        "delay": delay,
        "carrier": flight["carrier"],
    }


def _element(image: np.ndarray, sound: np.ndarray, sentence: str, rng: np.random.Generator) -> Element:
    height, width = image.shape[:2]
    boxes = np.sort(rng.uniform(0, 1, (int(rng.integers(1, 6)), 2, 2)), axis=1).reshape(-1, 4)
    mask = np.zeros((height, width), np.uint8)
    for number in range(3):
        centre = (int(rng.uniform(0, width)), int(rng.uniform(0, height)))
        cv2.circle(mask, centre, int(rng.uniform(0.1, 0.25) * height), number + 1, -1)
    begin = int(rng.integers(0, max(1, len(sound) - 12000)))
    return {
        "image": image,
        "mask": mask,
        "boxes": boxes.astype(np.float32),
        "pixels": (boxes * [width, height, width, height]).astype(np.float32),
        "points": rng.uniform(0.05, 0.95, (12, 2)).astype(np.float32) * np.array([width, height], np.float32),
        "label": int(rng.integers(10)),
        "audio": sound[begin : begin + int(rng.integers(8000, 24000))],
        "text": sentence,
    }


def _sound(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / np.float32(32768)
