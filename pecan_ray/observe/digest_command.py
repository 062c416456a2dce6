"""The command `pecan cache digest`: what the objects of a dataset are, written down and held against it."""

from __future__ import annotations

import argparse
import sys

from pecan_ray.errors import PlanError
from pecan_ray.sources.files import patterns_of
from pecan_ray.storage import ObjectDigest, changed, make_digest, read_digest, write_digest

DIGEST_HELP = "write down which bytes the objects of a dataset have, for Cache(digests=...), or check them"
# Objects between two lines of progress.
SAY_EVERY = 1000


def add_digest_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `pecan cache digest` takes."""
    parser.add_argument("data", nargs="*", help="files, folders and globs: s3://bucket/prefix, gs://..., or local ones")
    parser.add_argument("--output", "-o", metavar="FILE", help="where the digest is written to, local or in a bucket")
    parser.add_argument("--check", metavar="FILE", help="read again what this digest is of, and say what is different")
    parser.set_defaults(run=run_digest)


def run_digest(asked: argparse.Namespace) -> int:
    """Make a digest, or check one; returns 1 where something is different."""
    if (asked.check is None) == (not asked.data) or (asked.check is None) == (asked.output is None):
        raise PlanError("pecan cache digest: give data and --output FILE, or --check FILE and nothing else.")
    if asked.check is not None:
        return _check(asked.check)
    made = make_digest(patterns_of(asked.data), _Counting("read"))
    write_digest(asked.output, made)
    nbytes = sum(one.size for one in made)
    sys.stdout.write(f"{len(made):,} objects with {nbytes / 1e6:,.1f} MB: {asked.output}\n")
    return 0


def _check(path: str) -> int:
    objects = read_digest(path)
    counting = _Counting("checked")
    wrong = changed(objects.values(), lambda _: counting())
    for text in wrong:
        sys.stdout.write(f"{text}\n")
    sys.stdout.write(f"{len(objects) - len(wrong):,} of {len(objects):,} objects are as {path} tells\n")
    return 1 if wrong else 0


class _Counting:
    """Says now and then how many objects are done."""

    def __init__(self, doing: str) -> None:
        self._operation, self._count = doing, 0

    def __call__(self, one: ObjectDigest | None = None) -> None:
        self._count += 1
        if self._count % SAY_EVERY == 0:
            sys.stderr.write(f"{self._count:,} objects {self._operation}\n")
