"""`Batches`: the iterator that a training loop runs over."""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from pecan_ray.autoorder.job_order import Ordered, SecondLook
from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.inprocess import run_produced
from pecan_ray.engines.users_order import UsersOrder, orders_of
from pecan_ray.errors import PlanError
from pecan_ray.integrations.formats import converter
from pecan_ray.job.facts import JobEvent
from pecan_ray.observe.placement import explain_placement
from pecan_ray.observe.progress import Progress
from pecan_ray.observe.report import Report
from pecan_ray.options import Config, EngineName, IterOptions, Workers
from pecan_ray.plan.operators import Plan
from pecan_ray.runtime.client import Provenance
from pecan_ray.runtime.session import Session
from pecan_ray.sampling.budget import over_budget

logger = logging.getLogger("pecan_ray")


class Batches:
    """Batches of a running pipeline; iterate over it, or use it as a context manager.

    Leaving the `with` block, the end of the last epoch, an error, Ctrl-C and the end of the process all end the
    job: no actor, no shared memory and no temporary file is left.  A batch stays valid as long as anybody holds
    it or a view of it.
    """

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
    ) -> None:
        self._convert = converter(options.format)
        self._options = options
        self._config = config
        self._name = name
        self._began = time.monotonic()
        self._yielded = 0
        self._elements = 0
        self._bad = 0
        """Bad elements of a run in this process."""
        self._session: Session | None = None
        self._stream: Iterator[Any] = iter(())
        """Batches of a run in this process."""
        self._progress = Progress(name, config.progress)
        self._reverted: Callable[[str], None] | None = None
        self.provenance: Provenance | None = None
        """Which data the batch that was yielded last holds."""
        if debug:
            ordered = order()
            self._stream = self._in_process(plan, ordered, engine, seed)
        else:
            self._session = Session(
                plan,
                name=name,
                engine=engine,
                seed=seed,
                config=config,
                options=options,
                parts=parts,
                look_again=look_again,
            )
            try:
                ordered = order()  # while the workers start
                self._session.begin(None if ordered.plan is plan else ordered.plan, ordered.row_seconds)
            except BaseException:
                self.close()
                raise
        self._prepared = tuple(JobEvent(0.0, "reorder", text) for text in ordered.said)
        self._second_look, self._reverted = ordered.second_look, ordered.reverted
        self._op_seconds = ordered.op_seconds

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            batch = self._next(self._session) if self._session is not None else next(self._stream)
        except BaseException:
            self.close()
            raise
        self._yielded += 1
        return batch

    def __enter__(self) -> Batches:
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
        self.close()

    def _next(self, session: Session) -> Any:
        """Return the next batch; no generator, which would refer to this object and keep it from being dropped."""
        received = session.client.next()
        self._quarantine(session.client.take_quarantined())
        if received is None:
            raise StopIteration
        self.provenance = received.provenance
        self._elements += received.provenance.rows
        if self._second_look is not None and received.provenance.epoch > 0:
            look, self._second_look = self._second_look, None
            threading.Thread(target=self._look_again, args=(session, look), name="pecan-reorder", daemon=True).start()
        self._progress.show(session.client)
        return self._convert(received.columns)

    def _in_process(self, plan: Plan, ordered: Ordered, engine: EngineName, seed: int) -> Iterator[Any]:
        users_order = None if ordered.plan is plan else UsersOrder(ordered.plan, orders_of(plan), lambda: plan)
        for epoch in itertools.count() if self._options.epochs is None else range(self._options.epochs):
            before = self._elements
            run = run_produced(
                ordered.plan,
                engine=engine,
                seed=seed,
                epoch=epoch,
                on_error=self._options.on_error,
                users_order=users_order,
            )
            for produced in run:
                if users_order is not None and users_order.said:
                    self._note_reverted(users_order.said)
                self._elements += produced.rows
                self._note_bad(produced.bad)
                if produced.rows:
                    yield self._convert(produced.columns)
            if self._options.epochs is None and self._elements == before:
                return  # Epochs without an element would follow each other for ever.

    def _note_reverted(self, why: str) -> None:
        """Let later jobs know, once, that this one went back to the user's order of operators."""
        if why and self._reverted is not None:
            reverted, self._reverted = self._reverted, None
            reverted(why)
            logger.warning("%s: %s", self._name, why)

    def _note_bad(self, bad: Sequence[BadElement]) -> None:
        """Do with bad elements in this process what the controller does on a cluster."""
        if not bad:
            return
        self._bad += sum(one.elements_left_out for one in bad)
        for one in bad:
            logger.warning("left out %s in %s: %s", one.where, one.op, one.error)
        self._quarantine(bad)
        last = f"{bad[-1].where} in {bad[-1].op}: {bad[-1].error}"
        over = over_budget(self._name, self._bad, self._elements, self._config.error_budget, last)
        if over is not None:
            raise over

    def _quarantine(self, bad: Sequence[BadElement]) -> None:
        """Append quarantined elements to their file, at once: a crash later does not lose them."""
        if bad and self._options.on_error == "quarantine":
            with self.quarantine_path.open("ab") as file:
                for one in bad:
                    pickle.dump(one, file)

    def _look_again(self, session: Session, look: SecondLook) -> None:
        """Ask AutoOrder again, beside the training, what the first epoch has shown."""
        try:
            found = look(session.counts())
            if found is not None and not session.closed:
                session.replan(*found)
                logger.info("%s: %s", self._name, found[1])
        except Exception as error:  # whatever a user's function, a source or an ended job can raise
            if not session.closed:
                logger.warning("the order of operators was not looked at again: %s: %s", type(error).__name__, error)

    @property
    def quarantine_path(self) -> Path:
        """The file that keeps elements which failed under ``on_error="quarantine"``: pickled `BadElement`s."""
        job = self._session.name if self._session else self._name
        return Path(self._config.quarantine_path or f"pecan-quarantine-{job}.pickle")

    def scale(self, *, local: int, remote: int) -> None:
        """Change the numbers of workers while the job runs; workers that go are drained."""
        if self._session is None:
            raise PlanError("scale: there are no workers in debug mode.")
        self._session.scale(Workers(local=local, remote=remote))

    def report(self) -> Report:
        """Return what happened so far: speed, waiting, workers, bad elements, events."""
        if self._session is None:
            seconds = time.monotonic() - self._began
            report = Report.of_debug(self._name, self._yielded, self._elements, self._bad, seconds)
        else:
            client = self._session.client
            report = Report.of_job(
                self._session.facts(), client.progress(), client.state.first_batch_s, self._op_seconds
            )
        return replace(report, events=(*self._prepared, *report.events))

    def explain(self) -> str:
        """Return in words which numbers of workers were compared so far, what runs, and why the others lost."""
        if self._session is None:
            return f"{self._name} runs in this process (debug=True): there are no workers to place."
        return explain_placement(self._session.facts())

    def close(self) -> None:
        """End the job."""
        self._progress.end()
        if self._session is not None:
            self._session.close()
            self._note_reverted(self._session.facts().reverted)
