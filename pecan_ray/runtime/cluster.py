"""Ray as this library uses it: attached to, never owned; workers placed by labels."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.core.generated import autoscaler_pb2, gcs_pb2

from pecan_ray.errors import ClusterError
from pecan_ray.job.host_names import names_of_nodes
from pecan_ray.job.room import Placement, Room
from pecan_ray.runtime.addresses import (
    LOCAL,
    probe_address,
    recorded_cluster,
    reject_ray_client,
    resolve_cluster,
    show_own_token,
)
from pecan_ray.runtime.launch import launch
from pecan_ray.runtime.local_rendezvous import connect_or_start
from pecan_ray.runtime.long_wait import LongWait
from pecan_ray.runtime.persistent_thread import call_in_persistent_thread
from pecan_ray.runtime.placement_groups import groups_on

logger = logging.getLogger(__name__)

NAMESPACE = "pecan"

RAY_NICENESS = "RAY_worker_niceness"
"""With what a user says what niceness a Ray that starts here gives its actors."""
ACTORS_NICE = 5
"""Niceness of actors in a Ray that we start: above workers, which add to it, and below the trainer.  Beside two
programs of niceness 0 on each CPU it is a seventh of that CPU; Ray's 15 is a sixtieth."""

_attaching = threading.Lock()
"""One thread connects this process, the others wait for it: Ray does not bear two calls of `ray.init` at a time."""

_connected_in: int | None = None
"""The process in which Ray was found connected: a forked child inherits the connection, but cannot use it."""


def attach(*, logs: bool = True, ranks: int = 1) -> bool:
    """Connect to the cluster at hand, or start a local one if there is none; `logs`: print what its actors print.

    `ranks`: how many processes must meet on it.  Returns whether a local cluster was started.  Raises `ClusterError` if
    an address is given (RAY_ADDRESS) and cannot be reached, if this process was forked from one that uses Ray, or if it
    uses Ray Client.
    """
    address = os.environ.get("RAY_ADDRESS")
    reject_ray_client(address)
    if ray.is_initialized():
        check_same_process()
    with _attaching:
        # Looked at under the lock, because another thread may have connected meanwhile.
        started = not ray.is_initialized() and _connect(address, logs, ranks)
    _let_python_have_sigterm()
    return started


def _connect(address: str | None, logs: bool, ranks: int) -> bool:
    """Connect to the cluster at hand, or start one, for all ranks on this machine; return whether it was started."""
    _check_working_directory()
    try:
        to, found = resolve_cluster(address), launch()
        with LongWait(_where(to)):
            if to != LOCAL:
                _join(None, logs)
                started = False
            # Decision 89: without a cluster the ranks of a launch meet at the Ray of one of them.
            elif not address and max(ranks, found.world_size if found else 1) > 1:
                started = _join_local(logs)
            else:
                _start(logs)
                started = True
    except Exception as error:  # Ray raises a bare one where its processes do not come up in time
        if is_token_error(error):
            raise ClusterError(
                f"The Ray cluster{f' at RAY_ADDRESS={address}' if address else ''} asks for its token, which this "
                "process has not shown, or has another one of. Set RAY_AUTH_MODE=token: the token is then read from "
                "RAY_AUTH_TOKEN, from the file that RAY_AUTH_TOKEN_PATH names, or from ~/.ray/auth_token."
            ) from error
        raise ClusterError(
            f"Ray cannot be reached{f' at RAY_ADDRESS={address}' if address else ''}: {error}. Start a cluster "
            "with `ray start --head`, correct or unset RAY_ADDRESS (then one is started on this machine), or run "
            "without Ray by iter_batches(debug=True)."
        ) from error
    logger.info("connected to Ray at %s", ray.get_runtime_context().gcs_address)
    return started


def _join(address: str | None, logs: bool) -> None:
    """Join a cluster; None: the one that RAY_ADDRESS names, or Ray's file."""
    if address is not None:
        show_own_token()
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=logs, logging_level=logging.WARNING)


def _start(logs: bool) -> None:
    """Start a Ray on this machine that lasts as long as this process, whichever thread needs it first."""

    def start() -> None:
        ray.init(
            address=LOCAL,
            namespace=NAMESPACE,
            log_to_driver=logs,
            logging_level=logging.WARNING,
            include_dashboard=False,
            **_actors_nice(os.environ),
        )

    # Ray's processes end with the thread that has started them, and a pipeline may run in any thread.
    call_in_persistent_thread(start, "pecan-ray")


