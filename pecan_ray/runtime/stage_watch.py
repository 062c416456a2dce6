"""A worker's thread that looks now and then at what its others do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pecan_ray.engines.contract import Engine, TimesElements
from pecan_ray.engines.stages import StageAccumulator, ThreadStage, stages_now
from pecan_ray.engines.thread_times import wait_and_probe_lock
from pecan_ray.plan.stage_seconds import SlowElements, StageSeconds
from pecan_ray.transport.outbox import Outbox


# Why looks and no timers in each call: docs/decisions/observing.md#58-bottlenecks-by-stacks
class StageWatch:
    """Finds out where the time of a worker's process goes, while it has work."""

    def __init__(self, engine: Callable[[], Engine | None], over: threading.Event) -> None:
        """`engine`: the one at work; `over`: set when there will be no more work."""
        self._engine, self._over, self._accumulator = engine, over, StageAccumulator()
        threading.Thread(target=self._poll_loop, name="pecan-stages", daemon=True).start()

    @property
    def seconds(self) -> StageSeconds:
        """What was found so far."""
        engine = self._engine()
        return replace(
            self._accumulator.seconds, slow=engine.slow if isinstance(engine, TimesElements) else SlowElements()
        )

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Enclose the work: what lies between is no time of it."""
        self._accumulator.work(True)
        try:
            yield
        finally:
            self._accumulator.work(False)

    def _poll_loop(self) -> None:
        while True:
            locked = wait_and_probe_lock(self._over, self._accumulator.every_s)
            if self._over.is_set():
                return
            engine = self._engine()
            if engine is not None:
                # Decision 58: whoever stands in `put` waits because finished batches are not taken.
                known = {**engine.stages(), Outbox.put.__code__: lambda _: ThreadStage("blocked")}
                self._accumulator.look(stages_now(known), engine.threads, locked)
