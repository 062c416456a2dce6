"""One command for all comparisons.

    python -m benchmarks.peers [--cases photographs audio ...] [--rounds 5] [--json FILE] [--plot FILE]
                               [--before CHECKOUT]

All sides of a case run beside each other, each in a process of its own, and measure in turn; the order rotates.
docs/benchmarks.md says how, and what the numbers mean.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.peers import plot, table
from benchmarks.peers.before import LAUNCHES_BEFORE, case_before, sides_before
from benchmarks.peers.cases import CASES
from benchmarks.peers.harness import PeerSettings, quiet_machine, run_case, sides_of
from benchmarks.peers.judgement import MOST_FOREIGN
from benchmarks.peers.sides import SIDES


def arguments() -> argparse.Namespace:
    """Read the command line."""
    keys = [case.key for case in CASES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=keys, default=keys, metavar="CASE", help=", ".join(keys))
    parser.add_argument("--only", nargs="+", default=[], metavar="PEER", help="only peers with one of these words")
    parser.add_argument("--rounds", type=int, default=PeerSettings.rounds)
    parser.add_argument("--launches", type=int, help="starts of all sides, each for so many rounds (5 with --before)")
    parser.add_argument("--seconds", type=float, default=PeerSettings.seconds, help="of one measurement")
    parser.add_argument("--warm", type=float, default=PeerSettings.warm_s, help="seconds before it")
    parser.add_argument("--data", default="", help="folder of class folders with JPEGs (default: derived photographs)")
    parser.add_argument(
        "--before",
        type=Path,
        metavar="CHECKOUT",
        help="compare with an earlier state of this repository (git worktree add DIR COMMIT) instead of with peers",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="PNG, PDF or SVG")
    parser.add_argument(
        "--max-foreign",
        type=float,
        default=MOST_FOREIGN,
        help="share of the processors that other programs may use in a round that counts (default: %(default)s)",
    )
    return parser.parse_args()


def main() -> int:
    """Measure, print, and write down."""
    args = arguments()
    settings = PeerSettings(
        rounds=args.rounds,
        launches=args.launches or (LAUNCHES_BEFORE if args.before is not None else PeerSettings.launches),
        seconds=args.seconds,
        warm_s=args.warm,
        data=args.data,
        most_foreign=args.max_foreign,
    )
    began = time.monotonic()
    load = quiet_machine()
    if load > args.max_foreign:
        print(f"Other programs use {load:.0%} of the processors now: rounds with so much will not count.", flush=True)
    results = []
    cases = [case for case in CASES if case.key in args.cases]
    if args.before is not None:
        SIDES.update(sides_before(SIDES, args.before))
        cases = [case_before(case, SIDES) for case in cases]
    for case, names in sides_of(cases, args.only):
        print(f"\n{case.key}: {case.title}", flush=True)
        results.append(run_case(case, names, settings, lambda line: print("  " + line, flush=True)))
        print("\n" + table.case_table(results[-1], args.max_foreign), flush=True)
    print(f"\n{table.machine()}\n{(time.monotonic() - began) / 60:.1f} minutes")
    facts = table.as_json(results, settings, args.max_foreign)
    if args.json is not None:
        args.json.write_text(json.dumps(facts, indent=1))
    if args.plot is not None:
        plot.draw(facts, args.plot)
    failed = [c for result in results for c in table.comparisons(result, args.max_foreign) if c.ratio is None]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
