"""Pipelines as data sets of Ray Train: ``TorchTrainer(datasets={"train": pipe}, dataset_config=PecanDataConfig())``."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import ray.train

from pecan_ray.errors import PlanError
from pecan_ray.integrations.framework_methods import FrameworkMethods, check_iter_options
from pecan_ray.integrations.passes import OnBreak, Passes, check_on_break
from pecan_ray.plan.arguments import positive

OWN_OPTIONS = ("rank", "world_size", "job", "epochs", "format", "device")
"""Arguments of `iter_batches` that a shard sets by itself, or takes for each pass."""


class PecanDataConfig(ray.train.DataConfig):
    """Lets a trainer of Ray Train take pipelines, beside data sets of Ray, as its `datasets`.

    All training workers share one job of each pipeline, of which ``ray.train.get_dataset_shard(name)`` returns a
    `PipelineShard`.
    """

    def __init__(
        self,
        *,
        epochs: int,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        on_break: OnBreak = "new",
        **of_ray: Any,
    ) -> None:
        """`epochs`: how often the training loop goes over each pipeline: the workers' jobs end together with the last.

        `on_break`: what follows a pass that was left in the middle: a new one, or with "continue" the rest of that one.
        `options`: arguments of `iter_batches` for each pipeline by its name in `datasets`, such as `workers`;
        `of_ray`: what ``ray.train.DataConfig`` takes, for the data sets of Ray.
        """
        super().__init__(**of_ray)
        check_on_break("PecanDataConfig", on_break)
        self._epochs, self._on_break = positive("PecanDataConfig(epochs=...)", epochs), on_break
        self._options = {name: dict(given) for name, given in (options or {}).items()}

    def configure(
        self, datasets: dict[str, Any], world_size: int, worker_handles: Any, worker_node_ids: Any, **more: Any
    ) -> list[dict[str, Any]]:
        """Return what each training worker gets; Ray Train calls it once for each group of them."""
        pipes: dict[str, Any] = {name: pipe for name, pipe in datasets.items() if isinstance(pipe, FrameworkMethods)}
        others = {name: data for name, data in datasets.items() if name not in pipes}
        shards: list[dict[str, Any]] = [{} for _ in range(world_size)]
        if others:
            shards = super().configure(others, world_size, worker_handles, worker_node_ids, **more)
        for name, pipe in pipes.items():
            options: Any = self._options.get(name, {})
            check_iter_options(f"PecanDataConfig(options={{{name!r}: ...}})", options, pipe.iter_batches)
            if taken := sorted(options.keys() & set(OWN_OPTIONS)):
                raise PlanError(
                    f"PecanDataConfig(options={{{name!r}: {{{taken[0]!r}: ...}}}}): that is found by itself, or "
                    "given to iter_batches() of the shard."
                )
            job = f"{pipe.name}-{name}-{secrets.token_hex(4)}"  # a group's own: the one before may be ending
            for rank, shard in enumerate(shards):
                place = {"rank": rank, "world_size": world_size, "job": job}
                shard[name] = PipelineShard(pipe, place, self._epochs, options, self._on_break)
        return shards


class PipelineShard:
    """What one training worker has of a pipeline: ``ray.train.get_dataset_shard(name)``.

    Each call of `iter_batches` or `iter_torch_batches` is a new pass, in which the workers get disjoint and equally
    many batches.  One that was left early is over, once all workers have left it or are at its end, unless
    ``PecanDataConfig(on_break="continue")`` lets the next call give the rest of it.
    """

    def __init__(
        self,
        pipe: Any,
        place: Mapping[str, Any],
        epochs: int,
        options: Mapping[str, Any],
        on_break: OnBreak = "new",
    ) -> None:
        """`place`: job, rank and world size."""
        self._pipe, self._options = pipe, {**options, **place}
        self._form: dict[str, Any] = {"format": "numpy", "device": None}
        self._passes = Passes(self._start, what="iter_batches() of a shard", epochs=epochs, on_break=on_break)

    def iter_batches(self, *, format: str = "numpy", device: Any = None, **others: Any) -> Iterator[Any]:
        """Iterate over an epoch's batches; how they are made, the pipeline says."""
        check_iter_options("iter_batches of a shard", others, self._pipe.iter_batches)
        if others:
            raise PlanError(
                f"iter_batches of a shard has no argument {next(iter(others))!r}: pass it to "
                'PecanDataConfig(options={"train": {...}}).'
            )
        form = {"format": format, "device": device}
        if form != self._form and self._passes.running:
            raise PlanError(
                f"iter_batches of a shard: format and device were {self._form} in the epochs before, and cannot become "
                f"{form} in the same run."
            )
        self._form = form
        return iter(self._passes)

    def iter_torch_batches(self, *, device: Any = "auto", **others: Any) -> Iterator[Any]:
        """Iterate over an epoch's batches as tensors; `device`: "auto" for the one that Ray Train has given."""
        if device == "auto":
            from ray.train.torch import get_device

            device = get_device()
        return self.iter_batches(format="torch", device=device, **others)

    def state_dict(self) -> dict[str, Any]:
        """Return where the epochs stand: plain values, to be saved in the run's checkpoint by one of the workers."""
        return self._passes.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, with any number of training workers; call it before the first epoch."""
        self._passes.load_state_dict(state)

    def close(self) -> None:
        """End this worker's part of the job; it ends by itself when the worker does."""
        self._passes.close()

    def __len__(self) -> int:
        raise TypeError("how many batches each of several ranks gets is not known before an epoch ends")

    def _start(self, **run: Any) -> Any:
        return self._pipe.iter_batches(**self._options, **self._form, **run)
