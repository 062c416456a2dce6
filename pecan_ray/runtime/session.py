"""One run of a pipeline on Ray, as the trainer sees it: begins, iterates, scales, reports, ends."""

from __future__ import annotations

import logging
import math
import os
import pickle
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import ray

from pecan_ray.by_value import NamedArrays
from pecan_ray.cache_options import ClusterIo
from pecan_ray.engines.counting import OpCount
from pecan_ray.engines.python.deferral import Finisher
from pecan_ray.errors import ClusterError, PlanError
from pecan_ray.job.first_worker import first_worker
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.registration import NoResponse, Registration, Rejected, StopWithError
from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.job.row_order import divides_batches, is_in_turn, joins_rows, runs_in_order
from pecan_ray.job.saved_state import SavedState, point_for
from pecan_ray.job.spec import ErrorPolicy, JobDeadline, JobSpec, Timeouts
from pecan_ray.job.stats import JobStats
from pecan_ray.job.waiting import NO_ANSWER
from pecan_ray.options import AutoWorkers, Config, EngineName, IterOptions, PipelineSettings, Workers
from pecan_ray.plan.deadline import Deadline
from pecan_ray.plan.element_identity import identity_loss
from pecan_ray.plan.empty_pass import endless_passes
from pecan_ray.plan.fingerprint import describe_plan
from pecan_ray.plan.in_step import read_in_step, why_not_in_step
from pecan_ray.plan.op_sequences import OpOrders, op_order_of
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import PlanShape, num_batches, plan_shape
from pecan_ray.plan.splits import OneSplitSource, Source, as_written, seeks
from pecan_ray.runtime import cluster, trainer_shutdown
from pecan_ray.runtime.accelerator import offered_accelerator
from pecan_ray.runtime.actors import actor
from pecan_ray.runtime.calls import LOOK_S
from pecan_ray.runtime.client import BatchClient, KeepBad
from pecan_ray.runtime.controller_actor import AutoPlacementController
from pecan_ray.runtime.cost_query import CostQuery
from pecan_ray.runtime.host_names import named
from pecan_ray.runtime.journal_file import OFF
from pecan_ray.runtime.kept_jobs import JobProcesses, make_way
from pecan_ray.runtime.long_wait import LongWait
from pecan_ray.runtime.messages import Job
from pecan_ray.runtime.pickling import pickle_plan, pickle_sources
from pecan_ray.runtime.state_points import StatePoints
from pecan_ray.runtime.streams import TrainerIdentity
from pecan_ray.runtime.trainer_shutdown import TrainerShutdown
from pecan_ray.runtime.worker_actor import worker_actor_spec
from pecan_ray.runtime.worker_owner import worker_owner_of
from pecan_ray.sampling.random_keys import split_order_of
from pecan_ray.sampling.subsets import members
from pecan_ray.storage import is_remote

logger = logging.getLogger("pecan_ray")

MOST_CALLS = 100_000
"""Calls that a controller can have open: each trainer waits for orders in one, each idle worker for work in another."""
MOST_RESTARTS = 100
"""A controller that dies more often is not started again: something kills it whatever it does."""
LOOK_AGAIN_S = 0.2
"""Between two tries to become a trainer: a controller of a run before takes seconds to end."""
GIVES_WAY_S = 3.0
"""The controller of another run of the same name answers within this time, or is asked again."""
OWN = ("rank", "format", "device", "prefetch_bytes", "job")
"""Options in which ranks may differ."""


