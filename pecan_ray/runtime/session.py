"""One run of a pipeline on Ray, as the trainer sees it: begins, iterates, scales, reports, ends."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import weakref
from collections.abc import Iterator
from typing import Any

import cloudpickle
import ray

from pecan_ray.errors import ClusterError, PlanError, UnpicklablePlanError
from pecan_ray.options import Config, EngineName, IterOptions, Workers
from pecan_ray.plan.operators import ElementOp, Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.runtime import cluster
from pecan_ray.runtime.client import BatchClient, Received
from pecan_ray.runtime.controller import AutoPlacementController
from pecan_ray.runtime.messages import Job

_runs: dict[str, int] = {}
"""How often this process has begun a shared job of a name: ranks that run the same program agree on it."""


class Session:
    """A running job; `close` ends it, and so does the end of the process."""

    def __init__(
        self, plan: Plan, *, name: str, engine: EngineName, seed: int, config: Config, options: IterOptions
    ) -> None:
        payload = pickle_plan(plan)
        self.name = _job_name(name, options)
        self._options = options
        self.started_ray = cluster.attach()
        sources = bytes(cloudpickle.dumps(list(plan.sources())))
        job = Job(self.name, payload, sources, plan_shape(plan), engine, seed, options, config)
        node = cluster.this_node()
        actor: Any = ray.remote(AutoPlacementController)
        self.controller: Any = actor.options(
            name=f"pecan:{self.name}:controller",
            namespace=cluster.NAMESPACE,
            get_if_exists=options.world_size > 1,
            num_cpus=0,
            max_concurrency=1000,
            # On a node for remote workers it would keep an autoscaler from taking the node back.
            label_selector=cluster.local_selector(node),
        ).remote(job)
        try:
            ray.get(self.controller.register.remote(options.rank, node))
        except ray.exceptions.RayActorError as error:
            raise ClusterError(
                f"the controller of job {self.name} could not be started: {error}. pecan_ray, and the modules of the "
                "pipeline's source, must be importable on every node: install them there, or send them by `ray job "
                "submit --working-dir .`."
            ) from error
        except BaseException:
            ray.kill(self.controller)
            raise
        self.client = BatchClient(self.controller, options.rank, options.world_size, node, options.prefetch_bytes)
        self._report: dict[str, Any] | None = None
        self._finalizer = weakref.finalize(self, _abandon, self.client, self.controller)

    def batches(self) -> Iterator[Received]:
        """Yield received batches to the end of the job."""
        while (received := self.client.next()) is not None:
            yield received

    def scale(self, workers: Workers) -> None:
        """Change the numbers of workers while the job runs."""
        ray.get(self.controller.scale.remote(workers.local, workers.remote))

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
        try:
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


def pickle_plan(plan: Plan) -> bytes:
    """Pickle a plan for the workers; raises `UnpicklablePlanError` naming the op and the variable."""
    try:
        return bytes(cloudpickle.dumps(plan))
    except Exception as error:
        for op in plan.all_ops():
            if isinstance(op, ElementOp):
                _check_function(op)
        for source in plan.sources():
            _check_value(source, f"the source {type(source).__name__}", error)
        raise PlanError(f"the pipeline cannot be sent to workers: {type(error).__name__}: {error}") from error


def _check_function(op: ElementOp) -> None:
    try:
        cloudpickle.dumps(op.fn)
    except Exception as error:
        culprit = next(iter(_unpicklable_variables(op.fn)), None)
        named = f"its variable {culprit!r}" if culprit else "a value that it holds"
        raise UnpicklablePlanError(
            f"{op.name}: the function cannot be sent to workers, since {named} cannot be pickled "
            f"({type(error).__name__}: {error}). Create it inside the function, or in a module that workers import.",
            op=op.name,
            variable=culprit,
        ) from error


def _check_value(value: object, what: str, error: BaseException) -> None:
    try:
        cloudpickle.dumps(value)
    except Exception as cause:
        raise UnpicklablePlanError(
            f"{what} cannot be sent to workers: {type(cause).__name__}: {cause}", variable=what
        ) from error


def _unpicklable_variables(fn: Any) -> Iterator[str]:
    """Yield the names of closure variables, globals, defaults and attributes that cannot be pickled."""
    code = getattr(fn, "__code__", None)
    held: dict[str, Any] = {}
    if code is not None:
        cells = zip(code.co_freevars, fn.__closure__ or (), strict=False)
        held.update({name: cell.cell_contents for name, cell in cells})
        held.update({name: fn.__globals__[name] for name in code.co_names if name in fn.__globals__})
        held.update({f"default {i}": value for i, value in enumerate(fn.__defaults__ or ())})
    held.update(getattr(getattr(fn, "__self__", fn), "__dict__", {}))
    for name, value in held.items():
        try:
            pickle.loads(cloudpickle.dumps(value))
        except Exception:
            yield name
