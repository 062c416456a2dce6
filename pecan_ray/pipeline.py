"""`PecanPipeline`: what users write."""

from __future__ import annotations

import functools
import itertools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from pecan_ray.autoorder.explain import ExplainFormat, explain
from pecan_ray.autoorder.job_order import JobOrder
from pecan_ray.autoorder.order_request import job_size
from pecan_ray.batches import Batches
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.engines.registry import ENGINES
from pecan_ray.errors import PlanError
from pecan_ray.first_operators import initial_plan
from pecan_ray.integrations.framework_methods import FrameworkMethods
from pecan_ray.integrations.on_devices import mesh_copies
from pecan_ray.integrations.train_context import placed
from pecan_ray.iter_keywords import IterKeywords, device_name, workers_of
from pecan_ray.job.saved_state import SavedState, compatible_state
from pecan_ray.observe.read_script import clock_of_run
from pecan_ray.options import (
    AutoWorkers,
    Config,
    EngineName,
    Format,
    IterOptions,
    OnError,
    Order,
    PipelineSettings,
    Sharding,
    Visitation,
    Workers,
)
from pecan_ray.pass_numbers import PassCounts, RunPasses, warn_if_epochs_restart
from pecan_ray.peer_names import LOOPS, explain_foreign_arguments, why_no_method
from pecan_ray.pipeline_operators import OperatorMethods
from pecan_ray.plan.arguments import natural, positive
from pecan_ray.plan.fingerprint import fingerprint
from pecan_ray.plan.operators import Function, Join, Op, Plan, as_written, method_name
from pecan_ray.plan.option_types import of_kind, settle
from pecan_ray.plan.pass_dependent_choices import why_choices_move
from pecan_ray.plan.rounds import check_rounds_supported
from pecan_ray.plan.shape import num_batches
from pecan_ray.plan.splits import Element, Source
from pecan_ray.runtime.kept_jobs import KeptJobs
from pecan_ray.runtime.long_wait import LongWait
from pecan_ray.runtime.session import check_not_exiting
from pecan_ray.sampling.subsets import members
from pecan_ray.sharing import own_options, share_request, usual_visitation
from pecan_ray.sources.by_index import ByIndex, SamplerArguments
from pecan_ray.sources.tf_data import TfDataSource
from pecan_ray.storage import hedge_reads, set_patience

if TYPE_CHECKING:
    import jax
    import tensorflow as tf
    import torch
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from pecan_ray.integrations.jax_arrays import OnMesh
    from pecan_ray.runtime.share_entry import ShareRequest


logger = logging.getLogger("pecan_ray")

_warned: set[tuple[str, str]] = set()
"""Names of pipelines, and what was said of them."""


def _warn_once(name: str, message: str) -> None:
    if message and (name, message) not in _warned:
        _warned.add((name, message))
        logger.warning("%s: %s", name, message)


