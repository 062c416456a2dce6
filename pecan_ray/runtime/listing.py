"""Listing sources page by page, each in a thread of its own: work begins with the first page."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice

from pecan_ray.errors import PecanError, SourceError, describe_error
from pecan_ray.job.events import Event, JobFailed, ListingEnded, ListingResumed, SplitPageReceived
from pecan_ray.job.listing_digest import ListingDigest
from pecan_ray.plan.splits import Split, SplitLister

# Splits of an event. Between two pages the controller answers workers and trainers: the larger a page, the longer
# they wait.
PAGE = 256
FREEZE_EVERY = 64
"""After so many pages what is there is kept from the garbage collector, which would stop the controller to look at
every split again and again."""


def list_sources(
    sources: Sequence[SplitLister], known: Sequence[int | None], happened: Callable[[Event], Future[None]]
) -> None:
    """Begin to list all sources; `happened` is called by other threads, and what it returns ends with the handling.

    `known`: so many splits of each are known from before; None: all, so that it is not listed.  Empty: none are.

    The next page is listed when the one before was handled: pages that gather would be handled in one go, while nobody
    else is served.
    """
    for branch, source in enumerate(sources):
        before = known[branch] if known else 0
        if before is not None:
            work = (branch, source, before, happened)
            threading.Thread(target=_list, args=work, name="pecan-list", daemon=True).start()


def _check_numbers(source: SplitLister, page: Sequence[Split], first: int) -> None:
    for place, split in enumerate(page, first):
        if split.index != place:
            of_file = split.path and f" ({split.path})"
            raise SourceError(
                f"{type(source).__name__}.splits() has numbered split {split.index}{of_file} where split {place} was "
                "due: it must number its splits 0, 1, 2 and so on, in the same order each time."
            )


def _list(branch: int, source: SplitLister, known: int, happened: Callable[[Event], Future[None]]) -> None:
    try:
        splits: Iterator[Split] = iter(source.splits())
        if known:
            digest = ListingDigest()
            digest.add(islice(splits, known))
            happened(ListingResumed(branch, digest.groups())).result()
        # A first page of one split: work begins with it, however slow the listing is.
        size, pages, place = 1, 0, known
        while page := tuple(islice(splits, size)):
            _check_numbers(source, page, place)
            place += len(page)
            happened(SplitPageReceived(branch, page)).result()
            size, pages = PAGE, pages + 1
            if pages % FREEZE_EVERY == 0:
                gc.freeze()
        happened(ListingEnded(branch))
    except PecanError as error:
        happened(JobFailed(error))
    except BaseException as error:  # whatever a user's source raises
        happened(JobFailed(SourceError(f"listing {type(source).__name__} failed: {describe_error(error)}")))
