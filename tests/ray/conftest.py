"""Clusters of one node and of three nodes (three raylets) on this machine, one at a time."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import ray
from ray.cluster_utils import Cluster

from tests.flaky_http import FlakyProxy
from tests.node_start import tried_twice
from tests.object_stores import reaching_s3, s3_bucket, serving_s3

ROOT = Path(__file__).resolve().parents[2]
FREE_PORTS: dict[str, Any] = {"dashboard_port": 0, "dashboard_agent_listen_port": 0, "include_dashboard": False}
"""Of a head: other Rays may run on this machine, and other processes of the tests do."""
FEW_PROCESSES = {"no_monitor": True, "include_log_monitor": False}
"""Of a head on which nobody looks for logs or nodes that an autoscaler could bring: each takes a second of CPU."""


class Bucket(NamedTuple):
    """An S3 with an empty bucket `data`: where it is, and the proxy by which all processes of a cluster reach it."""

    endpoint: str
    proxy: FlakyProxy
    cluster: Any


class Clusters:
    """The cluster that is up: started for the first module that needs it, ended for one that needs another."""

    def __init__(self) -> None:
        self._cpus: tuple[int, ...] = ()
        self._cluster: Any = None
        self._surroundings = ExitStack()
        self._bucket: Bucket | None = None

    def of(self, *cpus: int) -> Any:
        """Return a cluster of nodes with so many CPUs each, the head first, that this process is connected to."""
        if self._cpus != cpus or self._bucket is not None or not self._sound():
            self.end()
            self._begin(cpus)
        return self._cluster

    def with_bucket(self) -> Bucket:
        """Return a node with four CPUs whose processes reach a bucket, as this process does meanwhile."""
        if self._bucket is None or not self._sound():
            self.end()  # raylets hand the environment of their start on to workers
            endpoint = self._surroundings.enter_context(serving_s3())
            proxy = self._surroundings.enter_context(reaching_s3(endpoint))
            self._surroundings.enter_context(s3_bucket(endpoint))
            self._begin((4,))
            self._bucket = Bucket(endpoint, proxy, self._cluster)
        return self._bucket

    def end(self) -> None:
        """Leave and end what is up."""
        if self._cluster is not None:
            leave: Any = ray.shutdown
            leave()
            self._cluster.shutdown()
            self._cluster = self._bucket = None
        self._surroundings.close()

    def _begin(self, cpus: tuple[int, ...]) -> None:
        # Raylets and their workers find the checkout, whoever connects to them.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        head, *others = ({"num_cpus": count, "object_store_memory": 200 << 20} for count in cpus)
        head |= FREE_PORTS | FEW_PROCESSES
        self._cpus, self._cluster = cpus, tried_twice(partial(Cluster, initialize_head=True, head_node_args=head))
        for node, market in zip(others, itertools.cycle(("spot", "ondemand"))):
            tried_twice(partial(self._cluster.add_node, labels={"market": market}, **node))
        ray.init(address=self._cluster.address, namespace="pecan", log_to_driver=False)
        self._cluster.wait_for_nodes()

    def _sound(self) -> bool:
        """Tell whether the tests before have left the nodes that were there, and this process connected."""
        nodes: Any = ray.nodes
        return ray.is_initialized() and sum(node["Alive"] for node in nodes()) == len(self._cpus)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let files with clusters of their own come first, and those behind each other that share one.

    A file stays whole: where tests run in several processes, each takes whole files in this order.
    """
    wanted: dict[Path, list[bool]] = {}
    for item in items:
        shared = [name in getattr(item, "fixturenames", ()) for name in ("three_nodes", "one_node", "bucket")]
        wanted[item.path] = max(shared, wanted.get(item.path, shared))
    items.sort(key=lambda item: wanted[item.path])


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for temporary files and Ray's, so that no process takes those of another one for its own.

    What pytest has stays where it is: paths of sockets may not be long.
    """
    tmp_path_factory.getbasetemp()
    with (
        # Short: below it lie sockets, whose paths have 107 bytes at most.
        tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", folder)
        patch.setenv("RAY_TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session")
def clusters(temporary_folder: None) -> Iterator[Clusters]:
    """What modules with the same needs share: a cluster takes longer to start than most tests."""
    found = Clusters()
    yield found
    found.end()


@pytest.fixture(scope="module")
def bucket(clusters: Clusters) -> Bucket:
    """A bucket `data` on a real S3 server, and a node whose processes reach it; each module has a folder of its own."""
    return clusters.with_bucket()


@pytest.fixture(scope="module")
def three_nodes(clusters: Clusters) -> Any:
    """A head (the trainer's node) and two remote nodes, of the labels market=spot and ondemand; connected to."""
    return clusters.of(4, 4, 4)


@pytest.fixture(scope="module")
def one_node(clusters: Clusters) -> Any:
    """A single node with two CPUs, connected to."""
    return clusters.of(2)


@pytest.fixture
def no_actor_left() -> Iterator[None]:
    """Checks that a test leaves no actor of ours alive; those that it leaves are ended, so that it alone fails."""
    yield
    from pecan_ray.runtime.kept_jobs import end_kept
    from tests.ray.waiting import until

    end_kept()  # of pipelines that something still refers to
    try:
        until(lambda: not living_actors(), lambda: f"{living_actors()} are still alive")
    except AssertionError:
        end_actors()
        raise


def end_actors() -> None:
    """End all actors that have names."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        with contextlib.suppress(ValueError):  # it has ended meanwhile
            kill: Any = ray.kill
            kill(ray.get_actor(actor["name"], namespace=actor["namespace"]))


def living_actors() -> list[str]:
    """Names of the live actors that are not Ray's own."""
    names = [str(actor["name"]) for actor in ray.util.list_named_actors(all_namespaces=True)]
    return [name for name in names if name != "AutoscalingCoordinator"]  # of Ray Data, for as long as the cluster lives
