"""Ranks that nobody has told their rank, and that no cluster waits for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json
import os

import numpy as np

import pecan_ray as pecan

pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(100)), name="launched").batch(10)
workers = pecan.Workers(local=1)
whole = pipe.iter_batches(rank=0, world_size=1, workers=workers)  # each validates before the first epoch
read = {"validation": [int(i) for batch in whole for i in batch["i"]]}
for epoch in range(2):
    read[f"epoch {epoch}"] = [int(i) for batch in pipe.iter_batches(workers=workers) for i in batch["i"]]
print(json.dumps(read))
"""


@pytest.mark.slow  # two programs start a Ray and meet there
def test_ranks_find_their_places_and_one_ray() -> None:
    launched: dict[str, Any] = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29517"}
    env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # a running cluster is found by a file in Ray's folder
        env |= {**launched, "PYTHONPATH": str(ROOT), "RAY_TMPDIR": folder}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM], env={**env, "RANK": rank}, stdout=-1, stderr=-1, text=True
            )
            for rank in "01"
        ]
        said = [one.communicate(timeout=150) for one in ranks]
    assert [one.returncode for one in ranks] == [0, 0], said
    reads = [json.loads(out.splitlines()[-1]) for out, _ in said]
    for read in reads:
        assert sorted(read["validation"]) == list(range(100)), "a rank that is given is obeyed"
    for epoch in ("epoch 0", "epoch 1"):
        parts = [set(read[epoch]) for read in reads]
        assert parts[0] | parts[1] == set(range(100)) and not parts[0] & parts[1]
        assert [len(read[epoch]) for read in reads] == [50, 50]
    assert not [line for _, err in said for line in err.splitlines() if "a Ray of its own" in line]