class Session:
    """A running job; `close` ends it, and so does the end of the process."""

    def __init__(
        self,
        plan: Plan,
        settings: PipelineSettings,
        *,
        processes: JobProcesses,
        options: IterOptions,
        parts: Sequence[tuple[str, str]] | None = None,
        look_again: bool = False,
        saved: SavedState | None = None,
        allow_changed_source: bool = False,
        keep: KeepBad,
    ) -> None:
        """Start the job's actors, which wait for `begin`.

        `parts`: what `describe_plan` tells of the plan, if known.  `saved`: go on there, with other data as well where
        `allow_changed_source`.  `keep`: called with bad elements, before they are acknowledged.
        """
        check_no_loader_workers()
        engine, seed, config = settings.engine, settings.seed, with_absolute_journal(settings.config)
        self._in_step = not why_not_in_step(plan, engine, options.on_error)
        plan = self._for_workers(plan)
        parts = tuple(parts or describe_plan(plan))
        offered = offered_accelerator(plan, parts, engine, options)
        arrays: NamedArrays = {}
        self._arrays = None if options.world_size > 1 else arrays  # ranks would name each its own
        payload = pickle_plan(plan, self._arrays)
        self.name, self._processes, self._options = processes.job, processes, options
        started, self.attach_time_s = cluster.attach(ranks=options.world_size), time.monotonic()
        if started and options.world_size > 1 and os.environ.get("LOCAL_WORLD_SIZE") != str(options.world_size):
            logger.warning(
                "rank %d of %d has started a Ray of its own, since there was none: only ranks that the same process "
                "has started on this machine find it. Run `ray start --head` first, so that all meet on one cluster.",
                *(options.rank, options.world_size),
            )
        shape = plan_shape(plan)
        if shape.does_rebatch and options.workers != Workers():
            logger.warning("job %s: one worker at a time runs it, since %s", self.name, identity_loss(plan))
        sources = pickle_sources(plan, self._arrays)
        spec = job_spec(self.name, shape, plan.split_sources(), engine, seed, config, options)
        spec = with_deadline(spec, plan, options)
        if saved is not None:
            spec = replace(
                spec, start=point_for(saved.point, spec.shape.branches), allow_changed_source=allow_changed_source
            )
        empty_passes = endless_passes(plan) if shape.num_passes is None else None  # else the engine looks
        spec = replace(spec, op_order=op_order_of(plan), empty_passes=empty_passes, accelerator=offered.choice)
        before = (saved.batches, saved.passed) if saved is not None else (0, 0)
        told = parts, *before, settings.name, bool(arrays)
        job = Job(spec, payload, sources, shape, engine, seed, options, config, look_again, *told)
        self._node = cluster.this_node()
        self._incarnation = secrets.token_hex(8)
        self.controller = self._register(job, arrays, _settings_of_ranks(parts, engine, seed, options, saved))
        me = TrainerIdentity(self.name, self._incarnation, self._node, options.rank, options.world_size)
        # Blocks are joined as arrays of NumPy.
        joins, stay = spec.shape.joins, offered.images_stay and spec.shape.joins is None
        finisher = Finisher(plan, offered.images, stay=stay)
        self.client = BatchClient(self.controller, me, options.prefetch_bytes, keep, joins, finisher)
        self.client.start()
        self.explain_decoding = offered.explain
        offered.tell(self.client.note)
        self.cost_query = CostQuery(self.client.calls, self.controller)
        self._points = StatePoints(self.name, self.client, self.controller, alone=options.world_size == 1)
        self._stats: JobStats | None = None
        self._shutdown = TrainerShutdown(self.name, self.client, self.controller, options.rank, self._incarnation)
        # At the interpreter's end it would run too late: `trainer_shutdown` leaves all jobs there, before Ray ends.
        weakref.finalize(self, self._shutdown.leave_in_background).atexit = False

    def _for_workers(self, plan: Plan) -> Plan:
        """Return a plan as workers run it."""
        return read_in_step(plan) if self._in_step else plan

    def _register(self, job: Job, arrays: NamedArrays, parts: tuple[tuple[str, str], ...]) -> Any:
        """Find or start the controller and become one of its trainers; raises PecanError if that cannot be."""
        with LongWait(named(f"job {self.name}: its controller is being started on node {self._node}")) as wait:
            return self._registered(job, arrays, parts, wait)

    def _registered(self, job: Job, arrays: NamedArrays, parts: tuple[tuple[str, str], ...], wait: LongWait) -> Any:
        registration = Registration(self.name, self._options.world_size, time.monotonic())
        # Once, because it may have to be sent again.
        pickled = pickle.dumps(job)
        controller: Any = self._processes.controller
        while True:
            try:
                if controller is None:
                    controller = self._controller(job, pickled)
                me = self._options.rank, self._incarnation, self._node
                if self._wait_for(controller, controller.register.remote(*me, parts, cluster.this_process()), wait):
                    return controller
                # Decision 37: Ray keeps 100 KB of what an actor was started with once the program that did so is gone.
                # So the controller is started with its name alone, and the job follows.
                self._wait_for(controller, controller.open.remote(pickled, arrays), wait)
                continue
            except (
                ray.exceptions.RayTaskError,
                ray.exceptions.RayActorError,
                ray.exceptions.ActorAlreadyExistsError,
            ) as error:
                next_step = registration.decide(self._registration_failure(error), time.monotonic())
                if isinstance(next_step, StopWithError):
                    if next_step.kill and controller is not None:
                        ray.kill(controller)
                    # Only an actor that has failed has a story of its own, in Ray's words.
                    raise next_step.error from (error if isinstance(error, ray.exceptions.RayActorError) else None)
            wait.switch_to(next_step.say)
            if next_step.restart:
                controller = None
            time.sleep(LOOK_AGAIN_S)

    def _registration_failure(self, error: ray.exceptions.RayError) -> Rejected | NoResponse:
        """Return what is in the way; a controller of this name that is not ours is asked whether its trainers live."""
        if not isinstance(error, ray.exceptions.ActorAlreadyExistsError):
            return _registration_failure(error)
        try:
            # Decision 93: a run of one rank joins no other job.
            # The one of this name may be of a launch that was killed.
            other = ray.get_actor(f"pecan:{self.name}:controller", namespace=cluster.NAMESPACE)
            ray.get(other.yield_to_run.remote(self._incarnation), timeout=GIVES_WAY_S)
        except ray.exceptions.RayTaskError as rejected:
            return _registration_failure(rejected)
        except (ValueError, ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as gone:
            return NoResponse("taken", str(gone))  # it has ended meanwhile, or does not answer
        return NoResponse("taken", str(error))

    def _wait_for(self, controller: Any, answer: Any, wait: LongWait) -> Any:
        """Wait for the controller's answer, and say so where it does not give one though it was started."""
        while True:
            try:
                return ray.get(answer, timeout=LOOK_S)
            except ray.exceptions.GetTimeoutError:
                if cluster.is_alive(controller):
                    wait.switch_to(f"job {self.name}: {NO_ANSWER}")

    def _controller(self, job: Job, pickled: bytes) -> Any:
        journal, shared = job.config.journal, self._options.world_size > 1
        make_way(self._node, job.spec.cpus_per_worker)
        controller = actor(
            AutoPlacementController,
            f"pecan:{self.name}:controller",
            # On a node for remote workers it would keep an autoscaler from taking the node back.
            cluster.local_selector(self._node),
            # Decision 93: a run of one rank joins no other job.  `_registration_failure` asks a controller of its name.
            get_if_exists=shared,
            # A job of several trainers belongs to none of their processes; it ends when nobody is heard any more.
            lifetime="detached" if shared else None,
            num_cpus=0,
            # Without a journal another process could not go on.
            max_restarts=0 if journal == OFF else MOST_RESTARTS,
            max_concurrency=MOST_CALLS,
            # Hundreds of calls a second would fill the dashboard's table of tasks, at a tenth of their cost.
            enable_task_events=False,
        ).remote(self.name, None if journal is None else os.fspath(journal))
        if journal != OFF:  # it would be started by the controller, but half a second later
            keeper = worker_owner_of(self.name, controller._actor_id.hex())
            started = None if shared else first_worker(job.spec, self._node, cluster.cpus_of(self._node))
            if started is not None:  # as that would be asked for by the controller, seconds later
                keeper.expect.remote(worker_actor_spec(started, cluster.local_selector(self._node), job, pickled))
        return controller

    def begin(
        self,
        plan: Plan | None,
        order: OpOrders = (),
        row_s: float | None = None,
        op_seconds: tuple[tuple[str, float], ...] = (),
        *,
        decoders: tuple[str, ...] = (),
        order_text: str = "",
    ) -> None:
        """Let the workers begin, with the operators in another order than as they are written, or None.

        The first rank says so for all of them: what others give is not looked at.
        `row_s`: seconds of one thread for a row of a batch, as far as a sample has told; `op_seconds`: of each operator
        for an element; `order_text`: what AutoOrder found, as JSON.
        """
        if not self._options.rank:
            pickled = None if plan is None else pickle_plan(self._for_workers(plan), self._arrays)
            self._ask(self.controller.begin, pickled, order, row_s, op_seconds, decoders, order_text)
        self.client.begin()

    def scale(self, workers: Workers) -> None:
        """Change the numbers of workers while the job runs."""
        self._ask(self.controller.scale, workers.local, workers.remote)

    def set_remote_io(self, bytes_per_s: float | None) -> None:
        """Bound what all workers together read of object stores, from now on."""
        self._ask(self.controller.set_remote_io, bytes_per_s)

    def _ask(self, method: Any, *arguments: Any) -> Any:
        """Ask the controller, and say if it does not answer."""
        with LongWait(f"job {self.name}: {NO_ANSWER}"):
            return self.client.calls.retry(method, *arguments)

    @property
    def closed(self) -> bool:
        """Return whether the job was left, or is being left."""
        return self.client.closed

    def change_plan(
        self, plan: Plan, order: OpOrders, message: str, decoders: tuple[str, ...] = (), order_text: str = ""
    ) -> None:
        """Run another order of the same operators from the next epoch on that has not begun.

        `order_text`: what AutoOrder found, as JSON; empty: what was told before.
        """
        payload = pickle_plan(self._for_workers(plan), self._arrays)
        self._ask(self.controller.change_plan, payload, order, message, decoders, order_text)

    def drop_order(self, message: str) -> None:
        """Let all workers run the operators as the user wrote them, from now on."""
        self._ask(self.controller.drop_order, message)

    def resume_point(self, ahead: int = 0) -> tuple[ResumePoint, int]:
        """Return where the job stands after the batches that the training loop has used, and how many these are.

        `ahead`: so many of those that it was given are not used yet.
        """
        return self._points.at_loop(ahead)

    def has_controller_response(self) -> bool:
        """Tell whether the controller answers in the time that leaving it may take."""
        calls = self.client.calls
        try:
            with LongWait(f"job {self.name}: {NO_ANSWER}"):
                # With a bound: of a controller that stands still `close` would wait for a state for ever.
                calls.result(calls.begin(self.controller.process_id), timeout_s=trainer_shutdown.LEAVE_S)
        except TimeoutError:
            return False
        except ray.exceptions.RayError:
            return True  # it ended, or is started again: who asks for more is told so in time
        return True

    def counts(self) -> dict[str, OpCount]:
        """Return what went into and came out of operators in the first epoch, over all workers."""
        return dict(self._ask(self.controller.op_counts))

    def stats(self) -> JobStats:
        """Return the controller's facts about the job, also after its end."""
        if self._stats is None:
            found: JobStats = self._ask(self.controller.stats)
            return found
        return self._stats

    def may_leave(self) -> None:
        """Let the other ranks go on when this one closes: its loop has all that it asked for."""
        self._shutdown.finished = True

    def close(self, *, keep: bool = False) -> None:
        """End the job.  With several trainers, the last one to close ends it.

        No actor of it is left, unless another job may follow in its processes: `keep` says that it has ended well.
        """
        if self._stats is None:
            self.cost_query.close()
            self._points.close()
            self._shutdown.keep = keep and self._processes.keep is not None
            self._stats = self._shutdown.leave()
            if self._shutdown.kept:
                self._processes.kept_by(self.controller)


def with_absolute_journal(config: Config) -> Config:
    """Return settings that name the same journal in the controller's process, which has another working folder."""
    if config.journal in (None, OFF) or is_remote(os.fspath(config.journal)):
        return config
    return replace(config, journal=os.path.abspath(config.journal))


def _registration_failure(error: ray.exceptions.RayError) -> Rejected | NoResponse:
    """Return what an error of Ray's means to a trainer that registers."""
    if isinstance(error, ray.exceptions.RayTaskError):
        return Rejected(error.cause if isinstance(error.cause, Exception) else error)
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return NoResponse("restarting", str(error))
    if isinstance(error, ray.exceptions.RayActorError):
        return NoResponse("unstarted" if error.actor_init_failed else "gone", str(error))
    return NoResponse("taken", str(error))


def check_not_exiting() -> None:
    """Raise ClusterError while the interpreter ends: no thread pool can start any more, in Python 3.12 no thread."""
    # A thread that has outlived the main one may go on: the end waits for it.
    if threading.current_thread() is threading.main_thread() and not threading.main_thread().is_alive():
        raise ClusterError(
            "iter_batches() was called while the interpreter ends (by a function of `atexit`): no job can begin "
            "then. Begin and read it before the program ends."
        )


def check_no_loader_workers() -> None:
    """Raise PlanError in a worker process of torch's DataLoader: each of them would deliver every element."""
    data = sys.modules.get("torch.utils.data")
    worker = data.get_worker_info() if data is not None else None
    if worker is not None and worker.num_workers > 1:
        raise PlanError(
            f"iter_batches() was called in worker {worker.id} of {worker.num_workers} of a torch DataLoader: each of "
            "them would deliver every element. Pass num_workers=0: pecan_ray has workers of its own."
        )


def job_spec(
    name: str,
    shape: PlanShape,
    sources: Sequence[Source],
    engine: EngineName,
    seed: int,
    config: Config,
    options: IterOptions,
) -> JobSpec:
    """Return what a job's decisions depend on; `sources`: those whose splits are dealt."""
    return JobSpec(
        name,
        ledger_shape(shape, sources, engine, seed, options),
        options.workers,
        config.cpus_per_worker,
        ErrorPolicy(options.on_error, config.error_budget),
        Timeouts(
            config.trainer_timeout_s, config.worker_timeout_s, config.hung_after_s, warning_s=config.placement_warning_s
        ),
        remote_io=first_quota(config),
        prefetch_bytes=options.prefetch_bytes,
        # Workers start while AutoOrder looks at its sample. `Session.begin` brings the order.
        ordered=False,
    )


def ledger_shape(
    shape: PlanShape, sources: Sequence[Source], engine: EngineName, seed: int, options: IterOptions
) -> LedgerShape:
    """Return how a job deals out elements."""
    one_sequence = options.order == "strict" and options.sharding != "off"
    # Decision 35: a strict plan that keeps elements back is run again from its beginning, as a serial one is.
    serial = shape.is_one_sequence or (one_sequence and shape.holds_back)
    numbered = runs_in_order(options, shape)
    return LedgerShape(
        branches=len(sources),
        epochs=options.epochs,
        first_epoch=options.first_epoch,
        num_passes=shape.num_passes,
        sharding=options.sharding,
        visitation=options.visitation,
        world_size=options.world_size,
        batch_size=shape.batch_size,
        drop_remainder=shape.drop_remainder,
        # Decision 171: of sources that are read in step the job knows the first one alone.
        split_order=split_order_of(shape.shuffled[: len(sources)], seed),
        from_front=_read_from_front(sources),
        serial=serial,
        in_order=one_sequence and not (serial or numbered),
        coordinated=options.coordinated and options.world_size > 1,
        grouped=shape.grouped and not serial and options.sharding != "off",
        counts=serial and shape.counts,
        keeps=shape.keeps,
        in_row_order=numbered,
        joined=joins_rows(options, shape, engine),
        one_row_each=divides_batches(options, shape, engine),
        whole_batches=engine == "tensorflow",
        order_required=numbered and one_sequence,
        in_turn=is_in_turn(options, shape),
        seeks=all(map(seeks, sources)),
    )


def _read_from_front(sources: Sequence[Source]) -> tuple[int, ...]:
    return tuple(n for n, one in enumerate(sources) if isinstance(as_written(one), OneSplitSource))


def first_quota(config: Config) -> float | None:
    """Return what workers may read of object stores until the job is told otherwise."""
    asked = config.remote_io
    return asked.bytes_per_s if isinstance(asked, ClusterIo) else asked


def with_deadline(spec: JobSpec, plan: Plan, options: IterOptions) -> JobSpec:
    """Return the spec with the time that the job has, and its length, where a deadline is wanted."""
    objective = options.workers.objective if isinstance(options.workers, AutoWorkers) else None
    if not isinstance(objective, Deadline):
        return spec
    batches = num_batches(plan, members) if options.sharding != "off" else None
    seconds = objective.seconds_from(datetime.now(timezone.utc))
    return replace(spec, deadline=JobDeadline(seconds, _of_each(batches, options)))


def _of_each(batches: int | None, options: IterOptions) -> int | None:
    """Return how many batches of an epoch each rank gets, where that is known."""
    each = None if batches is None else math.ceil(batches / options.world_size)
    return min((count for count in (each, options.epoch_batches) if count is not None), default=None)


def _settings_of_ranks(
    parts: Sequence[tuple[str, str]],
    engine: EngineName,
    seed: int,
    options: IterOptions,
    saved: SavedState | None,
) -> tuple[tuple[str, str], ...]:
    """Return what all ranks must agree in, part by part."""
    chosen = [(f"iter_batches({name}=...)", repr(value)) for name, value in vars(options).items() if name not in OWN]
    state = "none" if saved is None else f"one of batch {saved.batches} ({saved.to_json()['checksum']})"
    return (("engine", engine), ("seed", str(seed)), ("iter_batches(state=...)", state), *chosen, *parts)
