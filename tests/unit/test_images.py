"""`images`: photographs of every format, turned ones, folders of decoded ones, and parts of JPEGs."""

from __future__ import annotations

import functools
import io
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps
from skimage import data

import pecan_ray as pecan
from pecan_ray import images, part_decoding
from pecan_ray.errors import PlanError
from pecan_ray.known.detect_steps import known_functions
from pecan_ray.options import EngineName
from pecan_ray.part_decoding import JpegHeader, TurboJpeg, decode_part, read_header
from pecan_ray.sources import ImageFolder
from tests.unit.autoorder.sampled_orders import push_down
from tests.unit.known.known_functions import encode, photograph

DECODE = images.Decode()
ORIENTATION = 0x0112


def turned(pixels: Any, kind: str, number: int | None, **how: Any) -> bytes:
    """Return an encoded image that says to be turned."""
    exif, out = Image.Exif(), io.BytesIO()
    exif[0x010F] = "a maker"
    if number is not None:
        exif[ORIENTATION] = number
    Image.fromarray(pixels).save(out, kind, exif=exif, **how)
    return out.getvalue()


def test_what_is_no_image_and_no_answer_is_refused() -> None:
    for file in (b"", b"no image", photograph(90, 90)[:30]):
        with pytest.raises(ValueError, match="not an image"):
            DECODE(file)
    wrong: Any = "yes"
    with pytest.raises(PlanError, match="True or False"):
        images.Decode(upright=wrong)
    with pytest.raises(PlanError, match=r"ImageFolder\(decode=...\) must be True or False"):
        ImageFolder("/x", decode=wrong)


def test_encoded_photographs_may_be_in_any_memory_and_have_the_pixels_of_pillow_in_every_format() -> None:
    file = photograph(300, 450)
    for same in (bytearray(file), memoryview(file), np.frombuffer(file, np.uint8)):
        assert DECODE(same).shape == (300, 450, 3)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 4), np.uint8), "RGBA")
    for kind, modes in {"PNG": ("1", "L", "LA", "P", "RGBA"), "BMP": ("1", "P", "RGB"), "TIFF": ("L", "RGB")}.items():
        for mode in modes:
            out = io.BytesIO()
            (noise.convert("RGB") if mode == "P" else noise).convert(mode).save(out, kind)
            np.testing.assert_array_equal(DECODE(out.getvalue()), Image.open(out).convert("RGB"), f"{kind} {mode}")


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_photographs_are_turned_as_pillow_turns_them(engine: EngineName) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    decode: Any = images.Decode(upright=True)
    if engine == "tensorflow":
        tf = pytest.importorskip("tensorflow")
        decode = tf.function(decode, input_signature=[tf.TensorSpec([], tf.string)])
    files = [turned(pixels, "JPEG", number) for number in (None, *range(10))]
    for file in files:
        wanted = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB"))
        got = np.asarray(decode(file))
        assert got.shape == wanted.shape and np.abs(got.astype(int) - wanted).max() <= 3
    assert images.Decode()(files[7]).shape == (32, 48, 3), "by default they come as they are stored"


def test_no_rewrite_leaves_a_turned_photograph_as_it_is_stored(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "6.jpg").write_bytes(turned(picture(np.random.default_rng(0), 32, 48), "JPEG", 6))
    pipe = pecan.PecanPipeline(ImageFolder(tmp_path), config=pecan.Config(reorder="pecan", progress=False))
    upright = pipe.map(images.Decode(upright=True), on="image")
    for behind in (images.CenterCrop(40, 20), images.Resize(12, 8), images.RandomCrop()):
        plan = upright.map(behind, on="image").plan
        assert push_down(plan, "python")[1] == () == push_down(plan, "tensorflow")[1]
    with upright.map(images.CenterCrop(40, 20), on="image").batch(1).iter_batches(debug=True) as batches:
        assert [batch["image"].shape for batch in batches] == [(1, 40, 20, 3)]


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_decoded_images_are_arrays_and_the_decoder_takes_over_what_follows(tmp_path: Path, engine: EngineName) -> None:
    for name in ("astronaut", "coffee"):
        (tmp_path / name).mkdir()
        assert cv2.imwrite(str(tmp_path / name / "one.jpg"), getattr(data, name)())
    decoded = pecan.PecanPipeline(ImageFolder(tmp_path, decode=True), engine=engine)
    by_hand = pecan.PecanPipeline(ImageFolder(tmp_path), engine=engine).map(DECODE, on="image")
    assert [np.asarray(one["image"]).shape for one in decoded.peek(2)] == [(512, 512, 3), (400, 600, 3)]
    for one, other in zip(decoded.peek(2), by_hand.peek(2), strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])
    assert [len(one.ops) for one in push_down(decoded.map(images.Resize(32, 32), on="image").plan, engine)[1]] == (
        [2] if engine == "python" else []
    )
    assert decoded.fingerprint() == by_hand.fingerprint()


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


TURNED = b"\xff\xe1\x00\x22Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
"""What a camera writes that was held upright: parts are those of the image as it is stored."""


def picture(rng: np.random.Generator, height: int, width: int) -> Any:
    noise = rng.integers(0, 256, (height, width, 3), np.uint8)
    return cv2.GaussianBlur(noise, (0, 0), rng.uniform(0.5, 3.0)) if rng.random() < 0.7 else noise