@explain_foreign_arguments
class PecanPipeline(OperatorMethods, FrameworkMethods):
    """An immutable input pipeline: a source and a chain of operators; every method returns a new one.

    Elements are dicts from column name to NumPy array, bytes, str or number.  Functions take an element and
    return one, or take and return the value of one column with ``on="column"``.  A function that declares a
    parameter named `rng` is given a random generator of its own for each element: the same whatever the number
    of workers (NumPy's `Generator` in the python engine, a stateless seed in the tensorflow engine).
    """

    def __init__(
        self,
        source: Source,
        *,
        sampler: Any = None,
        batch_sampler: Any = None,
        weights: Any = None,
        shuffle: bool = False,
        collate: Function | None = None,
        name: str | None = None,
        engine: EngineName = "python",
        seed: int | None = None,
        config: Config | None = None,
    ) -> None:
        """Begin a pipeline with a source; at most one of `sampler`, `batch_sampler`, `weights` and `shuffle`.

        Those need a source of which any element can be read by its number: `Arrays`, `Items`, `ImageFolder`,
        `AudioFolder`, `Files`, tables of `HuggingFace`, `Lance` and `LitData`.

        Args:
            source: what is read.
            sampler: a function of epoch and seed that returns the indices of an epoch: any number of them, with or
                without repetition. Or a sampler of torch, such as `WeightedRandomSampler`; `set_epoch` is called.
            batch_sampler: the same with a sequence of indices for each batch: the pipeline yields these batches.
            weights: one for each element; as many elements as there are are drawn by them, with replacement.
            shuffle: each element once, in a random order, of which nothing is loaded before its turn.
            collate: with `batch_sampler`, makes a batch of the list of elements. None: they are stacked.
            name: in the dashboard, metrics and logs.
            engine: "python" or "tensorflow".
            seed: 0 if none is given; with one that is, operators run as they are written, or as a file pins them.
            config: settings.
        """
        if not isinstance(source, Source):
            raise PlanError(
                f"PecanPipeline(source) needs a source of pecan_ray.sources, but got {type(source).__name__}. "
                "Wrap Python objects by sources.Items([...]) and arrays by sources.Arrays(...)."
            )
        if engine not in ENGINES:
            raise PlanError(f"engine must be {' or '.join(map(repr, ENGINES))}, but got {engine!r}.")
        if asked := SamplerArguments(sampler, batch_sampler, weights, shuffle):
            source = ByIndex.for_caller("PecanPipeline", source, asked, stacks=batch_sampler is not None)
        self._plan = initial_plan(source, engine, collate)
        self._name: str = of_kind("PecanPipeline(name=...)", name, str | None) or "pipeline"
        self._engine: EngineName = engine
        self._seed, self._seeded = natural("seed", 0 if seed is None else seed), seed is not None
        self._config: Config = of_kind("PecanPipeline(config=...)", config, Config | None) or Config()
        self._counts, self._kept = PassCounts(), KeptJobs()

    def with_config(self, **changes: Any) -> PecanPipeline:
        """Return the pipeline under other settings: fields of `Config` by name."""
        new = self._with(self._plan)
        new._config = replace(self._config, **changes)
        return new

    # --- a look at it --------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The frozen description of this pipeline."""
        return self._plan

    @property
    def name(self) -> str:
        """Name in the dashboard, metrics and logs."""
        return self._name

    @property
    def engine(self) -> EngineName:
        """The engine that runs it."""
        return self._engine

    @property
    def seed(self) -> int:
        """What its random numbers are derived from."""
        return self._seed

    @overload
    def peek(  # type: ignore[overload-overlap]  # of the numbers only the literal 1 gives one element
        self, count: Literal[1] = 1
    ) -> Element: ...

    @overload
    def peek(self, count: int) -> list[Element]: ...

    def peek(self, count: int = 1) -> Element | list[Element]:
        """Run the first elements (or batches) in this process, without Ray, and return them.

        Returns one element, or a list for ``count > 1``.
        """
        count = positive("peek", count)
        self._set_storage()
        found: list[Element] = []
        with_limit = run_in_process(self._plan, engine=self._engine, seed=self._seed, source_order=True)
        with LongWait(f"{self._name}: peek() runs the operators in this process, and they take long"):
            found.extend(itertools.islice(with_limit, count))
        # At once: the threads of a run would last until the generator is collected.
        with_limit.close()
        if not found:
            raise PlanError(f"peek: the pipeline {self._name} yields nothing.")
        return found[0] if count == 1 else found

    def explain(self, format: ExplainFormat = "text", *, again: bool = False) -> str:
        """Return in words what each operator does, and which order AutoOrder has chosen and why.

        `format` is "text" (a table, which a notebook shows as HTML), "html" or "json".  Where no order is
        kept, or with `again`, a sample is run in a process of its own, for at most twice
        ``Config(sample_seconds=...)`` of CPU time, 80 s; jobs that are started behind it use the same order.  Elements
        that operators cannot take are left out, and told; if none is left it raises `OpError`.
        """
        return explain(self._name, self._order.explain_ordering(again=of_kind("again", again, bool)), format)

    def save_order(self, path: str | os.PathLike[str], *, again: bool = False) -> None:
        """Write the order that AutoOrder chooses, whatever the seed, to a file for ``Config(order_file=path)``.

        One that is kept is not looked for again, unless `again`.
        """
        self._order.save(path, again=of_kind("again", again, bool))

    def __len__(self) -> int:
        """Return the number of batches of an epoch for one trainer; raises TypeError where it is not known.

        The datasets of an existing tf.data pipeline are made for that, in this process.
        """
        count = num_batches(self._plan_with_counts, members)
        if count is None:
            raise TypeError(f"the length of pipeline {self._name} is not known without reading its data")
        return count

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> NoReturn:
        raise TypeError(f"a pipeline is looped over by the batches of a run: {LOOPS}")

    if not TYPE_CHECKING:  # to a type checker no other attribute exists

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(type(self), name):
                object.__getattribute__(self, name)  # a property whose own code has raised: that error is the one
            raise AttributeError(why_no_method(type(self).__name__, name))

    def __repr__(self) -> str:
        ops = "".join(f".{as_written(op)}" for op in self._plan.ops)
        head = self._plan.head
        start = head.kind if isinstance(head, Join) else type(head).__name__
        return f"PecanPipeline({start}, name={self._name!r}, engine={self._engine!r}){ops}"

    def fingerprint(self, upto: str | None = None) -> str:
        """Return a stable hash of the data's identity and of the operators' code, up to the operator named."""
        return fingerprint(self._plan, upto=upto)

    @overload
    def iter_batches(
        self, *, format: Literal["numpy"] = "numpy", **options: Unpack[IterKeywords]
    ) -> Batches[dict[str, NDArray[Any]]]: ...

    @overload
    def iter_batches(
        self, *, format: Literal["torch"], **options: Unpack[IterKeywords]
    ) -> Batches[dict[str, torch.Tensor]]: ...

    @overload
    def iter_batches(
        self, *, format: Literal["tf"], **options: Unpack[IterKeywords]
    ) -> Batches[dict[str, tf.Tensor]]: ...

    @overload
    def iter_batches(
        self, *, format: Literal["jax"], **options: Unpack[IterKeywords]
    ) -> Batches[dict[str, jax.Array]]: ...

    @overload
    def iter_batches(self, *, format: Format, **options: Unpack[IterKeywords]) -> Batches: ...

    def iter_batches(
        self,
        *,
        epochs: int | None = 1,
        first_epoch: int | None = None,
        workers: Workers | AutoWorkers | int | None = None,
        format: Format = "numpy",
        device: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        share: bool | str = False,
        max_lag: int | None = None,
        order: Order | None = None,
        visitation: Visitation | None = None,
        sharding: Sharding | Any = "dynamic",
        on_error: OnError = "raise",
        prefetch_bytes: int = 256 << 20,
        job: str | None = None,
        debug: bool = False,
        state: Mapping[str, Any] | None = None,
        allow_changed_source: bool = False,
        coordinated: bool = False,
        headspace: bool | int = False,
        epoch_batches: int | None = None,
        steps: int | None = None,
    ) -> Batches[Any]:
        """Run the pipeline on Ray and return an iterator over its batches.

        Each call begins a new pass, also if the loop before it was left.  Passes of a pipeline are numbered in a
        program from 0 on, whatever iterates over it; order and random numbers depend on the number, which `first_epoch`
        sets.  The passes of `epochs` follow each other in one sequence, and no batch holds elements of two.

        `rank` of `world_size` trainers share a job: each gets its own, equally many batches.  Without them they are
        those of Ray Train, torch.distributed, JAX, or of RANK and WORLD_SIZE; ``rank=0, world_size=1`` reads everything
        in each.  `workers` fixes the numbers of workers (4: four beside the trainer); without it AutoPlacement finds
        them while the job runs, or there is one local worker where static sharding needs a fixed number.  `debug` runs
        everything in this very process, with plain tracebacks.

        `order`: batches and rows come as workers finish them with "relaxed"; with "strict" in one sequence, which has
        the order of the source where nothing shuffles, as it is with `debug`.  None: the order of the source where
        nothing shuffles, mixes or makes buckets, for one trainer: with any workers where all operators are maps,
        filters or `flat_map` and the source tells how many elements its splits hold, else with one fixed worker
        (``Workers(local=1)``).  Otherwise "relaxed"; `Batches.explain` says which one it is.

        A pipeline without `batch` yields single elements.  `device`: with ``format="torch"``, where batches go.
        `sharding`: with ``format="jax"`` also a `jax.sharding.NamedSharding`, or one for each column by name.

        `share`: read what one group of workers makes for all jobs with the same pipeline, or for those of a name.  Who
        is slow skips what has left the group's window; with `max_lag` all wait for one that is so many batches behind.
        Then a reader may have ranks, which divide what it reads: `job` is the name that they have in common.
        `visitation` is "exactly_once", or for a job that may skip "at_most_once".

        `coordinated`: in each step all ranks get batches of the same bucket, from one worker, so that none waits for
        one with longer elements.  The pipeline must end with `bucket_by_length`.

        `state`: go on where `Batches.state_dict` was taken, with what was not yielded by then, in the epoch of the
        state, whatever `first_epoch`; `epochs` counts from the first run on.  Raises StateError for a state that is
        damaged, or of another pipeline, version or data; with `allow_changed_source` other data is told and no error.

        `epoch_batches`: an epoch ends after so many batches of each rank, if its data has as many: behind `repeat()` it
        always has.  What is left of it nobody gets; the next epoch begins anew.  `steps`: each rank gets so many
        batches in all, runs before a state included, and may leave then while others go on.

        `headspace`: give the first batch again and again, made in this process, as often as the run has batches, or so
        many times an epoch: how fast the loop is if input costs nothing.
        """
        # First: where a program is only read nothing may begin.
        clock = clock_of_run(self)
        if not (debug := of_kind("debug", debug, bool) or bool(headspace)):
            check_not_exiting()
        mesh, dealt, (rank, world_size, job) = self._placed(sharding, format, rank, world_size, job, shares=bool(share))
        options = IterOptions(
            epochs=epochs,
            first_epoch=natural("first_epoch", first_epoch or 0),
            workers=workers_of(workers, fixed=dealt == "static"),
            format=format,
            device=device_name(device),
            rank=rank,
            world_size=world_size,
            order=order,
            visitation=visitation or usual_visitation(share, max_lag),
            sharding=dealt,
            on_error=on_error,
            prefetch_bytes=prefetch_bytes,
            job=job,
            share=share,
            max_lag=max_lag,
            coordinated=coordinated,
            headspace=headspace,
            epoch_batches=epoch_batches,
            steps=steps,
        )
        self._check_rounds(options)
        saved, found = (None, self._order) if state is None else self._saved(state, options, debug)
        found.check()  # trainers that share a job must run one plan: it is that of the first one to have an order
        options, shared = self._shared(options, visitation, debug=debug)
        again = epochs != 1 and found.movable and self._config.order_file is None
        skip_bad, job_is = on_error != "raise", job_size(options, self._config, debug=debug)
        options, passes = self._with_passes(options, first_epoch, saved, found, debug=debug)
        with passes:
            return Batches(
                self._plan,
                self._settings(None if saved is None else saved.seed),
                options=options,
                debug=debug,
                order=functools.partial(found.ordered, skip_bad=skip_bad, once=not again, job=job_is),
                parts=None if debug else found.parts,
                look_again=again,
                saved=saved,
                allow_changed_source=of_kind("allow_changed_source", allow_changed_source, bool),
                go_on=functools.partial(self._go_on, options, debug, allow_changed_source, sharding),
                share=shared and shared.with_first_epoch(options.first_epoch),
                mesh=mesh,
                clock=clock,
                passes=passes,
                kept=self._kept,
            )

    # --- inside --------------------------------------------------------------------------------------------

    def _set_storage(self) -> None:
        """Let reads in this process be as patient as the settings say."""
        set_patience(self._config.storage_patience_s)
        hedge_reads(self._config.hedged_reads)

    def _placed(
        self, sharding: Any, format: Format, rank: int | None, world_size: int | None, job: str | None, *, shares: bool
    ) -> tuple[OnMesh | None, Sharding, tuple[int, int, str | None]]:
        """Return what places batches on a mesh, how splits are dealt, and rank, world size and the job's name."""
        self._set_storage()
        if isinstance(sharding, str):
            dealt: Any = sharding
            return None, dealt, placed(self._name, rank, world_size, job, shares=shares)
        mesh, rank, world_size = mesh_copies(sharding, format, self._plan, rank, world_size)
        return mesh, "dynamic", placed(self._name, rank, world_size, job, shares=shares)

    def _shared(
        self, options: IterOptions, visitation: Visitation | None, *, debug: bool
    ) -> tuple[IterOptions, ShareRequest | None]:
        """Return the group that is to be read, if one is, and the options; `visitation`: as the user has said."""
        if options.share and not debug:
            begin = self.with_config(progress=False).iter_batches
            if (request := share_request(self._plan, self._settings(), options, begin=begin)) is not None:
                return options, request
        return own_options(options, visitation), None

    def _settings(self, seed: int | None = None) -> PipelineSettings:
        return PipelineSettings(self._name, self._engine, self._seed if seed is None else seed, self._config)

    def _saved(self, state: Mapping[str, Any], options: IterOptions, debug: bool) -> tuple[SavedState, JobOrder]:
        """Return a state, and the order that it pins; raises PecanError unless one may go on from it."""
        if debug:
            raise PlanError("iter_batches: debug=True and headspace cannot go on from a state.")
        seed = self._seed if self._seeded else None
        saved = compatible_state(state, options, engine=self._engine, seed=seed, parts=self._order.parts)
        point = saved.point
        return saved, self._order.pinned(point.op_order, point.decoders, cuts_elements=point.splits_elements)

    def _check_rounds(self, options: IterOptions) -> None:
        if options.coordinated:
            check_rounds_supported(self._plan, self._engine, on_error=options.on_error)

    def _with_passes(
        self, options: IterOptions, first_epoch: int | None, saved: SavedState | None, order: JobOrder, *, debug: bool
    ) -> tuple[IterOptions, RunPasses]:
        """Count the passes of a run that begins; return the options with the number of the first one, and the passes.

        The first one is `first_epoch` if that is given, the one of the state if there is one, and else the next one.
        """
        parts, place = order.parts_behind, (0, 1) if debug else (options.rank, options.world_size)
        counts = PassCounts() if options.headspace else self._counts  # one batch again and again is no pass
        if saved is not None:
            first, epoch = saved.first_epoch, saved.point.epoch
            ended = options.epochs is not None and epoch == first + options.epochs
            passes = counts.resume(parts, place, epoch, first_epoch=first, ended=ended)
            return replace(options, first_epoch=first), passes
        passes = counts.begin(parts, place, first_epoch)
        if (options.epochs != 1 or passes.first_epoch) and not options.rank:
            _warn_once(self._name, why_choices_move(self._plan))
        if not debug:
            anew = first_epoch is None and passes.first_epoch == 0 and not self._seeded
            warn_if_epochs_restart(self._name, order.parts, counts, begins_anew=anew)
        return replace(options, first_epoch=passes.first_epoch), passes

    def _go_on(
        self, options: IterOptions, debug: bool, other: bool, sharding: Any, state: Mapping[str, Any]
    ) -> Callable[[], Batches[Any]]:
        self._saved(state, options, debug)
        given = {**vars(options), "sharding": sharding, "debug": debug, "allow_changed_source": other}
        return functools.partial(self.iter_batches, state=state, **given)

    def _then(self, op: Op) -> PecanPipeline:
        settle(op, method_name(op))
        return self._with(self._plan.then(op))

    def _with(self, plan: Plan) -> PecanPipeline:
        # Without `__init__`, which begins with a source.
        new = object.__new__(PecanPipeline)
        new._plan, new._name, new._engine = plan, self._name, self._engine
        new._seed, new._seeded, new._config = self._seed, self._seeded, self._config
        new._counts, new._kept = self._counts, self._kept
        return new

    @functools.cached_property
    def _plan_with_counts(self) -> Plan:
        head = self._plan.head
        return replace(self._plan, head=head.with_counts()) if isinstance(head, TfDataSource) else self._plan

    @functools.cached_property
    def _order(self) -> JobOrder:
        seed, config = self._seed, self._config
        return JobOrder(self._plan, name=self._name, engine=self._engine, seed=seed, config=config, seeded=self._seeded)
