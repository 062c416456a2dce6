"""One run of a pipeline on Ray, as the trainer sees it: begins, iterates, scales, reports, ends."""

from __future__ import annotations

import contextlib
import os
import secrets
import weakref
from collections.abc import Iterator
from typing import Any

import cloudpickle
import ray

from pecan_ray.engines.counting import OpCount
from pecan_ray.errors import ClusterError
from pecan_ray.options import Config, EngineName, IterOptions, Workers
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.runtime import cluster
from pecan_ray.runtime.client import BatchClient, Received
from pecan_ray.runtime.controller import AutoPlacementController
from pecan_ray.runtime.messages import Job
from pecan_ray.runtime.pickling import pickle_plan

_runs: dict[str, int] = {}
"""How often this process has begun a shared job of a name: ranks that run the same program agree on it."""

MOST_CALLS = 100_000
"""Calls that a controller can have open: each trainer waits for orders in one, each idle worker for work in another."""


class Session:
    """A running job; `close` ends it, and so does the end of the process."""

    def __init__(
        self,
        plan: Plan,
        *,
        name: str,
        engine: EngineName,
        seed: int,
        config: Config,
        options: IterOptions,
        look_again: bool = False,
    ) -> None:
        """Start the job's actors, which wait for `begin`."""
        payload = pickle_plan(plan)
        self.name = _job_name(name, options)
        self._options = options
        self.started_ray = cluster.attach()
        sources = bytes(cloudpickle.dumps(list(plan.sources())))
        job = Job(
            self.name, payload, sources, plan_shape(plan), engine, seed, options, config, look_again, ordered=False
        )
        node = cluster.this_node()
        actor: Any = ray.remote(AutoPlacementController)
        self.controller: Any = actor.options(
            name=f"pecan:{self.name}:controller",
            namespace=cluster.NAMESPACE,
            get_if_exists=options.world_size > 1,
            num_cpus=0,
            max_concurrency=MOST_CALLS,
            # On a node for remote workers it would keep an autoscaler from taking the node back.
            label_selector=cluster.local_selector(node),
        ).remote(job)
        self._registered = self.controller.register.remote(options.rank, node)
        self.client = BatchClient(self.controller, options.rank, options.world_size, node, options.prefetch_bytes)
        self._report: dict[str, Any] | None = None
        self._finalizer = weakref.finalize(self, _abandon, self.client, self.controller)

    def batches(self) -> Iterator[Received]:
        """Yield received batches to the end of the job."""
        while (received := self.client.next()) is not None:
            yield received

    def begin(self, plan: Plan | None) -> None:
        """Let the workers begin, with the operators in another order than as they are written, or None."""
        try:
            ray.get(self._registered)
        except ray.exceptions.RayActorError as error:
            raise ClusterError(
                f"the controller of job {self.name} could not be started: {error}. pecan_ray, and the modules of the "
                "pipeline's source, must be importable on every node: install them there, or send them by `ray job "
                "submit --working-dir .`."
            ) from error
        ray.get(self.controller.begin.remote(None if plan is None else pickle_plan(plan)))
        self.client.start()

    def scale(self, workers: Workers) -> None:
        """Change the numbers of workers while the job runs."""
        ray.get(self.controller.scale.remote(workers.local, workers.remote))

    @property
    def closed(self) -> bool:
        """Whether the job has ended."""
        return self._report is not None

    def replan(self, plan: Plan, said: str) -> None:
        """Run another order of the same operators from the next epoch on that has not begun."""
        ray.get(self.controller.replan.remote(pickle_plan(plan), said))

    def counts(self) -> dict[str, OpCount]:
        """Return what went into and came out of operators in the first epoch, over all workers."""
        sums: dict[str, OpCount] = {}
        for _, stats in self.facts()["workers"].values():
            for op, count in stats.counts.items():
                sums[op] = sums.get(op, OpCount()) + count
        return sums

    def facts(self) -> dict[str, Any]:
        """Return the controller's facts about the job, also after its end."""
        if self._report is None:
            return dict(ray.get(self.controller.report.remote()))
        return self._report

    def close(self) -> None:
        """End the job: no actor of it is left.  With several trainers, the last one to close ends it."""
        if self._report is not None:
            return
        self.client.close()
        if not self._finalizer.alive:  # the program is at its end, where Ray would be started anew
            self._report = {"job": self.name, "lost": "the program ended before the job was closed"}
            return
        try:
            ray.get(self._registered, timeout=30)  # a rank that was refused has no part in the job and leaves it alone
            self._report = dict(ray.get(self.controller.leave.remote(self._options.rank), timeout=30))
            if self._report.pop("last"):
                ray.kill(self.controller)
        except (ray.exceptions.RayError, TimeoutError) as error:
            self._report = {"job": self.name, "lost": f"{type(error).__name__}: {error}"}
        self._finalizer.detach()


def _abandon(client: BatchClient, controller: Any) -> None:
    """End a job that nobody closed."""
    with contextlib.suppress(Exception):
        client.close()
        if ray.is_initialized():
            ray.get(controller.stop.remote(), timeout=10)
            ray.kill(controller)


def _job_name(name: str, options: IterOptions) -> str:
    if options.job:
        return options.job
    if options.world_size == 1:
        return f"{name}-{os.getpid():x}{secrets.token_hex(2)}"
    _runs[name] = _runs.get(name, 0) + 1
    return f"{name}-shared-{_runs[name]}"
