"""Do looks at the same pipeline find the same order?

    python benchmarks/same_order.py [--looks 10] [--pipelines photographs texts] [--mode safe]

Each pipeline is looked at several times, in a fresh process and with nothing kept, as before a first job; what was
found is printed, and how often.  Ends with status 1 if a pipeline has two orders.  Other programs on the machine
make looks longer, and should change nothing else: run some beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cv2
import numpy as np
from PIL import Image, ImageEnhance

import pecan_ray as pecan
from examples.photographs import derived_photographs
from pecan_ray import images
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest

COUNT = 96


def decode(file: bytes) -> Any:
    return cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)


def gamma(image: Any) -> Any:
    return (255 * (image / np.float32(255)) ** np.float32(0.8)).astype(np.uint8)


def to_float(image: Any) -> Any:
    return image.astype(np.float32) / np.float32(255)


def fit(image: Any) -> Any:
    return cv2.resize(image, (224, 224), interpolation=cv2.INTER_AREA)


def slightly_smaller(image: Any) -> Any:
    return cv2.resize(image, None, fx=0.94, fy=0.94, interpolation=cv2.INTER_AREA)


def smaller(image: Any) -> Any:
    return cv2.resize(image, None, fx=0.8, fy=0.8, interpolation=cv2.INTER_AREA)


def contrast(image: Any) -> Any:
    return np.asarray(ImageEnhance.Contrast(Image.fromarray(image)).enhance(1.2))


def fit_by_pillow(image: Any) -> Any:
    return np.asarray(Image.fromarray(image).resize((224, 224), Image.Resampling.BILINEAR))


def ask_a_server(image: Any) -> Any:
    time.sleep(0.02)
    return np.ascontiguousarray(image[::-1])


def corner(image: Any) -> Any:
    return np.ascontiguousarray(image[:64, :64])


def lower(text: str) -> str:
    return "".join(one.lower() for one in text)


def first_words(text: str) -> str:
    return " ".join(text.split(" ")[:20])


def files(scale: int) -> list[bytes]:
    """Return photographs, enlarged."""
    found = []
    for path in sorted(Path(derived_photographs()).rglob("*.jpg"))[:COUNT]:
        image = cv2.imread(str(path))
        assert image is not None
        found.append(bytes(cv2.imencode(".jpg", cv2.resize(image, None, fx=scale, fy=scale))[1]))
    return found


def photographs(*functions: Callable[..., Any], scale: int = 1) -> pecan.PecanPipeline:
    """Return a pipeline of functions on photographs."""
    pipe = pecan.PecanPipeline(pecan.sources.Items([{"image": file} for file in files(scale)]))
    for function in functions:
        pipe = pipe.map(function, on="image")
    return pipe.batch(16)


def texts() -> pecan.PecanPipeline:
    """Return a pipeline of functions on texts."""
    items = [{"text": " ".join(f"Word{number * place}" for place in range(2000))} for number in range(COUNT)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items))
    return pipe.map(lower, on="text").map(first_words, on="text").batch(16)


PIPELINES: dict[str, Callable[[], pecan.PecanPipeline]] = {
    "photographs": lambda: photographs(images.Decode(), images.RandomCrop(), images.Resize(224, 224)),
    "functions": lambda: photographs(decode, gamma, to_float, fit),
    "large": lambda: photographs(decode, gamma, to_float, fit, scale=4),
    # 1.03 to 1.07 times as fast the other way round, and 1.2 times: below what a move has to be worth, and beyond.
    "border": lambda: photographs(decode, gamma, slightly_smaller),
    "beyond": lambda: photographs(decode, gamma, smaller),
    "pillow": lambda: photographs(decode, contrast, fit_by_pillow),
    "waiting": lambda: photographs(decode, ask_a_server, gamma, corner),
    "texts": texts,
}


def main() -> None:
    """Look, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--looks", type=int, default=10)
    parser.add_argument("--pipelines", nargs="+", choices=list(PIPELINES), default=list(PIPELINES))
    parser.add_argument("--mode", choices=("strict", "safe", "pecan"), default="safe")
    given = parser.parse_args()
    several = False
    for name in given.pipelines:
        request, found, began = OrderRequest(PIPELINES[name]().plan, mode=given.mode), Counter[str](), time.monotonic()
        for _ in range(given.looks):
            ordering = order_plan(request)
            order = " -> ".join(op.name for op in ordering.plan.ops)
            found["; ".join((order, *ordering.decoders))] += 1
        several |= len(found) > 1
        print(f"{name} ({(time.monotonic() - began) / given.looks:.1f} s a look):", flush=True)
        for order, times in found.most_common():
            print(f"  {times} of {given.looks}: {order}", flush=True)
    sys.exit(several)


if __name__ == "__main__":
    main()