def _actors_nice(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what lets controllers answer where everything else is busy, unless the user has said otherwise."""
    # Decision 221: at Ray's niceness of 15 a process beside four busy loops on two CPUs took minutes to start.
    return {} if RAY_NICENESS in environment else {"_system_config": {"worker_niceness": ACTORS_NICE}}


def _join_local(logs: bool) -> bool:
    """Join the Ray that another rank on this machine has started, or start it; return whether it was started."""

    def start() -> str:
        _start(logs)
        return str(ray.get_runtime_context().gcs_address)

    def join(address: str) -> bool:
        try:
            # Decision 102: Ray itself would try for a minute.
            probe_address(address)
        except OSError:
            return False
        _join(address, logs)
        return True

    return connect_or_start(start, join)


def is_token_error(error: BaseException | None) -> bool:
    """Tell whether a cluster has refused a connection for want of its token, by what an error came from."""
    rejects = getattr(ray.exceptions, "AuthenticationError", ())  # Ray 2.50 has none
    while error is not None:
        if isinstance(error, rejects) or "InvalidAuthToken" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _check_working_directory() -> None:
    """Raise `ClusterError` where the working directory is gone: Ray's processes cannot be started in it."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise ClusterError(
            "The working directory of this program was deleted, and Ray starts processes in it. Change into a folder "
            "that exists (os.chdir), or start the program again from there."
        ) from error


def _let_python_have_sigterm() -> None:
    """Put Python's handler of SIGTERM, which calls Ray's in turn, back in front.

    Ray's library has put one of its own before it that logs at once.  Where the signal meets a thread in the middle of
    a `free` that damages the heap, and the program is aborted at its end.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def attach_to_running(*, logs: bool = True) -> None:
    """Connect to the cluster at hand, as `attach` does; raises `ClusterError` where there is none."""
    if runs_here():
        attach(logs=logs)
        return
    raise ClusterError("no Ray cluster runs here: run this on a node of one, or set RAY_ADDRESS.")


def runs_here() -> bool:
    """Tell whether there is a cluster at hand that answers, or one is said to be."""
    if ray.is_initialized() or os.environ.get("RAY_ADDRESS"):
        return True
    recorded = recorded_cluster()
    try:
        if recorded:
            probe_address(recorded)  # of one that was killed the file that names it is left
    except OSError:
        return False
    return bool(recorded)


def _where(address: str) -> str:
    """Say in words which Ray `ray.init` tries."""
    return "Ray is being started on this machine" if address == LOCAL else f"Ray at {address} has not let us in yet"


def _note_fork() -> None:
    """In a child process: remember whose connection to Ray it has inherited, and leave that alone at its end."""
    global _connected_in, _attaching
    _attaching = threading.Lock()  # the thread that may have held it is not in the child
    if ray.is_initialized():
        _connected_in = os.getppid()
        # It would tell Ray, in the name of the parent, that the parent is gone.
        atexit.unregister(ray._private.worker.shutdown)
        # What Ray leaves to the interpreter's end waits for threads that a child does not have, and crashes.
        accessor = ctypes.py_object(ray._private.state.state._global_state_accessor)
        ctypes.pythonapi.Py_IncRef(accessor)
        # Of the handlers of a process's end this one comes first, and with it the last: Ray's wait for such threads.
        libc = ctypes.CDLL(None)
        if hasattr(libc, "on_exit"):  # with the code, as `atexit` has not
            libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)


os.register_at_fork(after_in_child=_note_fork)


def check_same_process() -> None:
    """Raise `ClusterError` in a process that was forked from one that uses Ray: every call would wait for ever."""
    if _connected_in is not None and _connected_in != os.getpid():
        raise ClusterError(
            f"process {os.getpid()} was forked from process {_connected_in}, which uses Ray, and cannot use that "
            "connection. Start processes by the spawn method (multiprocessing.get_context('spawn')), iterate in the "
            "process that made the iterator, or pass num_workers=0 to torch's DataLoader: pecan_ray has workers of "
            "its own."
        )


def connection() -> str:
    """Name the connection to Ray that this process has; empty if it has none."""
    return str(ray.get_runtime_context().get_job_id()) + this_node() if ray.is_initialized() else ""


def this_node() -> str:
    """Return the id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def this_process() -> str:
    """Return the id that Ray has given to this process: it names no other process, ever."""
    return str(ray.get_runtime_context().get_worker_id())


def process_exists(process: str, node: str) -> bool | None:
    """Tell whether Ray has missed a process that uses it on a node; None: it cannot tell.

    Ray's daemon on the node holds a connection to each such process, which ends with the process and not while it is
    stopped, or native code holds Python's lock; also ``ray.shutdown()`` ends it.
    """
    if node not in alive_nodes():
        return False
    connect = getattr(ray._private.state.state, "_connect_and_get_accessor", None)  # not in all versions of Ray
    found = None if connect is None else connect().get_worker_info(ray.WorkerID.from_hex(process))
    table: Any = gcs_pb2
    return None if found is None else bool(table.WorkerTableData.FromString(found).is_alive)


