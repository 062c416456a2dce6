"""The parameters of a workload: what a trainer takes, what a worker gives, what disturbs whom, what it costs.

One JSON file per workload holds, of every parameter, its value, its unit and where it comes from: given by a paper,
fitted to one of its figures, or assumed.  The unit of work is the batch that the client counts in its windows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.plan.prices import Prices, PriceTier


def measured_in(unit: str, default: Any = 0.0) -> Any:
    """Return a dataclass field with its unit; every field but those without a sensible default has one."""
    return field(default=default, metadata={"unit": unit})


@dataclass(frozen=True)
class Trainer:
    """The consumer: the accelerators of one host and the program that feeds them."""

    step_s: float = measured_in("s", 0.1)
    """Time of the accelerators for one batch that is there."""
    step_cv: float = measured_in("share")
    """Coefficient of variation of the step, batch by batch."""
    disturbance: float = measured_in("share")
    """Rise of the step by every worker on the trainer's host that is busy."""
    overload: float = measured_in("share")
    """Rise of the step when the host's CPUs are fully used; it begins at 80 % and grows in proportion."""
    dispatch_s: float = measured_in("s")
    """Least time from a batch to asking for the next one, for programs that run ahead of the accelerators."""
    run_ahead: int = measured_in("batches", 0)
    """Batches that the program may have handed over before the accelerators are done with them."""
    sync_every: int = measured_in("batches", 0)
    """After so many batches the program waits until the accelerators have finished (end of a host loop); 0: never."""
    pause_every: int = measured_in("batches", 0)
    """After so many batches it does something else (summary, checkpoint); 0: never."""
    pause_s: float = measured_in("s")
    """How long that takes; the accelerators stand still meanwhile."""
    epoch_pause_s: float = measured_in("s")
    """Evaluation at the end of each epoch."""


@dataclass(frozen=True)
class TrainerHost:
    """The machine that the trainer runs on."""

    cpus: float = measured_in("CPUs", 96.0)
    load_cpu_s: float = measured_in("CPU s")
    """To load one batch onto the accelerators."""
    receive_cpu_s: float = measured_in("CPU s")
    """To receive and unpack one batch from a remote worker."""


@dataclass(frozen=True)
class Worker:
    """Workers of one placement."""

    cpu_s: float = measured_in("CPU s", 1.0)
    """Work of one batch, operators in the user's order."""
    ordered_cpu_s: float = measured_in("CPU s", 1.0)
    """The same in AutoOrder's order."""
    cpus: float = measured_in("CPUs", 8.0)
    """The most CPUs that one worker keeps busy."""
    crowding: float = measured_in("share")
    """Rise of a batch's work by every further worker on the same machine (caches, memory bandwidth)."""
    buffer: int = measured_in("batches", 2)
    """Finished batches that one worker may hold for a client."""
    busy_cpu: float = measured_in("share", 1.0)
    """CPU utilization of a worker while it works: below 1 where it also waits for storage."""


@dataclass(frozen=True)
class Nodes:
    """How remote workers come and go."""

    start_s: float = measured_in("s", 5.0)
    """From the request to the first work."""
    start_spread: float = measured_in("share")
    """Coefficient of variation of that."""
    speed_cv: float = measured_in("share")
    """Coefficient of variation of the speed from node to node."""
    life_s: float = measured_in("s")
    """Mean time between failures of a node, exponential; 0: nodes never fail."""
    available: int = measured_in("workers", 1000)
    """Workers that can be had; requests beyond that wait until another job gives some back."""
    local_start_s: float = measured_in("s", 1.0)
    """From the request to the first work of a local worker."""


@dataclass(frozen=True)
class Noise:
    """How the speed of workers varies."""

    batch_cv: float = measured_in("share", 0.1)
    """Coefficient of variation of a worker's time for a batch, from batch to batch."""
    drift_sd: float = measured_in("share")
    """Standard deviation of slow changes that all workers share (cloud storage, neighbours): a first-order
    autoregression, in logarithms."""
    drift_batches: int = measured_in("batches", 100)
    """Time constant of these changes."""


@dataclass(frozen=True, kw_only=True)
class WorkloadSize:
    """How large a job is, in trainers, batches and workers."""

    clients: int = measured_in("trainers", 1)
    """Hosts with a trainer each, in step with one another."""
    batches_per_epoch: int = measured_in("batches", 1000)
    """Of each client."""
    split_batches: float = measured_in("batches", 1.0)
    """What a worker that is drained finishes first, at most."""
    client_buffer: int = measured_in("batches", 8)
    """Batches that lie ready at a client, beside what workers hold for it."""
    max_local: int = measured_in("workers", 10)
    """Local workers that were allowed, over all clients."""
    max_remote: int = measured_in("workers", 64)
    """Remote workers that were allowed."""


