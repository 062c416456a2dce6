"""Exchanges of operators of torchvision and of Albumentations, where they are installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from benchmarks.guard import ops
from benchmarks.guard.exchange import Exchange, ExchangeKind, Harm, on_image
from benchmarks.guard.of_pillow import EXTREMES, STEPS
from benchmarks.guard.of_pixels import OTHER_CUT, SAME_PICTURE, SQUEEZED, STRONGER
from benchmarks.library_transforms import import_torchvision

OTHER_DRAWS = "it draws pixels of the picture that it is given: another place, or another number of them"
ONE_GENERATOR = "both draw from torch's generator: each gets the numbers of the other one"
LibraryRow = tuple[Harm, Any, str]


def exchanges() -> Iterator[Exchange]:
    """Yield those whose libraries are there."""
    if find_spec("torchvision") is not None and find_spec("torch") is not None:
        yield from _of_torchvision()
    if find_spec("albumentations") is not None:
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        yield from _of_albumentations()


def _of_torchvision() -> Iterator[Exchange]:
    import_torchvision()
    import torch
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    tensor = on_image("ToImage", v2.ToImage())
    numbers = on_image("numpy", lambda x: x.numpy())
    small = on_image("Resize", v2.Resize((ops.SIDE, ops.SIDE)))
    resized = ExchangeKind("torchvision", before=(tensor,), behind=(numbers,), second=small)
    for label, fn, why in (*_colours_of_torchvision(v2), *_pixels_of_torchvision(v2), *_draws_of_torchvision(v2)):
        yield resized.exchange(label, on_image(type(fn).__name__, fn), why)
    unit = on_image("ToDtype", v2.ToDtype(torch.float32, scale=True))
    normal = on_image("Normalize", v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    noise = on_image("GaussianNoise", v2.GaussianNoise(sigma=0.1))
    yield resized.exchange("harmless", normal, SAME_PICTURE, before=[unit])
    yield resized.exchange("harmful", noise, "the resize averages noise away, and would not touch it", before=[unit])
    erase = on_image("RandomErasing", v2.RandomErasing(1.0, scale=(0.05, 0.1)))
    black = "what is erased is black, not the mean colour"
    yield resized.exchange("harmful", normal, black, second=erase, before=[small, unit])
    yield resized.exchange("harmful", unit, "means of bytes are refused, or subtracted from bytes", second=normal)
    flip, jitter = on_image("RandomHorizontalFlip", v2.RandomHorizontalFlip()), v2.ColorJitter(0.5, 0.5)
    centre, cut = on_image("CenterCrop", v2.CenterCrop(160)), on_image("RandomCrop", v2.RandomCrop(160))
    yield resized.exchange("harmless", flip, "the middle of a mirror image is the same", second=centre)
    bright = on_image("brightness", v2.ColorJitter(brightness=0.5))
    yield resized.exchange("harmless", bright, SAME_PICTURE, second=centre)
    blurred = on_image("GaussianBlur", v2.GaussianBlur(7, 1.5))
    yield resized.exchange("harmless", blurred, "but for the border of the cut", second=centre)
    contrast = on_image("contrast", v2.ColorJitter(contrast=0.6))
    yield resized.exchange("doubtful", contrast, "it stretches about the mean of the middle", second=centre)
    yield resized.exchange("harmful", flip, ONE_GENERATOR, second=cut)
    yield resized.exchange("harmful", on_image("ColorJitter", jitter), ONE_GENERATOR, second=cut)
    gray = on_image("RandomGrayscale", v2.RandomGrayscale(0.5))
    yield resized.exchange("harmful", gray, ONE_GENERATOR, second=on_image("ColorJitter", jitter), before=[small])
    yield resized.exchange("harmless", flip, "mirrors bytes and fractions alike", second=unit, before=[small])
    yield resized.exchange("harmless", normal, SAME_PICTURE, second=flip, before=[small, unit])
    gamma = on_image("gamma", lambda x, rng: v2.functional.adjust_gamma(x, float(rng.uniform(0.6, 1.5))), random=True)
    yield resized.exchange("harmless", gamma, SAME_PICTURE)


def _colours_of_torchvision(v2: Any) -> Iterator[LibraryRow]:
    yield "harmless", v2.ColorJitter(0.4, 0.4, 0.4, 0.1), SAME_PICTURE
    yield "harmless", v2.RandomPhotometricDistort(), SAME_PICTURE
    yield "harmless", v2.Grayscale(3), SAME_PICTURE
    yield "harmless", v2.RandomInvert(1.0), SAME_PICTURE
    yield "harmless", v2.RandomEqualize(1.0), "the histogram of the smaller picture is nearly the same"
    yield "harmless", v2.RandomChannelPermutation(), SAME_PICTURE
    yield "doubtful", v2.RandomAutocontrast(1.0), EXTREMES
    yield "doubtful", v2.RandomPosterize(3, 1.0), STEPS
    yield "doubtful", v2.RandomSolarize(128, 1.0), STEPS


def _pixels_of_torchvision(v2: Any) -> Iterator[LibraryRow]:
    bilinear = v2.InterpolationMode.BILINEAR
    yield "harmful", v2.GaussianBlur(7, 1.5), STRONGER
    yield "harmful", v2.RandomAdjustSharpness(3.0, 1.0), STRONGER
    yield "harmful", v2.Pad(16), "the result is larger by the border"
    yield "harmless", v2.RandomHorizontalFlip(), "mirroring and resizing commute"
    yield "harmless", v2.RandomVerticalFlip(), "mirroring and resizing commute"
    yield "doubtful", v2.RandomRotation(15, bilinear), SQUEEZED
    yield (
        "doubtful",
        v2.RandomAffine(0, translate=(0.1, 0.1), interpolation=bilinear),
        ("shares of the sides, but rounded to pixels of the small picture"),
    )


def _draws_of_torchvision(v2: Any) -> Iterator[LibraryRow]:
    yield "harmful", v2.RandomErasing(1.0), OTHER_DRAWS
    yield "harmful", v2.ElasticTransform(80.0), "waves of 80 pixels are as large as the small picture"
    yield "harmful", v2.RandomPerspective(0.3, 1.0), OTHER_DRAWS
    yield "harmful", v2.RandomZoomOut(p=1.0), OTHER_DRAWS


def _of_albumentations() -> Iterator[Exchange]:
    import albumentations as A  # noqa: N812 # as its users call it

    def step(transform: Any, name: str = "") -> Any:
        composed = A.Compose([transform], seed=7)
        return on_image(name or type(transform).__name__, lambda image: composed(image=image)["image"])

    resized = ExchangeKind("Albumentations", second=step(A.Resize(ops.SIDE, ops.SIDE)))
    for label, transform, why in (*_colours_of_albumentations(A), *_pixels(A), *_geometric_steps(A)):
        yield resized.exchange(label, step(transform), why)
    shares = A.CoarseDropout((1, 4), (0.1, 0.2), (0.1, 0.2), p=1.0)
    yield resized.exchange("doubtful", step(shares, "CoarseDropout in shares"), OTHER_DRAWS)
    cut, flip = step(A.RandomCrop(96, 96)), step(A.HorizontalFlip(p=0.5))
    small = step(A.Resize(160, 160))
    yield resized.exchange("doubtful", flip, OTHER_CUT, second=cut, before=[small])
    centre, normal = step(A.CenterCrop(96, 96)), step(A.Normalize())
    yield resized.exchange("harmless", flip, "the middle of a mirror image is the same", second=centre, before=[small])
    yield resized.exchange("harmless", normal, SAME_PICTURE, second=centre, before=[small])
    holes = step(A.CoarseDropout((1, 3), (8, 16), (8, 16), p=1.0))
    yield resized.exchange("harmful", normal, "holes are black, not the mean colour", second=holes, before=[small])
    gray = "mean and deviation of the picture's own, or of what stays of it"
    own = step(A.Normalize(normalization="image"), "Normalize by its own")
    yield resized.exchange("doubtful", own, gray, second=centre, before=[small])
    bright = step(A.RandomBrightnessContrast(p=1.0))
    yield resized.exchange("harmless", bright, SAME_PICTURE, second=flip, before=[small])
    yield resized.exchange("harmless", step(A.HueSaturationValue(p=1.0)), SAME_PICTURE, second=centre, before=[small])


def _colours_of_albumentations(A: Any) -> Iterator[LibraryRow]:  # noqa: N803 # as its users call it
    for transform in (
        *(A.RandomBrightnessContrast(p=1.0), A.HueSaturationValue(p=1.0), A.RGBShift(p=1.0), A.RandomGamma(p=1.0)),
        *(A.ToGray(p=1.0), A.ToSepia(p=1.0), A.ChannelShuffle(p=1.0), A.InvertImg(p=1.0), A.ColorJitter(p=1.0)),
        *(A.RandomToneCurve(p=1.0), A.ChannelDropout(p=1.0), A.Normalize(), A.ToFloat(), A.PlanckianJitter(p=1.0)),
    ):
        yield "harmless", transform, SAME_PICTURE
    yield "harmless", A.Equalize(p=1.0), "the histogram of the smaller picture is nearly the same"
    yield "doubtful", A.FancyPCA(p=1.0), "main colours of the smaller picture are nearly the same"
    yield "doubtful", A.Posterize(p=1.0), STEPS
    yield "doubtful", A.Solarize(p=1.0), STEPS
    yield "doubtful", A.AutoContrast(p=1.0), EXTREMES
    yield "doubtful", A.CLAHE(p=1.0), "its tiles have fewer pixels each"


def _pixels(A: Any) -> Iterator[LibraryRow]:  # noqa: N803 # as its users call it
    weaker = "the resize averages noise away, and would not touch it"
    for transform in (A.GaussNoise(p=1.0), A.ISONoise(p=1.0), A.PixelDropout(0.05, p=1.0), A.MultiplicativeNoise(
        (0.7, 1.3), per_channel=True, elementwise=True, p=1.0
    )):  # fmt: skip
        yield "harmful", transform, weaker
    for transform in (
        *(A.MotionBlur((9, 15), p=1.0), A.MedianBlur((7, 7), p=1.0), A.Blur((7, 7), p=1.0), A.Defocus((4, 6), p=1.0)),
        *(A.Sharpen(p=1.0), A.Emboss(p=1.0), A.UnsharpMask(p=1.0), A.GlassBlur(p=1.0), A.GaussianBlur(p=1.0)),
    ):
        yield "harmful", transform, STRONGER
    yield "harmful", A.ImageCompression(quality_range=(15, 30), p=1.0), "blocks of 8 pixels are three times as large"
    yield "harmful", A.Downscale((0.2, 0.3), p=1.0), "a fourth of the pixels of a picture that is already small"
    yield "harmful", A.CoarseDropout((1, 4), (16, 32), (16, 32), p=1.0), "holes are three times as large"
    yield "harmful", A.RandomRain(p=1.0), "drops are three times as large"
    yield "harmful", A.ElasticTransform(60, 8, p=1.0), "waves are three times as large"


def _geometric_steps(A: Any) -> Iterator[LibraryRow]:  # noqa: N803 # as its users call it
    yield "harmless", A.HorizontalFlip(p=0.5), "mirroring and resizing commute"
    yield "harmless", A.Transpose(p=0.5), "a square stays a square"
    yield "harmless", A.D4(p=1.0), "a square stays a square"
    yield "doubtful", A.Rotate(15, p=1.0), SQUEEZED
    yield "harmless", A.Perspective((0.05, 0.08), p=1.0), "corners are drawn in shares of the sides"
    yield "harmless", A.GridDistortion(p=1.0), "the grid lies in shares of the sides"
    yield "doubtful", A.OpticalDistortion(p=1.0), "a lens that is squeezed is no longer round"
    yield "harmful", A.Affine(translate_px=(10, 20), p=1.0), "pixels of the small picture are three times as far"
    yield "harmful", A.Pad(8), "the result is larger by the border"
