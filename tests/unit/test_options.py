"""Options refuse nonsense when they are made, with the name, the rule and the value."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest

from pecan_ray.errors import PlanError
from pecan_ray.options import Config, IterOptions, PlacementMode, Workers
from pecan_ray.placement import MODES

HALF: Any = 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workers(local=-1), r"Workers\(local=\.\.\.\) must be a whole number >= 0, but got -1"),
        (lambda: Workers(remote=HALF), r"Workers\(remote=\.\.\.\) must be a whole number >= 0, but got 0\.5"),
        (lambda: Workers(local=True), r"Workers\(local=\.\.\.\) must be .* but got True"),
        (lambda: Workers(0, 0), "would never produce a batch: ask for at least one worker"),
        (lambda: Config(cpus_per_worker=0), "cpus_per_worker must be positive, but got 0"),
        (lambda: Config(remote_labels={"zone": HALF}), r"remote_labels=\.\.\.\) takes strings, but got 'zone': 0\.5"),
        (lambda: Config(threads_per_worker=0), "threads_per_worker must be at least 1, but got 0"),
        (lambda: Config(storage_patience_s=-1.0), "storage_patience_s must be 0 or more, but got -1.0"),
        (lambda: Config(ring_bytes=1000), "ring_bytes must be at least 1 MiB, but got 1000"),
        (lambda: IterOptions(epochs=0), r"epochs must be at least 1 \(or None for no end\), but got 0"),
        (lambda: IterOptions(rank=2, world_size=2), r"rank must be in \[0, world_size\), but got rank=2, world_size=2"),
        (lambda: IterOptions(rank=-1), "but got rank=-1, world_size=1"),
        (lambda: IterOptions(world_size=0), "but got rank=0, world_size=0"),
        (lambda: IterOptions(prefetch_bytes=0), "prefetch_bytes must be positive, but got 0"),
    ],
)
def test_nonsense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("format", "'numpy', 'torch', 'tf', 'jax'"),
        ("order", "'relaxed', 'strict'"),
        ("visitation", "'exactly_once', 'at_most_once', 'zero_or_more'"),
        ("sharding", "'dynamic', 'off', 'static'"),
        ("on_error", "'raise', 'skip', 'quarantine'"),
    ],
)
def test_a_misspelt_choice_is_answered_with_the_choices(name: str, choices: str) -> None:
    options: dict[str, Any] = {name: "?"}
    with pytest.raises(PlanError, match=f"{name} must be one of {choices}, but got '\\?'"):
        IterOptions(**options)


def test_options_have_defaults_and_do_not_change() -> None:
    for options in (Workers(), Config(), IterOptions(), IterOptions(epochs=None, rank=1, world_size=2)):
        field = dataclasses.fields(options)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(options, field, 1)


def test_a_live_job_may_run_every_mode_that_the_policies_know() -> None:
    assert set(get_args(PlacementMode)) == set(MODES)
