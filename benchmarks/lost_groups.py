"""Shared groups whose process is killed while readers read: what they lose, get twice, and how long they wait.

    python -m benchmarks.lost_groups [--seed 1] [--runs 20] [--only K]

Each run draws a pipeline, 2 to 4 readers (each in a process of its own), `max_lag`, epochs, and one or two kills of the
group's process after some batches of the first reader.  Seed and number draw the same run again; when a kill meets the
group is up to the machine.  With `max_lag` each reader must get each element of each of its epochs once; without, none
twice, and what a reader read and skipped must be as many batches as its epochs have, at least.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import ray

import pecan_ray as pecan

BATCH = 8
ELEMENT_S = 0.001
HANG_S = 180.0
KINDS = ("plain", "shuffle", "filter", "strict", "take", "repeat")


@dataclass(frozen=True)
class LostGroupRun:
    """One run, as it was drawn."""

    kind: str
    elements: int
    readers: int
    max_lag: int | None
    epochs: int
    kills: tuple[int, ...]
    """Batches of the first reader after which the group is killed."""

    def pipe(self) -> pecan.PecanPipeline:
        """Return what all readers read."""
        config = pecan.Config(reorder="off", share_linger_s=1.0)
        pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(self.elements)), name="lost", config=config)
        pipe = pipe.map(slowly, on="i")
        if self.kind == "shuffle":
            pipe = pipe.shuffle(64)
        if self.kind == "filter":
            pipe = pipe.filter(lambda element: bool(element["i"] % 3))
        if self.kind == "take":
            pipe = pipe.take(self.elements // 2)
        if self.kind == "repeat":
            pipe = pipe.repeat(2)
        return pipe.batch(BATCH)

    def expected(self) -> Counter[int]:
        """Return how often each element is in an epoch."""
        whole = range(self.elements // 2 if self.kind == "take" else self.elements)
        kept = [i for i in whole if self.kind != "filter" or i % 3]
        return Counter(kept * (2 if self.kind == "repeat" else 1))


def slowly(i: Any) -> Any:
    """Take a millisecond."""
    time.sleep(ELEMENT_S)
    return i


def draw(seed: int, number: int) -> LostGroupRun:
    """Return one of the runs of a seed."""
    chance = random.Random(f"{seed} {number}")
    kind, lag = KINDS[number % len(KINDS)], chance.choice((None, 2, 8))
    elements, epochs = chance.randint(200, 1200), chance.randint(1, 3)
    batches = elements * epochs // BATCH
    kills = sorted(chance.randint(1, max(1, batches // 2)) for _ in range(chance.randint(1, 2)))
    return LostGroupRun(kind, elements, chance.randint(2, 4), lag, epochs, tuple(kills))


class Reader:
    """A reader in a process of its own."""

    def __init__(self) -> None:
        self._read = 0

    def count(self) -> int:
        """Return how many batches have come."""
        return self._read

    def read(self, run: LostGroupRun, name: str) -> tuple[dict[int, Counter[int]], int, int, float]:
        """Read all; return the elements of each epoch, batches read and skipped, and the longest wait between two."""
        got: dict[int, Counter[int]] = {}
        longest, order = 0.0, "strict" if run.kind == "strict" else "relaxed"
        options: dict[str, Any] = {"epochs": run.epochs, "max_lag": run.max_lag, "order": order}
        with run.pipe().iter_batches(share=name, workers=pecan.Workers(local=1), **options) as batches:
            last: float | None = None
            for batch in batches:
                now = time.monotonic()
                longest, last = max(longest, 0.0 if last is None else now - last), now
                self._read += 1
                epoch = 0 if batches.provenance is None else batches.provenance.epoch
                got.setdefault(epoch, Counter()).update(map(int, batch["i"]))
            shared = batches.report().shared
        assert shared is not None
        return got, shared.read, shared.skipped, longest


def kill_group(name: str) -> bool:
    """Kill the process of a group; tell whether there was one."""
    try:
        group = ray.get_actor(f"pecan:share:{name}", namespace="pecan")
        os.kill(ray.get(group.place.remote(), timeout=10)[1], signal.SIGKILL)
    except (ValueError, ProcessLookupError, ray.exceptions.RayError):
        return False
    return True


def play(run: LostGroupRun, name: str) -> Counter[str]:
    """Play a run; return what was found, by name: counts, and the longest wait in milliseconds."""
    remote: Any = ray.remote(Reader)
    readers = [remote.options(num_cpus=0, max_concurrency=2).remote() for _ in range(run.readers)]
    ends, found = [reader.read.remote(run, name) for reader in readers], Counter[str]()
    until = time.monotonic() + HANG_S
    for kill in run.kills:
        while ray.get(readers[0].count.remote()) < kill and time.monotonic() < until:
            if ray.wait(ends, num_returns=1, timeout=0.05)[0]:
                break
        found["kills"] += kill_group(name)
    done, late = ray.wait(ends, num_returns=len(ends), timeout=max(1.0, until - time.monotonic()))
    found["hung"] = len(late)
    for end in done:
        try:
            got, read, skipped, longest = ray.get(end)
        except ray.exceptions.RayTaskError as error:
            print(f"  {error.cause!r:.300}", flush=True)
            found["errors"] += 1
            continue
        expected = run.expected()
        found["repeated"] += sum((of - expected).total() for of in got.values())
        if run.max_lag is not None:
            found["lost"] += sum((expected - of).total() for of in got.values())
            found["lost"] += expected.total() * (run.epochs - len(got))
        found["uncounted"] += max(0, run.epochs * -(-expected.total() // BATCH) - read - skipped)
        found["ms"] = max(found["ms"], round(1000 * longest))
    for reader in readers:
        ray.kill(reader)
    return found


def main() -> int:
    """Run the command; 1 if anything was lost, repeated, uncounted, hung or an error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lost_groups", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--only", type=int, nargs="*", help="play these numbers alone")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    ray.init(address="local", num_cpus=16, object_store_memory=200 << 20, namespace="pecan", log_to_driver=False)
    total, longest = Counter[str](), 0
    for number in given.only or range(given.runs):
        run = draw(given.seed, number)
        found = play(run, f"lost-{given.seed}-{number}")
        longest = max(longest, found.pop("ms", 0))
        total.update(found)
        print(f"{number}: {run}: {dict(found)}, longest wait so far {longest / 1000:.1f} s", flush=True)
    names = ("kills", "lost", "repeated", "uncounted", "hung", "errors")
    print(f"seed {given.seed}: " + ", ".join(f"{name} {total[name]}" for name in names))
    print(f"longest wait {longest / 1000:.1f} s")
    return int(any(total[name] for name in names[1:]))


if __name__ == "__main__":
    sys.exit(main())
