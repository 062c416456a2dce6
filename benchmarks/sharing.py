"""What sharing saves: identical jobs that read one group, against one job alone, by the CPU time of all processes.

    python -m benchmarks.sharing [--jobs 8] [--seconds 20] [--step 0.1] [--batch 16] [--json FILE]

Each job is a process of its own on a Ray cluster of this machine, which computes photographs (decode, random crop,
resize, flip) on one local worker and sleeps for `--step` seconds with each batch.  All begin together.  In turns:

- `alone`: one job, that does not share.
- `shared`: so many jobs that do; ratio: CPU seconds of all actors for a batch, over those of `alone`; and the speed of
  the fastest and the slowest job, over that of `alone`.
- `unequal`: the same, but every other job sleeps four times as long: what each skipped, and how fast the fast ones are.

CPU seconds are those of all actors, the group's included, from the first batch of the job that begins last to the end
of the one that ends first, taken from /proc: starts do not count, as in a job of hours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ray
from ray.cluster_utils import Cluster

import pecan_ray as pecan
from examples import image_ops
from examples.photographs import derived_photographs

ROOT = Path(__file__).resolve().parents[1]
TICK = os.sysconf("SC_CLK_TCK")
PHOTOGRAPHS = 512
ACTORS = ("PreprocessingWorker", "SharedProducer", "AutoPlacementController", "WorkerOwner", "PecanService")
"""Those whose CPU seconds count."""


@dataclass(frozen=True)
class TrainerResult:
    """What one job tells of itself."""

    started: float
    """When its first batch was there, of the clock that all processes share,"""
    ended: float
    """and when its time was over."""
    batches: int
    skipped: int
    waited_s: float
    cpu_s: float
    """Of its own process between the two."""


def pipeline(root: str, batch: int) -> pecan.PecanPipeline:
    """Return the pipeline of all jobs."""
    config = pecan.Config(reorder="off", order_folder="")
    source = pecan.sources.ImageFolder(root, split_files=64)
    pipe = pecan.PecanPipeline(source, name="shared-photographs", config=config)
    pipe = pipe.map(image_ops.decode_and_random_crop, on="image").map(image_ops.resize, on="image")
    return pipe.map(image_ops.random_flip, on="image").batch(batch)


def train(asked: argparse.Namespace) -> None:
    """Be one of the jobs, until so many seconds are over; print what became of it."""
    ray.init(address=os.environ["RAY_ADDRESS"], namespace="pecan", log_to_driver=False)
    options: dict[str, Any] = {"epochs": None, "workers": pecan.Workers(local=1), "share": asked.share}
    with pipeline(asked.train, asked.batch).iter_batches(**options) as batches:
        next(batches)
        began, cpu, count = time.monotonic(), time.process_time(), 0
        while time.monotonic() < began + asked.seconds:
            next(batches)
            count += 1
            time.sleep(asked.step)
        ended, cpu = time.monotonic(), time.process_time() - cpu
        report = batches.report()
    skipped = 0 if report.shared is None else report.shared.skipped
    print(json.dumps(asdict(TrainerResult(began, ended, count, skipped, report.waited_s, cpu))))


def cpu_seconds() -> dict[tuple[int, str], float]:
    """Return the CPU seconds of each actor of ours so far, by process and class."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            title = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
            kind = title.removeprefix(b"ray::").partition(b"\0")[0].partition(b".")[0].strip().decode(errors="replace")
            if title.startswith(b"ray::") and kind in ACTORS:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found[int(folder.name), kind] = (int(fields[11]) + int(fields[12])) / TICK
        except OSError:  # it has ended meanwhile
            continue
    return found


def run_jobs(root: str, steps: list[float], share: bool, asked: argparse.Namespace, address: str) -> dict[str, Any]:
    """Run jobs side by side; tell what they and the actors took while all of them ran."""
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "benchmarks.sharing", "--train", root]
    program += ["--seconds", str(asked.seconds), "--batch", str(asked.batch)]
    flags = ["--share"] if share else []
    jobs = [
        subprocess.Popen([*program, *flags, "--step", str(step)], env=environment, cwd=ROOT, stdout=subprocess.PIPE)
        for step in steps
    ]
    samples: list[tuple[float, dict[tuple[int, str], float]]] = []
    while any(job.poll() is None for job in jobs):
        samples.append((time.monotonic(), cpu_seconds()))
        time.sleep(0.25)
    results = [TrainerResult(**json.loads(job.communicate()[0])) for job in jobs]
    first, last = max(one.started for one in results), min(one.ended for one in results)
    during = [spent for when, spent in samples if first <= when <= last]
    by_class = dict.fromkeys(ACTORS, 0.0)
    for (pid, kind), spent in during[0].items():
        by_class[kind] += during[-1].get((pid, kind), spent) - spent
    taken = last - first
    trainers = sum(one.cpu_s * taken / (one.ended - one.started) for one in results)
    return {
        "jobs": len(steps),
        "seconds_together": taken,
        "actors_cpu_s": sum(by_class.values()),
        "by_class": by_class,
        "trainers_cpu_s": trainers,
        "results": [asdict(one) for one in results],
        "batches_per_s": [one.batches / (one.ended - one.started) for one in results],
    }


def per_batch(found: dict[str, Any]) -> float:
    """Return the CPU seconds of preprocessing for a batch that the fastest job has had."""
    batches = max(found["batches_per_s"]) * found["seconds_together"]
    return float(found["actors_cpu_s"] / batches)


def told(name: str, found: dict[str, Any], alone: dict[str, Any]) -> str:
    """Spell out a measurement."""
    fastest, slowest = max(found["batches_per_s"]), min(found["batches_per_s"])
    one = alone["batches_per_s"][0]
    skipped = [result["skipped"] for result in found["results"]]
    return (
        f"{name}: {found['jobs']} job(s), preprocessing {1000 * per_batch(found):.1f} ms of CPU for a batch, "
        f"{per_batch(found) / per_batch(alone):.2f} of alone; fastest {fastest / one:.3f} and slowest "
        f"{slowest / one:.3f} of its speed; trainers {found['trainers_cpu_s']:.1f} s of CPU; skipped {skipped}; "
        + ", ".join(f"{kind} {spent:.1f} s" for kind, spent in found["by_class"].items() if spent)
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--step", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--share", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.train:
        train(asked)
        return
    os.environ["PYTHONPATH"] = str(ROOT)
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 16, "object_store_memory": 256 << 20})
    ray.init(address=cluster.address, namespace="pecan", log_to_driver=False)
    root = str(derived_photographs(PHOTOGRAPHS))
    even, uneven = [asked.step] * asked.jobs, [asked.step, 4 * asked.step] * (asked.jobs // 2)
    found: dict[str, Any] = {}
    for name, steps in (("alone", [asked.step]), ("shared", even), ("unequal", uneven)):
        found[name] = run_jobs(root, steps, name != "alone", asked, cluster.address)
        print(told(name, found[name], found["alone"]), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
