"""Hugging Face's accelerate saves where a data set stands, and goes on from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan

accelerate: Any = pytest.importorskip("accelerate")

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

ROWS = 43


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["i"]]


def test_a_saved_state_goes_on_with_what_was_not_used(tmp_path: Path) -> None:
    def registered() -> tuple[Any, Any]:
        accelerator = accelerate.Accelerator(cpu=True)
        pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS)), name="accelerate").shuffle(20).batch(8)
        data = pipe.to_torch(epochs=2, device=accelerator.device, workers=pecan.Workers(local=1))
        accelerator.register_for_checkpointing(data)
        return accelerator, data

    accelerator, data = registered()
    running = iter(data)
    used = ids(next(running) for _ in range(3))
    accelerator.save_state(str(tmp_path / "saved"))
    data.close()
    other, rest = registered()
    other.load_state(str(tmp_path / "saved"))
    assert sorted(used + ids(rest)) == sorted(ids(rest)) == list(range(ROWS))
