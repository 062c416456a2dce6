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

from pecan_ray.autoorder.accepted import Ordered
from pecan_ray.batch_limits import BatchLimits
from pecan_ray.cache_options import check_remote_io
from pecan_ray.engines.contract import BadElement
from pecan_ray.epoch_loops import EpochLoops
from pecan_ray.errors import PecanError, PlanError, describe_error
from pecan_ray.in_process import InProcessRun
from pecan_ray.integrations.formats import converter
from pecan_ray.integrations.on_devices import conversion, device_copies
from pecan_ray.job.saved_state import SavedState
from pecan_ray.job.trainer_events import EndOfEpoch
from pecan_ray.observe.ending import Ending, note_running
from pecan_ray.observe.progress import Progress
from pecan_ray.observe.report import Report
from pecan_ray.observe.run_clock import RunClock
from pecan_ray.observe.trainer_speed import RecentSpeed, run_length
from pecan_ray.options import IterOptions, PipelineSettings, Workers
from pecan_ray.order_follow_up import OrderFollowUp
from pecan_ray.pass_numbers import RunPasses
from pecan_ray.plan.in_step import shape_of_job
from pecan_ray.plan.operators import Plan
from pecan_ray.quarantine import QuarantineFile, check_apart, default_path, quarantine_writer
from pecan_ray.run import Deliver, LoopSoFar, TrainingRun
from pecan_ray.run_of_job import JobRun
from pecan_ray.run_of_reader import ReaderRun
from pecan_ray.run_states import RunStates
from pecan_ray.runtime.client import BatchClient
from pecan_ray.runtime.kept_jobs import JobProcesses, KeptJobs
from pecan_ray.runtime.received import Provenance, Received
from pecan_ray.runtime.session import Session
from pecan_ray.runtime.share_entry import ShareRequest
from pecan_ray.runtime.share_session import ShareClient, ShareSession

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

    def __init__(
        self,
        plan: Plan,
        settings: PipelineSettings,
        *,
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
        name, seed, config = settings.name, settings.seed, settings.config
        self._clock, self._go_on, self._passes = clock or RunClock(), go_on, passes
        speed = functools.partial(RecentSpeed.of_job, plan, options, saved)
        progress, follow_up = Progress(name, config.progress, speed), OrderFollowUp(name, self._clock)
        super().__init__(options, BatchLimits(options, saved), progress, follow_up)
        self._convert = converter(options.format if mesh is None else "numpy", plan if options.format == "tf" else None)
        self._device = device_copies(options.device) if mesh is None else mesh
        self._config, self._name, self._yielded = config, name, 0
        self._turn = threading.RLock()
        """One thread at a time asks for a batch; reentrant, so that a function that iterates over its own job fails."""
        self._length: Callable[[], int] = lambda: run_length(name, plan, options, saved)
        self.provenance: Provenance | None = None
        """Which data the batch that was yielded last holds."""
        processes = JobProcesses(name) if debug else kept.begin(parts, name, options, config)
        self._quarantine = None if share is not None else self._open_quarantine(plan, processes.job, saved)
        self._states = RunStates(
            options, saved, seed=seed, engine=settings.engine, parts=tuple(parts or ()), here=debug
        )
        self._reach(self._states.first_epoch)
        self._ending = Ending(name, processes.job, config.report_folder, kept=not debug and options.rank == 0)
        if share is not None:
            self._clock.enter("ray")
            self._run: TrainingRun = ReaderRun(ShareSession(share), self._clock)
        elif debug:
            self._run = InProcessRun(
                plan,
                settings,
                options=options,
                passes=passes,
                convert=conversion(self._convert, self._device),
                keep_bad=self._keep_bad,
            )
        else:
            self._clock.enter("ray")
            session = Session(
                plan,
                settings,
                processes=processes,
                options=options,
                parts=parts,
                look_again=look_again,
                saved=saved,
                allow_changed_source=allow_changed_source,
                keep=quarantine_writer(self._quarantine, saved),
            )
            shape = functools.partial(shape_of_job, plan, settings.engine, options.on_error)
            self._run = JobRun(session, self._clock, options, config.remote_io, shape)
            if getattr(options.workers, "prices", None) is not None:
                self._progress.dollars = session.cost_query
        self._begin(order)

    def _begin(self, order: Callable[[], Ordered]) -> None:
        """Let the run begin, once the order of operators is found."""
        try:
            self._order.hold(ordered := self._run.find_order(order))
            self._run.begin(ordered, self._order.note_fallback)
        except BaseException as error:
            self._ending.failure = describe_error(error)
            self.close()
            raise
        note_running(self)
        # A rank of several sees a part of an epoch, and does not wait for the others.
        self._order.begin(self._run, alone=self._options.world_size == 1)
        if self._limits.starts_full:
            self.leave_epoch()
        self._clock.enter("trained")

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
            self._reach(self._epoch + 1)  # of a run in this process, which tells of each
        made: BatchT = batch
        return made

    def next_received(self) -> Received:
        """Return the next batch as it came, with what is known of it: for those who pass it on."""
        if isinstance(self._run, InProcessRun):
            raise PlanError("next_received: in debug mode batches come from nowhere.")
        received: Received = self._in_turn(None, self._note_received)
        return received

    def _take(self, within: int | None) -> Any:
        """Return the next batch, if it is of this epoch."""
        return self._in_turn(within, self._delivered)

    def _in_turn(self, within: int | None, deliver: Deliver) -> Any:
        self._run.check_process()
        with self._turn:
            if self._ending.failure:
                raise PecanError(f"{self._name}: the job has ended with an error before: {self._ending.failure}")
            # Decision 172: the next job may begin in the processes of one that has ended, not of one that is left.
            if self._limits.finished and not self._job_ends:
                self.close()
                raise StopIteration
            self._clock.enter("waited" if self._yielded else "first_batch")
            try:
                batch = self._run.take(within, deliver)
            except StopIteration:
                self._ending.all_yielded = True
                self._order.note_all_batches()
                self.close()
                raise
            except BaseException as error:
                self._note_error(error)
                raise
            self._clock.enter("trained")
            self._yielded += not isinstance(batch, EndOfEpoch)
            self._count(batch)
            return batch

    def _note_error(self, error: BaseException) -> None:
        """End the job with an error of its own; let it stand still where a signal's handler has ended the wait."""
        self._clock.enter("trained")
        if isinstance(self._run, InProcessRun) or isinstance(error, PecanError):
            self._ending.failure = describe_error(error)
            self.close()
            return
        # Handlers of SIGTERM raise, and whoever catches that wants a state:
        # docs/decisions/running-on-ray.md#88-a-signal-ends-the-wait-not-the-job.
        if not self._ending.interrupted and not isinstance(error, SystemExit):
            logger.warning(
                "%s: %s has ended the wait for a batch. The job stands still: state_dict() and report() answer, the "
                "loop may go on, and close() ends it",
                *(self._name, type(error).__name__),
            )
        self._ending.interrupted = describe_error(error)

    def _note_received(self, received: Received, client: BatchClient | ShareClient) -> Received:
        """Note a batch that has come; no generator, which would keep this object from being dropped."""
        self.provenance = received.provenance
        epoch = received.provenance.epoch
        self._reach(epoch)
        self._passes.note_epoch(epoch)
        first = self._epoch <= self._options.first_epoch
        self._order.note_batch(self._run, epoch, client.progress, first_epoch=first)
        self._progress.show(client, epoch)
        return received

    def _delivered(self, received: Received, client: BatchClient | ShareClient) -> Any:
        """Return what the loop gets of a batch that has come."""
        self._note_received(received, client)
        self._clock.enter("converted")
        if self._device is None:
            return self._convert(received.columns)
        ahead = client if isinstance(client, BatchClient) else None
        return self._device.deliver(received.columns, self._convert, ahead)

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

    def _open_quarantine(self, plan: Plan, job: str, saved: SavedState | None) -> QuarantineFile | None:
        """Open the file of bad elements, before anything starts; raises `PlanError` if they could not be kept."""
        if self._options.on_error != "quarantine":
            return None
        path = self._quarantine_path(job)
        check_apart(path, list(plan.sources()))
        opened = QuarantineFile(path, job, continues=saved is not None)
        weakref.finalize(self, opened.close)
        return opened

    def _keep_bad(self, bad: Sequence[BadElement]) -> None:
        if self._quarantine is not None:
            self._quarantine.add(bad)

    def _quarantine_path(self, job: str) -> Path:
        return Path(self._config.quarantine_path) if self._config.quarantine_path else default_path(job)

    @property
    def quarantine_path(self) -> Path:
        """The file of elements that failed under ``on_error="quarantine"``: `pecan_ray.replay.quarantined` reads it."""
        return self._quarantine_path(self._ending.job)

    def state_dict(self, *, ahead: int = 0) -> dict[str, Any]:
        """Return where the run stands, between two batches: plain values, to be saved with the model.

        A state holds what this iterator has yielded, and no more; of several ranks the state after the same number of
        batches is the same, so that one of them saves it for all.  `iter_batches(state=...)` or `load_state_dict` goes
        on with what was not yielded, on any number of workers and ranks.  `ahead`: so many of the last batches, eight
        at most, were fetched and are not used yet; they come again.  It answers also when a signal has ended the wait
        for a batch, and when the job was closed.  Raises PlanError where there is none: ``debug=True``, ``sharding``
        other than "dynamic", and ``visitation`` other than "exactly_once".
        """
        return self._states.take(self._run, self._limits.total, ahead)

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
        self._run.scale(Workers(local=local, remote=remote))

    def set_remote_io(self, bytes_per_s: float | None) -> None:
        """Change ``Config(remote_io=...)`` while the job runs; None: its workers read as fast as they can."""
        check_remote_io(bytes_per_s)
        self._run.set_remote_io(bytes_per_s)

    def report(self) -> Report:
        """Return what happened so far: where the time went, what holds the run up, workers, bad elements, events."""
        begun = self._epoch - self._options.first_epoch
        so_far = self._clock.so_far()
        loop = LoopSoFar(self._yielded, self._epoch, begun, over=self._ending.all_yielded, spent=so_far)
        report = self._run.report(loop)
        unkept = 0 if self._quarantine is None else self._quarantine.unkept
        return replace(report, events=(*self._order.events, *report.events), unkept_elements=unkept)

    def explain(self) -> str:
        """Return in words which numbers of workers were compared, what runs, why others lost, and what comes next.

        The last lines tell in which order rows come, where photographs are decoded, and why.
        """
        return self._run.explain()

    def close(self) -> None:
        """End the job; its last state and its report can still be asked for."""
        # First, since a job that has ended cannot be asked where it stands.
        if not self._ending.failure and (self._yielded or self._ending.interrupted or self._ending.all_yielded):
            self._states.keep_last(self._run, self._limits.total)
        self._clock.stop()
        self._progress.end()
        self._order.end_looks()
        self._order.note_fallback(self._run.close(well=self._ending.all_yielded and not self._ending.failure))
        if self._device is not None:
            self._device.close()
        if self._quarantine is not None:
            self._quarantine.close()
        self._ending.tell(self.report)
