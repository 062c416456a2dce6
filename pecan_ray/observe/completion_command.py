"""The command `pecan completion`: what makes a shell complete the words of `pecan`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from pecan_ray.errors import MissingExtraError

COMPLETION_HELP = "print what makes a shell complete the words of this command"
SHELLS = {
    "bash": 'add to ~/.bashrc:  eval "$(pecan completion bash)"',
    "zsh": 'add to ~/.zshrc, behind compinit:  eval "$(pecan completion zsh)"',
    "fish": "pecan completion fish > ~/.config/fish/completions/pecan.fish",
}


def add_completion_arguments(parser: argparse.ArgumentParser, whole: Callable[[], argparse.ArgumentParser]) -> None:
    """Add what `pecan completion` takes.  `whole`: makes the parser whose words are completed."""
    parser.add_argument("shell", choices=tuple(SHELLS), help="; ".join(SHELLS.values()))
    parser.set_defaults(run=run_completion, whole=whole)


def run_completion(asked: argparse.Namespace) -> int:
    """Print the shell's code."""
    try:
        import shtab
    except ImportError as error:
        raise MissingExtraError(
            'pecan completion needs shtab: pip install "pecan_ray[completion]".', extra="completion"
        ) from error
    sys.stdout.write(f"{shtab.complete(asked.whole(), shell=asked.shell)}\n")
    return 0
