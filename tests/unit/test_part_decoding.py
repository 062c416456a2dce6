"""A part of a JPEG: the pixels are those of decoding the whole and cutting, or the whole is decoded."""

from __future__ import annotations

import io
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from pecan_ray import images, part_decoding
from pecan_ray.known.detect_steps import known_functions
from pecan_ray.part_decoding import JpegHeader, TurboJpeg, decode_part, read_header

needs_turbojpeg = pytest.mark.skipif(part_decoding.library() == part_decoding.NOT_THERE, reason=part_decoding.NOT_THERE)
SAMPLINGS = {
    (1, 1): cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    (2, 1): cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    (1, 2): cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    (2, 2): cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
}
REDUCED = {
    1: cv2.IMREAD_COLOR,
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}


def picture(rng: np.random.Generator, height: int, width: int) -> Any:
    noise = rng.integers(0, 256, (height, width, 3), np.uint8)
    return cv2.GaussianBlur(noise, (0, 0), rng.uniform(0.5, 3.0)) if rng.random() < 0.7 else noise


def jpeg(image: Any, *settings: int) -> bytes:
    return bytes(cv2.imencode(".jpg", image, list(settings))[1])


def whole(encoded: bytes, ratio: int = 1) -> Any:
    flag = REDUCED[ratio] | cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flag)
    return None if image is None else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def decode_crop(crop: Any, encoded: bytes, seed: int = 0) -> Any:
    """What a decoder and a crop at once make of a file."""
    known = known_functions([("crop", crop)], decodes=True)
    return known.merged(reduces=False)(encoded, lambda name: np.random.default_rng(seed))


def cut(image: Any, part: part_decoding.PartBox) -> Any:
    top, left, height, width = part
    return image[top : top + height, left : left + width]


def some_part(rng: np.random.Generator, shape: tuple[int, int]) -> part_decoding.PartBox:
    top, left = int(rng.integers(shape[0])), int(rng.integers(shape[1]))
    return top, left, int(rng.integers(1, shape[0] - top + 1)), int(rng.integers(1, shape[1] - left + 1))


def some_jpeg(rng: np.random.Generator) -> bytes:
    height, width = map(int, rng.integers(1, 150, 2))
    image = picture(rng, height, width)
    factor = list(SAMPLINGS.values())[int(rng.integers(4))]
    settings = [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(10, 101)), cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor]
    if rng.random() < 0.3:
        settings += [cv2.IMWRITE_JPEG_RST_INTERVAL, int(rng.integers(1, 6))]
    if rng.random() < 0.3:
        settings += [cv2.IMWRITE_JPEG_OPTIMIZE, 1]
    return jpeg(image[..., 0] if rng.random() < 0.2 else image, *settings)


