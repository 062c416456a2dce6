"""How our actors and tasks are made: in one place, so that Ray schedules all of them alike.

Ray puts an actor that is made inside a placement group into that group, if the group captures its children.  Each trial
of Ray Tune is such a group.  Ours would be confined to the trial's bundles and would end with the trial, though other
trials read from them.  So they belong to no group, and nothing else in this package calls `ray.remote`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import ray

from pecan_ray.runtime.cluster import NAMESPACE

OUTSIDE_GROUPS = "DEFAULT"
"""The name of Ray's usual scheduling, which also keeps what is made with it out of the placement group of its maker."""


def actor(
    kind: type, name: str, selector: Mapping[str, str], *, groups: tuple[tuple[str, int], ...] = (), **options: Any
) -> Any:
    """Return what makes an actor by its `remote(...)`: in our namespace, under a name, on a node with given labels.

    `groups`: of threads, with the size of each; `options`: further ones of Ray.
    """
    return _remote(kind, groups).options(
        name=name,
        namespace=NAMESPACE,
        label_selector=dict(selector),
        scheduling_strategy=OUTSIDE_GROUPS,
        **options,
    )


@functools.lru_cache(maxsize=32)
def _remote(kind: type, groups: tuple[tuple[str, int], ...]) -> Any:
    """Return Ray's class for a class: pickled once, not for each actor."""
    remote: Any = ray.remote
    made = remote(concurrency_groups=dict(groups))(kind) if groups else remote(kind)
    return _one_in_all_processes(made, groups)


def _one_in_all_processes(made: Any, groups: tuple[tuple[str, int], ...]) -> Any:
    """Let Ray take a class for the same one, whichever process has made it.

    Ray names it by chance in each process.  Whoever holds a handle keeps the class, and what it knows of each method,
    under that name for good, and so does Ray's own table: a program would keep those of each job that it runs.
    """
    known = made.__ray_metadata__
    chance = known.actor_creation_function_descriptor
    known.actor_creation_function_descriptor = type(chance)(
        chance.module_name, chance.function_name, chance.class_name, f"pecan_ray {groups}"
    )
    return made


def task(function: Callable[..., Any], selector: Mapping[str, str]) -> Any:
    """Return what runs a function once, by its `remote(...)`, on a node with given labels; it takes no CPU."""
    return _remote_function(function).options(label_selector=dict(selector), scheduling_strategy=OUTSIDE_GROUPS)


@functools.lru_cache(maxsize=32)
def _remote_function(function: Callable[..., Any]) -> Any:
    """Return Ray's function for a function: sent once, not for each call."""
    remote: Any = ray.remote
    # No second try: a task kills a process by its number, which may be another process's by then.
    return remote(num_cpus=0, max_retries=0)(function)
