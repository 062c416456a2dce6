"""The command `pecan`."""

from __future__ import annotations

import argparse
import inspect
import itertools
import os
import pdb
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import numpy as np

from pecan_ray.autoorder.explain import ExplainFormat
from pecan_ray.errors import ElementError, PecanError, PlanError
from pecan_ray.observe.cache_command import CACHE_HELP, add_cache_arguments
from pecan_ray.observe.completion_command import COMPLETION_HELP, add_completion_arguments
from pecan_ray.observe.dashboard_command import DASHBOARD_HELP, add_dashboard_arguments
from pecan_ray.observe.doctor import DOCTOR_HELP, ROWS, looks
from pecan_ray.observe.grafana_command import GRAFANA_HELP, add_grafana_arguments
from pecan_ray.observe.read_program import REACHED, load, run_main_part
from pecan_ray.observe.report_command import REPORT_HELP, add_report_arguments
from pecan_ray.observe.run_command import RUN_HELP, add_run_arguments
from pecan_ray.observe.status_command import STATUS_HELP, STOP_HELP, add_stop_arguments, run_status
from pecan_ray.observe.top_command import TOP_HELP, add_top_arguments
from pecan_ray.options import Config, EngineName, TransportChoice, Workers
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.quarantine import Pickled, quarantined
from pecan_ray.replay import replay, why_without_element
from pecan_ray.simulator.command import (
    SIMULATE_HELP,
    TUNE_HELP,
    add_simulate_arguments,
    add_tune_arguments,
)
from pecan_ray.sources.memory import Arrays

EXPLAIN_HELP = "sample a pipeline and say what each operator does, and which order AutoOrder chooses and why"
REPLAY_HELP = "run the elements of a quarantine file again"
MAKERS = ("example_pipeline", "pipeline", "make_pipeline")
"""Functions that a program may offer to make its pipeline."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 2 for a mistake of its user, with one line about it."""
    asked = parser().parse_args(arguments)
    try:
        status: int = asked.run(asked)
        sys.stdout.flush()
    except PecanError as error:
        lines = error.message.splitlines()  # behind the first one comes the traceback of a user's function
        sys.stderr.write(f"pecan: {lines[0] if isinstance(error, ElementError) else ' '.join(lines)}\n")
        return 2
    except BrokenPipeError:  # who reads it has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        sys.stderr.write(f"pecan: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("pecan: interrupted\n")
        return 130
    return status


def parser() -> argparse.ArgumentParser:
    """Return what reads the command's words."""
    whole = argparse.ArgumentParser(prog="pecan", description="Look at pecan_ray pipelines and at what became of them.")
    whole.add_argument("--version", action="version", version=f"pecan_ray {version('pecan_ray')}")
    commands = whole.add_subparsers(dest="command", required=True)

    def command(name: str, text: str, add_arguments: Callable[[argparse.ArgumentParser], None]) -> None:
        add_arguments(commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}."))

    command("run", RUN_HELP, add_run_arguments)
    command("explain", EXPLAIN_HELP, add_explain_arguments)
    command("report", REPORT_HELP, add_report_arguments)
    command("replay", REPLAY_HELP, add_replay_arguments)
    command("cache", CACHE_HELP, add_cache_arguments)
    command("doctor", DOCTOR_HELP, add_doctor_arguments)
    command("status", STATUS_HELP, lambda added: added.set_defaults(run=run_status))
    command("top", TOP_HELP, add_top_arguments)
    command("stop", STOP_HELP, add_stop_arguments)
    command("dashboard", DASHBOARD_HELP, add_dashboard_arguments)
    command("grafana", GRAFANA_HELP, add_grafana_arguments)
    command("simulate", SIMULATE_HELP, add_simulate_arguments)
    command("tune", TUNE_HELP, add_tune_arguments)
    command("completion", COMPLETION_HELP, lambda added: add_completion_arguments(added, parser))
    return whole


def add_explain_arguments(added: argparse.ArgumentParser) -> None:
    """Add what `pecan explain` takes."""
    added.description = (
        "Reads the pipeline out of a Python program, samples it and explains its order.  The program runs up to its "
        f"first iter_batches(), and no job begins.  A function {MAKERS[0]}() or {MAKERS[1]}() that needs no argument "
        "goes before that, and so does what --name names."
    )
    added.add_argument("--save", metavar="ORDER", help="write the order to a file for Config(order_file=...)")
    added.add_argument("--again", action="store_true", help="look anew, whatever order is kept of an earlier look")
    added.add_argument("--format", choices=get_args(ExplainFormat), default="text")
    _add_program(added)
    added.set_defaults(run=run_explain)


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
    _add_program(added)
    added.set_defaults(run=run_replay)


def add_doctor_arguments(added: argparse.ArgumentParser) -> None:
    """Add what `pecan doctor` takes."""
    added.add_argument("--without-ray", action="store_true", help="look at this machine alone, and start nothing")
    added.set_defaults(run=run_doctor)


def _add_program(added: argparse.ArgumentParser) -> None:
    """Add which program has the pipeline."""
    added.add_argument("file", help="Python file that has the pipeline")
    added.add_argument("--name", help="variable or function of the file that is, or makes, the pipeline")
    added.add_argument("--engine", choices=get_args(EngineName), help="passed on to the function that makes it")


