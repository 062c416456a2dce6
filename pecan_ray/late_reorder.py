"""What looks find beside a job: an order, or that the one that it runs gives other results."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pecan_ray.autoorder.accepted import ReorderResult
from pecan_ray.errors import describe_error
from pecan_ray.in_process import InProcessRun
from pecan_ray.runtime.session import Session
from pecan_ray.runtime.share_session import ShareSession

logger = logging.getLogger("pecan_ray")


def run_when_found(
    job: Session | ShareSession | InProcessRun | None,
    name: str,
    look: Callable[[], ReorderResult | None],
    note: Callable[[str], None],
) -> None:
    """Run, from an epoch on, the order that a look finds beside the training; or the user's at once.

    Args:
        job: The job; a group that shares batches has looked before.
        name: Its pipeline.
        look: Returns what it has found; None: nothing that is worth telling.
        note: Is told what no controller tells: that a look has ended and the order stays, what is dropped in this
            process.
    """

    def search_order() -> None:
        try:
            found = look()
            if found is None or is_over():
                return
            _apply_order(job, found, note)
            logger.log(logging.WARNING if found.dropped else logging.INFO, "%s: %s", name, found.reason)
        except Exception as error:  # whatever a user's function, a source or an ended job can raise
            if not is_over():
                logger.warning("%s: the order of operators stays: %s", name, describe_error(error))

    def is_over() -> bool:
        return isinstance(job, Session) and job.closed

    # A daemon: the program may end while a look is under way.
    threading.Thread(target=search_order, name="pecan-reorder", daemon=True).start()


def _apply_order(
    job: Session | ShareSession | InProcessRun | None, found: ReorderResult, note: Callable[[str], None]
) -> None:
    """Let a job run what was found; note what no controller tells."""
    if found.dropped and isinstance(job, (Session, InProcessRun)):
        job.drop_order(found.reason)
    if found.plan is not None and isinstance(job, Session):
        job.change_plan(found.plan, found.order, found.reason, found.decoders, found.order_text)
    elif not (found.dropped and isinstance(job, Session)):
        note(found.reason)
