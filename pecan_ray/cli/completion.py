"""The command `pecan completion`: what makes a shell complete the words of `pecan`."""

from __future__ import annotations

import argparse
import sys

from pecan_ray.cli import parser
from pecan_ray.errors import MissingExtraError

SHELLS = {
    "bash": 'add to ~/.bashrc:  eval "$(pecan completion bash)"',
    "zsh": 'add to ~/.zshrc, behind compinit:  eval "$(pecan completion zsh)"',
    "fish": "pecan completion fish > ~/.config/fish/completions/pecan.fish",
}


def add_completion_arguments(added: argparse.ArgumentParser) -> None:
    """Add what `pecan completion` takes."""
    added.add_argument("shell", choices=tuple(SHELLS), help="; ".join(SHELLS.values()))
    added.set_defaults(run=run_completion)


def run_completion(asked: argparse.Namespace) -> int:
    """Print the shell's code."""
    try:
        import shtab
    except ImportError as error:
        raise MissingExtraError(
            'pecan completion needs shtab: pip install "pecan_ray[completion]".', extra="completion"
        ) from error
    sys.stdout.write(f"{shtab.complete(parser(), shell=asked.shell)}\n")
    return 0
