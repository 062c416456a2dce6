"""The command `pecan cache`: what lies in the folder of cached entries, and whether it is whole."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from pecan_ray.autoorder.keeping import name_of
from pecan_ray.autoorder.store_speed import measured_speed, note_speed
from pecan_ray.cache.store import EntryStore
from pecan_ray.errors import CacheError
from pecan_ray.options import MIB, Cache

CACHE_HELP = "look at what autocache points have kept on this machine, check it, remove it, measure its speed"
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
    remove = actions.add_parser("rm", help="remove what is kept of some pipelines, or everything")
    remove.add_argument("what", nargs="*", help="the beginnings of the names that `ls` shows")
    remove.add_argument("--all", action="store_true", help="everything")
    remove.set_defaults(act=forget)
    parser.set_defaults(run=run_cache)


def run_cache(asked: argparse.Namespace) -> int:
    """Do what was asked; returns 1 where `verify` has found damage."""
    folder = Path(asked.path) if asked.path else Cache().folder
    if not (folder / "index.sqlite").exists():
        raise CacheError(f"nothing is kept in {folder}. Name the folder by --path, if it is another one.")
    act: Callable[[EntryStore, argparse.Namespace], int] = asked.act
    with EntryStore(folder, max_bytes=sys.maxsize) as store:
        result = act(store, asked)
    memory = Cache(folder, memory_bytes=MIB).memory_folder  # where it is does not hang on its size
    if act in (tell_size, verify, forget) and memory is not None and (memory / "index.sqlite").exists():
        with EntryStore(memory, max_bytes=sys.maxsize, private=True) as store:
            result = max(result, act(store, asked))
        if act is forget and asked.all:
            shutil.rmtree(memory)
    return result


def show(store: EntryStore, asked: argparse.Namespace) -> int:
    """Print a line for each point of a pipeline of which something is kept."""
    rows = [
        (
            f"{one.entries:,}",
            f"{one.elements:,}",
            f"{one.nbytes / 1e6:,.1f}",
            f"{one.seconds:,.1f} s",
            one.kind[:12],
            name_of(store, one.kind),
        )
        for one in store.sizes()
    ]
    widths = [max(len(row[column]) for row in (HEADINGS, *rows)) for column in range(len(HEADINGS))]
    for row in (HEADINGS, *rows):
        sys.stdout.write("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
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
    model, delivery = speed.reading, speed.delivery
    sys.stdout.write(
        f"{1e6 * model.latency_s:,.0f} us for an entry, {1e6 * model.per_element_s:,.1f} us for an element, "
        f"{_rate(model.per_byte_s)} (entries that were just written, so from the system's memory if there is room)\n"
        f"{1e6 * delivery.per_element_s:,.1f} us to put an element into a batch, {_rate(delivery.per_byte_s)}\n"
    )
    return 0


def _rate(per_byte_s: float) -> str:
    return f"{1e-6 / per_byte_s:,.0f} MB/s" if per_byte_s else "bytes for nothing"


def forget(store: EntryStore, asked: argparse.Namespace) -> int:
    """Remove entries, and print how many."""
    if bool(asked.what) == asked.all:
        raise CacheError(
            "pecan cache rm: name what to remove, by the beginnings of the names that `ls` shows, or --all."
        )
    kinds = None if asked.all else [one.kind for one in store.sizes() if one.kind.startswith(tuple(asked.what))]
    sys.stdout.write(f"{store.remove(kinds):,} entries removed from {store.folder}\n")
    return 0