def whole(encoded: bytes, ratio: int = 1) -> Any:
    flag = REDUCED[ratio] | cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flag)
    return None if image is None else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def decode_crop(crop: Any, encoded: bytes, seed: int = 0) -> Any:
    """What a decoder and a crop at once make of a file."""
    known = known_functions([("crop", crop)], decodes=True, reduces=False)
    assert known is not None
    return known[0](encoded, lambda name: np.random.default_rng(seed))


def some_jpeg(rng: np.random.Generator) -> bytes:
    height, width = map(int, rng.integers(1, 150, 2))
    image = picture(rng, height, width)
    factor = list(SAMPLINGS.values())[int(rng.integers(4))]
    settings = [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(10, 101)), cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor]
    if rng.random() < 0.3:
        settings += [cv2.IMWRITE_JPEG_RST_INTERVAL, int(rng.integers(1, 6))]
    if rng.random() < 0.3:
        settings += [cv2.IMWRITE_JPEG_OPTIMIZE, 1]
    encoded = encode(image[..., 0] if rng.random() < 0.2 else image, *settings)
    return encoded if rng.random() < 0.8 else encoded[:2] + TURNED + encoded[2:]


def test_other_files_are_decoded_whole() -> None:
    image, crop, four_colours = picture(np.random.default_rng(3), 60, 90), images.RandomCrop(), io.BytesIO()
    Image.fromarray(image).convert("CMYK").save(four_colours, "JPEG")
    encoded = encode(image)
    others = {
        "no JPEG": encode(image, kind=".png"),
        "no marker of its end": encoded[:-2] + bytes(4000),
        "progressive": encode(image, cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        "four colours": four_colours.getvalue(),
        "no header": encoded[:4] + b"\xff\xd9",
        "an unusual size of colours": encode(
            image, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411
        ),
    }

    assert read_header(np.frombuffer(encoded, np.uint8)) is None
    for kind, encoded in others.items():
        header = read_header(encoded)
        assert header is None or (header.sampling is None and header.shape == image.shape[:2]), kind
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
    for number in range(60):
        plain = some_jpeg(rng)
        encoded = plain + tail(rng, plain) if number % 5 == 0 else plain
        header, expected = read_header(encoded), whole(plain, ratio)
        assert isinstance(header, JpegHeader) and expected.shape[:2] == header.reduced(ratio)
        top, left = (int(rng.integers(size)) for size in expected.shape[:2])
        height, width = (int(rng.integers(1, left + 1)) for left in (expected.shape[0] - top, expected.shape[1] - left))
        part = (top, left, height, width)
        for channels in (3, 4):
            found = decode_part(encoded, header, part, ratio, channels=channels)
            wanted = expected[top : top + height, left : left + width]
            assert found is not None and np.array_equal(found[..., :3], wanted), (header, part)


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
    for number in range(200):
        encoded = damaged(rng, some_jpeg(rng))
        header = read_header(encoded)
        if header is not None and header.shape > (1000, 1000):
            continue  # a size that nobody has encoded
        expected = whole(encoded)
        seen[expected is None] += 1
        if expected is None:
            with pytest.raises(ValueError, match="not an image"):
                decode_crop(crop, encoded, number)
        else:
            found = decode_crop(crop, encoded, number)
            assert np.array_equal(found, crop(expected, np.random.default_rng(number)))
    assert min(seen.values()) > 2
    capfd.readouterr()  # the decoders tell of every file on stderr


@needs_turbojpeg
def test_the_tables_of_one_file_are_not_those_of_the_next() -> None:
    encoded = encode(picture(np.random.default_rng(0), 64, 64))
    header = read_header(encoded)
    assert isinstance(header, JpegHeader) and decode_part(encoded, header, (0, 0, 8, 8)) is not None
    second = encoded.index(b"\xff\xdb\x00\x43\x01")
    without = encoded[: second + 4] + b"\x02" + encoded[second + 5 :]
    assert whole(without) is None
    assert decode_part(without, header, (0, 0, 8, 8)) is None


@needs_turbojpeg
def test_several_threads_decode_at_a_time() -> None:
    rng, crop = np.random.default_rng(4), images.RandomCrop()
    encoded = [some_jpeg(rng) for _ in range(120)]
    with ThreadPoolExecutor(8) as threads:
        for one, found in zip(encoded, threads.map(lambda one: decode_crop(crop, one), encoded), strict=True):
            assert np.array_equal(found, decode_crop(crop, one))


@needs_turbojpeg
def test_a_library_that_makes_other_pixels_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rounding(TurboJpeg):
        def part(self, encoded: bytes, header: JpegHeader, part: Any, ratio: int = 1, channels: int = 3) -> Any:
            made = super().part(encoded, header, part, ratio, channels)
            return made ^ (header.sampling == (2, 2)) if made is not None else None

    monkeypatch.setattr(part_decoding, "TurboJpeg", Rounding)
    monkeypatch.setattr(part_decoding, "library", functools.cache(part_decoding.library.__wrapped__))
    why = part_decoding.library()
    assert isinstance(why, str) and "it decodes 2 x 2 blocks of RGB at 1/1 otherwise than OpenCV" in why


def test_without_a_library_the_whole_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_decoding, "libraries", lambda: iter(["/no/such/library", "libm.so.6"]))
    monkeypatch.setattr(part_decoding, "library", functools.cache(part_decoding.library.__wrapped__))
    encoded, crop = encode(np.zeros((40, 40, 3), np.uint8)), images.CenterCrop(8, 8)
    assert np.array_equal(decode_crop(crop, encoded), crop(whole(encoded)))
    assert part_decoding.library() == part_decoding.NOT_THERE
