"""What a job tells while it runs: a bar on a terminal, a line a minute in a log."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.observe import progress
from pecan_ray.placement import Prices
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")


def numbers(progress: bool | None = None) -> pecan.PecanPipeline:
    config = pecan.Config(progress=progress)
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(40)), name="bar", config=config).batch(4)


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "TERMINAL_S", 0.0)
    with numbers(progress=True).iter_batches(epochs=2, workers=pecan.Workers(local=1)) as batches:
        assert len(list(batches)) == 20
    said = capfd.readouterr().err
    assert "pecan bar: 100%|" in said and "20/20 [" in said, said
    assert re.search(r"batches/s, \d+ elements/s, waiting \d+%, 1 of 1 workers \(1 local, 0 remote\)", said), said
    assert said.endswith("\n"), "the cursor is left on a fresh line"


def test_a_log_has_whole_lines_with_what_is_left_and_what_was_paid(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LOG_S", 0.0)
    workers = pecan.AutoWorkers(max_local=1, max_remote=0, prices=Prices(3600.0, 1.0))
    said = ""
    with numbers().iter_batches(epochs=1000, workers=workers) as batches:

        def paid() -> bool:
            nonlocal said
            next(batches)
            said += capfd.readouterr().err
            return ", $" in said

        until(paid, "no dollars are told")
    line = r"^pecan bar: \d+ of 10000 batches, \d+\.\d/s, .* workers .*, \$\d+\.\d{4}, [\d:]+ left$"
    assert re.search(line, said, re.MULTILINE), said
    assert "\r" not in said
