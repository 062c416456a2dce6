"""The command `pecan dashboard`: a web page about the jobs of the cluster at hand, as an application of Ray Serve."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

import ray

from pecan_ray.errors import ClusterError, PlanError
from pecan_ray.runtime import cluster

logger = logging.getLogger(__name__)

APP = "pecan-dashboard"
# Seconds: Ray Serve's first start on a busy machine takes minutes; an answer of a page; between two looks.
START_S, ANSWER_S, LOOK_S = 180.0, 10.0, 0.2
# This machine alone: without a token whoever reaches the port sees all jobs, so another host has to be named.
HOST, PORT, ROUTE = "127.0.0.1", 8300, "/pecan"


def add_dashboard_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `pecan dashboard` takes."""
    parser.add_argument("--host", default=HOST, help=f"address that Ray Serve listens at ({HOST})")
    parser.add_argument("--port", type=int, default=PORT, help=f"port that Ray Serve listens at ({PORT})")
    parser.add_argument("--route", default=ROUTE, help=f"what the page's address begins with ({ROUTE})")
    parser.add_argument(
        "--name", action="append", default=[], help="name of a host by which it is reached, of a proxy for instance"
    )
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--detach", action="store_true", help="leave the page there, and return")
    ends.add_argument("--stop", action="store_true", help="end a page that was left there")
    parser.set_defaults(run=run_dashboard)


def run_dashboard(asked: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    if not asked.route.startswith("/") or asked.route == "/":
        raise PlanError(
            f"--route must begin with / and have a name behind it, as {ROUTE} has, but got {asked.route!r}."
        )
    serve = _serve()
    cluster.attach_to_running(logs=False)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if asked.stop:
        stop(serve)
        return 0
    address = start(serve, asked.host, asked.port, asked.route.rstrip("/"), asked.name)
    sys.stdout.write(f"the cluster's jobs are shown at {address}\n{_who_may(asked.host)}")
    sys.stdout.flush()
    if asked.detach:
        sys.stdout.write("`pecan dashboard --stop` ends it\n")
        return 0
    try:
        threading.Event().wait()
    finally:
        stop(serve)
    return 0


def start(serve: Any, host: str = HOST, port: int = PORT, route: str = ROUTE, names: Sequence[str] = ()) -> str:
    """Begin to serve the page on the cluster that this process is connected to; return its address.

    `names`: of hosts by which it is reached, beside `host`.
    """
    from pecan_ray.observe.dashboard_app import build_app

    options = {"host": host, "port": port}
    there = _serve_address(serve)
    if there is not None and there != (host, port):
        raise ClusterError(
            f"Ray Serve runs on this cluster already, and listens at {there[0]}:{there[1]}: it cannot listen at "
            f"{host}:{port} as well. Use its own (--host {there[0]} --port {there[1]}), or end it by `serve shutdown`."
        )
    started = time.monotonic()
    try:
        serve.start(proxy_location="HeadOnly", http_options=options)
    except (ray.exceptions.RayError, TimeoutError) as error:  # of its proxy: Serve starts another one by itself
        logger.info("Ray Serve: %s", error)

    def app() -> Any:
        return build_app((host, *names))

    # It takes no CPU of those that workers reserve, and is where the files of this machine are.
    where = {"num_cpus": 0, "label_selector": cluster.local_selector(cluster.this_node())}
    made = serve.deployment(name="pages", ray_actor_options=where, max_ongoing_requests=50)(serve.ingress(app)())
    try:
        serve.run(made.bind(), name=APP, route_prefix=route)
    except (ray.exceptions.RayError, RuntimeError, TimeoutError) as error:
        raise ClusterError(f"Ray Serve does not run the page: {error}") from error
    address = f"http://{_reached(host)}:{port}{route}/"
    while not _is_serving(address):
        if time.monotonic() - started > START_S:
            raise ClusterError(
                f"nothing answers at {address} for {START_S:.0f} s: Ray Serve's proxy, on the head node, has not "
                "come up, or another program listens there (--port). Its log is in Ray's folder logs/serve."
            )
        time.sleep(LOOK_S)
    return address


def _reached(host: str) -> str:
    """Return how this machine reaches what listens at an address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def _is_serving(address: str) -> bool:
    """Tell whether the page is there: it asks for a token, perhaps."""
    try:
        with urllib.request.urlopen(f"{address}style.css", timeout=ANSWER_S):
            return True
    except OSError:  # an answer of another program too
        return False


def stop(serve: Any) -> None:
    """End the page, and Ray Serve too if nothing else runs on it."""
    running = serve.status().applications
    if APP in running:
        serve.delete(APP)
    if not set(running) - {APP}:
        serve.shutdown()


def _serve_address(serve: Any) -> tuple[str, int] | None:
    """Return where Ray Serve listens, if it runs."""
    from ray.serve.context import _get_global_client

    client: Any = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        return None
    options = client.http_config
    return str(options.host), int(options.port)


def _serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise ClusterError(f"pecan dashboard needs Ray Serve: pip install 'pecan_ray[serve]' ({error}).") from error
    return serve


def _who_may(host: str) -> str:
    from pecan_ray.observe.dashboard_app import token_needed

    if token_needed():
        return "it asks for the cluster's token, which `ray get-auth-token` prints\n"
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if local:
        return "every user of this machine can see it: the cluster has no token\n"
    return "WARNING: whoever reaches this address can see it: the cluster has no token\n"