def session_name() -> str:
    """Return the name of the Ray session that this process is connected to."""
    asked = getattr(ray.get_runtime_context(), "get_session_name", None)
    if asked is not None:
        return str(asked())
    node: Any = ray._private.worker.global_worker.node  # Ray 2.50 has no public name for it
    return str(node.session_name)


def local_selector(node_id: str) -> dict[str, str]:
    """Return the label selector for workers on one node."""
    return {"ray.io/node-id": node_id}


def remote_selector(trainer_nodes: Sequence[str], labels: Mapping[str, str]) -> dict[str, str]:
    """Return the label selector for workers away from the trainers."""
    if labels:
        return dict(labels)
    # Where some nodes are marked for remote workers, the others are not meant for them.
    if any(node.get("Labels", {}).get("pecan-role") == "remote" for node in _available_nodes()):
        return {"pecan-role": "remote"}
    return {"ray.io/node-id": f"!in({','.join(trainer_nodes)})"}


def labels_of_nodes() -> list[dict[str, str]]:
    """Return the labels of the nodes that stay."""
    return [dict(node.get("Labels", {})) for node in _available_nodes()]


def labels_of(node_id: str) -> dict[str, str]:
    """Return the labels of a node; none of one that is not known."""
    return next((dict(one.get("Labels", {})) for one in _nodes() if one["NodeID"] == node_id), {})


def room_for(trainer_nodes: Sequence[str], selector: Mapping[str, str]) -> Room:
    """Return the CPUs of each of the trainers' nodes and of each present node that remote workers may run on."""
    alive = _available_nodes()
    cpus = {node["NodeID"]: float(node["Resources"].get("CPU", 0)) for node in alive}
    remote = tuple(cpus[node["NodeID"]] for node in alive if _matches(node.get("Labels", {}), selector))
    return Room(tuple(cpus.get(node, 1.0) for node in dict.fromkeys(trainer_nodes)), remote)


def cpus_of(node_id: str) -> float:
    """Return the CPUs that a node has for Ray; 1 for one that is not known."""
    return next((float(one["Resources"].get("CPU", 0)) for one in _nodes() if one["NodeID"] == node_id), 1.0)


@dataclass(frozen=True)
class SharedNodes:
    """The nodes that a job's workers may run on, as they are now."""

    by_placement: dict[Placement, tuple[str, ...]]
    """Ids, sorted; no local ones where trainers are on several nodes, among which local workers are dealt."""
    cpus: dict[str, float]


def nodes_for(trainer_nodes: Sequence[str], labels: Mapping[str, str]) -> SharedNodes:
    """Return the nodes for local and for remote workers."""
    selector = remote_selector(trainer_nodes, labels)
    alive = {str(node["NodeID"]): node for node in _available_nodes()}
    hosts = tuple(dict.fromkeys(trainer_nodes))
    local = hosts if len(hosts) == 1 and hosts[0] in alive else ()
    remote = tuple(sorted(key for key, node in alive.items() if _matches(node.get("Labels", {}), selector)))
    cpus = {key: float(alive[key]["Resources"].get("CPU", 0)) for key in dict.fromkeys((*local, *remote))}
    return SharedNodes({"local": local, "remote": remote}, cpus)


def draining_nodes() -> dict[str, float | None]:
    """Return the nodes that will be taken away, and in how many seconds each is gone; None: nobody has said.

    Ray is told so by `ray drain-node`, autoscalers, what watches a cloud's notices, and a node that gets SIGTERM.
    """
    # Decision 45: `ray.nodes` does not tell of them.
    told: dict[str, int] = ray._private.state.state.get_draining_nodes()
    # Ray tells times of day, and a job knows durations alone.
    now = time.time()
    return {node: ends_ms / 1000 - now if ends_ms else None for node, ends_ms in told.items()}


def has_pending_demand() -> bool:
    """Tell whether a task, an actor or a placement group of anybody waits for resources of this cluster."""
    worker: Any = ray._private.worker.global_worker
    tables: Any = autoscaler_pb2
    reply = tables.GetClusterResourceStateReply.FromString(worker.gcs_client.get_cluster_resource_state())
    found = reply.cluster_resource_state
    return bool(found.pending_resource_requests or found.pending_gang_resource_requests)


def alive_nodes() -> set[str]:
    """Return the ids of the nodes that live."""
    return {str(node["NodeID"]) for node in _nodes() if node["Alive"]}


def node_names() -> dict[str, str]:
    """Return the names of nodes by their ids: those of their hosts."""
    nodes = _nodes()
    return names_of_nodes(
        (str(one["NodeID"]), one.get("NodeManagerHostname") or one["NodeManagerAddress"]) for one in nodes
    )


