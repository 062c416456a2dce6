"""Clusters of one node and of three nodes (three raylets) on this machine, one at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[2]


class Clusters:
    """The cluster that is up: started for the first module that needs it, ended for one that needs another."""

    def __init__(self) -> None:
        self._cpus: tuple[int, ...] = ()
        self._cluster: Any = None

    def of(self, *cpus: int) -> Any:
        """Return a cluster of nodes with so many CPUs each, the head first, that this process is connected to."""
        if self._cpus != cpus or not self._sound():
            self.end()
            self._begin(cpus)
        return self._cluster

    def end(self) -> None:
        """Leave and end what is up."""
        if self._cluster is not None:
            leave: Any = ray.shutdown
            leave()
            self._cluster.shutdown()
            self._cluster = None

    def _begin(self, cpus: tuple[int, ...]) -> None:
        # Raylets and their workers find the checkout, whoever connects to them.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        head, *others = ({"num_cpus": count, "object_store_memory": 200 << 20} for count in cpus)
        self._cpus, self._cluster = cpus, Cluster(initialize_head=True, head_node_args=head)
        for node in others:
            self._cluster.add_node(**node)
        ray.init(address=self._cluster.address, namespace="pecan", log_to_driver=False)
        self._cluster.wait_for_nodes()

    def _sound(self) -> bool:
        """Tell whether the tests before have left the nodes that were there, and this process connected."""
        nodes: Any = ray.nodes
        return ray.is_initialized() and sum(node["Alive"] for node in nodes()) == len(self._cpus)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests with clusters of their own come first, and those behind each other that share one."""
    items.sort(key=lambda item: [name in getattr(item, "fixturenames", ()) for name in ("three_nodes", "one_node")])


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for temporary files and Ray's, so that no process takes those of another one for its own.

    What pytest has stays where it is: paths of sockets may not be long.
    """
    tmp_path_factory.getbasetemp()
    with (
        tempfile.TemporaryDirectory(prefix="tests-", ignore_cleanup_errors=True) as folder,
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
def three_nodes(clusters: Clusters) -> Any:
    """A head (the trainer's node) and two remote nodes, connected to."""
    return clusters.of(4, 4, 4)


@pytest.fixture(scope="module")
def one_node(clusters: Clusters) -> Any:
    """A single node with two CPUs, connected to."""
    return clusters.of(2)


@pytest.fixture
def no_actor_left() -> Iterator[None]:
    """Checks that a test leaves no actor of ours alive."""
    yield
    from tests.ray.waiting import until

    until(lambda: not living_actors(), "an actor of ours is still alive")


def living_actors() -> list[str]:
    """Names of the live actors in our namespace."""
    return [str(actor["name"]) for actor in ray.util.list_named_actors(all_namespaces=True)]
