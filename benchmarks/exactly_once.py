"""What exactly-once delivery and the journal cost: batches per second with both, as a ratio to those with neither.

    python -m benchmarks.exactly_once [--cases NAME ...] [--seconds 8] [--rounds 5] [--json FILE]

Jobs with two local workers on a Ray cluster of this machine, in turns: `visitation="exactly_once"` with a journal, and
`"at_most_once"` without one.  `photographs`: ResNet50's operators on JPEGs.  `tiny`: batches of 1 KB.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ray

import pecan_ray as pecan
from benchmarks.one_sequence import batches_per_s, photographs, tiny

WORKERS = 2
CASES: dict[str, Callable[[], pecan.PecanPipeline]] = {"photographs": photographs, "tiny": tiny}


def main(argv: list[str] | None = None) -> int:
    """Measure the cases and print medians, and the ratio of each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    found: dict[str, dict[str, Any]] = {}
    for case in options.cases:
        kept = CASES[case]()
        without_journal = kept.with_config(journal="off")
        rounds = []
        for _ in range(options.rounds):
            exact = batches_per_s(kept, WORKERS, options.seconds, visitation="exactly_once")
            at_most = batches_per_s(without_journal, WORKERS, options.seconds, visitation="at_most_once")
            rounds.append((exact, at_most))
            print(f"  {case}: exactly once {exact:,.1f}, at most once {at_most:,.1f} batches/s", flush=True)
        ratios = sorted(exact / at_most for exact, at_most in rounds)
        found[case] = {"batches per second": rounds, "ratio": statistics.median(ratios)}
        told = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        print(f"{case}: exactly once with a journal {told} of at most once without", flush=True)
    told_all = {"machine": f"{os.cpu_count()} CPUs, {platform.machine()}", **found}
    print(json.dumps(told_all))
    if options.json:
        Path(options.json).write_text(json.dumps(told_all, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
