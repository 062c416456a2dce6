"""What is under way in the graphs of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import pecan_ray.engines.tensorflow.meta as meta
from pecan_ray.engines.lease_replay import LeaseReplay
from pecan_ray.engines.positions import Part, SkippedPositions
from pecan_ray.engines.tensorflow.feed import GraphFeed


@dataclass(frozen=True)
class GraphAssignment:
    """What is under way: one feed per source, and the positions that yield nothing."""

    feeds: list[GraphFeed]
    skipped_positions: SkippedPositions
    runs: LeaseReplay | None = None
    """Of a plan that runs as a whole: its leases."""

    @property
    def epoch(self) -> int:
        """The epoch of the leases that were taken."""
        return max((feed.epoch for feed in self.feeds), default=0)

    def note_output(self, parts: list[Part]) -> None:
        """Note that positions have left the graph."""
        for part in parts:
            self.feeds[part[0][0]].outstanding.remove([part])

    def raise_source_error(self) -> None:
        """Raise what went wrong while reading: inside of the graph it only ended the stream."""
        for feed in self.feeds:
            if feed.error is not None:
                raise feed.error


class CurrentAssignment:
    """The stretch that the graphs of an engine run."""

    def __init__(self) -> None:
        self.graph_assignment: GraphAssignment | None = None
        """None: there is none, or all of it has come out."""

    def note_dropped(self, rows: Any) -> None:
        """Note what a filter has dropped; called from inside of a graph."""
        stretch = self.graph_assignment
        if stretch is not None:
            parts = meta.parts_of(np.asarray(rows))
            stretch.note_output(parts)
            stretch.skipped_positions.add(parts)
