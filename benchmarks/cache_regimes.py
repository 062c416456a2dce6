"""Whether autocache takes the fastest way: regimes, each run every way there is (Cachew, Figure 8, live).

    python -m benchmarks.cache_regimes [--elements 512] [--first 1] [--last 20] [--json FILE]

Elements of 64 KiB in tar archives, on this machine's disk or behind a server that speaks as much of S3 as is needed
and gives `--store-rate` bytes a second in all; an operator that computes for so many milliseconds and makes of each
element so many times its bytes; points behind the source and behind that operator.  In every regime jobs of four
epochs are run in the ways `compute`, `source` and `full`, and one that decides for itself; the median of an epoch
after the first counts, from the end of the one before to its own.  One local worker, a trainer that does nothing.  A
choice is right if its way took at most 5 % longer than the fastest one.  What was promised of an epoch is told over
what it took, for the way that was decided for, and in the JSON for all ways.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import math
import os
import platform
import re
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import ray

import pecan_ray as pecan
from benchmarks.slow_bucket import running_bucket
from pecan_ray.autocache import decision as keeping
from pecan_ray.cache import ExecutionChoice, choose_execution
from pecan_ray.cache_options import Cache

GIB = 1 << 30
ELEMENT_BYTES = 64 << 10
BATCH = 32
EPOCHS = 4
NEAR = 1.05
WAYS = ("compute", "source", "full")
BLOCK = bytes(256 << 10)


@dataclass(frozen=True)
class CacheRegime:
    """One of them."""

    store: str
    compute_ms: float
    factor: float
    """Bytes out for each byte in."""


REGIMES = (
    *(CacheRegime("disk", ms, factor) for ms in (0.0, 0.5, 2.0, 8.0) for factor in (0.25, 8.0)),
    *(CacheRegime("bucket", ms, factor) for ms in (0.0, 0.5, 2.0, 8.0) for factor in (0.25, 1.0, 8.0)),
    # Four more, of elements that are larger than what they are made of by so much that keeping them hardly pays.
    *(CacheRegime(store, ms, 64.0) for store in ("disk", "bucket") for ms in (0.0, 0.5)),
)


def write_tars(folder: Path, elements: int) -> None:
    """Write archives of 64 elements each, of random bytes."""
    rng = np.random.default_rng(0)
    for first in range(0, elements, 64):
        with tarfile.open(folder / f"{first:06}.tar", "w") as tar:
            for number in range(first, min(first + 64, elements)):
                member = tarfile.TarInfo(f"{number:06}.bin")
                member.size = ELEMENT_BYTES
                tar.addfile(member, io.BytesIO(rng.bytes(ELEMENT_BYTES)))


def computing(milliseconds: float, factor: float) -> Callable[[Any], Any]:
    """Return an operator that is on a CPU for so long, without the GIL, and makes so many times the bytes."""

    def work(data: Any) -> Any:
        began = time.thread_time()
        while time.thread_time() - began < milliseconds / 1e3:
            zlib.crc32(BLOCK)
        return np.resize(np.frombuffer(data, np.uint8), int(len(data) * factor))

    return work


def forced(way: str) -> Callable[..., ExecutionChoice]:
    """Return what decides for one way, whatever it costs."""

    def choose(*arguments: Any, **options: Any) -> ExecutionChoice:
        choice = choose_execution(*arguments, **options)
        option = next(option for option in choice.options if option.mode == way)
        return replace(choice, mode=option.mode, point=option.point, seconds=option.seconds)

    return choose


def run(regime: CacheRegime, where: str, way: str | None) -> tuple[float, float, str]:
    """Return the seconds of an epoch in one way (None: as is decided), those promised, and the reason."""
    folder = Path(tempfile.mkdtemp(prefix="pecan-regimes-"))
    config = pecan.Config(reorder="off", cache=Cache(folder, 8 * GIB), order_folder="")
    pipe = pecan.PecanPipeline(pecan.sources.WebDataset(where), name="regimes", config=config).autocache(name="source")
    pipe = pipe.map(computing(regime.compute_ms, regime.factor), on="bin", name="compute")
    pipe = pipe.autocache(name="full").batch(BATCH)
    ends: dict[int, float] = {}
    decides = choose_execution if way is None else forced(way)
    with (
        mock.patch.object(keeping, "choose_execution", decides),
        pipe.iter_batches(epochs=EPOCHS, workers=pecan.Workers(local=1)) as batches,
    ):
        for _ in batches:
            assert batches.provenance is not None
            ends[batches.provenance.epoch] = time.perf_counter()
        said = [event.text for event in batches.report().events if event.text.startswith("autocache: ")]
    shutil.rmtree(folder)
    epochs = [ends[epoch] - ends[epoch - 1] for epoch in range(1, EPOCHS)]
    found = [re.search(r"where ([0-9.e+-]+) s were promised", text) for text in said]
    promised = next((float(match[1]) for match in found if match), math.nan)
    return statistics.median(epochs), promised, said[0].removeprefix("autocache: ")


def chosen_way(said: str) -> str:
    """Return the way that a decision's reason begins with."""
    return next(way for way in WAYS if said.startswith((way, f"{way} cache")))


@contextmanager
def stores(elements: int, rate: float) -> Iterator[dict[str, str]]:
    """Write the archives; give the pattern of each store."""
    folder = Path(tempfile.mkdtemp(prefix="pecan-regimes-data-"))
    write_tars(folder, elements)
    with running_bucket(folder, rate) as url:
        os.environ["AWS_ENDPOINT_URL"] = url
        try:
            yield {"disk": f"{folder}/*.tar", "bucket": "s3://regimes/*.tar"}
        finally:
            shutil.rmtree(folder)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=512)
    parser.add_argument("--store-rate", type=float, default=25e6)
    parser.add_argument("--first", type=int, default=1, help="of the regimes, to run some of them only")
    parser.add_argument("--last", type=int, default=len(REGIMES))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.getenv("PYTHONPATH"))))
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_EC2_METADATA_DISABLED="true")
    print(f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, seconds of an epoch")
    print(
        f"{'store':8s} {'ms':>4s} {'bytes':>6s} "
        + " ".join(f"{way:>8s}" for way in (*WAYS, "decided", "promised"))
        + "  chosen"
    )
    found, right, regimes = [], 0, REGIMES[asked.first - 1 : asked.last]
    with stores(asked.elements, asked.store_rate) as where:
        ray.init(
            address="local", num_cpus=max(2, os.cpu_count() or 1), log_to_driver=False, logging_level=logging.WARNING
        )
        for regime in regimes:
            runs = {way: run(regime, where[regime.store], way) for way in WAYS}
            seconds = {way: took for way, (took, _, _) in runs.items()}
            decided, promised, said = run(regime, where[regime.store], None)
            promises = {f"{way} promised": one for way, (_, one, _) in runs.items()}
            chosen = chosen_way(said)
            well = seconds[chosen] <= NEAR * min(seconds.values())
            right += well
            shown = " ".join(f"{one:8.3f}" for one in (*seconds.values(), decided))
            comparison_result = "" if well else f"  wrong: {said}"
            print(
                f"{regime.store:8s} {regime.compute_ms:4g} {regime.factor:5g}x {shown} {promised / decided:8.2f}  "
                f"{chosen}{comparison_result}",
                flush=True,
            )
            decision = {"decided": decided, "promised": promised, "chosen": chosen, "said": said}
            found.append({**asdict(regime), **seconds, **promises, **decision})
    print(f"the fastest way, or within 5 % of it, in {right} of {len(regimes)} regimes")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
