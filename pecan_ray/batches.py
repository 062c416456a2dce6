"""`Batches`: the iterator that a training loop runs over."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.inprocess import run_counted
from pecan_ray.errors import PlanError
from pecan_ray.integrations.formats import converter
from pecan_ray.observe.progress import Progress
from pecan_ray.observe.report import Report
from pecan_ray.options import Config, EngineName, IterOptions, Workers
from pecan_ray.plan.operators import Plan
from pecan_ray.runtime.client import Provenance
from pecan_ray.runtime.messages import Event
from pecan_ray.runtime.session import Session


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
        prepared: tuple[Event, ...] = (),
    ) -> None:
        self._convert = converter(options.format)
        self._options = options
        self._config = config
        self._name = name
        self._prepared = prepared
        self._began = time.monotonic()
        self._yielded = 0
        self._elements = 0
        self._session: Session | None = None
        self._progress = Progress(name, config.progress)
        self.provenance: Provenance | None = None
        """Which data the batch that was yielded last holds."""
        if debug:
            self._stream = self._in_process(plan, engine, seed)
        else:
            self._session = Session(plan, name=name, engine=engine, seed=seed, config=config, options=options)
            self._stream = self._on_ray(self._session)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._stream)
        except BaseException:
            self.close()
            raise
        self._yielded += 1
        return batch

    def __enter__(self) -> Batches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _on_ray(self, session: Session) -> Iterator[Any]:
        for received in session.batches():
            self.provenance = received.provenance
            self._elements += received.provenance.rows
            self._keep_bad(session)
            self._progress.show(session.client)
            yield self._convert(received.columns)
        self._keep_bad(session)

    def _in_process(self, plan: Plan, engine: EngineName, seed: int) -> Iterator[Any]:
        epoch = 0
        while self._options.epochs is None or epoch < self._options.epochs:
            run = run_counted(plan, engine=engine, seed=seed, epoch=epoch, on_error=self._options.on_error)
            for rows, columns in run:
                self._elements += rows
                yield self._convert(columns)
            epoch += 1

    def _keep_bad(self, session: Session) -> None:
        """Append quarantined elements to their file, at once: a crash later does not lose them."""
        bad: list[BadElement] = session.client.take_quarantined()
        if bad and self._options.on_error == "quarantine":
            with self.quarantine_path.open("ab") as file:
                for one in bad:
                    pickle.dump(one, file)

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
            report = Report.of_debug(self._name, self._yielded, self._elements, time.monotonic() - self._began)
        else:
            report = Report.of_job(self._session.facts(), self._session.client)
        return replace(report, events=(*self._prepared, *report.events))

    def close(self) -> None:
        """End the job."""
        self._progress.end()
        if self._session is not None:
            self._session.close()