def run_explain(asked: argparse.Namespace) -> int:
    """Print what a pipeline's operators do, and in which order they run."""
    found = read_pipeline(asked)
    if asked.save is not None:
        found.save_order(asked.save, again=asked.again)
    sys.stdout.write(f"{found.explain(asked.format, again=asked.again and asked.save is None)}\n")
    if asked.save is not None:
        sys.stderr.write(f'saved to {asked.save}: pin it by Config(order_file="{asked.save}")\n')
    return 0


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
        replayed = replay(found.plan, bad, engine=found.engine, seed=found.seed)
        if replayed.error is None:
            passing += 1
            continue
        failing += 1
        trace = "".join(traceback.format_exception(replayed.error))
        sys.stdout.write(f"{bad.where} in {bad.op}:\n{trace}\n")
        if asked.pdb:
            pdb.post_mortem(replayed.error.__traceback__)
            return 1
    sys.stdout.write(f"{failing} still fail, {passing} do not fail any more, {unread} were not kept")
    sys.stdout.write(f", {untrusted} are pickles\n" if untrusted else "\n")
    return 1 if failing or untrusted else 0


def run_doctor(asked: argparse.Namespace) -> int:
    """Print what was found of this machine and its cluster, line by line; returns 1 if anything is wrong."""
    wrong = 0
    for line in looks(None if asked.without_ray else small_epoch):
        wrong += bool(line.advice)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{wrong} thing(s) to look at\n" if wrong else "nothing is wrong\n")
    return int(wrong > 0)


def small_epoch(transport: TransportChoice) -> tuple[int, list[str]]:
    """Run a small job over a transport; return the elements that came, and by which ways."""
    config = Config(transport=transport, reorder="off", progress=False)
    pipe = PecanPipeline(Arrays(i=np.arange(ROWS)), name="doctor", config=config).batch(16)
    with pipe.iter_batches(workers=Workers(local=1)) as batches:
        rows = sum(len(batch["i"]) for batch in batches)
        events = batches.report().events
    return rows, [event.text.partition(" by ")[2] for event in events if event.kind == "transport"]


def read_pipeline(asked: argparse.Namespace) -> PecanPipeline:
    """Return the pipeline of a user's program, which begins no job while it is read."""
    path = Path(asked.file)
    module = load(path)
    if asked.name is None and asked.engine is None and not offered(module):
        run_main_part(module)
    return find_pipeline(module, asked.name, asked.engine)


def offered(module: ModuleType) -> bool:
    """Tell whether a module has a pipeline, or a function that makes one."""
    if REACHED in vars(module):
        return True
    makers = any(callable(made := getattr(module, maker, None)) and not _needed(made) for maker in MAKERS)
    return makers or any(isinstance(value, PecanPipeline) for value in vars(module).values())


def find_pipeline(module: ModuleType, name: str | None = None, engine: str | None = None) -> PecanPipeline:
    """Return the pipeline of a module: one that a function makes, or a variable.

    Raises `PlanError` if there is none, or several, or if the engine cannot be chosen.
    """
    if name is not None:
        if not hasattr(module, name):
            raise PlanError(f"{module.__file__} has no {name!r}.")
        return _made(module, name, getattr(module, name), engine)
    for maker in MAKERS:
        made = getattr(module, maker, None)
        if callable(made) and not _needed(made):
            return _made(module, maker, made, engine)
    if REACHED in vars(module):
        return _made(module, "the first pipeline", vars(module)[REACHED], engine)
    found = {name: value for name, value in vars(module).items() if isinstance(value, PecanPipeline)}
    if len({id(value) for value in found.values()}) > 1:
        raise PlanError(f"{module.__file__} has several pipelines: {', '.join(sorted(found))}. Choose one by --name.")
    for variable, value in found.items():
        return _made(module, variable, value, engine)
    raise PlanError(
        f"{module.__file__} has no pipeline: give it a function {MAKERS[0]}() that returns one and needs no argument, "
        "or a variable that holds one."
    )


def _made(module: ModuleType, name: str, thing: Any, engine: str | None) -> PecanPipeline:
    if isinstance(thing, PecanPipeline):
        if engine not in (None, thing.engine):
            raise PlanError(f"{name} of {module.__file__} is made for the {thing.engine} engine; leave --engine out.")
        return thing
    if not callable(thing) or _needed(thing):
        raise PlanError(f"{name} of {module.__file__} is neither a pipeline nor a function that needs no argument.")
    if engine is not None and "engine" not in inspect.signature(thing).parameters:
        raise PlanError(f"{name}() of {module.__file__} has no parameter `engine`; leave --engine out.")
    made = thing() if engine is None else thing(engine=engine)
    if not isinstance(made, PecanPipeline):
        raise PlanError(f"{name}() of {module.__file__} returned {type(made).__name__}, not a PecanPipeline.")
    return made


def _needed(function: Callable[..., Any]) -> list[str]:
    """Return the parameters that a function cannot do without."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]


if __name__ == "__main__":
    sys.exit(main())
