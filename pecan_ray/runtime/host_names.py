"""Names of this cluster's nodes in the texts that leave a process for a person."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pecan_ray.errors import PecanError
from pecan_ray.job.host_names import in_host_names
from pecan_ray.runtime import cluster

if TYPE_CHECKING:
    # Not in each worker, which imports this: with it come all policies of placement.
    from pecan_ray.job.stats import JobStats

ErrorT = TypeVar("ErrorT", bound=BaseException)

_names: dict[str, str] = {}
"""Of the nodes that were there when a text last named an unknown one."""


def named(text: str) -> str:
    """Return a text with the names of hosts in place of nodes' ids."""
    return in_host_names(text, _name)


def named_error(error: ErrorT) -> ErrorT:
    """Return an error of ours with the names of hosts in its message; others as they are."""
    if not isinstance(error, PecanError) or (message := named(error.message)) == error.message:
        return error
    return type(error)(message, **error.fields)


def with_host_names(facts: JobStats) -> JobStats:
    """Return a job's facts with the names of hosts in the texts of its events."""
    return replace(facts, events=tuple(replace(one, text=named(one.text)) for one in facts.events))


def _name(node: str) -> str:
    if node not in _names:
        # Only for a node that is not known yet, because a call of Ray's for each text would be slow.
        _names.update(cluster.node_names())
    return _names.get(node, f"{node[:8]} (gone)")