def of_pillow(image: Any, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def other_files(image: Any) -> dict[str, bytes]:
    encoded = jpeg(image)
    return {
        "no JPEG": bytes(cv2.imencode(".png", image)[1]),
        "no marker of its end": encoded[:-2] + bytes(4000),
        "progressive": jpeg(image, cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        "four colours": of_pillow(image, "CMYK"),
        "no header": encoded[:4] + b"\xff\xd9",
        "an unusual size of colours": jpeg(
            image, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411
        ),
    }


def test_other_files_are_decoded_whole() -> None:
    image, crop = picture(np.random.default_rng(3), 60, 90), images.RandomCrop()
    assert read_header(np.frombuffer(jpeg(image), np.uint8)) is None
    for kind, encoded in other_files(image).items():
        assert read_header(encoded) is None, kind
        if whole(encoded) is not None:
            found = decode_crop(crop, encoded, 0)
            assert np.array_equal(found, crop(whole(encoded), np.random.default_rng(0)))


def tail(rng: np.random.Generator, encoded: bytes) -> bytes:
    """Return what cameras and servers write behind an image, or what is left where it broke off."""
    noise = rng.bytes(int(rng.integers(1, 5000)))
    return [b"\n", noise, bytes(4096), encoded, noise + part_decoding.END + noise][int(rng.integers(5))]


@needs_turbojpeg
@pytest.mark.parametrize("ratio", REDUCED)
def test_a_part_has_the_pixels_of_the_whole_and_bytes_behind_its_end_change_nothing(ratio: int) -> None:
    rng = np.random.default_rng(ratio)
    for number in range(150):
        plain = some_jpeg(rng)
        encoded = plain + tail(rng, plain) if number % 5 == 0 else plain
        header, expected = read_header(encoded), whole(plain, ratio)
        assert isinstance(header, JpegHeader) and expected.shape[:2] == header.reduced(ratio)
        part = some_part(rng, expected.shape[:2])
        found = decode_part(encoded, header, part, ratio)
        assert found is not None and np.array_equal(found, cut(expected, part)), (header, part)
        wide = decode_part(encoded, header, part, ratio, channels=4)
        assert wide is not None and np.array_equal(wide[..., :3], found), (header, part)


def damaged(rng: np.random.Generator, encoded: bytes) -> bytes:
    made, how, behind = bytearray(encoded), rng.random(), encoded.index(b"\xff\xda") + 10
    if rng.random() < 0.4:
        kept = encoded[: int(rng.integers(behind, len(encoded) + 1))] if rng.random() < 0.5 else encoded
        return kept + tail(rng, encoded)
    if how < 0.3:
        return encoded[: int(rng.integers(4, len(encoded)))] + (b"\xff\xd9" if rng.random() < 0.5 else b"")
    if how < 0.5:
        at = int(rng.integers(behind, len(made)))
        return encoded[:at] + bytes([255, int(rng.integers(0xC0, 0xFF))]) + encoded[at:]
    for _ in range(int(rng.integers(1, 4))):
        made[int(rng.integers(2 if how < 0.8 else behind, len(made)))] = int(rng.integers(256))
    return bytes(made)


@needs_turbojpeg
def test_a_damaged_file_gives_the_same_error_or_the_same_pixels(capfd: pytest.CaptureFixture[str]) -> None:
    rng, crop = np.random.default_rng(1), images.RandomCrop(area=(0.05, 0.6))
    seen: Counter[bool] = Counter()
    for number in range(600):
        encoded = damaged(rng, some_jpeg(rng))
        if (images.jpeg_shape(encoded) or (0, 0)) > (1000, 1000):
            continue  # a size that nobody has encoded
        expected = whole(encoded)
        seen[expected is None] += 1
        if expected is None:
            with pytest.raises(ValueError, match="not an image"):
                decode_crop(crop, encoded, number)
        else:
            found = decode_crop(crop, encoded, number)
            assert np.array_equal(found, crop(expected, np.random.default_rng(number)))
    assert min(seen.values()) > 8
    capfd.readouterr()  # the decoders tell of every file on stderr


@needs_turbojpeg
def test_the_tables_of_one_file_are_not_those_of_the_next() -> None:
    encoded = jpeg(picture(np.random.default_rng(0), 64, 64))
    header = read_header(encoded)
    assert isinstance(header, JpegHeader) and decode_part(encoded, header, (0, 0, 8, 8)) is not None
    second = encoded.index(b"\xff\xdb\x00\x43\x01")
    without = encoded[: second + 4] + b"\x02" + encoded[second + 5 :]
    assert whole(without) is None
    assert decode_part(without, header, (0, 0, 8, 8)) is None


@needs_turbojpeg
def test_the_orientation_of_a_camera_changes_nothing() -> None:
    photograph, crop = picture(np.random.default_rng(2), 60, 90), images.CenterCrop(30, 40)
    for orientation in (1, 3, 6, 8):
        exif = Image.Exif()
        exif[0x0112] = orientation
        encoded = of_pillow(photograph, exif=exif)
        assert np.array_equal(decode_crop(crop, encoded), crop(whole(encoded)))
        header = read_header(encoded)
        assert header is not None and decode_part(encoded, header, (0, 0, 8, 8)) is not None


@needs_turbojpeg
def test_several_threads_decode_at_a_time() -> None:
    rng = np.random.default_rng(4)
    encoded = [some_jpeg(rng) for _ in range(40)]
    crop = images.RandomCrop()

    def run(number: int) -> Any:
        return decode_crop(crop, encoded[number % 40], number)

    with ThreadPoolExecutor(8) as threads:
        at_once = list(threads.map(run, range(120)))
    assert all(np.array_equal(found, run(number)) for number, found in enumerate(at_once))


@needs_turbojpeg
def test_a_library_that_makes_other_pixels_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rounding(TurboJpeg):
        def part(self, encoded: bytes, header: JpegHeader, part: Any, ratio: int = 1, channels: int = 3) -> Any:
            made = super().part(encoded, header, part, ratio, channels)
            return made ^ (header.sampling == (2, 2)) if made is not None else None

    monkeypatch.setattr(part_decoding, "TurboJpeg", Rounding)
    monkeypatch.setattr(part_decoding, "_loaded", [])
    why = part_decoding.library()
    assert isinstance(why, str) and "it decodes 2 x 2 blocks of RGB at 1/1 otherwise than OpenCV" in why


def test_without_a_library_the_whole_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_decoding, "libraries", lambda: iter(["/no/such/library", "libm.so.6"]))
    monkeypatch.setattr(part_decoding, "_loaded", [])
    encoded, crop = jpeg(np.zeros((40, 40, 3), np.uint8)), images.CenterCrop(8, 8)
    assert np.array_equal(decode_crop(crop, encoded), crop(whole(encoded)))
    assert part_decoding.library() == part_decoding.NOT_THERE
