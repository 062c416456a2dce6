"""What people see of a job: metrics at Ray's Prometheus endpoint, a bar or a line a minute, what held a run up."""

from __future__ import annotations

import contextlib
import json
import os
import re
import urllib.request
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.autoorder import job_order
from pecan_ray.cli import main
from pecan_ray.observe import progress
from pecan_ray.placement import Prices
from tests.ray.conftest import ROOT
from tests.ray.waiting import ENDS_S, until
from tests.ray.waiting_transforms import WaitLog, half

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")


def scraped() -> str:
    """Text of the Prometheus endpoints of the nodes; of a node that is just starting none answers yet."""
    nodes: Any = ray.nodes
    pages = []
    for node in nodes():
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=ENDS_S) as answer:
            pages.append(answer.read().decode())
    return "\n".join(pages)


def metrics_of(job: str) -> dict[tuple[str, str], float]:
    """Values of a job's metrics by name and the tag that tells several of a name apart."""
    found = {}
    for name, tags, value in re.findall(r"^ray_(pecan_\w+)\{(.*)\} (\S+)$", scraped(), re.MULTILINE):
        told = dict(re.findall(r'(\w+)="([^"]*)"', tags))
        if told.get("pecan_job") == job:
            found[name, told.get("operator") or told.get("placement") or ""] = float(value)
    return found


def test_the_doctor_finds_that_every_transport_works(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok    Ray: ") and "3 node(s)" in line for line in lines), lines
    carried = [line for line in lines if " transport " in line]
    assert [line.split()[2].rstrip(":") for line in carried] == ["auto", "ring", "flight", "object_store"]
    assert all(line.startswith("ok ") and "64 elements" in line for line in carried), lines
    for line, name in zip(carried[1:], ("ring", "flight", "object_store"), strict=True):
        assert f"{name}: Config(transport='{name}') asks for it" in line, line


def test_metrics_appear_at_the_prometheus_endpoint_and_a_log_has_lines_with_what_is_left_and_what_was_paid(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LOG_S", 0.0)
    # What operators cost is known by the sample that a job begins with.
    monkeypatch.setattr(job_order, "WAITED_S", ENDS_S)
    config = pecan.Config(order_folder="", sample_seconds=2)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(1000)), name="seen", config=config)
    pipe = pipe.map(WaitLog(0.001), on="i", name="slow").map(half, on="i", name="quick").batch(10)
    wanted = {"pecan_batches_total", "pecan_elements_total", "pecan_bytes_total", "pecan_wait_ratio"}
    wanted |= {"pecan_wait_seconds_total", "pecan_worker_elements_total"}
    wanted |= {"pecan_cost_dollars_total", "pecan_epochs_total", "pecan_epoch_cost_dollars"}
    wanted |= {"pecan_workers", "pecan_workers_wanted", "pecan_batch_seconds", "pecan_decisions_total"}  # of windows
    paid, said, lacks = "pecan_operator_cost_dollars_total", "", set(wanted)

    def all_there() -> bool:
        found = metrics_of("seen-metrics")
        lacks.clear()
        lacks.update(
            wanted - {name for name, _ in found}, {"slow", "quick"} - {tag for name, tag in found if name == paid}
        )
        return not lacks

    workers = pecan.AutoWorkers(max_local=1, max_remote=0, prices=Prices(3600.0, 1.0), window_batches=10, window_s=1.5)
    with pipe.iter_batches(epochs=1000, workers=workers, job="seen-metrics") as it:
        next(it)

        def go_on() -> bool:
            nonlocal said
            for _ in range(10):
                next(it)
            said += capfd.readouterr().err
            return all_there() and ", $" in said

        until(go_on, lambda: f"the metrics lack {sorted(lacks)}, and it was said: {said[-300:]}")
    found = metrics_of("seen-metrics")
    assert 'pipeline="seen"' in scraped()
    slow, quick = found[paid, "slow"], found[paid, "quick"]
    assert found["pecan_cost_dollars_total", "host"] > slow + quick > slow > quick > 0, found
    assert found["pecan_cost_dollars_total", "host"] > found["pecan_epoch_cost_dollars", "host"] > 0, found
    line = r"^pecan seen: \d+ of 100000 batches, \d+\.\d/s, .* workers .*, \$\d+\.\d{4}, [\d:]+ left$"
    assert re.search(line, said, re.MULTILINE) and "\r" not in said, said


def outputs(client: Any, code: str) -> list[tuple[str, Any]]:
    """Run a cell; return what it has shown, by kind."""
    found: list[tuple[str, Any]] = []
    reply = client.execute_interactive(
        code, timeout=ENDS_S, output_hook=lambda message: found.append((message["msg_type"], message["content"]))
    )
    assert reply["content"]["status"] == "ok", reply["content"]
    return found


def test_the_notebook_of_the_examples_runs_with_a_bar_of_text(three_nodes: Any) -> None:
    jupyter_client: Any = pytest.importorskip("jupyter_client")
    pytest.importorskip("ipykernel")
    notebook = json.loads((ROOT / "examples" / "first_steps.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    env = {**os.environ, "RAY_ADDRESS": three_nodes.address}
    manager, kernel = jupyter_client.manager.start_new_kernel(env=env, startup_timeout=ENDS_S)
    try:
        outputs(kernel, "from pecan_ray.observe import progress\nprogress.TERMINAL_S = 0.0")
        shown = {cell.splitlines()[-1]: outputs(kernel, cell) for cell in cells}
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)
    results = {
        last: content["data"] for last, said in shown.items() for kind, content in said if kind == "execute_result"
    }
    assert ".batch(64" in results["pipe"]["text/html"]
    explained = results["pipe.explain()"]["text/plain"]
    assert not explained.startswith("'") and len(explained.splitlines()) > 3, "a text as it prints, no literal"
    assert results["seen"]["text/plain"] == "1024" and results["rest"]["text/plain"] == "256"
    told = results["batches.report()"]["text/html"]
    assert "<b>pecan job first-steps" in told and "bottleneck" in told
    bar = "".join(content["text"] for _, content in shown["seen"] if content.get("name") == "stderr")
    lines = [line for line in bar.split("\r") if line.startswith("pecan first-steps: ")]
    assert len(set(lines)) > 1 and "16/16 [" in lines[-1], "it rewrites itself"
    pace = r"batches/s, \d+ elements/s, waiting \d+%, \d+ of \d+ workers \(\d+ local, \d+ remote\)"
    assert re.search(pace, bar), bar
    assert bar.endswith("\n"), "the cursor is left on a fresh line"
    assert not [kind for said in shown.values() for kind, _ in said if "display_data" in kind], "no widget"
    assert all(not cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"), "it is kept clean"