@dataclass(frozen=True)
class Workload(WorkloadSize):
    """Everything that the simulator must know of a job."""

    name: str
    prices: Prices
    trainer: Trainer = field(default_factory=Trainer)
    host: TrainerHost = field(default_factory=TrainerHost)
    local: Worker = field(default_factory=Worker)
    remote: Worker = field(default_factory=Worker)
    nodes: Nodes = field(default_factory=Nodes)
    noise: Noise = field(default_factory=Noise)
    title: str = ""
    source_refs: Mapping[str, str] = field(default_factory=dict)
    """Of each parameter, by its dotted path, where its value comes from."""

    def __post_init__(self) -> None:
        for path, value in parameters(self):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise PlanError(f"workload {self.name!r}: {path} must be a finite number >= 0, but got {value!r}.")
        for path in ("trainer.step_s", "local.cpu_s", "local.ordered_cpu_s", "local.cpus", "remote.cpu_s"):
            self._positive(path)
        for path in ("remote.ordered_cpu_s", "remote.cpus", "host.cpus", "clients", "batches_per_epoch"):
            self._positive(path)
        if self.client_buffer < 1 or self.local.buffer < 1 or self.remote.buffer < 1 or self.noise.drift_batches < 1:
            raise PlanError(f"workload {self.name!r}: every buffer, and noise.drift_batches, must be at least 1.")
        if self.host.load_cpu_s / self.trainer.step_s >= self.host.cpus:
            raise PlanError(f"workload {self.name!r}: loading batches alone takes more than the host's CPUs.")

    def _positive(self, path: str) -> None:
        if dict(parameters(self))[path] <= 0:
            raise PlanError(f"workload {self.name!r}: {path} must be above 0.")

    def epoch_cost(self, batch_s: float, remote: float) -> float:
        """Return $ per epoch at a steady batch time with (on average) so many remote workers (Pecan §6.1)."""
        base = self.prices.accelerator_host * self.clients
        # Prices are those of whole workers: a mean lies between two of them.
        low = math.floor(remote)
        below, above = self.prices.remote_per_hour(low), self.prices.remote_per_hour(low + 1)
        return self.batches_per_epoch * batch_s / 3600 * (base + below + (remote - low) * (above - below))

    def worker(self, placement: str) -> Worker:
        """Return the workers of a placement."""
        return self.local if placement == "local" else self.remote


def parameters(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Walk over all numbers with a unit, by dotted path."""
    for item in fields(value):
        inner = getattr(value, item.name)
        if "unit" in item.metadata:
            yield path + item.name, inner
        elif is_dataclass(inner) and not isinstance(inner, Prices):
            yield from parameters(inner, f"{path}{item.name}.")


def units(kind: type[Any] = Workload, path: str = "") -> dict[str, str]:
    """Return the unit of every parameter, by dotted path."""
    found: dict[str, str] = {}
    for item in fields(kind):
        if "unit" in item.metadata:
            found[path + item.name] = item.metadata["unit"]
        elif item.name in GROUPS:
            found |= units(GROUPS[item.name], f"{item.name}.")
    return found


GROUPS: dict[str, type[Any]] = {
    "trainer": Trainer,
    "host": TrainerHost,
    "local": Worker,
    "remote": Worker,
    "nodes": Nodes,
    "noise": Noise,
}


def from_json(text: str, source: str = "the text") -> Workload:
    """Read a parameter file; parameters that it leaves out keep their defaults."""
    try:
        table = json.loads(text)
        prices = table["prices"]
        entries = {path: entry["value"] for path, entry in table["parameters"].items()}
        source_refs = {path: str(entry.get("origin", "")) for path, entry in table["parameters"].items()}
        name, title = str(table["name"]), str(table.get("title", ""))
        tiers = tuple(PriceTier(*tier) for tier in prices.get("tiers", ()))
        host, worker = prices["accelerator_host"], prices["remote_worker"]
        source_refs["prices"] = str(prices.get("origin", ""))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(
            f"{source} is no parameter file of a workload ({type(error).__name__}: {error}): it needs name, prices "
            "with accelerator_host and remote_worker, and parameters, each with a value."
        ) from error
    unknown = sorted(entries.keys() - units().keys())
    if unknown:
        raise PlanError(f"{source}: there is no parameter {unknown[0]!r}; there are {', '.join(sorted(units()))}.")
    return build(name, title, Prices(host, worker, tiers), entries, source_refs)


def build(
    name: str, title: str, prices: Prices, entries: Mapping[str, Any], source_refs: Mapping[str, str] | None = None
) -> Workload:
    """Make a workload of parameters by dotted path."""
    groups = {
        group: kind(
            **{path.partition(".")[2]: value for path, value in entries.items() if path.startswith(f"{group}.")}
        )
        for group, kind in GROUPS.items()
    }
    flat = {path: value for path, value in entries.items() if "." not in path}
    return Workload(name=name, title=title, prices=prices, source_refs=dict(source_refs or {}), **groups, **flat)


def changed(workload: Workload, **entries: Any) -> Workload:
    """Return the workload with other parameters; a double underscore stands for the dot of a path."""
    named = {path.replace("__", "."): value for path, value in entries.items()}
    unknown = sorted(named.keys() - units().keys())
    if unknown:
        raise PlanError(f"there is no parameter {unknown[0]!r}; there are {', '.join(sorted(units()))}.")
    return build(
        workload.name, workload.title, workload.prices, dict(parameters(workload)) | named, workload.source_refs
    )


def names() -> list[str]:
    """List the workloads that come with the package."""
    folder = resources.files("pecan_ray.simulator") / "workloads"
    return sorted(item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json"))


def load(name: str) -> Workload:
    """Read a workload by its name, or from a path that ends in .json."""
    if name.endswith(".json"):
        path = Path(name)
        if not path.is_file():
            raise PlanError(f"there is no parameter file {name}.")
        return from_json(path.read_text(), name)
    if name not in names():
        raise PlanError(f"there is no workload {name!r}: choose one of {', '.join(names())}, or a file *.json.")
    return from_json((resources.files("pecan_ray.simulator") / "workloads" / f"{name}.json").read_text(), name)
