"""The command `pecan cache`: what lies in the folder of cached entries, and whether it is whole."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pecan_ray.autocache.decision import name_of
from pecan_ray.autocache.store_speed import measured_speed, note_speed
from pecan_ray.cache_options import MIB, Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.errors import CacheError
from pecan_ray.observe.digest_command import DIGEST_HELP, add_digest_arguments

LARGE_ELEMENT = 512 << 10
"""Bytes of the element of which it is told how fast it is put into a batch."""
HEADINGS = ("entries", "elements", "MB", "computed in", "name", "of")


def add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `pecan cache` takes."""
    parser.add_argument("--path", help="the folder of Config(cache=Cache(path=...)), if not the usual one")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("ls", help="list what is kept of which pipeline").set_defaults(act=show)
    actions.add_parser("du", help="tell how many bytes are taken").set_defaults(act=tell_size)
    actions.add_parser("verify", help="read every entry, and drop those that are damaged").set_defaults(act=verify)
    actions.add_parser("bench", help="measure how fast entries are read, which decides what is kept").set_defaults(
        act=bench
    )
    add_digest_arguments(actions.add_parser("digest", help=DIGEST_HELP, description=f"{DIGEST_HELP.capitalize()}."))
    remove = actions.add_parser("rm", help="remove what is kept of some pipelines, or everything")
    remove.add_argument("what", nargs="*", help="the beginnings of the names that `ls` shows")
    remove.add_argument("--all", action="store_true", help="everything")
    remove.set_defaults(act=forget)
    parser.set_defaults(run=run_cache)  # but for what brings its own


def run_cache(asked: argparse.Namespace) -> int:
    """Do what was asked; returns 1 where `verify` has found damage."""
    folder = Path(asked.path) if asked.path else Cache().folder
    act: Callable[[EntryStore, argparse.Namespace], int] = asked.act
    result, folders = 0, [one for one in (folder, Cache(folder).source_folder) if (one / "index.sqlite").exists()]
    if not folders:
        raise CacheError(f"nothing is kept in {folder}. Name the folder by --path, if it is another one.")
    for one in [folder] if act is bench else folders:
        # Without a bound of its own, so that a look evicts nothing.
        with EntryStore(one, max_bytes=sys.maxsize) as store:
            result = max(result, (act if act is not show or one == folder else show_blocks)(store, asked))
    if act in (tell_size, verify, forget):
        result = max(result, _on_memory_tier(folder, asked))
    return result


def _on_memory_tier(folder: Path, asked: argparse.Namespace) -> int:
    """Do what was asked with the entries in memory, if there are any."""
    memory = Cache(folder, memory_bytes=MIB).memory_folder  # where it is does not hang on its size
    if memory is None or not (memory / "index.sqlite").exists():
        return 0
    with EntryStore(memory, max_bytes=sys.maxsize, private=True) as store:
        result: int = asked.act(store, asked)
    if asked.act is forget and asked.all:
        # With its index, which takes memory as long as it is there.
        shutil.rmtree(memory)
    return result


def show(store: EntryStore, asked: argparse.Namespace) -> int:
    """Print a line for each point of a pipeline of which something is kept."""
    write_table(
        [
            (
                f"{one.entries:,}",
                f"{one.elements:,}",
                f"{one.nbytes / 1e6:,.1f}",
                f"{one.seconds:,.1f} s",
                one.kind[:12],
                name_of(store, one.kind),
            )
            for one in store.sizes()
        ],
        HEADINGS,
    )
    return 0


def show_blocks(store: EntryStore, asked: argparse.Namespace) -> int:
    """Print a line for each dataset of which bytes are kept."""
    rows = [(f"{one.entries:,}", f"{one.nbytes / 1e6:,.1f}", one.kind) for one in store.sizes()]
    write_table(rows, ("blocks", "MB", "dataset"))
    return 0


def tell_size(store: EntryStore, asked: argparse.Namespace) -> int:
    """Print the bytes that are taken, and where."""
    sys.stdout.write(f"{store.nbytes / 1e6:,.1f} MB in {store.folder}\n")
    return 0


def verify(store: EntryStore, asked: argparse.Namespace) -> int:
    """Print how many entries are whole; returns 1 where some were not."""
    whole, damaged = store.verify()
    sys.stdout.write(f"{whole:,} entries are whole, {len(damaged):,} were damaged and are dropped\n")
    return 1 if damaged else 0


def bench(store: EntryStore, asked: argparse.Namespace) -> int:
    """Measure and note the speed of the folder."""
    speed = measured_speed(store)
    note_speed(store, speed)
    reading, delivery = speed.reading, speed.delivery_cost(LARGE_ELEMENT)
    sys.stdout.write(
        f"{1e6 * reading.latency_s:,.0f} us for an entry, {1e6 * reading.per_element_s:,.1f} us for an element, "
        f"{_rate(reading.per_byte_s)} (entries that were just written, so from the system's memory if there is room)\n"
        f"{1e6 * delivery.per_element_s:,.1f} us to put an element into a batch, {_rate(delivery.per_byte_s)}\n"
    )
    return 0


def forget(store: EntryStore, asked: argparse.Namespace) -> int:
    """Remove entries, and print how many."""
    if bool(asked.what) == asked.all:
        raise CacheError(
            "pecan cache rm: name what to remove, by the beginnings of the names that `ls` shows, or --all."
        )
    kinds = None if asked.all else [one.kind for one in store.sizes() if one.kind.startswith(tuple(asked.what))]
    sys.stdout.write(f"{store.remove(kinds):,} entries removed from {store.folder}\n")
    return 0


def write_table(rows: Sequence[tuple[str, ...]], headings: tuple[str, ...]) -> None:
    """Print rows below headings, aligned to the right."""
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]
    for row in (headings, *rows):
        sys.stdout.write("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def _rate(per_byte_s: float) -> str:
    """Say how many bytes come in a second."""
    return f"{1e-6 / per_byte_s:,.0f} MB/s" if per_byte_s else "bytes for nothing"
