"""What a node's actor answers to other nodes, without Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pecan_ray.cache.fetch_turns import Fetcher
from pecan_ray.options import MIB, Cache
from pecan_ray.runtime.cache_node import NodeBlocks
from pecan_ray.storage import SentBlock

ONE, OTHER = Fetcher("a", 1, 0), Fetcher("b", 1, 0)


def test_whoever_misses_a_block_is_told_who_fetches_it_until_it_has_come_or_is_not_kept(tmp_path: Path) -> None:
    node = NodeBlocks(Cache(tmp_path, source_bytes=64 * MIB))
    assert node.turns(["x", "y"], ONE) == ({}, {})
    assert node.turns(["x", "y", "z"], OTHER) == ({}, {"x": ONE, "y": ONE})
    node.put(SentBlock("x", "s3://data", b"bytes", 7, shared=True), ())
    node.give_up(["y", "z"], ONE)
    assert node.turns(["x", "y", "z"], ONE) == ({"x": 7}, {"z": OTHER})
    node.put(SentBlock("z", "s3://data", b"bytes", 7), (("s3://data", 0),))
    assert node.turns(["z"], ONE) == ({}, {}), "nobody waits for it"


def test_it_tells_of_its_processes_and_of_who_reads(tmp_path: Path) -> None:
    node = NodeBlocks(Cache(tmp_path, source_bytes=64 * MIB))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert node.runs(process.pid)
        process.communicate(b"\n")
    assert not node.runs(process.pid)
    assert node.reads("one", ["s3://data"]) == () and node.reads("two", ["s3://data"]) == ("s3://data",)
