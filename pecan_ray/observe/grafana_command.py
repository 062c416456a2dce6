"""The command `pecan grafana`: writes boards for Ray's Grafana."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pecan_ray.errors import PlanError
from pecan_ray.observe.grafana_pages import grafana_pages

USUAL = "/tmp/ray/session_latest/metrics/grafana/dashboards"


def add_grafana_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `pecan grafana` takes."""
    parser.add_argument(
        "--out", metavar="DIR", required=True, help=f"the folder; the one that Ray's Grafana reads is {USUAL}"
    )
    parser.set_defaults(run=run_grafana)


def run_grafana(asked: argparse.Namespace) -> int:
    """Write the boards, and say where."""
    folder = Path(asked.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, board in grafana_pages():
            (folder / name).write_text(json.dumps(board, indent=1) + "\n")
            sys.stdout.write(f"{folder / name}\n")
    except OSError as error:
        raise PlanError(f"pecan grafana --out={asked.out}: {error.strerror}: {error.filename}.") from error
    return 0
