"""`pecan simulate` and `pecan tune`, as pairs of `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pecan_ray.errors import PlanError
from pecan_ray.placement.policy import MODES
from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator import what_if
from pecan_ray.simulator.client import HPA, client_of
from pecan_ray.simulator.cluster import simulate
from pecan_ray.simulator.job import SimulatedJob
from pecan_ray.simulator.outcome import Outcome, mean
from pecan_ray.simulator.policy_driver import driver_of
from pecan_ray.simulator.run_profile import from_json
from pecan_ray.simulator.workload import Workload, load, names

AFTER = 9000
"""Batches after convergence over which the pace is measured: two host loops of ResNet50 at least."""


def add_simulate_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `pecan simulate`."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--workload", default="resnet50-v2-8", help=f"one of {', '.join(names())}, or a file *.json")
    source.add_argument("--from", dest="report", type=Path, help="report.json of a finished run: what if?")
    parser.add_argument(
        "--mode", default="auto", choices=sorted((*MODES, HPA)), help="placement policy, or a baseline (default: auto)"
    )
    parser.add_argument("--ordered", action="store_true", help="operators in AutoOrder's order")
    parser.add_argument("--seeds", type=int, default=5, help="runs (default: 5)")
    parser.add_argument("--local", type=int, help="with --from: so many local workers")
    parser.add_argument("--remote", type=int, help="with --from: so many remote workers")
    parser.set_defaults(run=run_simulate)


def run_simulate(args: argparse.Namespace) -> int:
    """Run `pecan simulate`; returns the exit status."""
    text = report_what_if(args) if args.report else report_simulation(args)
    sys.stdout.write(text + "\n")
    return 0


def report_what_if(args: argparse.Namespace) -> str:
    """Say what other deployments would have done for a finished run."""
    if not args.report.is_file():
        raise PlanError(f"there is no report {args.report}.")
    profile = from_json(args.report.read_bytes().decode(errors="replace"))
    here = profile.deployment
    now = what_if.what_if(profile, here)
    lines = [
        f"{profile.job}: {here}, {profile.batches} batches; after {profile.start_s:.1f} s for the start the trainer "
        f"waited {profile.wait_share:.0%} of the time, its own step takes {1000 * profile.step_s:.3g} ms",
        f"  as it was  {now}",
    ]
    if args.local is None and args.remote is None:
        return "\n".join(lines + [f"  what if    {forecast}" for forecast in what_if.suggestions(profile)])
    local = here.local if args.local is None else args.local
    remote = here.remote if args.remote is None else args.remote
    return "\n".join([*lines, f"  what if    {what_if.what_if(profile, Deployment(local, remote))}"])


def report_simulation(args: argparse.Namespace) -> str:
    """Simulate a workload and say where the policy ended."""
    if args.seeds < 1:
        raise PlanError(f"--seeds must be at least 1, but got {args.seeds}.")
    workload = load(args.workload)
    outcomes = [
        simulate(
            SimulatedJob(
                workload,
                driver_of(workload, args.mode),
                ordered=args.ordered,
                seed=seed,
                client=client_of(args.mode),
                after_convergence=AFTER,
                most_batches=100_000,
            )
        )
        for seed in range(args.seeds)
    ]
    return describe(workload, args.mode, outcomes)


def describe(workload: Workload, mode: str, outcomes: Sequence[Outcome]) -> str:
    """Write the path of the first run and the means of all."""
    lines = [f"{workload.title or workload.name}, mode {mode}, {len(outcomes)} runs; the first one:"]
    before = None
    for turn in outcomes[0].timeline:
        if turn.decision.target != before:
            lines.append(f"  {turn.seconds:8.0f} s  {turn.decision.phase:15}  {turn.decision.reason}")
        before = turn.decision.target
    seconds = workload.batches_per_epoch * mean(outcomes, lambda run: run.batch_s)
    lines.append(
        f"on average {mean(outcomes, lambda run: run.final.local):.1f} local + "
        f"{mean(outcomes, lambda run: run.final.remote):.1f} remote workers, {seconds:,.0f} s and "
        f"${mean(outcomes, lambda run: run.epoch_cost):.2f} per epoch; trainer starved "
        f"{mean(outcomes, lambda run: run.starved_share):.1%}; "
        f"${mean(outcomes, lambda run: run.convergence_cost):.2f} to converge"
    )
    return "\n".join(lines)


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `pecan tune`."""
    parser.add_argument("--mode", default="pecan", choices=("pecan", "pecan-code", "cachew"))
    parser.add_argument("--trials", type=int, default=40, help="settings to try (default: 40)")
    parser.add_argument("--workloads", type=int, default=20, help="random workloads to try each on (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=run_tune)


def run_tune(args: argparse.Namespace) -> int:
    """Run `pecan tune`; returns the exit status."""
    from pecan_ray.simulator.tune import report, tune

    tuned = tune(args.mode, trials=args.trials, workloads=args.workloads, seed=args.seed)
    sys.stdout.write(report(tuned) + "\n")
    return 0
