"""Case (a): photographs, decoded, cropped, flipped and normalized; the start; and Figure 3 of the Pecan paper."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from benchmarks.peers.cases.case import PeerCase, Target
from benchmarks.peers.recipe import Element, Recipe
from examples import image_ops
from examples.photographs import derived_photographs

if TYPE_CHECKING:
    from pecan_ray.options import EngineName

SIZE = 224
BATCH = 64
COUNT = 512
MEANS = np.array([123.68, 116.78, 103.94], np.float32)
AREA, ASPECT, ATTEMPTS = (0.08, 1.0), (3 / 4, 4 / 3), 10


def folder(data: str) -> str:
    """Return the folder of class folders with JPEGs."""
    return data or str(derived_photographs(COUNT))


def listed(data: str) -> list[tuple[str, int]]:
    """Return path and label of all photographs."""
    root = Path(folder(data))
    classes = sorted(entry for entry in root.iterdir() if entry.is_dir())
    return [(str(path), label) for label, entry in enumerate(classes) for path in sorted(entry.rglob("*.jpg"))]


def decode(encoded: bytes) -> Any:
    """Decode a JPEG to RGB uint8."""
    return cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)


def random_crop(image: Any, rng: np.random.Generator) -> Any:
    """Cut out 8 to 100 % of the area."""
    height, width = image.shape[:2]
    for _ in range(ATTEMPTS):
        area = height * width * rng.uniform(*AREA)
        aspect = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        h, w = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < h <= height and 0 < w <= width:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            return image[top : top + h, left : left + w]
    return image


def resize(image: Any) -> Any:
    """Resize to 224 x 224."""
    return cv2.resize(image, (SIZE, SIZE))


def random_flip(image: Any, rng: np.random.Generator) -> Any:
    """Mirror left and right, half of the time."""
    return image[:, ::-1] if rng.random() < 0.5 else image


def normalize(image: Any) -> Any:
    """Subtract the channel means; float32."""
    return image.astype(np.float32) - MEANS


def select(element: Element) -> Element:
    """Keep image and label."""
    return {"image": element["image"], "label": np.int64(element["label"])}


def photograph(item: tuple[str, int], rng: np.random.Generator) -> Element:
    """Do everything for one file."""
    return from_bytes(Path(item[0]).read_bytes(), item[1], rng)


def from_bytes(encoded: bytes, label: int, rng: np.random.Generator) -> Element:
    """Do everything for a file that was read."""
    image = resize(random_crop(decode(encoded), rng))
    return {"image": normalize(random_flip(image, rng)), "label": np.int64(label)}


def decoded(item: tuple[str, int], _rng: np.random.Generator) -> Any:
    """Only read and decode a file."""
    return decode(Path(item[0]).read_bytes())


def pipeline(data: str, engine: EngineName) -> Any:
    """Return our pipeline, in the same order."""
    import pecan_ray as pecan

    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(folder(data)), name="photographs", engine=engine)
    if engine == "tensorflow":
        from benchmarks.peers.cases import graphs

        ops: list[Any] = [
            pecan.images.Decode(),
            pecan.images.RandomCrop(),
            graphs.resize,
            graphs.flip,
            graphs.normalize,
        ]
        last = graphs.select
    else:
        ops, last = [decode, random_crop, resize, random_flip, normalize], select
    pipe = pipe.repeat(None)
    for op in ops:
        pipe = pipe.map(op, on="image")
    return pipe.map(last).batch(BATCH)


def known_pipeline(data: str) -> Any:
    """Return our pipeline with the library's decoder, crop and resize, in the same order."""
    import pecan_ray as pecan

    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(folder(data)), name="known").repeat(None)
    for op in (pecan.images.Decode(), pecan.images.RandomCrop(), pecan.images.Resize(SIZE, SIZE)):
        pipe = pipe.map(op, on="image")
    return pipe.map(random_flip, on="image").map(normalize, on="image").map(select).batch(BATCH)


def graph(data: str, variant: str) -> Any:
    """Return tf.data's pipeline: in the same order, or with decoding and cropping fused."""
    from benchmarks.peers.cases import graphs

    return graphs.photographs(listed(data), variant)


def recipe(data: str) -> Recipe:
    """Return the case's work."""
    return Recipe(
        items=listed(data),
        element=photograph,
        batch=BATCH,
        pecan=functools.partial(pipeline, data),
        known=functools.partial(known_pipeline, data),
        graph=functools.partial(graph, data),
        parts={"decode": decoded},
    )


# --- Figure 3 ---


def figure_3_element(item: tuple[str, int], rng: np.random.Generator) -> Element:
    """Crop, flip, rotate and shear at the photograph's size, then resize: the order of the paper's user."""
    return {"image": image_ops.to_half(image_ops.resize(_turned(_cropped(item, rng), rng)))}


def figure_3_best(item: tuple[str, int], rng: np.random.Generator) -> Element:
    """Resize behind the crop: the order that AutoOrder should find."""
    return {"image": image_ops.to_half(_turned(image_ops.resize(_cropped(item, rng)), rng))}


