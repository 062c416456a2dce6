"""A cluster that encrypts its traffic (RAY_USE_TLS): batches travel by encrypted Flight too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.ray.conftest import ROOT
from tests.unit.transport.test_flight_tls import make_certificates

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]

PROGRAM = """
import numpy as np
import ray
import pecan_ray as pecan
from pecan_ray.transport.choice import FlightAddress

real, used = FlightAddress.location, []
FlightAddress.location = property(lambda address: used.append(real.fget(address)) or used[-1])
ray.init(num_cpus=2, include_dashboard=False)
pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(4000)), name="tls", config=pecan.Config(transport="flight"))
with pipe.map(lambda i: np.full(1000, i), on="i").batch(8).iter_batches(workers=pecan.Workers(local=1)) as batches:
    seen = sorted(int(row[0]) for batch in batches for row in batch["i"])
    told = " ".join(event.text for event in batches.report().events)
assert seen == list(range(4000))
assert "by flight" in told and "object_store" not in told, told
assert used and all(location.startswith("grpc+tls://") for location in used), used
print("all of them, encrypted")
"""


def test_batches_travel_by_encrypted_flight_where_the_cluster_encrypts(tmp_path: Path) -> None:
    find_address: Any = ray.util.get_node_ip_address
    address = find_address()
    certificates = make_certificates(tmp_path / "cluster", f"127.0.0.1,IP:{address},DNS:localhost")
    env = {**os.environ, **certificates, "RAY_ADDRESS": "local", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert "all of them, encrypted" in done.stdout, done.stderr
