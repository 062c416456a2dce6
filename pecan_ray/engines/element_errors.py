"""What becomes of an element that fails: the error that names it, and the error policy."""

from __future__ import annotations

import traceback
from typing import Any, NoReturn

from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.fork_tracker import forks
from pecan_ray.engines.items import Item
from pecan_ray.engines.own_results import SharedBufferError
from pecan_ray.engines.positions import SkippedPositions, elements_in
from pecan_ray.engines.serializable import why_columns_not_serializable
from pecan_ray.errors import MOST_TEXT, ElementError, OpError, cut_text, describe_error
from pecan_ray.options import OnError
from pecan_ray.plan.splits import origin_of
from pecan_ray.storage.local_errors import passes

SHOWN_CALLS = 20
"""Of a traceback, so many calls are shown at its beginning and at its end: only one of a recursion is longer than
both."""


def apply_error_policy(
    item: Item, error: ElementError, on_error: OnError, skipped_positions: SkippedPositions, kept: Any = None
) -> None:
    """Follow the `on_error` policy for an element that could not be processed: raise, or record it and go on.

    What is no `Exception` (sys.exit, a cancelled task) was meant for the process, and is raised always.
    """
    if on_error == "raise" or error.fields.get("ends_job"):
        raise error
    if kept is not None and (reason := why_columns_not_serializable(kept)):
        kept, error = None, OpError(f"{error.message.splitlines()[0]} (it is not kept: {reason})", **error.fields)
    op = str(error.fields.get("op", ""))
    elements = elements_in(item.parts) if item.members is None else len(item.members)
    single, place = item.members is None and elements <= 1, origin_of(item.lease, item.element, item.output)
    bad = BadElement(
        op,
        item.where(),
        error.message.splitlines()[0],
        kept,
        origin=place if single else None,
        first=None if single else place,
        elements_left_out=max(1, elements),
    )
    skipped_positions.add(item.parts, bad)


def end_child(op: str, item: Item, error: BaseException | None = None) -> NoReturn:
    """End this process, a child that has come back from an operator's function."""
    forks.end_child(op, item.where(), error, **item.place)


def op_error(op: str, item: Item, error: BaseException, column: str | None = None) -> OpError:
    """Return the error that says where a user's function failed, with the function's traceback in its message."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)[1:]
    if len(lines) > 2 * SHOWN_CALLS:  # a recursion without an end
        lines[SHOWN_CALLS:-SHOWN_CALLS] = [f"  ... and {len(lines) - 2 * SHOWN_CALLS} more calls\n"]
    trace = "".join(cut_text(line, MOST_TEXT) for line in lines)  # the last one is the exception's text again
    return OpError(
        f"{op} failed on {item.where_all()}: {describe_error(error)}\n{trace}",
        op=op,
        **item.place,
        column=column,
        # A storage that fails tells nothing of the element: it is no bad one.
        **({"ends_job": True} if _is_unrelated_error(error) else {}),
    )


def _is_unrelated_error(error: BaseException) -> bool:
    """Tell whether it is not the element that has failed."""
    return not isinstance(error, Exception) or isinstance(error, SharedBufferError) or passes(error)
