"""Exchanges of operators of Pillow and of scikit-image."""

from __future__ import annotations

import io
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from benchmarks.guard import ops
from benchmarks.guard.exchange import Exchange, ExchangeKind, Harm, on_image
from benchmarks.guard.of_pixels import SAME_PICTURE, SQUEEZED, STRONGER

OPENED = on_image("picture", Image.fromarray)
ARRAY = on_image("array", lambda x: np.asarray(x.convert("RGB")))
SMALL = on_image("pil_resize", lambda x: x.resize((ops.SIDE, ops.SIDE), Image.Resampling.BILINEAR))
PICTURES = ExchangeKind("Pillow", before=(OPENED,), behind=(ARRAY,), second=SMALL)
STEPS = "steps in brightness are mixed by the resize, or stay sharp"
EXTREMES = "the resize averages the darkest and the brightest pixels away, by which it stretches"


def exchanges() -> Iterator[Exchange]:
    """Yield all of this file."""
    for label, name, fn, why in (*_filters(), *_colours(), *_drawn(), *_geometric_steps()):
        yield PICTURES.exchange(label, on_image(name, fn), why)
    yield from _random()
    for label, name, fn, why in (*_scikit_image(), *_of_scales()):
        yield ExchangeKind("scikit-image", second=SCALED).exchange(label, on_image(name, fn), why)
    yield from _random_of_scikit_image()


def _filters() -> Iterator[tuple[Harm, str, Any, str]]:
    for name, kind in (
        ("gaussian", ImageFilter.GaussianBlur(2)),
        ("box_blur", ImageFilter.BoxBlur(3)),
        ("median", ImageFilter.MedianFilter(5)),
        ("mode_filter", ImageFilter.ModeFilter(5)),
        ("unsharp_mask", ImageFilter.UnsharpMask(4, 150, 3)),
        ("darkest_of_5", ImageFilter.MinFilter(5)),
        ("emboss", ImageFilter.EMBOSS),
        ("contour", ImageFilter.CONTOUR),
        ("find_edges", ImageFilter.FIND_EDGES),
    ):
        yield "harmful", name, lambda x, kind=kind: x.filter(kind), STRONGER
    yield "harmful", "sharpness_3", lambda x: ImageEnhance.Sharpness(x).enhance(3.0), STRONGER
    yield "harmful", "sharpness_0", lambda x: ImageEnhance.Sharpness(x).enhance(0.0), STRONGER
    yield "harmful", "jpeg_20", _jpeg, "blocks of 8 pixels become three times as large"
    yield "harmful", "mosaic", _mosaic, "tiles of 10 pixels become three times as large"
    yield "harmful", "effect_spread", lambda x: x.effect_spread(4), "pixels are thrown three times as far"
    yield (
        "harmful",
        "dither",
        lambda x: x.convert("1").convert("RGB"),
        "dots of the small picture do not average to gray",
    )


def _jpeg(x: Any) -> Any:
    file = io.BytesIO()
    x.save(file, "JPEG", quality=20)
    return Image.open(io.BytesIO(file.getvalue())).convert("RGB")


