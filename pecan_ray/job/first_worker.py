"""Which workers a job will ask for first, known before its controller runs: so that both can start at a time."""

from __future__ import annotations

from collections.abc import Mapping

from pecan_ray.job.spec import JobSpec
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.job.worker_table import WorkerTable
from pecan_ray.options import AutoWorkers
from pecan_ray.plan.windows import Deployment


def first_worker(spec: JobSpec, node: str, cpus: float) -> StartWorker | None:
    """Return the one of `first_workers` that is asked for before the others, if any is known."""
    return next(iter(first_workers(spec, node, cpus)), None)


def first_names(spec: JobSpec, hosts: Mapping[str, float]) -> set[str]:
    """Return the names of `first_workers` on the trainer's node, which is given with its CPUs."""
    return {one.worker for host, cpus in hosts.items() for one in first_workers(spec, host, cpus)}


def first_workers(spec: JobSpec, node: str, cpus: float) -> list[StartWorker]:
    """Return the local workers that a job of one trainer, on a node of so many CPUs, will ask for first, in this order.

    Empty: that cannot be told.  A wrong answer costs a process that starts in vain, and nothing else.
    """
    workers = spec.workers
    # A copy of the rule by which AutoPlacement begins. A test compares the guess with the job's own
    # state (decision 67).
    if isinstance(workers, AutoWorkers):
        remote_only = workers.mode.startswith("cachew") or 0 in (workers.max_local, workers.max_local_cpu_fraction)
        target = Deployment(0 if remote_only else max(1, workers.min_local), workers.min_remote)
    else:
        target = Deployment(workers.local, workers.remote)
    if spec.shape.world_size > 1 or not target.local:
        return []
    # A fleet like the job's own, so that the job will ask for a worker of the same name and kind.
    worker_table = WorkerTable(
        spec.name, spec.cpus_per_worker, spec.remote_io, accelerator=spec.accelerator == "always"
    )
    worker_table.hosts = {node: cpus}
    return [one for one in worker_table.scale(target, 0.0) if isinstance(one, StartWorker) and one.host]
