"""What `pecan doctor` says of a machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pecan_ray.cli import main
from pecan_ray.errors import ClusterError
from pecan_ray.observe.diagnostics import (
    ROWS,
    check_transport,
    cpus,
    descriptors,
    free_bytes,
    shared_memory,
    temporary_folder,
)
from pecan_ray.options import TransportChoice

GIB = 1 << 30


def test_what_is_missing_or_broken_is_told_with_what_to_do(tmp_path: Path) -> None:
    for well in (
        cpus(2, 8),
        shared_memory(True, "memory files are available", GIB),
        descriptors(1024),
        descriptors(-1),
        temporary_folder(tmp_path, 2 * GIB),
    ):
        assert not well.suggestion and str(well).startswith("ok ")
    assert "two or more" in cpus(1, 8).suggestion
    assert "object store" in shared_memory(False, "memory files need Linux", GIB).suggestion
    assert "--shm-size" in shared_memory(True, "", 64 << 20).suggestion
    assert "there is no /dev/shm" in str(shared_memory(True, "", None))
    assert "ulimit -n" in descriptors(256).suggestion
    assert "Make room" in temporary_folder(tmp_path, 1 << 20).suggestion
    assert "TMPDIR" in temporary_folder(tmp_path / "none", None).suggestion
    assert free_bytes(tmp_path / "none") is None

    def broken(transport: TransportChoice) -> tuple[int, Sequence[str]]:
        raise ClusterError("its port cannot be reached.")

    assert not check_transport("ring", lambda _: (ROWS, ["ring: one node"])).suggestion
    assert "please report" in check_transport("ring", lambda _: (ROWS - 1, ["ring"])).suggestion
    assert str(check_transport("flight", broken)).startswith(
        "wrong transport flight: its port cannot be reached. Until then"
    )


def test_the_command_looks_at_the_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--without-ray"])
    lines = capsys.readouterr().out.splitlines()
    found = [line[6:].partition(":")[0] for line in lines]
    assert found[:5] == ["versions", "CPUs", "shared memory", "open files", "temporary files"] and len(lines) == 6
    assert status == int(any(line.startswith("wrong") for line in lines))


def test_few_files_are_found_by_a_program_that_may_open_few() -> None:
    command = f'ulimit -n 256; exec "{sys.executable}" -m pecan_ray.cli doctor --without-ray'
    ended = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True)
    assert ended.returncode == 1 and "wrong open files: 256 for each process. Raise the limit" in ended.stdout
