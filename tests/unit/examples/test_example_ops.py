"""The steps of the example pipelines, on real photographs, boxes and speech."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from examples import audio_ops, boxes_ops, image_ops
from examples.aerial import FIXTURE, coco_items
from examples.photographs import derived_photographs, parent_photographs

DATA = Path(__file__).resolve().parents[3] / "examples" / "data"


@pytest.fixture(scope="module")
def astronaut() -> Any:
    (path,) = (path for path in parent_photographs() if path.stem == "astronaut")
    return image_ops.resize(image_ops.decode_rgb(path.read_bytes()))


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_derived_set_is_repeatable_and_in_one_folder_per_parent(tmp_path: Path) -> None:
    sets = [derived_photographs(15, seed=3, cache=tmp_path / name) for name in "ab"]
    first, second = ({path.relative_to(one): path.read_bytes() for path in one.rglob("*.jpg")} for one in sets)
    assert first == second and len(first) == 15
    assert {path.parent.name for path in first} == {path.stem for path in parent_photographs()}
    assert list((tmp_path / "a").iterdir()) == sets[:1], "an unfinished folder was left behind"


@pytest.mark.parametrize("channels", [1, 3])
def test_simclr_steps_take_views_with_and_without_colour(channels: int, astronaut: Any) -> None:
    views = image_ops.duplicate_and_cast(astronaut)
    assert views.shape == (2, *astronaut.shape) and views.dtype == np.float32 and views.max() <= 1.0
    views = views[..., :channels]
    for name in ("crop_and_resize", "random_flip_views", "color_jitter", "gaussian_blur"):
        step = getattr(image_ops, name)
        for seed in range(6):
            out = step(views, generator(seed))
            assert out.dtype == np.float32 and out.shape[0] == 2 and out.shape[-1] == channels
        views = out
    final = image_ops.reshape(image_ops.tile(image_ops.clip(views)))
    assert final.shape == (224, 224, 6) and 0.0 <= final.min() < final.max() <= 1.0
    assert not np.array_equal(final[..., :3], final[..., 3:]), "the views should differ"


@pytest.fixture(scope="module")
def trees() -> dict[str, Any]:
    (item,) = coco_items(FIXTURE)
    return boxes_ops.decode(boxes_ops.read_file(item))


def test_boxes_move_with_their_pixels_when_images_are_flipped_resized_or_cropped(trees: dict[str, Any]) -> None:
    tried = (boxes_ops.random_flip_with_boxes(trees, generator(seed)) for seed in range(50))
    flipped = next(out for out in tried if out is not trees)
    side = trees["image"].shape[0]
    for before, after in zip(trees["boxes"], flipped["boxes"], strict=True):
        top, left, bottom, right = np.rint(before * side).astype(int)
        new_top, new_left, new_bottom, new_right = np.rint(after * side).astype(int)
        np.testing.assert_array_equal(
            trees["image"][top:bottom, left:right], flipped["image"][new_top:new_bottom, new_left:new_right][:, ::-1]
        )
    box = {"boxes": np.array([[0.5, 0.25, 1.0, 0.75]], np.float32), "classes": np.array([1], np.int32)}
    out = boxes_ops.resize_and_crop({**trees, "image": trees["image"][:200], **box})
    assert out["image"].shape == (640, 640, 3) and out["image"].dtype == np.uint8
    assert out["image"][320:].max() == 0 and out["image"][:320].mean() > 10
    np.testing.assert_allclose(out["boxes"] * 640, [[160, 160, 320, 480]], atol=0.01)


def test_targets_lead_back_to_the_boxes(trees: dict[str, Any]) -> None:
    anchors = boxes_ops.make_anchors()
    element = boxes_ops.resize_and_crop({**trees, "image": boxes_ops.normalize(trees["image"])})
    out = boxes_ops.label_extract(element, anchors)
    classes = np.concatenate([out[f"class_targets_{level}"].reshape(-1) for level in boxes_ops.LEVELS])
    shifts = np.concatenate([out[f"box_targets_{level}"].reshape(-1, 4) for level in boxes_ops.LEVELS])
    positive = classes > 0
    assert out["num_positives"] == positive.sum() >= 61
    sizes = anchors[positive, 2:] - anchors[positive, :2]
    centres = (anchors[positive, 2:] + anchors[positive, :2]) / 2 + shifts[positive, :2] * sizes
    half = np.exp(shifts[positive, 2:]) * sizes / 2
    decoded = np.concatenate([centres - half, centres + half], axis=1)
    distance = np.abs(decoded[:, np.newaxis] - out["boxes"][np.newaxis, :61]).max(axis=-1)
    assert distance.min(axis=1).max() < 0.01, "an anchor's target is none of the boxes"
    assert distance.min(axis=0).max() < 0.01, "a box has no anchor"
    assert (out["boxes"][61:] == -1).all() and (out["classes"][61:] == -1).all()
    bare = {**element, "boxes": np.zeros((0, 4), np.float32), "classes": np.zeros(0, np.int32)}
    out = boxes_ops.label_extract(bare, anchors)
    assert out["num_positives"] == 0 and out["class_targets_3"].max() == 0, "background alone"


@pytest.fixture(scope="module")
def speech() -> dict[str, Any]:
    path = DATA / "speech" / "librivox_sense_and_sensibility_01_austen_64kb-0880.wav"
    element = audio_ops.read_file({"path": str(path)})
    element = {**element, "audio": audio_ops.decode(element["audio"])}
    element = audio_ops.add_text(element, {path.name: "He was not an ill-disposed young man; é"})
    return audio_ops.fourier_transform(audio_ops.vectorize(element))


def test_text_becomes_numbers_and_sound_a_spectrogram_that_shows_a_tone_where_it_is(speech: dict[str, Any]) -> None:
    assert len(audio_ops.VOCABULARY) == 34
    text = "".join(audio_ops.VOCABULARY[number] for number in speech["target"])
    assert text.rstrip("-") == "<he was not an ill-disposed young man# #>"
    assert speech["target"].shape == (200,) and speech["target"].dtype == np.int32
    long = audio_ops.vectorize({"audio": None, "text": "a" * 500})["target"]
    assert long[0] == 2 and long[-1] == 3 and (long[1:-1] == 4).all(), "long text keeps its end sign"
    tone = np.sin(2 * np.pi * 32 / 256 * np.arange(4000)).astype(np.float32)
    out = audio_ops.fourier_transform({"audio": tone, "target": np.zeros(200, np.int32)})
    assert out["source"].shape == ((4000 - 200) // 80 + 1, 129) == (out["frames"], 129)
    assert (out["source"].argmax(axis=1) == 32).all()
    np.testing.assert_allclose(out["source"].mean(axis=1), 0.0, atol=1e-5)
    np.testing.assert_allclose(out["source"].std(axis=1), 1.0, atol=1e-4)


def test_augmentations_are_the_same_before_and_after_padding(speech: dict[str, Any]) -> None:
    steps: list[Callable[[dict[str, Any]], dict[str, Any]]] = [
        lambda element: audio_ops.change_speed(element, 0.9),
        lambda element: audio_ops.change_speed(element, 1.1),
        lambda element: audio_ops.spec_augment(element, generator(5)),
    ]
    for step in steps:
        early, late = audio_ops.pad(step(speech)), step(audio_ops.pad(speech))
        assert early["frames"] == late["frames"]
        np.testing.assert_array_equal(early["source"], late["source"])
        assert not np.array_equal(early["source"], audio_ops.pad(speech)["source"])
    assert audio_ops.change_speed(speech, 0.9)["frames"] == round(speech["frames"] / 0.9)


WORKER = """
import pickle, sys

sys.modules["examples"] = None  # importing it raises ModuleNotFoundError
for step in pickle.load(sys.stdin.buffer):
    step()
"""


def test_steps_run_where_the_examples_cannot_be_imported(
    tmp_path: Path, trees: dict[str, Any], speech: dict[str, Any], astronaut: Any
) -> None:
    element = boxes_ops.resize_and_crop(trees)
    steps = [
        functools.partial(image_ops.color_jitter, image_ops.duplicate_and_cast(astronaut), generator(0)),
        functools.partial(boxes_ops.label_extract, element, anchors=boxes_ops.make_anchors()),
        functools.partial(audio_ops.reverb, speech["source"], generator(0)),
    ]
    subprocess.run([sys.executable, "-c", WORKER], input=cloudpickle.dumps(steps), cwd=tmp_path, check=True)
