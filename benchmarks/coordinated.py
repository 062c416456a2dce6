"""Coordinated reads: steps per second of four trainers that step together, as a ratio to plain reads and to a bound.

    python -m benchmarks.coordinated [--cases NAME ...] [--data FOLDER] [--steps 250] [--rounds 3] [--json FILE]

Each trainer is a thread that sleeps for a step that grows with the padded length of its batch, and meets the others at
a barrier before the next one, as a gradient does.  Sides, in turns, of equally many elements in a batch:

- `padded`: `padded_batch`, no buckets;
- `plain`: `bucket_by_length`, each rank whatever batch comes;
- `coordinated`: the same with ``coordinated=True``;
- `bound`: batches of the same rounds, made beforehand and taken from a list, at the same trainers.

So many steps of data without an end are measured, in which all batches are full; with ``--steps 0`` one whole epoch,
with the smaller batches at its end, of which plain reads make many: then look at elements per second.

Lengths: `lognormal`; `speech` (frames of 10 ms of the audio files) and `text` (words of the sentences) in a folder of
data.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import struct
import sys
import threading
import time
import wave
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import ray

import pecan_ray as pecan
from pecan_ray.sampling.tail_rounds import of_rank, tail_rounds

RANKS, BATCH, ELEMENTS, FEATURES = 4, 16, 8192, 8
BUCKETS = 8
LEAST_STEP_S = 0.002
"""A step of no length,"""
MEAN_STEP_S = 0.02
"""and one of the mean length."""
SIDES = ("padded", "plain", "coordinated", "bound")


@dataclass(frozen=True)
class Measured:
    """What the trainers of one side did."""

    steps: int
    seconds: float
    padding: float
    """Share of what was computed that was padding,"""
    uneven: float
    """and of the trainers' time that they waited for the one with the longest batch."""
    stepping: float
    """Share of the time in which the longest of the steps went on: the rest is waiting for batches, and meeting."""
    elements: int
    report: str = ""

    @property
    def steps_per_s(self) -> float:
        """Steps that all trainers have made, per second."""
        return self.steps / self.seconds


def lognormal(data: Path | None) -> np.ndarray[Any, Any]:
    """Return lengths as utterances have them: many short ones, a few long ones."""
    return np.random.default_rng(1).lognormal(5.5, 0.8, ELEMENTS).clip(10, 3000)


def speech(data: Path | None) -> np.ndarray[Any, Any]:
    """Return the lengths of audio files in frames of 10 ms, each as often as it takes."""
    files = sorted(path for path in (data or Path()).rglob("*") if path.suffix in (".wav", ".ogg"))
    return _drawn([100 * _seconds(path) for path in files])


def _seconds(path: Path) -> float:
    """Return how long an audio file is: of Ogg Vorbis the last page's sample, and the rate in the first one."""
    if path.suffix == ".wav":
        with wave.open(str(path)) as audio:
            return float(audio.getnframes() / audio.getframerate())
    content = path.read_bytes()
    (samples,) = struct.unpack_from("<q", content, content.rindex(b"OggS") + 6)
    (rate,) = struct.unpack_from("<I", content, content.index(b"\x01vorbis") + 12)
    return float(samples / rate)


def text(data: Path | None) -> np.ndarray[Any, Any]:
    """Return the lengths of sentences in words."""
    lines = [line for path in sorted((data or Path()).rglob("*sentences.jsonl")) for line in path.open()]
    return _drawn([len(str(json.loads(line)["text"]).split()) for line in lines])


def _drawn(lengths: Sequence[float]) -> np.ndarray[Any, Any]:
    if not lengths:
        sys.exit("there is no such data: name its folder by --data, or take --cases lognormal.")
    return np.random.default_rng(2).choice(np.asarray(lengths, float), ELEMENTS)


CASES: dict[str, Callable[[Path | None], np.ndarray[Any, Any]]] = {
    "lognormal": lognormal,
    "speech": speech,
    "text": text,
}


def element(row: dict[str, Any]) -> dict[str, Any]:
    """Return an element of its length."""
    return {"x": np.zeros((int(row["length"]), FEATURES), np.float32), "length": row["length"]}


def boundaries(lengths: np.ndarray[Any, Any]) -> list[int]:
    """Return where buckets of equally many elements end."""
    return sorted({int(bound) for bound in np.quantile(lengths, np.arange(1, BUCKETS) / BUCKETS)})


def pipeline(lengths: np.ndarray[Any, Any], side: str, *, endless: bool) -> pecan.PecanPipeline:
    """Return the pipeline of a side."""
    source = pecan.sources.Arrays(length=lengths, split_rows=128)
    config = pecan.Config(reorder="off", progress=False)
    pipe = pecan.PecanPipeline(source, name=f"coordinated-{side}", config=config).map(element).shuffle(1024)
    pipe = pipe.repeat() if endless else pipe
    if side == "padded":
        return pipe.padded_batch(BATCH)
    bounds = boundaries(lengths)
    return pipe.bucket_by_length(bounds, sizes=[BATCH] * (len(bounds) + 1), length="x")