def is_alive(actor: Any) -> bool:
    """Tell whether Ray has started an actor's process, and has not missed it."""
    found: Any = ray._private.state.actors(actor._actor_id.hex())
    return bool(found) and str(found.get("State")) == "ALIVE"


def named_actors() -> list[str]:
    """Return the names of all our actors that live, or are about to."""
    # Of all namespaces, because a program that has connected by itself has another one than ours.
    listed: Any = ray.util.list_named_actors(all_namespaces=True)
    return [str(actor["name"]) for actor in listed if actor["namespace"] == NAMESPACE]


def other_jobs(job: str) -> dict[str, str]:
    """Return the names of other jobs of ours on this cluster, and of their controllers' actors."""
    prefix, suffix = "pecan:", ":controller"
    jobs = {name[len(prefix) : -len(suffix)]: name for name in named_actors() if name.endswith(suffix)}
    return {other: name for other, name in jobs.items() if other != job}


def end_idle(job: str) -> None:
    """End the processes of other jobs of ours that have ended and wait for another pass: they hold CPUs."""
    for controller in _controllers(other_jobs(job)):
        controller.end_idle.remote()


def _controllers(jobs: Mapping[str, str]) -> list[Any]:
    """Return those of `other_jobs` that have not ended meanwhile."""
    found: list[Any] = []
    for name in jobs.values():
        # Ray raises it for a name that no actor has any more.
        with contextlib.suppress(ValueError):
            found.append(ray.get_actor(name, namespace=NAMESPACE))
    return found


def ask_for_room(job: str) -> list[str]:
    """Ask other jobs of ours to give up workers, as far as they may; return the names of these jobs."""
    others = other_jobs(job)
    for controller in _controllers(others):
        controller.make_room.remote(job)
    return list(others)


def why_no_placement(selector: Mapping[str, str], cpus: float, job: str) -> str:
    """Say in words which label, resource or other job keeps a worker from being placed now.

    Other jobs that use the CPUs are asked to make room.
    """
    fitting = [node for node in _available_nodes() if _matches(node.get("Labels", {}), selector)]
    wanted = ", ".join(f"{key}={value}" for key, value in selector.items())
    if not fitting:
        return (
            f"no live node that stays has the labels {wanted}; add a node that has them (a second node for remote "
            "workers), set Config(remote_labels=...), or ask for Workers(remote=0)"
        )
    largest = max(float(node["Resources"].get("CPU", 0)) for node in fitting)
    if largest < cpus:
        return (
            f"it needs CPU: {cpus:g}, and the largest node with the labels {wanted} has {largest:g}; lower "
            "Config(cpus_per_worker=...)"
        )
    nodes = f"the {len(fitting)} node(s) with the labels {wanted}{groups_on(fitting)}"
    available: Any = ray.available_resources
    if float(available().get("CPU", 0)) >= cpus:
        # Ray tells only what is free in the whole cluster, which says no more than that.
        return f"its process has not come up yet, or the CPUs (it needs {cpus:g}) of {nodes} are in use"
    others = ask_for_room(job)
    by = f", also by pecan job{'s' if len(others) > 1 else ''} {', '.join(others)}" if others else ""
    return (
        f"it needs CPU: {cpus:g}, and all CPUs of {nodes} are in use{by}; free some, add nodes, or ask for fewer "
        "workers"
    )


def matching_nodes(selector: Mapping[str, str]) -> list[str]:
    """Return the ids of the nodes that stay and have certain labels."""
    return [str(node["NodeID"]) for node in _available_nodes() if _matches(node.get("Labels", {}), selector)]


def _matches(labels: Mapping[str, Any], selector: Mapping[str, str]) -> bool:
    return all(_holds(str(labels.get(key, "")), rule) for key, rule in selector.items())


def _holds(value: str, rule: str) -> bool:
    negated = rule.startswith("!")
    rule = rule.removeprefix("!")
    # Ray's label selectors are `value`, `!value`, `in(a,b)` and `!in(a,b)`.
    if rule.startswith("in(") and rule.endswith(")"):
        found = value in [choice.strip() for choice in rule[3:-1].split(",")]
    else:
        found = value == rule
    return found != negated


def _available_nodes() -> list[dict[str, Any]]:
    """Return the nodes that live, and of which nobody has said that they will be taken away."""
    # Decision 45: Ray places nothing on these any more, and `ray.nodes` does not say so.
    leaving = draining_nodes()
    return [node for node in _nodes() if node["Alive"] and node["NodeID"] not in leaving]


def _nodes() -> list[dict[str, Any]]:
    nodes: Any = ray.nodes
    return list(nodes())
