"""`pecan explain`."""

from __future__ import annotations

import argparse
import sys
from typing import get_args

from pecan_ray.autoorder.explain import ExplainFormat
from pecan_ray.cli.user_pipeline import MAKERS, add_script_arguments, read_pipeline


def add_explain_arguments(added: argparse.ArgumentParser) -> None:
    """Add what `pecan explain` takes."""
    added.description = (
        "Reads the pipeline out of a Python program, samples it and explains its order.  The program runs up to its "
        f"first iter_batches(), and no job begins.  A function {MAKERS[0]}() or {MAKERS[1]}() that needs no argument "
        "goes before that, and so does what --name names."
    )
    added.add_argument("--save", metavar="ORDER", help="write the order to a file for Config(order_file=...)")
    added.add_argument(
        "--again", dest="fresh", action="store_true", help="look anew, whatever order is kept of an earlier look"
    )
    added.add_argument("--format", choices=get_args(ExplainFormat), default="text")
    add_script_arguments(added)
    added.set_defaults(run=run_explain)


def run_explain(asked: argparse.Namespace) -> int:
    """Print what a pipeline's operators do, and in which order they run."""
    found = read_pipeline(asked)
    if asked.save is not None:
        found.save_order(asked.save, again=asked.fresh)
    # What was saved has just been looked for.
    sys.stdout.write(f"{found.explain(asked.format, again=asked.fresh and asked.save is None)}\n")
    if asked.save is not None:
        sys.stderr.write(f'saved to {asked.save}: pin it by Config(order_file="{asked.save}")\n')
    return 0