def _mosaic(x: Any) -> Any:
    small = x.resize((max(1, x.width // 10), max(1, x.height // 10)), Image.Resampling.BOX)
    return small.resize(x.size, Image.Resampling.NEAREST)


def _colours() -> Iterator[tuple[Harm, str, Any, str]]:
    yield "harmless", "colour", lambda x: ImageEnhance.Color(x).enhance(1.6), SAME_PICTURE
    yield "harmless", "brightness", lambda x: ImageEnhance.Brightness(x).enhance(0.7), SAME_PICTURE
    yield "harmless", "contrast", lambda x: ImageEnhance.Contrast(x).enhance(1.4), "the mean is the same"
    yield "harmless", "invert", ImageOps.invert, SAME_PICTURE
    yield "harmless", "gray", lambda x: ImageOps.grayscale(x).convert("RGB"), SAME_PICTURE
    yield "harmless", "equalize", ImageOps.equalize, "the histogram of the smaller picture is nearly the same"
    yield "harmless", "colorize", lambda x: ImageOps.colorize(x.convert("L"), "navy", "ivory"), SAME_PICTURE
    yield "harmless", "channels", lambda x: Image.merge("RGB", x.split()[::-1]), SAME_PICTURE
    yield "harmless", "curve", lambda x: x.point([int(255 * (n / 255) ** 0.7) for n in range(256)] * 3), SAME_PICTURE
    yield "doubtful", "autocontrast", ImageOps.autocontrast, EXTREMES
    yield "doubtful", "posterize", lambda x: ImageOps.posterize(x, 3), STEPS
    yield "doubtful", "solarize", lambda x: ImageOps.solarize(x, 128), STEPS
    yield (
        "doubtful",
        "quantize",
        lambda x: x.quantize(16).convert("RGB"),
        "16 colours stay 16, which are mixed otherwise",
    )
    yield (
        "harmless",
        "icc_matrix",
        lambda x: x.convert("RGB", (0.9, 0.1, 0, 0, 0, 1, 0, 0, 0, 0.1, 0.9, 0)),
        SAME_PICTURE,
    )


def _drawn() -> Iterator[tuple[Harm, str, Any, str]]:
    def text(x: Any) -> Any:
        out = x.copy()
        ImageDraw.Draw(out).text((10, 10), "CONFIDENTIAL", fill=(255, 0, 0))
        return out

    def logo(x: Any) -> Any:
        out = x.copy()
        out.paste((0, 90, 200), (x.width - 40, x.height - 40, x.width - 8, x.height - 8))
        return out

    def plate(x: Any) -> Any:
        out, box = x.copy(), (120, 90, 170, 110)
        out.paste(out.crop(box).filter(ImageFilter.GaussianBlur(8)), box)
        return out

    def plate_in_shares(x: Any) -> Any:
        out = x.copy()
        box = tuple(int(share * side) for share, side in zip((0.3, 0.3, 0.6, 0.5), x.size * 2, strict=True))
        out.paste((0, 0, 0), box)
        return out

    yield "harmful", "text", text, "letters three times as large"
    yield "harmful", "logo", logo, "a logo three times as large"
    yield "harmful", "plate_hidden", plate, "the number plate is visible: the box lies outside of the small picture"
    yield "harmless", "bar_in_shares", plate_in_shares, "it is drawn in shares of the sides"
    yield "harmful", "border", lambda x: ImageOps.expand(x, 8, "white"), "the result is larger by the border"
    yield (
        "harmful",
        "inner_border",
        lambda x: ImageOps.expand(x.crop((8, 8, x.width - 8, x.height - 8)), 8),
        ("the border is three times as wide"),
    )


def _geometric_steps() -> Iterator[tuple[Harm, str, Any, str]]:
    yield "harmless", "mirror", ImageOps.mirror, "mirroring and resizing commute"
    yield "harmless", "flip", ImageOps.flip, "mirroring and resizing commute"
    yield "harmless", "half_turn", lambda x: x.transpose(Image.Transpose.ROTATE_180), "turning and resizing commute"
    yield "harmless", "quarter_turn", lambda x: x.transpose(Image.Transpose.ROTATE_90), "a square stays a square"
    yield "doubtful", "rotate", lambda x: x.rotate(10, Image.Resampling.BILINEAR), SQUEEZED
    yield "harmful", "offset", lambda x: ImageChops.offset(x, 40, 0), "40 pixels are nearly half of the small picture"
    yield "harmful", "letterbox", lambda x: ImageOps.pad(x, (320, 320)), "the result has the size of the letterbox"
    yield "harmful", "square", lambda x: ImageOps.pad(x, (max(x.size),) * 2), "no bars are left"
    yield "harmful", "centre", lambda x: ImageOps.fit(x, (min(x.size),) * 2), "the photograph is squeezed, not cut"
    yield (
        "harmful",
        "upright",
        lambda x: x if x.height > x.width else x.rotate(90, expand=True),
        ("all are squares by then: nothing is turned"),
    )


def _random() -> Iterator[Exchange]:
    colour = on_image(
        "random_colour", lambda x, rng: ImageEnhance.Color(x).enhance(float(rng.uniform(0.3, 1.8))), random=True
    )
    yield PICTURES.exchange("harmless", colour, SAME_PICTURE)
    mirror = on_image("random_mirror", lambda x, rng: ImageOps.mirror(x) if rng.random() < 0.5 else x, random=True)
    yield PICTURES.exchange("harmless", mirror, "mirroring and resizing commute")
    blur = on_image(
        "random_blur",
        lambda x, rng: x.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 3)))) if rng.random() < 0.2 else x,
        random=True,
    )
    yield PICTURES.exchange("harmful", blur, "one picture in five is blurred, three times as strong")