class SteppingTrainers:
    """Trainers that step together."""

    def __init__(self, per_length_s: float, steps: int | None) -> None:
        self._per_length_s, self._most = per_length_s, steps
        self._barrier = threading.Barrier(RANKS)
        self._steps: list[list[tuple[float, int, float, int]]] = [[] for _ in range(RANKS)]
        """Of each rank: seconds of a step, rows x padded length, the sum of the rows' lengths, and rows."""
        self._started = self._ended = 0.0

    def train(self, rank: int, batches: Iterable[dict[str, Any]]) -> None:
        """Take a rank's batches; all of them step together, from the first one on that all have."""
        for batch in batches:
            rows, longest = batch["x"].shape[:2]
            if not self._steps[rank]:
                self._barrier.wait()
                self._started = self._started or time.perf_counter()
            step_s = LEAST_STEP_S + self._per_length_s * longest * rows / BATCH
            time.sleep(step_s)
            self._steps[rank].append((step_s, rows * longest, float(np.sum(batch["length"])), rows))
            self._barrier.wait()
            self._ended = time.perf_counter()
            if len(self._steps[rank]) == self._most:
                return

    def run(self, batches: Sequence[Iterable[dict[str, Any]]]) -> None:
        """Let all trainers take their batches, to the end."""
        threads = [
            threading.Thread(target=self.train, args=(rank, mine), daemon=True) for rank, mine in enumerate(batches)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def measured(self, report: str = "") -> Measured:
        """Return what they did."""
        steps = np.array(self._steps)
        computed, real = steps[:, :, 1].sum(), steps[:, :, 2].sum()
        longest = steps[:, :, 0].max(axis=0).sum()
        uneven = 1 - steps[:, :, 0].mean(axis=0).sum() / longest
        seconds = self._ended - self._started
        padding, elements = 1 - real / computed, int(steps[:, :, 3].sum())
        return Measured(steps.shape[1], seconds, padding, uneven, longest / seconds, elements, report)


def made_beforehand(lengths: np.ndarray[Any, Any], steps: int | None) -> list[list[dict[str, Any]]]:
    """Return the batches of each rank, of rounds of one bucket in a random order.

    Of one epoch, whose remainders come last, or so many, without remainders.
    """
    rng = np.random.default_rng(3)
    ranks: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
    bounds = boundaries(lengths)
    buckets: list[list[int]] = [[] for _ in range(len(bounds) + 1)]
    rounds: list[list[int]] = []
    while len(rounds) < (steps or 1):
        for length in rng.permutation(lengths.astype(int)):
            bucket = buckets[int(np.searchsorted(bounds, length, "right"))]
            bucket.append(int(length))
            if len(bucket) == BATCH * RANKS:
                rounds.append(list(bucket))
                bucket.clear()
    if steps is None:
        rest = [length for bucket in buckets for length in bucket]
        for part in tail_rounds(list(map(len, buckets)), [BATCH] * len(buckets), RANKS):
            rounds.append([rest[place] for place in part])
    for one in rounds[:steps]:
        for rank, batches in enumerate(ranks):
            mine = [one[place] for place in of_rank(range(len(one)), rank, RANKS)]
            batches.append({"x": np.empty((len(mine), max(mine), 0)), "length": np.array(mine)})
    return ranks


def measure(lengths: np.ndarray[Any, Any], side: str, steps: int | None) -> Measured:
    """Let the trainers take the batches of a side: so many steps, or one epoch."""
    trainers = SteppingTrainers((MEAN_STEP_S - LEAST_STEP_S) / float(lengths.mean()), steps)
    if side == "bound":
        trainers.run(made_beforehand(lengths, steps))
        return trainers.measured()
    pipe, job = pipeline(lengths, side, endless=steps is not None), f"coordinated-{side}-{time.time_ns():x}"
    options: dict[str, Any] = {"workers": pecan.Workers(local=2), "job": job, "prefetch_bytes": 4 << 20}
    options["coordinated"] = side == "coordinated"
    reports: list[str] = []

    def of(rank: int) -> Iterator[dict[str, Any]]:
        with pipe.iter_batches(rank=rank, world_size=RANKS, **options) as found:
            try:
                yield from found
            finally:  # after its last step a trainer asks for no more
                if rank == 0:
                    reports.append(str(found.report()))

    trainers.run([of(rank) for rank in range(RANKS)])
    return trainers.measured("".join(reports))


def print_table(results: dict[str, dict[str, list[Measured]]], turns: int) -> None:
    """Print what was measured, by case and side."""
    print(f"\n{platform.machine()}, {RANKS} trainers, {BATCH} elements in a batch, medians of {turns}\n")
    print(
        "| lengths | side | steps/s (range) | against plain | of the bound | stepping | padding | uneven | elements/s |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for case, sides in results.items():
        median = {side: statistics.median(one.steps_per_s for one in found) for side, found in sides.items()}
        for side, found in sides.items():
            speeds = [one.steps_per_s for one in found]
            elements_per_s = statistics.median(one.elements / one.seconds for one in found)
            print(
                f"| {case} | {side} | {median[side]:.2f} ({min(speeds):.2f} to {max(speeds):.2f}) "
                f"| {median[side] / median['plain']:.2f} | {median[side] / median['bound']:.3f} "
                f"| {statistics.median(one.stepping for one in found):.3f} "
                f"| {found[0].padding:.2f} | {found[0].uneven:.2f} | {elements_per_s:.0f} |"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["lognormal"])
    parser.add_argument("--data", type=Path, help="folder that holds audio files and *sentences.jsonl")
    parser.add_argument("--steps", type=int, default=250, help="0: one epoch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    results: dict[str, dict[str, list[Measured]]] = {}
    for case in given.cases:
        lengths = CASES[case](given.data)
        sides: dict[str, list[Measured]] = {side: [] for side in SIDES}
        for _ in range(given.rounds):
            for side in SIDES:
                sides[side].append(measure(lengths, side, given.steps or None))
                print(f"{case} {side}: {sides[side][-1].steps_per_s:.2f} steps/s", flush=True)
        results[case] = sides
    ray.shutdown()
    print_table(results, given.rounds)
    if given.json is not None:
        found_json = {
            case: {side: [asdict(one) for one in found] for side, found in sides.items()}
            for case, sides in results.items()
        }
        given.json.write_text(json.dumps(found_json, indent=1))


if __name__ == "__main__":
    main()
