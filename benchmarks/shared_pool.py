"""Many jobs on a pool of workers that is too small for them: bills and slow-downs by how the workers are dealt.

    python -m benchmarks.shared_pool [--jobs 64] [--share 0.5] [--draws 5]

Random workloads, their long-run pace, prices of their own; `share` is the pool over what the jobs want together.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import fmean

from benchmarks.pooled_jobs import RULES, distribute, jobs_of

ORDERS = range(5)
"""Orders of arrival, of which the mean and the worst are told."""


def table(jobs: int, share: float, draws: int) -> str:
    """Return the table."""
    lines = [f"{'draw':>4} {'how':20} {'bill $/h':>9} {'saved':>6} {'above enough':>13} {'worst slow-down':>16}"]
    for seed in range(1, draws + 1):
        drawn = jobs_of(seed, jobs)
        enough = sum(job.bill[job.wants] for job in drawn)
        before = 0.0
        for how in RULES:
            outcomes = [distribute(drawn, how, share, order) for order in ORDERS]
            bill = fmean(one.bill for one in outcomes)
            before = before or bill
            lines.append(
                f"{seed:>4} {how:20} {bill:>9.0f} {1 - bill / before:>6.0%} {bill / enough - 1:>13.0%} "
                f"{max(one.worst for one in outcomes):>15.1f}x"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared_pool", description=__doc__)
    parser.add_argument("--jobs", type=int, default=64)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args(arguments)
    print(table(options.jobs, options.share, options.draws))


if __name__ == "__main__":
    main()
