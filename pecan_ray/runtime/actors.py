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
    return remote(concurrency_groups=dict(groups))(kind) if groups else remote(kind)


def task(function: Callable[..., Any], selector: Mapping[str, str]) -> Any:
    """Return what runs a function once, by its `remote(...)`, on a node with given labels; it takes no CPU."""
    remote: Any = ray.remote
    return remote(num_cpus=0, max_retries=0, label_selector=dict(selector), scheduling_strategy=OUTSIDE_GROUPS)(
        function
    )
