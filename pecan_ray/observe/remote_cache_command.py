"""The command `pecan cache --remote`: what lies in a store that many machines share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from pecan_ray.autocache.store_speed import measured_remote_speed
from pecan_ray.cache_options import Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.engines.entry_objects import EntryObjects
from pecan_ray.errors import CacheError
from pecan_ray.observe.cache_output import check_named, report_entry_check, speed_text, write_table

HEADINGS = ("entries", "MB", "name", "of")


def run_remote(asked: argparse.Namespace) -> int:
    """Do what was asked; returns 1 where `verify` has found damage."""
    url = Cache(remote=asked.remote).remote_url
    assert url is not None
    return ACTIONS[asked.action](EntryObjects(url), asked)


def _show(objects: EntryObjects, asked: argparse.Namespace) -> int:
    """Print a line for each point of a pipeline of which something is kept."""
    rows = []
    for kind in objects.entry_types():
        sizes = [file.size for _, file in objects.entries(kind)]
        if sizes:
            name = objects.named(kind) or "a pipeline"
            rows.append((f"{len(sizes):,}", f"{sum(sizes) / 1e6:,.1f}", kind[:12], name))
    write_table(rows, HEADINGS)
    return 0


def _tell_size(objects: EntryObjects, asked: argparse.Namespace) -> int:
    """Print the bytes that are taken."""
    nbytes = sum(file.size for kind in objects.entry_types() for _, file in objects.entries(kind))
    sys.stdout.write(f"{nbytes / 1e6:,.1f} MB in {objects.root}\n")
    return 0


def _verify(objects: EntryObjects, asked: argparse.Namespace) -> int:
    """Read every entry, and drop those that are damaged; returns 1 where some were."""
    whole = damaged = newer = 0
    for kind in objects.entry_types():
        for key, _ in objects.entries(kind):
            try:
                whole += objects.get(kind, key) is not None  # it may have been removed since
            except CacheError as error:
                if error.fields.get("newer"):
                    newer += 1
                elif error.fields.get("damaged"):
                    damaged += 1
                    objects.drop(kind, key)
                else:
                    raise
    if newer:
        sys.stdout.write(f"{newer:,} entries are of a newer version, and left alone\n")
    return report_entry_check(whole, damaged)


def _forget(objects: EntryObjects, asked: argparse.Namespace) -> int:
    """Remove entries, and print how many."""
    check_named(asked)
    kinds = [kind for kind in objects.entry_types() if asked.all or kind.startswith(tuple(asked.what))]
    sys.stdout.write(f"{sum(map(objects.remove, kinds)):,} entries removed from {objects.root}\n")
    return 0


def _bench(objects: EntryObjects, asked: argparse.Namespace) -> int:
    """Measure how fast the store is read from this machine, and note it in its folder of entries."""
    folder = Path(asked.path) if asked.path else Cache().folder
    with EntryStore(folder, max_bytes=sys.maxsize) as store:
        model = measured_remote_speed(store, objects)
    sys.stdout.write(f"{speed_text(model)}, in {model.waiting:.0%} of which no CPU is needed\n")
    return 0


ACTIONS: Mapping[str, Callable[[EntryObjects, argparse.Namespace], int]] = MappingProxyType(
    {"ls": _show, "du": _tell_size, "verify": _verify, "rm": _forget, "bench": _bench}
)