def sk(name: str) -> Any:
    """Import a module of scikit-image, whose functions have no types."""
    return import_module(f"skimage.{name}")


def _scaled(x: Any) -> Any:
    return sk("transform").resize(x, (ops.SIDE, ops.SIDE), anti_aliasing=True).astype(np.float32)


SCALED = on_image("sk_resize", _scaled)


def _scikit_image() -> Iterator[tuple[Harm, str, Any, str]]:
    color, exposure, filters = sk("color"), sk("exposure"), sk("filters")
    morphology, restoration, transform = sk("morphology"), sk("restoration"), sk("transform")
    yield "harmful", "sk_gaussian", lambda x: filters.gaussian(x, 3, channel_axis=-1), STRONGER
    yield "harmful", "sk_sobel", lambda x: filters.sobel(color.rgb2gray(x)), "edges of the small picture are steeper"
    yield "harmful", "sk_local", lambda x: 1.0 * ((g := color.rgb2gray(x)) > filters.threshold_local(g, 15)), STRONGER
    yield (
        "harmful",
        "sk_tv",
        lambda x: restoration.denoise_tv_chambolle(x, 0.2, max_num_iter=20, channel_axis=-1),
        ("flat parts of the small picture are smaller: more detail is taken away"),
    )
    yield "harmful", "sk_opening", lambda x: morphology.opening(color.rgb2gray(x), morphology.disk(4)), STRONGER
    yield "harmful", "sk_swirl", lambda x: transform.swirl(x, strength=4, radius=80), "80 pixels are nearly all of it"
    yield "doubtful", "sk_rotate", lambda x: transform.rotate(x, 10), SQUEEZED
    yield "doubtful", "sk_otsu", lambda x: 1.0 * ((g := color.rgb2gray(x)) > filters.threshold_otsu(g)), STEPS
    yield (
        "doubtful",
        "sk_hsv",
        color.rgb2hsv,
        "hues of different colours are mixed in the user's order, not so in the other",
    )
    yield "harmless", "sk_lab", color.rgb2lab, "nearly linear between neighbouring colours"
    yield "harmless", "sk_gray", color.rgb2gray, SAME_PICTURE
    yield "doubtful", "sk_adapthist", exposure.equalize_adapthist, "its tiles have fewer pixels each"


def _of_scales() -> Iterator[tuple[Harm, str, Any, str]]:
    exposure, util = sk("exposure"), sk("util")
    yield "harmless", "sk_gamma", lambda x: exposure.adjust_gamma(x, 1.4), SAME_PICTURE
    yield "harmless", "sk_log", lambda x: exposure.adjust_log(x, 0.9), SAME_PICTURE
    yield "harmless", "sk_sigmoid", lambda x: exposure.adjust_sigmoid(x, 0.5, 8), SAME_PICTURE
    yield "doubtful", "sk_rescale", lambda x: exposure.rescale_intensity(x // 2 + 30), EXTREMES
    yield "harmless", "sk_invert", util.invert, SAME_PICTURE
    yield "harmless", "sk_float", util.img_as_float32, SAME_PICTURE


def _random_of_scikit_image() -> Iterator[Exchange]:
    util = sk("util")
    group = ExchangeKind("scikit-image", second=SCALED)
    for kind in ("s&p", "speckle", "gaussian", "poisson"):
        noise = on_image(f"sk_noise_{kind}", lambda x, rng, kind=kind: util.random_noise(x, kind, rng=rng), random=True)
        yield group.exchange("harmful", noise, "the resize averages noise away, and would not touch it")
