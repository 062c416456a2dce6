"""Orders that are found while a job runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pecan_ray.autoorder.ordered import Replanned
from pecan_ray.errors import told
from pecan_ray.runtime.session import Session

logger = logging.getLogger("pecan_ray")


def run_when_found(
    session: Session, name: str, look: Callable[[], Replanned | None], note: Callable[[str], None]
) -> None:
    """Run, from an epoch on, the order that a look finds beside the training.

    Args:
        session: The job.
        name: Its pipeline.
        look: Returns what it has found; None: nothing that is worth telling.
        note: Is told that a look has ended, and the order stays.
    """

    def looked() -> None:
        try:
            found = look()
            if found is None or session.closed:
                return
            if found.plan is None:
                note(found.said)
            else:
                session.replan(found.plan, found.order, found.said, found.decoders, found.explained)
            logger.info("%s: %s", name, found.said)
        except Exception as error:  # whatever a user's function, a source or an ended job can raise
            if not session.closed:
                logger.warning("%s: the order of operators stays: %s", name, told(error))

    threading.Thread(target=looked, name="pecan-reorder", daemon=True).start()
