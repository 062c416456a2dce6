"""Why a worker's process ended, in one line: out of what Ray says, and of what the process wrote last."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from pecan_ray.job.events import DIED

# Bytes of a log's end in which the last words of a process are looked for: the log itself may have gigabytes.
TAIL_BYTES = 16 << 10
# Of these words in an error, which has several workers' words and its own: about four lines of a terminal.
MOST_CHARACTERS = 300
_MEMORY = re.compile(r"Memory on the node .*? was ([\d.]+) ?GB(?: used)? ?/ ?([\d.]+) ?GB", re.DOTALL)
_SHORT_OF_MEMORY = re.compile(r"running low on memory|memory pressure|OUT_OF_MEMORY")


def why_it_died(message: str, pid: int | None) -> str:
    """Return why a worker's process ended.  `message`: Ray's words about its actor; `pid`: of a process of this
    node."""
    # First, because a process that is killed for memory writes nothing about it.
    memory = killed_for_memory(message)
    if memory:
        return memory
    words = "" if pid is None else last_line(_logs(), pid)
    return f"{DIED}; it wrote last: {words}" if words else DIED


def why_it_ended(name: str) -> str:
    """Return why the newest actor of a name ended for which nobody waited, as far as Ray knows; empty: it is not known.

    Where a node is short of memory Ray ends first what it can start again, the job's controller and keeper among them,
    and with these their workers: nobody is there to be told.
    """
    dead: Any = ray._private.state.actors(None, None, "DEAD")
    found = [one for one in dead.values() if one["Name"] == name]
    newest = max(found, key=lambda one: int(one["EndTime"]), default=None)
    return "" if newest is None else killed_for_memory(str(newest["DeathCause"]))


def killed_for_memory(message: str) -> str:
    """Return in one line that a worker was killed for memory, the sizes, and what to change; empty: it was not.

    Ray's own words about it have dozens of lines, and name every process of the node.
    """
    found = _MEMORY.search(message)
    if found is None and _SHORT_OF_MEMORY.search(message) is None:
        return ""
    sizes = f", of whose {float(found[2]):.1f} GB {float(found[1]):.1f} were used" if found else ""
    return (
        f"Ray killed its process, since its node is short of memory{sizes}: run fewer workers there, lower "
        "Config(threads_per_worker=..., ring_bytes=...), or raise Config(cpus_per_worker=...)"
    )


def last_line(logs: Path, pid: int) -> str:
    """Return what a worker's process has written last to standard error; empty: nothing, or on another node."""
    # Ray names these files worker-WORKER-JOB-PID.err.
    for path in sorted(logs.glob(f"worker-*-{pid}.err")):
        # Lines that begin with a colon are Ray's marks for its own log monitor, and not the
        # process's words.
        lines = [line for line in _tail(path) if line.strip() and not line.startswith(":")]
        if lines:
            return lines[-1].strip()[:MOST_CHARACTERS]
    return ""


def _tail(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            yield from file.read().decode(errors="replace").splitlines()
    except OSError:
        return


def _logs() -> Path:
    node: Any = ray._private.worker._global_node
    return Path(node.get_logs_dir_path())