def _cropped(item: tuple[str, int], rng: np.random.Generator) -> Any:
    return decode_and_crop(Path(item[0]).read_bytes(), rng)


def _turned(image: Any, rng: np.random.Generator) -> Any:
    return image_ops.random_shear(image_ops.random_rotate(image_ops.random_flip(image, rng), rng), rng)


def figure_3_pipeline(data: str, engine: EngineName) -> Any:
    """Return our pipeline in the user's order."""
    import pecan_ray as pecan

    config = pecan.Config(reorder="safe")
    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(folder(data)), name="figure3", engine=engine, config=config)
    pipe = pipe.repeat(None)
    if engine == "tensorflow":
        from benchmarks.peers.cases import graphs
        from examples import image_ops_tf

        ops: Any = image_ops_tf
        first: Any = graphs.decode_and_crop
        last: Any = graphs.to_float16
    else:
        ops, first, last = image_ops, decode_and_crop, to_float16
    pipe = pipe.map(first, on="image", name="decode_and_crop")
    for op in (ops.random_flip, ops.random_rotate, ops.random_shear, ops.resize):
        pipe = pipe.map(op, on="image")
    return pipe.map(last, name="cast").batch(BATCH)


def decode_and_crop(encoded: bytes, rng: np.random.Generator) -> Any:
    """Decode a photograph and cut out a part; float32."""
    return random_crop(decode(encoded), rng).astype(np.float32)


def to_float16(element: Element) -> Element:
    """Keep the image, in float16."""
    return {"image": image_ops.to_half(element["image"])}


def figure_3_graph(data: str, variant: str) -> Any:
    """Return tf.data's pipeline: in the user's order, or in the best one."""
    from benchmarks.peers.cases import graphs

    return graphs.figure_3(listed(data), variant)


def figure_3_recipe(data: str) -> Recipe:
    """Return the work of Figure 3."""
    return Recipe(
        items=listed(data),
        element=figure_3_element,
        batch=BATCH,
        pecan=functools.partial(figure_3_pipeline, data),
        graph=functools.partial(figure_3_graph, data),
        parts={"best order": figure_3_best},
    )


PHOTOGRAPHS = PeerCase(
    key="photographs",
    title="JPEG, random crop, resize to 224, flip, normalize to float32, batches of 64",
    unit="images",
    recipe=recipe,
    sides=(
        "pecan python",
        "pecan python, its operators",
        "pecan tensorflow",
        "tf.data",
        "tf.data, fused",
        "tf.data, same functions",
        "tf.data service",
        "torch DataLoader",
        "Ray Data",
        "SPDL",
        "Grain",
        "WebDataset",
        "threads",
        "compute only",
        "decode only",
    ),
    targets=(
        Target("pecan tensorflow", "tf.data, fused", 0.95),
        Target("pecan tensorflow", "tf.data", 1.2),
        Target("pecan tensorflow", "tf.data service", 3.0),
        Target("pecan python, its operators", "threads", 1.3),
        Target("pecan python, its operators", "tf.data, fused", 1.15),
        Target("pecan python, its operators", "Grain", 1.05),
        Target("pecan python", "threads", 0.95),
        Target("pecan python", "Grain", 1.05),
        Target("pecan python", "SPDL", 1.05),
        Target("pecan python", "torch DataLoader", 1.8),
        Target("pecan python", "Ray Data", 3.0),
        Target("pecan python", "tf.data, same functions"),
        Target("pecan python", "WebDataset"),
        Target("pecan python", "decode only"),
    ),
)
FIRST_BATCH = PeerCase(
    key="first-batch",
    title="time to the first batch of the same work, Ray and frameworks being up (each time a fresh process)",
    unit="starts",
    recipe=recipe,
    sides=(
        "pecan python",
        "pecan python, automatic",
        "pecan tensorflow",
        "tf.data, fused",
        "torch DataLoader",
        "Ray Data",
    ),
    targets=(
        Target("pecan python", "Ray Data"),
        Target("pecan python", "torch DataLoader"),
        Target("pecan tensorflow", "tf.data, fused"),
    ),
    first_batch=True,
)
FIGURE_3 = PeerCase(
    key="figure-3",
    title="crop, flip, rotate, shear, resize, float16 in the user's order (Figure 3 of the Pecan paper), AutoOrder on",
    unit="images",
    recipe=figure_3_recipe,
    sides=(
        "pecan python",
        "pecan tensorflow",
        "tf.data",
        "torch DataLoader",
        "threads",
        "threads, best order",
        "tf.data, best order",
    ),
    bounds={"pecan python": "threads, best order", "pecan tensorflow": "tf.data, best order"},
    targets=(
        Target("pecan python", "tf.data", 4.0),
        Target("pecan tensorflow", "tf.data", 1.7),
        Target("pecan python", "threads", 1.8),
        Target("pecan python", "torch DataLoader"),
    ),
)
