"""Which Ray a program joins, what is said where that does not let it in, and on which nodes workers are made."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray

from pecan_ray.errors import ClusterError
from pecan_ray.plan.prices import Prices, PriceTier
from pecan_ray.runtime import addresses, cluster
from pecan_ray.runtime.addresses import LOCAL, probe_address, resolve_cluster
from pecan_ray.runtime.cluster import is_token_error
from pecan_ray.runtime.placement_groups import reserved_cpus
from pecan_ray.runtime.price_tiers import sort_by_price
from pecan_ray.runtime.worker import NICE
from tests.ray.waiting import ENDS_S

grpc: Any = pytest.importorskip("grpc")


def test_a_cluster_that_asks_for_its_token_is_told_from_one_that_is_not_there() -> None:
    refused = ConnectionError("Failed to connect to Ray cluster")
    refused.__cause__ = RuntimeError("RPC error: InvalidAuthToken: Authentication token is missing or incorrect")
    assert is_token_error(refused)
    unauthenticated = getattr(ray.exceptions, "AuthenticationError", None)
    assert unauthenticated is None or is_token_error(unauthenticated("no token"))
    assert not is_token_error(ConnectionRefusedError(111, "Connection refused"))


@pytest.fixture
def grpc_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that answers as Ray does, however late."""
    monkeypatch.setattr(addresses, "KNOCK_S", ENDS_S)
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


@pytest.fixture(params=[b"HTTP/1.1 400 Bad Request\r\n\r\n", None], ids=["another server", "frozen"])
def other_address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a process that is no Ray, or one that accepts connections and says nothing."""
    monkeypatch.setattr(addresses, "KNOCK_S", 0.3 if request.param is None else ENDS_S)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(1000)
            connection.sendall(request.param)
            connection.close()

        if request.param is not None:  # the system accepts connections for a process that does not
            threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which `ray start` leaves the address of a cluster."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray" / "ray_current_cluster"


def test_a_recorded_cluster_that_answers_is_joined(record: Path, grpc_address: str) -> None:
    assert resolve_cluster(None) == LOCAL
    assert not cluster.runs_here()
    record.write_text(grpc_address)
    assert resolve_cluster(None) == resolve_cluster("") == grpc_address
    assert resolve_cluster("auto") == "auto"
    for address in ("auto", "local", ""):
        probe_address(address)  # what is no host and port is left to Ray
    assert cluster.runs_here()


def test_for_a_recorded_cluster_that_does_not_answer_one_is_started_and_that_is_said(
    record: Path, other_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    record.write_text(other_address)
    with caplog.at_level(logging.WARNING):
        assert resolve_cluster(None) == LOCAL
    assert f"names a cluster at {other_address} that does not answer" in caplog.text
    record.write_text("127.0.0.1:1")
    assert not cluster.runs_here()
    assert resolve_cluster("local") == LOCAL


def test_a_named_cluster_that_does_not_answer_is_refused(
    record: Path, other_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in (other_address, "auto"):
        record.write_text("127.0.0.1:1")
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ClusterError, match=f"Ray cannot be reached at RAY_ADDRESS={address}"):
            cluster.attach()


def test_ray_client_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:1")
    with pytest.raises(ClusterError, match=r"Ray Client .* is not supported.*ray job submit"):
        cluster.attach()
    monkeypatch.delenv("RAY_ADDRESS")
    client: Any = ray.util.client.ray
    monkeypatch.setattr(client, "is_connected", lambda: True)
    with pytest.raises(ClusterError, match="Ray Client"):
        cluster.attach()


PACKAGE = Path(__file__).resolve().parents[3] / "pecan_ray"
MAKES_ACTORS = re.compile(r"\bray\.remote\b|^from ray import .*\bremote\b|\bscheduling_strategy=", re.MULTILINE)
"""What makes actors and tasks, or says where they are placed."""


def test_actors_and_tasks_are_made_in_one_place() -> None:
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if MAKES_ACTORS.search(path.read_text())}
    assert files == {"runtime/actors.py"}, "make these there: a placement group would capture them"


def group(name: str, state: str, *bundles: tuple[str, str, float]) -> dict[str, Any]:
    """Return a placement group as Ray tells of it; of each bundle a node, a resource, and how much of it."""
    return {
        "name": name,
        "state": state,
        "bundles": {number: {resource: much} for number, (_, resource, much) in enumerate(bundles)},
        "bundles_to_node_id": {number: node for number, (node, _, _) in enumerate(bundles) if node},
    }


def test_reserved_cpus_are_those_of_the_nodes_in_question() -> None:
    table = {
        "a1": group("trial", "CREATED", ("head", "CPU", 1.0), ("other", "CPU", 2.0), ("head", "GPU", 1.0)),
        "b2": group("", "CREATED", ("head", "CPU", 0.5)),
        "c3": group("gone", "REMOVED", ("head", "CPU", 4.0)),
        "d4": group("waits", "PENDING", ("", "CPU", 4.0)),
    }
    assert reserved_cpus(table, {"head"}) == {"trial": 1.0, "b2": 0.5}
    assert reserved_cpus(table, {"other"}) == {"trial": 2.0}


NODES = [{"market": "spot", "zone": "a"}, {"market": "ondemand", "zone": "a"}, {"zone": "b"}]
REMOTE = {"pecan-role": "remote"}
SPOT = PriceTier("spot", 0.1, 4)
DEAR = PriceTier("far", 2.0, 4, {"zone": "b"})
ALL_TIERS = (DEAR, PriceTier("ondemand", 0.3, 1), SPOT)


@pytest.mark.parametrize(
    ("tiers", "selector", "tried", "costs"),
    [
        (
            ALL_TIERS,
            REMOTE,
            [{"market": "spot"}, {"market": "ondemand"}, {"zone": "!in(b)"}, {"zone": "b"}],
            [0.1, 0.3, 2.0],
        ),
        ((SPOT,), {"market": "ondemand"}, [], [0.1, 0.4, 0.4]),
        ((), REMOTE, [], [0.4, 0.4, 0.4]),
        ((PriceTier("nowhere", 0.1, 4),), REMOTE, [], [0.4, 0.4, 0.4]),
    ],
    ids=["the cheapest first", "of other nodes", "none", "nowhere"],
)
def test_tiers_of_the_nodes_that_may_be_used_are_tried_by_their_price_and_a_worker_costs_what_its_node_costs(
    tiers: tuple[PriceTier, ...], selector: dict[str, str], tried: list[dict[str, str]], costs: list[float]
) -> None:
    prices = Prices(1.0, 0.4, tiers)
    assert sort_by_price(selector, prices, NODES) == [selector | one for one in tried]
    assert [prices.at(node) for node in NODES] == costs
    assert sort_by_price(selector, None, NODES) == []


def test_a_ray_that_starts_here_has_its_actors_answer_beside_busy_programs_unless_the_user_says_otherwise() -> None:
    assert cluster._actors_nice({}) == {"_system_config": {"worker_niceness": cluster.ACTORS_NICE}}
    assert cluster._actors_nice({cluster.RAY_NICENESS: "15"}) == {}
    assert cluster.ACTORS_NICE + NICE == 19, "workers have the lowest priority that there is"
