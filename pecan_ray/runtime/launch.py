"""Which rank of a launch this process is, if a launcher or a framework says so.

Decisions: docs/decisions/running-on-ray.md.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import dataclass
from typing import Any

import ray

logger = logging.getLogger("pecan_ray")

TASKS_OF_LAUNCHERS = {
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPI": ("PMI_RANK", "PMI_SIZE"),
    "Horovod": ("HOROVOD_RANK", "HOROVOD_SIZE"),
}
"""Launchers whose tasks need not train together, with the variables of a task's number and of how many there are.

A sweep is started like this, too, and so are the nodes of a Ray cluster, whose variables reach each program on them.
"""

TRAINING_TASKS = ("chief", "worker")
"""Types of tasks in TF_CONFIG that train together, in the order of their ranks."""

_warned: set[str] = set()
"""Launchers of which this process has warned."""


@dataclass(frozen=True)
class Launch:
    """The place of this process among those that train together."""

    rank: int
    world_size: int
    run: str = ""
    """What tells the launch from others on the cluster; empty: unknown.  It is the same in all its processes."""


def launch() -> Launch | None:
    """Return this process's place by torch.distributed, JAX, RANK and WORLD_SIZE, or TF_CONFIG; None: none says one."""
    return _of_torch() or _of_jax() or _of_environment() or _of_tensorflow()


def warn_of_tasks(name: str) -> None:
    """Warn, once in a process, if it is one of several tasks of a launcher and a pipeline reads everything in each."""
    if is_ray_worker():
        return
    for launcher, variables in TASKS_OF_LAUNCHERS.items():
        numbers = _numbers(*variables)
        if numbers is None or numbers[1] < 2 or launcher in _warned:
            continue
        _warned.add(launcher)
        rank, world_size = variables
        logger.warning(
            f"{name}: this is process {numbers[0]} of the {numbers[1]} of {launcher}, and reads everything: nothing "
            "says whether they train together. If they do, pass "
            f'iter_batches(rank=int(os.environ["{rank}"]), world_size=int(os.environ["{world_size}"])), or set RANK '
            "and WORLD_SIZE; if each is to read everything, pass rank=0, world_size=1."
        )


def is_ray_worker() -> bool:
    """Tell whether this is a process of a Ray task or actor, whose environment is that of its node."""
    worker: Any = ray._private.worker
    return bool(worker.global_worker.mode == worker.WORKER_MODE)


def _of_torch() -> Launch | None:
    # Looked up and not imported: without this module the program trains with no ranks of torch.
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Launch(distributed.get_rank(), distributed.get_world_size(), _run())


def _of_jax() -> Launch | None:
    jax: Any = sys.modules.get("jax")  # to ask a JAX of one process for its processes would start its devices
    initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)  # JAX from 0.4.34 on has it
    if initialized is None or not initialized():
        return None
    return Launch(jax.process_index(), jax.process_count())


def _of_environment() -> Launch | None:
    # Decision 89: a task of Ray has the environment of its raylet, which a rank may have started.
    numbers = None if is_ray_worker() else _numbers("RANK", "WORLD_SIZE")
    return None if numbers is None else Launch(*numbers, _run())


def _of_tensorflow() -> Launch | None:
    """Return the place among the workers of a `tf.distribute.MultiWorkerMirroredStrategy`.

    An evaluator trains with nobody, and where there are parameter servers a coordinator deals out the data.
    """
    try:
        config: Any = None if is_ray_worker() else json.loads(os.environ.get("TF_CONFIG") or "null")
        cluster, task = config["cluster"], config["task"]
        tasks = [(kind, place) for kind in TRAINING_TASKS for place in range(len(cluster.get(kind, ())))]
        place = tasks.index((task["type"], int(task["index"])))
        port = next(str(cluster[kind][0]) for kind, _ in tasks).rpartition(":")[2]
    except (AttributeError, KeyError, TypeError, ValueError):  # it names no such task, as for an evaluator
        return None
    return None if "ps" in cluster or len(tasks) < 2 else Launch(place, len(tasks), port)


def _numbers(*variables: str) -> tuple[int, int] | None:
    rank, world_size = (os.environ.get(variable, "") for variable in variables)
    return (int(rank), int(world_size)) if rank.isdecimal() and world_size.isdecimal() else None


def _run() -> str:
    """Return the port at which the ranks of torch meet: the address may be spelled differently on each host."""
    return os.environ.get("MASTER_PORT", "")
