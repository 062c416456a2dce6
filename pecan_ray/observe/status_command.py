"""The commands `pecan status` and `pecan stop`: what runs on the cluster at hand, and the end of what is shared."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

import ray

from pecan_ray.job.cluster_io import SharedIo
from pecan_ray.job.stats import JobStats
from pecan_ray.observe.report import Report
from pecan_ray.runtime import cluster
from pecan_ray.runtime.host_names import named
from pecan_ray.runtime.long_wait import LongWait
from pecan_ray.runtime.service import SERVICE
from pecan_ray.runtime.share_messages import PREFIX, GroupStats

ANSWER_S = 10.0
"""An actor that does not answer within this time is named, and the command goes on: a report waits for a controller
that may be busy for seconds."""


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what runs `pecan status`, which takes nothing."""
    parser.set_defaults(run=run_status)


def add_stop_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `pecan stop` takes."""
    parser.add_argument("--force", action="store_true", help="end groups that have readers too: these get an error")
    parser.set_defaults(run=run_stop)


def run_status(_: argparse.Namespace) -> int:
    """Print what there is."""
    cluster.attach_to_running()
    lines = [job_line(facts) for facts in job_stats()]
    for facts in _ask_all(_groups(), "stats", True):
        lines += group_lines(facts)
    lines += _service_lines()
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _service_lines() -> list[str]:
    """Spell out what the service knows."""
    if _actor(SERVICE) is None:
        return ["no service: no pipe is divided"]
    told: list[tuple[SharedIo, int]] = _ask_all([SERVICE], "io")
    return io_lines(*told[0]) if told else ["service: does not answer; `pecan stop` ends it"]


def run_stop(asked: argparse.Namespace) -> int:
    """End what is shared; returns 1 where groups have readers and are left alone."""
    cluster.attach_to_running()
    left = False
    for name in _groups():
        group = _actor(name)
        if group is None:
            continue
        told = _ask_all([name], "stop", asked.force)
        if not told:
            left |= not asked.force
            if asked.force:
                ray.kill(group)
            done = "its process was ended" if asked.force else "--force ends its process"
            sys.stdout.write(f"shared group {name.removeprefix(PREFIX)} does not answer: {done}\n")
            continue
        readers: int = told[0]
        left |= bool(readers) and not asked.force
        done = "is left alone: --force ends it" if readers and not asked.force else "was told to end"
        sys.stdout.write(f"shared group {name.removeprefix(PREFIX)} has {_several(readers, 'reader')} and {done}\n")
    service = _actor(SERVICE)
    if service is not None and not left:
        _ask_all([SERVICE], "close")
        ray.kill(service)
        sys.stdout.write("the service was ended\n")
    return int(left)


def job_stats() -> list[JobStats]:
    """Ask the jobs of the cluster that this process is connected to; those that begin or have ended tell nothing."""
    return [facts for facts in _ask_all(cluster.other_jobs("").values(), "stats") if facts is not None]


def job_line(facts: JobStats) -> str:
    """Spell out a job."""
    workers = facts.deployments[-1][1] if facts.deployments else "no workers yet"
    return f"job {facts.job}: {facts.seconds:.0f} s, {facts.elements} elements, epoch {facts.epochs}, {workers}"


def io_lines(shared: SharedIo, jobs: int) -> list[str]:
    """Spell out what the service divides among jobs; nothing where none takes part."""
    if not jobs:
        return []
    if shared.bytes_per_s is None:
        return [f"service: {_several(jobs, 'job')} would share a pipe, and none has said how much that carries"]
    cache = "what their nodes keep" if shared.cache_bytes is None else f"{shared.cache_bytes / 1e9:,.4g} GB of cache"
    pipe = f"{shared.bytes_per_s / 1e6:,.4g} MB/s of object stores"
    return [f"service: divides {pipe} and {cache} among {_several(jobs, 'job')}, policy {shared.policy or 'greedy'}"]


def group_lines(facts: GroupStats) -> list[str]:
    """Spell out a shared group and its readers."""
    lines = [
        f"shared group {facts.name}: pipeline {facts.pipeline} ({facts.fingerprint}) on node {named(facts.node)}, "
        f"{_several(len(facts.readers), 'reader')}, epoch {facts.place.epoch}, {facts.window_entries} batches of "
        f"{facts.window_bytes / 1e6:.1f} MB in its window"
    ]
    if isinstance(facts.run, Report):
        cost = "" if facts.run.cost is None else f", ${facts.run.cost.total:.4f}"
        lines.append(
            f"  its run {facts.run.job}: {facts.run.batches} batches by {len(facts.run.workers)} worker(s){cost}"
        )
    held_s = dict(facts.held_back_s)
    for reader in facts.readers:
        state = "waits for the next epoch" if reader.waiting else f"{reader.read} read, {reader.skipped} skipped"
        held = f", others have waited {held_s[reader.reader]:.0f} s for it" if reader.reader in held_s else ""
        lines.append(f"  reader {reader.reader}: {state}, {reader.lag} behind{held}")
    return lines


def _groups() -> list[str]:
    return sorted(name for name in cluster.named_actors() if name.startswith(PREFIX))


def _ask_all(names: Iterable[str], method: str, *arguments: Any) -> list[Any]:
    """Ask actors, all at once; those that have ended meanwhile, or begin, tell nothing."""
    actors = {name: actor for name in sorted(names) if (actor := _actor(name)) is not None}
    if not actors:
        return []
    answers = {name: getattr(actor, method).remote(*arguments) for name, actor in actors.items()}
    with LongWait(f"the answers of {', '.join(answers)}, for {ANSWER_S:.0f} s at most"):
        come: list[Any] = ray.wait([*answers.values()], num_returns=len(answers), timeout=ANSWER_S)[0]
    found = []
    for name, answer in answers.items():
        try:
            if answer not in come:
                raise TimeoutError
            found.append(ray.get(answer))
        except (ray.exceptions.RayError, TimeoutError):
            sys.stderr.write(f"pecan: {name} does not answer\n")
    return found


def _actor(name: str) -> Any:
    try:
        return ray.get_actor(name, namespace=cluster.NAMESPACE)
    except ValueError:
        return None


def _several(count: int, item_name: str) -> str:
    return f"{count} {item_name}" if count == 1 else f"{count} {item_name}s"
