"""The command `pecan`: only the module of the command that is typed is imported."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from pecan_ray.errors import ElementError, PecanError


@dataclass(frozen=True)
class Command:
    """A word behind `pecan`."""

    help: str
    """One line."""
    adds: str
    """The module and the function that adds its arguments, and says by ``set_defaults(run=...)`` what runs it."""


COMMANDS = {
    "run": Command(
        "run a program as `python FILE` does, and print the reports of its jobs that it has not printed itself",
        "pecan_ray.observe.run_command:add_run_arguments",
    ),
    "explain": Command(
        "sample a pipeline and say what each operator does, and which order AutoOrder chooses and why",
        "pecan_ray.cli.explain:add_explain_arguments",
    ),
    "report": Command(
        "print the report of a job that runs, of one that is over, or of a saved report or journal",
        "pecan_ray.observe.report_command:add_report_arguments",
    ),
    "replay": Command(
        "run the elements of a quarantine file again",
        "pecan_ray.cli.replay:add_replay_arguments",
    ),
    "cache": Command(
        "look at what autocache points have kept on this machine, check it, remove it, measure its speed",
        "pecan_ray.observe.cache_command:add_cache_arguments",
    ),
    "doctor": Command(
        "look for what this machine and its Ray cluster lack, and say what to do about it",
        "pecan_ray.cli.doctor:add_doctor_arguments",
    ),
    "status": Command(
        "tell which jobs, shared groups and readers there are on the Ray cluster at hand",
        "pecan_ray.observe.status_command:add_status_arguments",
    ),
    "top": Command(
        "show the jobs of the Ray cluster at hand, their speeds, and what they use, as a table that renews itself",
        "pecan_ray.observe.top_command:add_top_arguments",
    ),
    "stop": Command(
        "end the shared groups that nobody reads, and the service",
        "pecan_ray.observe.status_command:add_stop_arguments",
    ),
    "dashboard": Command(
        "show the cluster's jobs as a web page",
        "pecan_ray.observe.dashboard_command:add_dashboard_arguments",
    ),
    "grafana": Command(
        "write boards for the Grafana that Ray's dashboard shows",
        "pecan_ray.observe.grafana_command:add_grafana_arguments",
    ),
    "simulate": Command(
        "run a workload under a placement policy in the simulator, or ask what other workers would have done for a run",
        "pecan_ray.simulator.command:add_simulate_arguments",
    ),
    "tune": Command(
        "search good settings of a placement policy of the papers in the simulator",
        "pecan_ray.simulator.command:add_tune_arguments",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 2 for a mistake of its user, with one line about it."""
    asked = parser(sys.argv[1:] if arguments is None else arguments).parse_args(arguments)
    try:
        status: int = asked.run(asked)
        # Here, where a pipe that nobody reads any more can be answered.
        sys.stdout.flush()
    except PecanError as error:
        lines = error.message.splitlines()  # behind the first one comes the traceback of a user's function
        sys.stderr.write(f"pecan: {lines[0] if isinstance(error, ElementError) else ' '.join(lines)}\n")
        return 2
    except BrokenPipeError:  # who reads it has enough, as `head` has
        # Python flushes the standard output once more at its end, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        sys.stderr.write(f"pecan: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("pecan: interrupted\n")
        # 128 and the number of SIGINT, as shells say it.
        return 130
    return status


def parser(arguments: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Return what reads the command's words; `arguments`: of a command that is typed; None: of every one."""
    whole = argparse.ArgumentParser(prog="pecan", description="Look at pecan_ray pipelines and at what became of them.")
    whole.add_argument("--version", action="version", version=f"pecan_ray {version('pecan_ray')}")
    commands = whole.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        text = command.help
        added = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if arguments is None or name in arguments[:1]:
            _argument_function(command)(added)
    return whole


def _argument_function(command: Command) -> Callable[[argparse.ArgumentParser], None]:
    module, _, name = command.adds.partition(":")
    adder: Callable[[argparse.ArgumentParser], None] = getattr(importlib.import_module(module), name)
    return adder
