"""The TensorFlow versions of the steps do what those over NumPy do."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest

from examples import audio_ops, boxes_ops, image_ops
from examples.aerial import derived_items
from examples.asr_transformer import FIXTURE, read_transcripts
from examples.photographs import parent_photographs

tf: Any = pytest.importorskip("tensorflow")
audio_tf: Any = pytest.importorskip("examples.audio_ops_tf")
boxes_tf: Any = pytest.importorskip("examples.boxes_ops_tf")
image_tf: Any = pytest.importorskip("examples.image_ops_tf")


def element_of(element: dict[str, Any]) -> dict[str, Any]:
    return {name: tf.constant(value) for name, value in element.items()}


def close(usual: dict[str, Any], other: dict[str, Any], atol: float) -> None:
    assert usual.keys() == other.keys()
    for name, value in usual.items():
        made = np.asarray(other[name])
        assert made.shape == np.shape(value) and made.dtype == np.asarray(value).dtype, name
        np.testing.assert_allclose(made, value, atol=atol, err_msg=name)


def test_tensorflow_warps_resizes_blurs_and_grays_like_opencv() -> None:
    (path,) = (path for path in parent_photographs() if path.stem == "astronaut")
    image = image_ops.decode_rgb(path.read_bytes()).astype(np.float32)
    # Edges apart (OpenCV blends them with the fill), OpenCV's rounding of positions to 1/32 px remains.
    inside = (slice(30, -30), slice(40, -40))
    for name, amount in (("rotate_by", 4.0), ("shear_by", 0.08)):
        ours, theirs = (getattr(ops, name)(image, amount) for ops in (image_ops, image_tf))
        assert np.abs(ours[inside] - theirs.numpy()[inside]).mean() < 0.5
        assert np.abs(image[inside] - theirs.numpy()[inside]).mean() > 5.0, "the warp should have moved something"
    blurred = cv2.GaussianBlur(image, (23, 23), 1.3, borderType=cv2.BORDER_CONSTANT)
    for ours, theirs in (
        (image_ops.resize(image), image_tf.resize(image)),
        (blurred, image_tf.blur_by(image, 1.3)),
        (image_ops.luminance(image), image_tf.luminance(image)),
    ):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=0.05)


def test_targets_are_those_of_numpy_and_an_image_without_boxes_has_only_background() -> None:
    anchors = boxes_ops.make_anchors()
    for item in derived_items(2):
        usual = boxes_ops.resize_and_crop(boxes_ops.decode(item))
        # The decoders of OpenCV and TensorFlow round otherwise: the targets are of the same image.
        other = {**boxes_tf.resize_and_crop(boxes_tf.decode(item)), "image": usual["image"]}
        close(boxes_ops.label_extract(usual, anchors), boxes_tf.label_extract(other, anchors), 1e-4)
    element = {"boxes": np.zeros((0, 4), np.float32), "classes": np.zeros(0, np.int32)}
    found = boxes_tf.label_extract(element, boxes_ops.make_anchors())
    assert found["num_positives"] == 0 and not found["class_targets_3"].numpy().any()
    assert (found["boxes"].numpy() == -1).all()


def test_images_and_boxes_are_resized_normalized_and_flipped_as_by_numpy() -> None:
    (item,) = derived_items(1)
    element = boxes_ops.decode(item)
    image = boxes_tf.resize_and_crop(element_of(element))["image"].numpy()
    off = np.abs(image.astype(int) - boxes_ops.resize_and_crop(element)["image"])
    assert image.dtype == np.uint8 and image.shape == (640, 640, 3) and off.max() <= 1
    np.testing.assert_allclose(
        boxes_tf.normalize(element["image"]), boxes_ops.normalize(element["image"]), rtol=0, atol=1e-5
    )
    found = [
        boxes_tf.random_flip_with_boxes(element_of(element), np.array([0, number], np.int32)) for number in range(12)
    ]
    mirrored = [bool((one["image"].numpy() == element["image"][:, ::-1]).all()) for one in found]
    assert 0 < sum(mirrored) < 12
    for one, flipped in zip(found, mirrored, strict=True):
        left = one["boxes"].numpy()[:, 1]
        np.testing.assert_allclose(left, 1 - element["boxes"][:, 3] if flipped else element["boxes"][:, 1], atol=1e-6)


def spectrogram(ops: ModuleType, name: str, text: str) -> dict[str, Any]:
    element = {"path": str(FIXTURE / name), "audio": (FIXTURE / name).read_bytes()}
    element = {**element, "audio": ops.decode(element["audio"])}
    found: dict[str, Any] = ops.fourier_transform(ops.vectorize(ops.add_text(element, {"a": "b", name: text})))
    return found


def test_speech_becomes_the_spectrogram_and_the_numbers_of_numpy() -> None:
    name, text = next(iter(read_transcripts(FIXTURE).items()))
    for said in (text, "Él dijo: no! " * 40):
        usual, other = (spectrogram(ops, name, said) for ops in (audio_ops, audio_tf))
        close(usual, other, 0.01)
        close(audio_ops.pad(usual), audio_tf.pad(other), 0.01)


@pytest.mark.parametrize("padded", [False, True])
def test_augmentations_are_those_of_numpy(padded: bool) -> None:
    source = np.random.default_rng(0).normal(size=(300, 129)).astype(np.float32)
    element: dict[str, Any] = {"source": source, "frames": np.int32(300)}
    element = audio_ops.pad(element) if padded else element
    for factor in audio_ops.SPEEDS:
        close(audio_ops.change_speed(element, factor), audio_tf.change_speed(element_of(element), factor), 1e-3)
    source = element["source"]
    np.testing.assert_allclose(audio_tf.change_pitch(source, 1.5), audio_ops.change_pitch(source, 1.5), atol=1e-3)
    echo = {"decay_frames": 50.0, "share": 0.3}
    np.testing.assert_allclose(audio_tf.add_echo(source, **echo), audio_ops.add_echo(source, **echo), atol=1e-3)
    masked = audio_tf.spec_augment(element_of(element), np.array([0, 1], np.int32))["source"].numpy()
    assert ((masked == source) | (masked == 0)).all() and (masked != source).any()
