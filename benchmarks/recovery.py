"""How soon a job is back at full speed after a worker has died, and after a trainer was started again from a state.

    python -m benchmarks.recovery [--engines python tensorflow] [--rounds 5] [--json FILE]

ResNet50's operators on photographs, two local workers on a Ray cluster of this machine, a trainer that does nothing.
One of the workers is killed.  `noticed`: from then until the job knows.  `back`: from then on until a batch of its
successor is used, so that as many work as before.  In another job the controller is killed.  `answers`: from then until
its next process does; `longest wait`: of the training loop for a batch in the ten seconds from then on.  `first batch`:
of a job that begins at its beginning, and of one that begins in the middle of an epoch with a state; `taken`: what
taking that state takes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ray

import pecan_ray as pecan
from examples import resnet50
from examples.photographs import derived_photographs
from pecan_ray.options import EngineName

BATCHES_BEFORE = 20
OUTAGE_S = 10.0
MIDDLE = 5
"""Batches of the epoch that is gone on with."""


def death_s(pipe: pecan.PecanPipeline) -> dict[str, float]:
    """Kill one of two workers; return the seconds until the job knew, and from then until its successor delivers."""
    with pipe.iter_batches(epochs=None, workers=pecan.Workers(local=2)) as batches:
        made: dict[str, int] = {}
        for _ in batches:
            made[maker(batches)] = made.get(maker(batches), 0) + 1
            if len(made) == 2 and min(made.values()) >= BATCHES_BEFORE:
                break
        killed = time.perf_counter()
        actor = ray.get_actor(maker(batches), namespace="pecan")
        os.kill(ray.get(actor.placed.remote())[1], signal.SIGKILL)
        for _ in batches:
            if maker(batches) not in made:
                break
        back = time.perf_counter()
        report = batches.report()
        began = time.perf_counter() - report.seconds
        noticed = began + next(event.seconds for event in report.events if event.kind == "lost")
        return {"noticed": noticed - killed, "back": back - noticed}


def maker(batches: pecan.Batches) -> str:
    """Return the name of the worker that made the last batch."""
    assert batches.provenance is not None
    return batches.provenance.worker


def outage_s(pipe: pecan.PecanPipeline) -> dict[str, float]:
    """Kill the controller; return the seconds until it answers again, and the longest that the loop waits meanwhile."""
    with pipe.iter_batches(epochs=None, job="outage", workers=pecan.Workers(local=2)) as batches:
        made: set[str] = set()
        while len(made) < 2:
            next(batches)
            made.add(maker(batches))
        controller: Any = ray.get_actor("pecan:outage:controller", namespace="pecan")
        os.kill(ray.get(controller.process_id.remote()), signal.SIGKILL)
        killed = before = time.perf_counter()
        answer: Any = None
        answers = longest = 0.0
        while before < killed + OUTAGE_S or not answers:
            next(batches)
            now = time.perf_counter()
            longest, before = max(longest, now - before), now
            answer = controller.process_id.remote() if answer is None else answer
            if not answers and ray.wait([answer], timeout=0)[0]:
                answers = now - killed if answered(answer) else 0.0
                answer = None
        return {"answers": answers, "longest wait": longest}


def answered(answer: Any) -> bool:
    """Tell whether a call has come through."""
    try:
        ray.get(answer)
    except ray.exceptions.ActorUnavailableError:
        return False
    return True


def resume_s(pipe: pecan.PecanPipeline) -> dict[str, float]:
    """Return the seconds to a first batch from the beginning and from a state, and those that taking it takes."""
    workers = pecan.Workers(local=2)
    began = time.perf_counter()
    with pipe.iter_batches(epochs=None, workers=workers) as batches:
        next(batches)
        fresh = time.perf_counter() - began
        for _ in range(MIDDLE):
            next(batches)
        began = time.perf_counter()
        state = batches.state_dict()
        taken = time.perf_counter() - began
    began = time.perf_counter()
    with pipe.iter_batches(epochs=None, workers=workers, state=state) as batches:
        next(batches)
        resumed = time.perf_counter() - began
    return {"first batch, fresh": fresh, "first batch, resumed": resumed, "taken": taken}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=["python", "tensorflow"], default=["python", "tensorflow"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    print(f"{machine}; seconds, medians of {asked.rounds} rounds (slowest)")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.getenv("PYTHONPATH"))))
    ray.init(address="local", num_cpus=max(2, os.cpu_count() or 1), log_to_driver=False)
    root = str(derived_photographs(256))
    facts: dict[str, Any] = {"machine": machine}
    for engine in asked.engines:
        rounds = [both(engine, root) for _ in range(asked.rounds)]
        facts[engine] = {name: [one[name] for one in rounds] for name in rounds[0]}
        for name, seconds in facts[engine].items():
            print(f"{engine:10s} {name:20s} {statistics.median(seconds):6.3f} ({max(seconds):.3f})", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(facts, indent=1))


def both(engine: EngineName, root: str) -> dict[str, float]:
    """Measure a worker's death, the controller's, and a resumption."""
    pipe = resnet50.pipeline(root, engine=engine).with_config(reorder="off")
    return {**death_s(pipe), **outage_s(pipe), **resume_s(pipe)}


if __name__ == "__main__":
    main()
