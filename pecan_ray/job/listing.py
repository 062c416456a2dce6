"""What a job's sources hold: splits as they are listed, held against what a state or a process before this one knew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pecan_ray.errors import StateError
from pecan_ray.job import events
from pecan_ray.job.core import JobCore
from pecan_ray.job.instructions import BeginListing, Instructions, Log
from pecan_ray.job.listing_digest import ListingCheck
from pecan_ray.job.resume_point import KnownListing
from pecan_ray.job.waiting import WaitLog


class SourceListing:
    """The part of a job that hears of splits."""

    def __init__(self, job: JobCore, waits: WaitLog) -> None:
        self._job, self._ledger, self._waiting = job, job.ledger, waits
        known = job.spec.start.listings if job.spec.start is not None else ()
        # A state may hold no listings, if the run may go on with other data: then nothing is compared.
        self._check = ListingCheck(known or (KnownListing(),) * job.spec.shape.branches)
        self._of_unknown_length: set[int] = set()
        """Sources of which that was said."""
        self.handlers: dict[type, Callable[[Any, float, Instructions], None]] = {
            events.SplitPageReceived: self._on_split_page,
            events.ListingResumed: self._on_resumed,
            events.ListingRetrying: self._on_listing_retrying,
            events.ListingEnded: self._on_ended,
        }

    def known(self) -> tuple[KnownListing, ...]:
        """Return what is known of the listings now."""
        return self._check.known()

    def go_on(self) -> BeginListing:
        """Have the sources listed whose splits are not all known: the process that did so is gone."""
        listings = zip(self._check.digests, self._ledger.queues.listings, strict=True)
        return BeginListing(tuple(None if listing.complete else digest.splits for digest, listing in listings))

    def _on_split_page(self, event: events.SplitPageReceived, now: float, done: Instructions) -> None:
        self._ledger.add_splits(event.branch, event.splits)
        self._note_unknown_lengths(event, now, done)
        listed = self._ledger.queues.listings[event.branch]
        self._check_data(self._check.add(event.branch, event.splits, listed.__getitem__), event.branch, now, done)

    def _note_unknown_lengths(self, event: events.SplitPageReceived, now: float, done: Instructions) -> None:
        """Say once of a source that it must be read again, since it does not tell how long its splits are."""
        spec = self._job.spec
        unknown = not all(split.elements is not None for split in event.splits)
        if unknown and event.branch not in self._of_unknown_length and spec.starts_behind:
            self._of_unknown_length.add(event.branch)
            text = (
                f"source {event.branch} does not tell how many elements its splits hold: those that went into the "
                "batches before are counted by reading them again, without running operators"
            )
            self._job.tell("state", text, now)
            done.append(Log("warning", f"job {spec.name}: {text}"))

    def _on_ended(self, event: events.ListingEnded, now: float, done: Instructions) -> None:
        self._ledger.end_listing(event.branch)
        self._check_data(self._check.end(event.branch), event.branch, now, done)

    def _check_data(self, changed: str, branch: int, now: float, done: Instructions) -> None:
        """Refuse to go on with other data than a state was taken of, unless the user wants that."""
        if not changed:
            return
        text = f"the data of source {branch} has changed since the state was taken: {changed}"
        if self._job.spec.allow_changed_source:
            self._job.tell("state", text, now)
            done.append(Log("warning", text))
        else:
            self._job.fail(StateError(f"{text}. Pass allow_changed_source=True to go on all the same."), now, done)

    def _on_resumed(self, event: events.ListingResumed, now: float, done: Instructions) -> None:
        # Leases, journal and states name splits by their numbers, so the listing must be as it was.
        if event.digests != self._check.digests[event.branch].groups():
            text = f"the data of source {event.branch} has changed while the controller was being started again"
            self._job.fail(StateError(f"{text}. Start the run again."), now, done)

    def _on_listing_retrying(self, event: events.ListingRetrying, now: float, done: Instructions) -> None:
        self._waiting.set_listing_retry(event.text, now - event.seconds)
