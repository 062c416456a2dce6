"""`pecan replay`."""

from __future__ import annotations

import argparse
import itertools
import pdb
import sys
import traceback

from pecan_ray.cli.user_pipeline import add_script_arguments, read_pipeline
from pecan_ray.quarantine import Pickled, quarantined
from pecan_ray.replay import replay, why_without_element


def add_replay_arguments(added: argparse.ArgumentParser) -> None:
    """Add what `pecan replay` takes."""
    added.description = (
        "Runs a pipeline's functions, in this process, on the elements that on_error='quarantine' kept, and shows with "
        "their tracebacks those that still fail."
    )
    added.add_argument("quarantine", help="the quarantine file")
    added.add_argument(
        "--trust",
        action="store_true",
        help="read also what is kept as a pickle, which runs code: use it for files whose writer you trust",
    )
    added.add_argument("--pdb", action="store_true", help="open the debugger where the first of them fails")
    add_script_arguments(added)
    added.set_defaults(run=run_replay)


def run_replay(asked: argparse.Namespace) -> int:
    """Print which quarantined elements still fail; returns 1 if any does."""
    kept = quarantined(asked.quarantine, trust=asked.trust)
    first = list(itertools.islice(kept, 1))  # what is no quarantine file is refused before the program runs
    found = read_pipeline(asked)
    failing = passing = unread = untrusted = 0
    for bad in itertools.chain(first, kept):
        if isinstance(bad.element, Pickled):
            untrusted += 1
            sys.stdout.write(f"{bad.where} in {bad.op}: {bad.error} (a pickle, which --trust reads)\n")
            continue
        if bad.element is None:
            unread += 1
            sys.stdout.write(f"{why_without_element(bad)}\n")
            continue
        replay_result = replay(found.plan, bad, engine=found.engine, seed=found.seed)
        if replay_result.error is None:
            passing += 1
            continue
        failing += 1
        trace = "".join(traceback.format_exception(replay_result.error))
        sys.stdout.write(f"{bad.where} in {bad.op}:\n{trace}\n")
        if asked.pdb:
            pdb.post_mortem(replay_result.error.__traceback__)
            return 1
    sys.stdout.write(f"{failing} still fail, {passing} do not fail any more, {unread} were not kept")
    sys.stdout.write(f", {untrusted} are pickles\n" if untrusted else "\n")
    return 1 if failing or untrusted else 0
