"""The controller's actor: each of its calls is one of the process behind it."""

from __future__ import annotations

import inspect
from typing import Any

from pecan_ray.runtime.controller import JobController
from pecan_ray.runtime.controller_actor import AutoPlacementController


def calls_of(kind: type) -> dict[str, Any]:
    return {
        name: inspect.signature(call).replace(return_annotation=None)
        for name, call in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }


def test_the_actor_has_the_calls_of_the_process_with_their_arguments() -> None:
    process, actor = calls_of(JobController), calls_of(AutoPlacementController)
    assert len(process) > 10 and process.keys() <= actor.keys()
    assert {name: str(actor[name]) for name in process} == {name: str(call) for name, call in process.items()}
