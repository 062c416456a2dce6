"""The plain loop and pecan_ray beside each other, on the same photographs, with the same functions and steps.

    python examples/side_by_side.py --svg build/side-by-side.svg

Both run ResNet50's operators as `examples.resnet50` has them; the trainer is a sleep for each batch, as an accelerator
is for its host.  The plain loop does the work between the steps; pecan_ray does it meanwhile, on a worker beside the
trainer.
"""

from __future__ import annotations

import sys
from pathlib import Path

# A script finds only its own folder: `examples`, and pecan_ray in a checkout, are above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from examples import image_ops
from examples.photographs import derived_photographs
from examples.resnet50 import pipeline

OPS = (
    image_ops.decode_and_random_crop,
    image_ops.random_flip,
    image_ops.random_rotate,
    image_ops.random_shear,
)
"""Those that draw at random, the decoder first."""
WIDTH = 40
"""Letters of the longest bar."""


@dataclass(frozen=True)
class TimedLoop:
    """What a training loop has had of its input."""

    name: str
    images: int
    first_s: float
    """Until the first batch came."""
    waited_s: float
    """For later ones."""
    trained_s: float

    @property
    def seconds(self) -> float:
        """Waiting and training, behind the first batch."""
        return self.waited_s + self.trained_s

    @property
    def rate(self) -> float:
        """Images a second, behind the first batch."""
        return self.images / self.seconds if self.seconds else 0.0


def plain_batches(root: Path, batch: int, epochs: int) -> Iterator[dict[str, Any]]:
    """Yield what the pipeline of `examples.resnet50` does, made here and now, element by element."""
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    files = [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
    rng = np.random.default_rng(0)
    for _ in range(epochs):
        order = rng.permutation(len(files))
        for begin in range(0, len(files), batch):
            chosen = [files[int(number)] for number in order[begin : begin + batch]]
            rows = [_element(path, label, rng, len(folders)) for path, label in chosen]
            yield {name: np.stack([row[name] for row in rows]) for name in ("image", "label")}


def _element(path: Path, label: int, rng: np.random.Generator, classes: int) -> dict[str, Any]:
    image: Any = path.read_bytes()
    for op in OPS:
        image = op(image, rng)
    image = image_ops.subtract_mean(image_ops.resize(image))
    return dict(image_ops.cast_and_one_hot({"image": image, "label": label}, classes))


def timed(name: str, batches: Iterable[dict[str, Any]], step_s: float) -> TimedLoop:
    """Train on batches, and tell how long that had to wait."""
    began = asked = time.perf_counter()
    first, waited, trained, images = 0.0, 0.0, 0.0, 0
    for number, batch in enumerate(batches):
        came = time.perf_counter()
        if number:
            waited += came - asked
        else:
            first = came - began
        time.sleep(step_s)
        asked = time.perf_counter()
        if number:  # the first batch is not made behind the first batch
            images += len(batch["image"])
            trained += asked - came
    return TimedLoop(name, images, first, waited, trained)


def table(loops: Iterable[TimedLoop]) -> str:
    """Return the loops as a table."""
    lines = [f"{'':14}{'images/s':>10}{'waiting':>10}{'time':>10}{'first batch':>14}"]
    for one in loops:
        wait = one.waited_s / one.seconds if one.seconds else 0.0
        lines.append(f"{one.name:14}{one.rate:10.0f}{wait:10.0%}{one.seconds:9.1f}s{one.first_s:13.1f}s")
    return "\n".join(lines)


def bars(loops: Iterable[TimedLoop]) -> str:
    """Return a plot of letters: where the time of each loop goes."""
    found = list(loops)
    longest = max(one.seconds for one in found) or 1.0
    lines = []
    for one in found:
        training, waiting = (round(WIDTH * part / longest) for part in (one.trained_s, one.waited_s))
        lines.append(f"{one.name:14}|{'#' * training}{'.' * waiting}")
    return "\n".join([*lines, f"{'':14} # training   . waiting for input"])


def svg(loops: Iterable[TimedLoop], said: str) -> str:
    """Return the same as a picture, which follows light and dark by itself."""
    found = list(loops)
    longest = max(one.seconds for one in found) or 1.0
    rows = []
    for number, one in enumerate(found):
        y, wide, wait = 70 + 62 * number, 460 * one.trained_s / longest, 460 * one.waited_s / longest
        rows.append(
            f'<text x="16" y="{y + 24}" class="ink">{one.name}</text>'
            f'<rect x="130" y="{y}" width="{wide:.1f}" height="36" class="train"/>'
            f'<rect x="{130 + wide:.1f}" y="{y}" width="{wait:.1f}" height="36" class="wait"/>'
            f'<text x="{138 + wide + wait:.1f}" y="{y + 24}" class="ink">{one.rate:.0f} images/s</text>'
        )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 230" role="img" aria-labelledby="t d" '
        'font-family="system-ui, sans-serif" font-size="15">'
        f'<title id="t">Where the time of a training loop goes</title><desc id="d">{said}</desc>'
        "<style>svg{background:#fff}.ink{fill:#1b1f24}.train{fill:#0b62b8}.wait{fill:#e0a458}"
        "@media(prefers-color-scheme:dark){svg{background:#12161b}.ink{fill:#e6e9ed}.train{fill:#6fb3ff}"
        ".wait{fill:#b06f1e}}</style>"
        '<text x="16" y="30" class="ink" font-size="17">The same photographs, functions and training steps</text>'
        '<rect x="130" y="44" width="14" height="12" class="train"/><text x="150" y="55" class="ink">training</text>'
        '<rect x="230" y="44" width="14" height="12" class="wait"/>'
        '<text x="250" y="55" class="ink">waiting for input</text>'
        f'{"".join(rows)}<text x="16" y="212" class="ink" font-size="13">{said}</text></svg>\n'
    )


def main() -> None:
    """Run both, and show what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=256, help="photographs (256)")
    parser.add_argument("--epochs", type=int, default=3, help="passes over them (3)")
    parser.add_argument("--batch", type=int, default=32, help="elements in a batch (32)")
    parser.add_argument("--step-time", type=float, default=0.1, help="seconds of a training step (0.1)")
    parser.add_argument("--svg", type=Path, help="write the plot to this file too")
    args = parser.parse_args()
    root = Path(derived_photographs(args.images))
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)  # as in the workers: one photograph is too small to be divided
    loops = [timed("plain loop", plain_batches(root, args.batch, args.epochs), args.step_time)]
    cv2.setNumThreads(threads)
    pipe = pipeline(root, batch=args.batch)
    with pipe.iter_batches(epochs=args.epochs) as batches:
        loops.append(timed("pecan_ray", batches, args.step_time))
    gain = loops[0].seconds / loops[1].seconds if loops[1].seconds else 0.0
    said = (
        f"{gain:.1f} times as fast behind the first batch: {loops[1].images} photographs, steps of "
        f"{1000 * args.step_time:.0f} ms, workers beside the trainer"
    )
    print(f"\n{table(loops)}\n\n{bars(loops)}\n\n{said}")
    if args.svg:
        args.svg.parent.mkdir(parents=True, exist_ok=True)
        args.svg.write_text(svg(loops, said))
        print(f"plot: {args.svg}")


if __name__ == "__main__":
    main()
