"""The progress of a job in the kernel of a notebook: a bar of text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.ray.waiting import ENDS_S

jupyter_client: Any = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

CELL = """
import time
import numpy as np
import pecan_ray as pecan
from pecan_ray.observe import progress

progress.TERMINAL_S = 0.0
pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(40)), name="cells").batch(4)
with pipe.iter_batches(workers=pecan.Workers(local=1)) as batches:
    seen = sum(len(batch["i"]) for batch in batches)
seen
"""


def outputs(client: Any, code: str) -> list[tuple[str, Any]]:
    """Run a cell; return what it has shown, by kind."""
    found: list[tuple[str, Any]] = []
    reply = client.execute_interactive(
        code, timeout=ENDS_S, output_hook=lambda message: found.append((message["msg_type"], message["content"]))
    )
    assert reply["content"]["status"] == "ok", reply["content"]
    return found


def test_progress_is_a_bar_and_the_notebook_of_the_examples_runs(one_node: Any) -> None:
    env = {**os.environ, "RAY_ADDRESS": one_node.address}
    manager, kernel = jupyter_client.manager.start_new_kernel(env=env, startup_timeout=ENDS_S)
    try:
        shows_progress(kernel)
        runs_the_example(kernel)
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)


def shows_progress(kernel: Any) -> None:
    shown = outputs(kernel, CELL)
    bar = "".join(content["text"] for kind, content in shown if kind == "stream" and content["name"] == "stderr")
    lines = [line for line in bar.split("\r") if line.startswith("pecan cells: ")]
    assert len(set(lines)) > 1 and "10/10" in lines[-1], "it rewrites itself"
    assert not [kind for kind, _ in shown if "display_data" in kind], "no widget"
    assert [content["data"]["text/plain"] for kind, content in shown if kind == "execute_result"] == ["40"]
    (pipe,) = [content["data"] for kind, content in outputs(kernel, "pipe") if kind == "execute_result"]
    assert ".batch(4" in pipe["text/html"]
    (told,) = [content["data"] for kind, content in outputs(kernel, "batches.report()") if kind == "execute_result"]
    assert "<b>pecan job cells" in told["text/html"]


def runs_the_example(kernel: Any) -> None:
    notebook = json.loads((Path(__file__).resolve().parents[2] / "examples" / "first_steps.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    results = {}
    for cell in cells:
        shown = outputs(kernel, cell)
        results[cell.splitlines()[-1]] = [content["data"] for kind, content in shown if kind == "execute_result"]
    assert results["seen"][0]["text/plain"] == "1024" and results["rest"][0]["text/plain"] == "256"
    explained = results["pipe.explain()"][0]["text/plain"]
    assert not explained.startswith("'") and len(explained.splitlines()) > 3, "a text as it prints, no literal"
    assert "bottleneck" in results["batches.report()"][0]["text/html"]
    assert all(not cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"), "it is kept clean"
