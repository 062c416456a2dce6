"""`Batches`: the iterator that a training loop runs over."""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from pecan_ray.autocache.decision import EpochEstimate
from pecan_ray.autoorder.accepted import Ordered, ReorderAfterEpoch
from pecan_ray.batch_limits import BatchLimits
from pecan_ray.engines.contract import BadElement
from pecan_ray.epoch_loops import EpochLoops
from pecan_ray.errors import PecanError, PlanError, describe_error
from pecan_ray.in_process import InProcessRun
from pecan_ray.integrations.formats import converter
from pecan_ray.integrations.on_devices import conversion, device_copies
from pecan_ray.job.delivery_log import MOST_AHEAD
from pecan_ray.job.row_order import row_order
from pecan_ray.job.saved_state import SavedState, no_state_of, start_of_run
from pecan_ray.job.stats import JobEvent
from pecan_ray.job.trainer_events import EndOfEpoch
from pecan_ray.late_reorder import run_when_found
from pecan_ray.observe.ending import Ending, note_running
from pecan_ray.observe.epoch_watch import EpochWatch
from pecan_ray.observe.placement import explain_with_next_step
from pecan_ray.observe.progress import Progress
from pecan_ray.observe.report import Report, SharedReading
from pecan_ray.observe.run_clock import RunClock
from pecan_ray.observe.trainer_speed import RecentSpeed, run_length
from pecan_ray.options import ClusterIo, Config, EngineName, IterOptions, Workers, check_remote_io
from pecan_ray.pass_numbers import RunPasses
from pecan_ray.plan.in_step import shape_of_job
from pecan_ray.plan.operators import Plan
from pecan_ray.quarantine import QuarantineFile, default_path, quarantine_writer
from pecan_ray.runtime.client import has_left
from pecan_ray.runtime.cluster import check_same_process
from pecan_ray.runtime.kept_jobs import JobProcesses, KeptJobs
from pecan_ray.runtime.received import Provenance, Received
from pecan_ray.runtime.session import Session
from pecan_ray.runtime.share_entry import ShareRequest
from pecan_ray.runtime.share_session import ShareSession

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from pecan_ray.integrations.jax_arrays import OnMesh

    BatchT = TypeVar("BatchT", covariant=True, default=dict[str, Any])
else:
    from typing import TypeVar

    BatchT = TypeVar("BatchT", covariant=True)

logger = logging.getLogger("pecan_ray")


