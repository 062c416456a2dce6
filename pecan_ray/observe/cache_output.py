"""What `pecan cache` prints, of a folder or of a remote store, and what it must be told."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pecan_ray.cache.store_model import StoreModel
from pecan_ray.errors import CacheError


def write_table(rows: Sequence[tuple[str, ...]], headings: tuple[str, ...]) -> None:
    """Print rows below headings, aligned to the right."""
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]
    for row in (headings, *rows):
        sys.stdout.write("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def report_entry_check(whole: int, damaged: int) -> int:
    """Print how many entries are whole; returns 1 where some were not."""
    sys.stdout.write(f"{whole:,} entries are whole, {damaged:,} were damaged and are dropped\n")
    return 1 if damaged else 0


def speed_text(model: StoreModel) -> str:
    """Say how long reading takes."""
    return (
        f"{1e6 * model.latency_s:,.0f} us for an entry, {1e6 * model.per_element_s:,.1f} us for an element, "
        f"{rate(model.per_byte_s)}"
    )


def rate(per_byte_s: float) -> str:
    """Say how many bytes come in a second."""
    return f"{1e-6 / per_byte_s:,.0f} MB/s" if per_byte_s else "bytes for nothing"


def check_named(asked: argparse.Namespace) -> None:
    """Raise CacheError unless it was said what to remove."""
    if bool(asked.what) == asked.all:
        raise CacheError(
            "pecan cache rm: name what to remove, by the beginnings of the names that `ls` shows, or --all."
        )
