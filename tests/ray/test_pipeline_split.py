"""The last operators of remote workers, run where their batches arrive: on three raylets, by Flight."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from tests.ray.conftest import ROOT
from tests.ray.user_programs import environment_at, no_ray_folder
from tests.ray.waiting import ENDS_S
from tests.ray.workers import ONE_BY_ONE, kill_controller, lose, maker, told

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS = 320
SIDE = 64
CUT_ROW = 8 + SIDE * SIDE * 3
"""Bytes of a row as it travels: its number, and pixels of one byte, which are floats of four behind the cut."""
FLOAT_ROW = 8 + SIDE * SIDE * 3 * 4
MEANS = np.array([0.25, 0.5, 0.75], np.float32)


def picture(number: Any) -> Any:
    return np.random.default_rng(int(number)).integers(0, 256, (SIDE, SIDE, 3), np.uint8)


def to_float(image: Any) -> Any:
    return image.astype(np.float32) / 255


def normalize(image: Any) -> Any:
    return (image - MEANS) / np.float32(0.3)


def pictures(make: Any = picture, last: Any = normalize, size: int = 16, **config: Any) -> pecan.PecanPipeline:
    """Photographs as a decoder gives them, as floats, and their numbers."""
    config = {"split_pipeline": "always", "reorder": "off"} | config
    pipe = pecan.PecanPipeline(
        pecan.sources.Arrays(i=np.arange(ROWS), image=np.arange(ROWS)), name="pictures", config=pecan.Config(**config)
    )
    return pipe.map(make, on="image", name="decode").map(to_float, on="image").map(last, on="image").batch(size)


def check(batches: list[Any], epochs: int = 1, last: Any = normalize) -> None:
    """Check that each photograph has come once in each epoch, with the bits that one process gives it."""
    found = sorted(int(i) for batch in batches for i in batch["i"])
    assert found == sorted(list(range(ROWS)) * epochs)
    for batch in batches:
        assert batch["image"].dtype == np.float32
        for i, image in zip(batch["i"], batch["image"], strict=True):
            assert image.tobytes() == last(to_float(picture(i))).tobytes()


def test_where_a_gigabyte_costs_money_a_pipeline_is_cut_by_itself_and_each_bit_is_as_in_one_process() -> None:
    """A gigabyte that costs more than an hour of a host is worth a cast, whatever the link."""
    prices = pecan.placement.Prices(1.0, 0.5, transfer_per_gb=10.0)
    workers = pecan.AutoWorkers(max_local=0, min_remote=1, max_remote=1, prices=prices)
    with pictures(split_pipeline="auto").iter_batches(workers=workers) as batches:
        kept = list(batches)
        report = batches.report()
    check(kept)
    assert all(batch["image"].flags.writeable for batch in kept)
    assert report.sent_bytes("remote") == ROWS * CUT_ROW and " and $10 for a GB" in told(report)
    assert "to_float, normalize run where batches arrive: a row has 12,288 bytes there and 49,152" in told(report)
    assert f"batches: {report.sent_bytes('remote') / 1e6:,.1f} MB from remote workers, " in str(report)
    assert report.cost is not None
    assert report.cost.transfer == pytest.approx(ROWS * CUT_ROW / 1e9 * 10.0)


def test_a_killed_worker_and_a_killed_controller_change_nothing_about_a_cut(tmp_path: Path) -> None:
    options: dict[str, Any] = {"workers": pecan.Workers(local=0, remote=2), "epochs": 2, "job": "cut"}
    with pictures(journal=tmp_path).iter_batches(**options, **ONE_BY_ONE) as batches:
        kept = [next(batches) for _ in range(3)]
        lose(batches, maker(batches))
        kept += [next(batches) for _ in range(3)]
        kill_controller("cut")
        kept += list(batches)
        report = batches.report()
    check(kept, epochs=2)
    # Rows may travel twice: of a worker that is late, and of one that is lost.  Any that went as floats would be odd.
    rows, odd = divmod(report.sent_bytes("remote"), CUT_ROW)
    assert report.workers_lost == 1 and odd == 0 and rows >= 2 * ROWS


def sometimes_wide(number: Any) -> Any:
    image = picture(number)
    return image.astype(np.uint16) if number == ROWS // 2 else image


def test_an_element_of_another_dtype_sends_the_operators_back_to_the_workers() -> None:
    """Bytes and 16-bit numbers become floats before they are batched; as they are they would not fit together."""
    options: dict[str, Any] = {"workers": pecan.Workers(local=0, remote=1), "order": "relaxed", "epochs": 2}
    with pictures(sometimes_wide).iter_batches(**options) as batches:
        check(list(batches), epochs=2)
        report = batches.report()
    assert "to_float, normalize were left to the trainer, but a value is uint16[64, 64, 3]" in told(report)
    assert "it is replaced by one that runs all operators itself" in told(report)


THROTTLED = "ip link set lo up && tc qdisc add dev lo root tbf rate 200mbit burst 256kb latency 1s && exec "
"""A network whose nodes, all on its loopback, reach each other with 25 MB/s, which batches of 3 MB show."""
EPOCHS = 10
"""Epochs of 16 MB as floats, of which four tell what a link carries."""
ON_A_SLOW_LINK = """
import json
import ray
from ray.cluster_utils import Cluster
import pecan_ray as pecan
from tests.ray.conftest import FEW_PROCESSES, FREE_PORTS
from tests.ray.test_pipeline_split import EPOCHS, check, pictures, rooted
from tests.ray.workers import told

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **FREE_PORTS, **FEW_PROCESSES})
cluster.add_node(num_cpus=1)
ray.init(address=cluster.address)
pipe = pictures(split_pipeline="auto", last=rooted, size=64)
with pipe.iter_batches(workers=pecan.Workers(local=0, remote=1), epochs=EPOCHS) as batches:
    kept = list(batches)
    report = batches.report()
check(kept, epochs=EPOCHS, last=rooted)
print(json.dumps([report.sent_bytes("remote"), told(report)]))
ray.shutdown()
cluster.shutdown()
"""


def in_slow_network(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    in_network = ["unshare", "-rn", "sh", "-c", f'{THROTTLED} "$@"', "-", *command]
    return subprocess.run(in_network, capture_output=True, text=True, timeout=ENDS_S, **options)


def rooted(image: Any) -> Any:
    """Take so many roots that ten gigabits a second would send floats sooner than a trainer makes them."""
    return np.sqrt(np.sqrt(np.sqrt(np.sqrt(np.sqrt(np.sqrt(np.sqrt(np.sqrt(np.sqrt(image + 1)))))))))


@pytest.mark.skipif(in_slow_network("true").returncode != 0, reason="no network of one's own, or no tc")
def test_a_pipeline_is_cut_once_a_link_has_shown_to_be_slow() -> None:
    with no_ray_folder() as own:
        done = in_slow_network(sys.executable, "-c", ON_A_SLOW_LINK, env=environment_at(None, **own), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    sent, text = json.loads(done.stdout.splitlines()[-1])
    # A row travels either as floats or as bytes, so that the sum tells how many went each way.
    as_floats, odd = divmod(sent - EPOCHS * ROWS * CUT_ROW, FLOAT_ROW - CUT_ROW)
    assert odd == 0 and ROWS <= as_floats <= (EPOCHS - 1) * ROWS, (sent, text)
    (speed,) = re.findall(r"rooted run where batches arrive: .* at (\d+) MB/s", text)
    assert 0 < int(speed) < 50, "a busy machine is slower than its network, and none is faster"