class Batches(EpochLoops[BatchT]):
    """Batches of a running pipeline; iterate over it, or use it as a context manager.

    Leaving the `with` block, the end of the last epoch, an error of the job and the end of the process all end the
    job: no actor, no shared memory and no temporary file is left.  An exception that a signal's handler raises while a
    batch is waited for (Ctrl-C, SIGTERM) does not: the job stands still, its state and its report can be asked for, and
    the loop may go on.  A batch stays valid as long as anybody holds it or a view of it.  Several threads may iterate:
    each batch goes to one of them, and an error to all.
    """

    _looks_end: Callable[[], None] | None = None
    """Ends what looks for another order beside the run."""

    def __init__(
        self,
        plan: Plan,
        *,
        name: str,
        engine: EngineName,
        seed: int,
        config: Config,
        options: IterOptions,
        debug: bool,
        order: Callable[[], Ordered],
        parts: Sequence[tuple[str, str]] | None = None,
        look_again: bool = False,
        saved: SavedState | None = None,
        allow_changed_source: bool = False,
        go_on: Callable[[Mapping[str, Any]], Callable[[], Batches]],
        share: ShareRequest | None = None,
        mesh: OnMesh | None = None,
        clock: RunClock | None = None,
        passes: RunPasses,
        kept: KeptJobs,
    ) -> None:
        """`go_on`: makes another one of these that begins at a state; `share`: be a reader of this group, no job.

        `mesh`: places batches on the devices of JAX; `clock`: begun when the user has asked for this; `passes`: counts
        the epochs that begin; `kept`: processes of jobs before this one.
        """
        self._clock, self._go_on, self._passes = clock or RunClock(), go_on, passes
        self._convert = converter(options.format if mesh is None else "numpy", plan if options.format == "tf" else None)
        self._device = device_copies(options.device) if mesh is None else mesh
        self._options, self._config, self._name = options, config, name
        self._yielded, self._limits = 0, BatchLimits(options, saved)
        self._turn = threading.RLock()
        """One thread at a time asks for a batch; reentrant, so that a function that iterates over its own job fails."""
        self._over = False
        """All batches were yielded."""
        self._failure = self._interrupted = ""
        """What the job ended with, if that was an error; what has ended a wait for a batch while the job ran on."""
        self._session: Session | ShareSession | None = None
        self._here: InProcessRun | None = None
        self._stream: Iterator[Any] = iter(())  # its batches
        self._shape = functools.partial(shape_of_job, plan, engine, options.on_error)
        self._length: Callable[[], int] = lambda: run_length(name, plan, options, saved)
        self._progress = Progress(name, config.progress, functools.partial(RecentSpeed.of_job, plan, options, saved))
        self._on_fallback: Callable[[str], None] | None = None
        self.provenance: Provenance | None = None
        """Which data the batch that was yielded last holds."""
        processes = JobProcesses(name) if debug else kept.begin(parts, name, options, config)
        self._job = processes.job
        self._quarantine = None if share is not None else self._open_quarantine(saved)
        self._state: dict[str, Any] | None = None
        """Where the run stood when it ended."""
        self._parts, self._seed, self._engine, self._watch = tuple(parts or ()), seed, engine, EpochWatch()
        self._prepared: list[JobEvent] = []
        self._reorder_after_epoch: ReorderAfterEpoch | None = None
        self._epoch_estimate: EpochEstimate | None = None
        self._no_state, (self._epoch, self._batches_before) = no_state_of(options), start_of_run(options, saved)
        """Why there is no state; the epoch in which the training loop is; the batches of runs before this one."""
        self._ending = Ending(name, self._job, config.report_folder, kept=not debug and options.rank == 0)
        if share is not None:
            self._join(share)
            return
        if debug:
            self._here = self._run_here(plan)
            self._stream = self._here.begin(ordered := order(), self._note_fallback)
        else:
            self._clock.enter("ray")
            self._session = session = Session(
                plan,
                processes=processes,
                pipeline=name,
                engine=engine,
                seed=seed,
                config=config,
                options=options,
                parts=parts,
                look_again=look_again,
                saved=saved,
                allow_changed_source=allow_changed_source,
                keep=quarantine_writer(self._quarantine, saved),
            )
            ordered = self._start_workers(session, order)
        self._take_over(ordered)
        self._clock.enter("trained")

    def _run_here(self, plan: Plan) -> InProcessRun:
        """Return a run in this process that is to begin."""
        return InProcessRun(
            plan,
            name=self._name,
            engine=self._engine,
            seed=self._seed,
            config=self._config,
            options=self._options,
            passes=self._passes,
            convert=conversion(self._convert, self._device),
            keep_bad=self._keep_bad,
        )

    def _join(self, share: ShareRequest) -> None:
        """Become a reader of a shared group."""
        self._clock.enter("ray")
        self._session = ShareSession(share)
        self._clock.enter("controller", at=self._session.attach_time_s)
        self._clock.enter("trained")
        note_running(self)

    def _start_workers(self, session: Session, order: Callable[[], Ordered]) -> Ordered:
        """Let workers begin, once the order of operators is found; return it."""
        if getattr(self._options.workers, "prices", None) is not None:
            self._progress.dollars = session.cost_query
        self._clock.enter("controller", at=session.attach_time_s)
        self._clock.enter("order")
        try:
            # The first rank looks for all of them, while the workers start.
            ordered = Ordered() if self._options.rank else order()
            self._looks_end = ordered.end.finish
            self._clock.enter("controller")
            times = ordered.row_seconds, ordered.op_seconds
            text = ordered.order_text()
            session.begin(ordered.plan, ordered.order, *times, decoders=ordered.decoders, order_text=text)
        except BaseException as error:
            self._failure = describe_error(error)
            self.close()
            raise
        return ordered

    def _take_over(self, ordered: Ordered) -> None:
        """Keep what the order of operators says for later; from now on the run can be ended."""
        note_running(self)
        # Also where nobody closes this object, but drops it.
        self._looks_end = weakref.finalize(self, ordered.end.finish)
        self._prepared += (JobEvent(0.0, "reorder", text) for text in ordered.notes)
        self._reorder_after_epoch, self._on_fallback = ordered.reorder_after_epoch, ordered.on_fallback
        if ordered.background_search is not None:
            run_when_found(self._session or self._here, self._name, ordered.background_search, self._event_recorder())
        # A rank of several sees a part of an epoch, and does not wait for the others.
        self._epoch_estimate = ordered.epoch_estimate if self._options.world_size == 1 else None
        if self._limits.starts_full:
            self.leave_epoch()

    def __iter__(self) -> Iterator[BatchT]:
        return self

    def __len__(self) -> int:
        """Return the batches of all epochs for this trainer; raises TypeError where their number is not known."""
        return self._length()

    # Otherwise `if batches:` would ask for the length, which raises TypeError where it is not known.
    def __bool__(self) -> bool:
        return True

    def __next__(self) -> BatchT:
        while isinstance(batch := self._take(None), EndOfEpoch):
            self._epoch += 1  # of a run in this process, which tells of each
        made: BatchT = batch
        return made

    def next_received(self) -> Received:
        """Return the next batch as it came, with what is known of it: for those who pass it on."""
        session = self._session
        if session is None:
            raise PlanError("next_received: in debug mode batches come from nowhere.")
        received: Received = self._in_turn(lambda: self._next(session, None))
        return received

    def _take(self, within: int | None) -> Any:
        """Return the next batch, if it is of this epoch."""
        session = self._session
        if session is None:
            return self._in_turn(lambda: next(self._stream))
        return self._in_turn(lambda: self._converted(session, within))

    def _in_turn(self, take: Callable[[], Any]) -> Any:
        if self._session is not None:
            check_same_process()
        with self._turn:
            if self._failure:
                raise PecanError(f"{self._name}: the job has ended with an error before: {self._failure}")
            if self._limits.finished:
                self.close()
                raise StopIteration
            self._clock.enter("waited" if self._yielded else "first_batch")
            try:
                batch = take()
            except StopIteration:
                self._over = True
                self.close()
                raise
            except BaseException as error:
                self._note_error(error)
                raise
            self._clock.enter("trained")
            self._yielded += not isinstance(batch, EndOfEpoch)
            if isinstance(self._session, Session):
                self._session.client.note_taken()
            self._count(batch)
            return batch

    def _note_error(self, error: BaseException) -> None:
        """End the job with an error of its own; let it stand still where a signal's handler has ended the wait."""
        self._clock.enter("trained")
        if self._session is None or isinstance(error, PecanError):
            self._failure = describe_error(error)
            self.close()
            return
        # Handlers of SIGTERM raise, and whoever catches that wants a state:
        # docs/decisions/running-on-ray.md#88-a-signal-ends-the-wait-not-the-job.
        if not self._interrupted and not isinstance(error, SystemExit):
            logger.warning(
                "%s: %s has ended the wait for a batch. The job stands still: state_dict() and report() answer, the "
                "loop may go on, and close() ends it",
                *(self._name, type(error).__name__),
            )
        self._interrupted = describe_error(error)

    def __enter__(self) -> Batches[BatchT]:
        return self

    def __reduce__(self) -> NoReturn:
        raise PlanError(
            "an iterator over batches belongs to the process that made it and cannot be sent to another one. Send the "
            "pipeline, and call iter_batches(rank=..., world_size=...) there; with torch's DataLoader pass "
            "num_workers=0: pecan_ray has workers of its own."
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.loop_failed = error is not None
        self.close()

    def _converted(self, session: Session | ShareSession, within: int | None) -> Any:
        received = self._next(session, within)
        if isinstance(received, EndOfEpoch):
            return received
        self._clock.enter("converted")
        if self._device is None:
            return self._convert(received.columns)
        client = session.client if isinstance(session, Session) else None
        return self._device.deliver(received.columns, self._convert, client)

    def _next(self, session: Session | ShareSession, within: int | None) -> Any:
        """Return the next batch; no generator, which would refer to this object and keep it from being dropped."""
        received = session.client.next(within) if isinstance(session, Session) else session.client.next()
        if isinstance(received, EndOfEpoch):
            return received
        if received is None:
            self._note_epoch(self._watch.end())
            if self._state is None and not session.closed and not self._no_state:
                self._state = self.state_dict()
            raise StopIteration
        self.provenance = received.provenance
        self._epoch = max(self._epoch, received.provenance.epoch)
        self._passes.note_epoch(received.provenance.epoch)
        if isinstance(session, Session) and self._epoch_estimate is not None and not self._watch.over:
            self._note_epoch(self._watch.batch(received.provenance.epoch, session.client.progress()))
        later = self._epoch > self._options.first_epoch
        if isinstance(session, Session) and self._reorder_after_epoch is not None and later:
            look, self._reorder_after_epoch = self._reorder_after_epoch, None
            run_when_found(session, self._name, lambda: look(session.counts()), self._event_recorder())
        self._progress.show(session.client, received.provenance.epoch)
        return received

    def _note_epoch(self, seconds: float | None) -> None:
        """Correct what was promised of an epoch by what it took, if that was measured."""
        if seconds is not None and self._epoch_estimate is not None:
            text = self._epoch_estimate.correct(seconds)
            self._prepared.append(JobEvent(self._watch.ended_s, "reorder", text))
            logger.info("%s: %s", self._name, text)

    def _event_recorder(self) -> Callable[[str], None]:
        """Return what notes something of the order; no method, which would keep this object from being dropped."""
        clock, events = self._clock, self._prepared
        return lambda text: events.append(JobEvent(clock.so_far().total_s, "reorder", text))

    def _note_fallback(self, why: str) -> None:
        """Let later jobs know, once, that this one went back to the user's order of operators."""
        if why and self._on_fallback is not None:
            reverted, self._on_fallback = self._on_fallback, None
            reverted(why)
            logger.warning("%s: %s", self._name, why)

    def _open_quarantine(self, saved: SavedState | None) -> QuarantineFile | None:
        """Open the file of bad elements, before anything starts; raises `PlanError` if they could not be kept."""
        if self._options.on_error != "quarantine":
            return None
        opened = QuarantineFile(self.quarantine_path, self._job, continues=saved is not None)
        weakref.finalize(self, opened.close)
        return opened

    def _keep_bad(self, bad: Sequence[BadElement]) -> None:
        if self._quarantine is not None:
            self._quarantine.add(bad)

    @property
    def quarantine_path(self) -> Path:
        """The file of elements that failed under ``on_error="quarantine"``: `pecan_ray.replay.quarantined` reads it."""
        return Path(self._config.quarantine_path) if self._config.quarantine_path else default_path(self._job)

    def state_dict(self, *, ahead: int = 0) -> dict[str, Any]:
        """Return where the run stands, between two batches: plain values, to be saved with the model.

        A state holds what this iterator has yielded, and no more; of several ranks the state after the same number of
        batches is the same, so that one of them saves it for all.  `iter_batches(state=...)` or `load_state_dict` goes
        on with what was not yielded, on any number of workers and ranks.  `ahead`: so many of the last batches, eight
        at most, were fetched and are not used yet; they come again.  It answers also when a signal has ended the wait
        for a batch, and when the job was closed.  Raises PlanError where there is none: ``debug=True``, ``sharding``
        other than "dynamic", and ``visitation`` other than "exactly_once".
        """
        if not 0 <= ahead <= MOST_AHEAD:
            raise PlanError(f"state_dict: ahead must be from 0 to {MOST_AHEAD}, but got {ahead}.")
        if self._state is not None and ahead == 0:
            return self._state
        if self._session is None:
            raise PlanError("state_dict: there is no state in debug mode, and none of headspace.")
        if self._no_state or isinstance(self._session, ShareSession):
            raise PlanError(f"state_dict: there is no state, since {self._no_state}.")
        if self._state is not None:
            raise PlanError(f"state_dict(ahead={ahead}): the job has ended, of which only the last state is known.")
        point, used = self._session.resume_point(ahead)
        batches = self._batches_before + used
        order, first = self._options.order or "relaxed", self._options.first_epoch
        passed = max(0, batches - (self._limits.total - ahead))
        return SavedState(point, batches, self._seed, self._engine, self._parts, order, first, passed).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, as ``iter_batches(state=...)`` does: what runs now ends, another job begins.

        Raises StateError, and leaves what runs alone, for a state that is damaged or of another pipeline or version;
        PlanError where this iterator could not go on from it.
        """
        # Before what runs is ended: a state that is refused leaves it alone.
        begin = self._go_on(state)
        self.close()
        started = begin()
        vars(self).update(vars(started), _begun=started)  # with it would go what it has opened

    def scale(self, *, local: int, remote: int) -> None:
        """Change the numbers of workers while the job runs; workers that go are drained."""
        if self._session is None:
            raise PlanError("scale: there are no workers in debug mode.")
        check_same_process()
        self._session.scale(Workers(local=local, remote=remote))

    def set_remote_io(self, bytes_per_s: float | None) -> None:
        """Change ``Config(remote_io=...)`` while the job runs; None: its workers read as fast as they can."""
        check_remote_io(bytes_per_s)
        if self._session is None:
            raise PlanError("set_remote_io: there are no workers in debug mode.")
        if isinstance(self._config.remote_io, ClusterIo):
            raise PlanError(
                "set_remote_io: this job has its part of what the cluster's jobs share, which changes "
                "by itself: give it a number of its own in place of Config(remote_io=ClusterIo(...))."
            )
        check_same_process()
        self._session.set_remote_io(bytes_per_s)

    def report(self) -> Report:
        """Return what happened so far: where the time went, what holds the run up, workers, bad elements, events."""
        spent = self._clock.so_far()
        started = self._epoch - self._options.first_epoch
        if self._session is None:
            here, one, finished = self._here, bool(self._options.headspace), started
            assert here is not None
            elements, out = here.elements * (self._yielded if one else 1), here.dropped
            report = Report.of_debug(self._name, self._yielded, elements, here.bad, out, spent.total_s, finished, one)
            report = report.with_time(spent, debug=True, headspace=one)
        elif isinstance(self._session, ShareSession):
            reader = self._session.client
            run = self._session.run_report()
            shared = SharedReading(self._session.group, reader.read, reader.skipped, self._session.readers)
            return Report.of_reader(reader.progress(), reader.first_batch_s, shared, run).with_time(spent)
        else:
            check_same_process()
            client, facts = self._session.client, self._session.stats()
            report = Report.of_job(facts, client.progress(), client.state.first_batch_s, over=self._session.closed)
            finished = facts.epochs if self._over else min(facts.epochs, started + has_left(client, self._epoch))
            report = replace(report, epochs=finished).with_time(spent, op_seconds=facts.op_seconds)
        unkept = 0 if self._quarantine is None else self._quarantine.unkept
        return replace(report, events=(*self._prepared, *report.events), unkept_elements=unkept)

    def explain(self) -> str:
        """Return in words which numbers of workers were compared, what runs, why others lost, and what comes next.

        The last line tells in which order rows come, and why.
        """
        if self._session is None:
            here = f"{self._name} runs in this process (debug=True, or headspace): there are no workers to place."
            return f"{here}\n  order: batches come in one sequence."
        check_same_process()
        if isinstance(self._session, ShareSession):
            run = self._session.run_report()
            return "" if run is None else str(run.placement)
        facts = self._session.stats()
        running = facts.deployments[-1][1].workers if facts.deployments else None
        order = row_order(self._options, self._shape(), running, facts.order_given_up)
        return f"{explain_with_next_step(facts)}\n  order: {order.why}"

    def close(self) -> None:
        """End the job; its last state and its report can still be asked for."""
        # First, since a job that has ended cannot be asked where it stands.
        self._keep_last_state()
        self._clock.stop()
        self._progress.end()
        self._stream = iter(())
        if self._looks_end is not None:
            self._looks_end()
        if self._session is not None:
            self._session.close(keep=self._over and not self._failure)
            self._note_fallback(self._session.stats().fallback_reason)
        if self._device is not None:
            self._device.close()
        if self._quarantine is not None:
            self._quarantine.close()
        self._ending.tell(self.report, self._failure or self._interrupted)

    def _keep_last_state(self) -> None:
        """Ask where a job stands that is left before its end, if it has a state."""
        session = self._session
        if not isinstance(session, Session) or session.closed or self._failure or self._no_state:
            return
        if self._state is None and (session.client.state.yielded or self._interrupted):
            try:
                check_same_process()
                if not session.has_controller_response():
                    self._no_state = "it was closed while its controller did not answer"
                    return
                self._state = self.state_dict()
            except PecanError as error:
                self._no_state = f"it was closed, and its last state could not be taken: {error.message}"
