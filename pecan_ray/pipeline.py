"""`PecanPipeline`: what users write."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pecan_ray.autoorder.call_in_subprocess import own_process_ahead
from pecan_ray.autoorder.explain import ExplainFormat, explain
from pecan_ray.autoorder.job_order import JobOrder
from pecan_ray.autoorder.order_request import job_size
from pecan_ray.batches import Batches
from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.engines.registry import ENGINES
from pecan_ray.errors import PlanError
from pecan_ray.integrations.frameworks import FrameworkMethods
from pecan_ray.integrations.train_context import placed
from pecan_ray.job.saved_state import SavedState, fitting_state
from pecan_ray.options import (
    AutoWorkers,
    Config,
    EngineName,
    Format,
    IterOptions,
    OnError,
    Order,
    Sharding,
    Visitation,
    Workers,
)
from pecan_ray.plan.arguments import a_function, buckets, natural, positive
from pecan_ray.plan.fingerprint import fingerprint
from pecan_ray.plan.kinds import of_kind, settle
from pecan_ray.plan.operators import (
    Autocache,
    Batch,
    BucketByLength,
    Filter,
    FlatMap,
    Function,
    Join,
    JoinKind,
    Map,
    MixStop,
    Op,
    PaddedBatch,
    Plan,
    Prefetch,
    Repeat,
    Shuffle,
    Skip,
    Take,
    Unbatch,
    as_written,
    method_name,
)
from pecan_ray.plan.renaming import free_name, renamed
from pecan_ray.plan.shape import mixes_splits, num_batches
from pecan_ray.plan.splits import Element, Source
from pecan_ray.runtime.session import refuse_at_exit
from pecan_ray.sharing import own_options, share_request
from pecan_ray.storage import set_patience


class PecanPipeline(FrameworkMethods):
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
        name: str | None = None,
        engine: EngineName = "python",
        seed: int | None = None,
        config: Config | None = None,
    ) -> None:
        """`seed` is 0 if none is given; with one that is, operators run as they are written, or as a file pins them."""
        if not isinstance(source, Source):
            raise PlanError(
                f"PecanPipeline(source) needs a source of pecan_ray.sources, but got {type(source).__name__}. "
                "Wrap Python objects by sources.Items([...]) and arrays by sources.Arrays(...)."
            )
        if engine not in ENGINES:
            raise PlanError(f"engine must be {' or '.join(map(repr, ENGINES))}, but got {engine!r}.")
        self._plan = Plan(head=source)
        self._name: str = of_kind("PecanPipeline(name=...)", name, str | None) or "pipeline"
        self._engine: EngineName = engine
        self._seed, self._seeded = natural("seed", 0 if seed is None else seed), seed is not None
        self._config: Config = of_kind("PecanPipeline(config=...)", config, Config | None) or Config()

    def with_config(self, **changes: Any) -> PecanPipeline:
        """Return the pipeline under other settings: fields of `Config` by name."""
        new = self._with(self._plan)
        new._config = replace(self._config, **changes)
        return new

    # --- operators on elements -----------------------------------------------------------------------------

    def map(
        self,
        fn: Function,
        *,
        on: str | None = None,
        name: str | None = None,
        keep_position: bool = False,
        random: bool | None = None,
        processes: bool = False,
    ) -> PecanPipeline:
        """Apply a function to each element (or to each batch, behind `batch`).

        `keep_position` keeps AutoOrder from moving it; `processes` runs it in a process pool, for code that
        holds the GIL.
        """
        return self._then(
            Map(
                name=self._unique(name, fn),
                fn=a_function("map", fn),
                on=on,
                keep_position=keep_position,
                random=random,
                processes=processes,
            )
        )

    def filter(self, fn: Function, *, on: str | None = None, name: str | None = None) -> PecanPipeline:
        """Keep the elements for which the function is true."""
        return self._then(Filter(name=self._unique(name, fn), fn=a_function("filter", fn), on=on))

    def flat_map(self, fn: Function, *, on: str | None = None, name: str | None = None) -> PecanPipeline:
        """Replace each element by those that the function returns (any iterable of elements)."""
        return self._then(FlatMap(name=self._unique(name, fn), fn=a_function("flat_map", fn, many=True), on=on))

    # --- operators on the sequence -------------------------------------------------------------------------

    def batch(self, size: int, drop_remainder: bool = False) -> PecanPipeline:
        """Stack `size` elements into a batch with a leading dimension; images and tensors become arrays."""
        size = positive("batch", size)
        return self._then(Batch(name=self._unique("batch"), size=size, drop_remainder=drop_remainder))

    def padded_batch(
        self,
        size: int,
        *,
        padding: Any = 0,
        shapes: Mapping[str, tuple[int | None, ...]] | None = None,
        drop_remainder: bool = False,
    ) -> PecanPipeline:
        """Stack elements of unequal shapes, lists too, padded with `padding` (a value, or one per column)."""
        size = positive("padded_batch", size)
        return self._then(
            PaddedBatch(
                name=self._unique("padded_batch"),
                size=size,
                drop_remainder=drop_remainder,
                padding=padding,
                shapes=shapes,
            )
        )

    def bucket_by_length(
        self,
        boundaries: Sequence[int],
        *,
        sizes: int | Sequence[int],
        length: Function | str,
        padding: Any = 0,
        drop_remainder: bool = False,
    ) -> PecanPipeline:
        """Batch elements of similar length: bucket i takes lengths below ``boundaries[i]``, the last one the rest.

        `length` is a column, or a function of the element; `sizes` a batch size, or one per bucket.
        """
        length = length if isinstance(length, str) else a_function("bucket_by_length(length=...)", length)
        bounds, per_bucket = buckets(boundaries, sizes)
        return self._then(
            BucketByLength(
                name=self._unique("bucket_by_length"),
                length=length,
                boundaries=bounds,
                sizes=per_bucket,
                drop_remainder=drop_remainder,
                padding=padding,
            )
        )

    def unbatch(self) -> PecanPipeline:
        """Split batches into elements again."""
        return self._then(Unbatch(name=self._unique("unbatch")))

    def shuffle(self, buffer: int, seed: int | None = None) -> PecanPipeline:
        """Draw elements at random from a buffer per worker, and visit the splits in a random order."""
        buffer = positive("shuffle", buffer)
        return self._then(Shuffle(name=self._unique("shuffle"), buffer=buffer, seed=seed))

    def repeat(self, count: int | None = None) -> PecanPipeline:
        """Pass over the data `count` times within one epoch; None: without end.

        Passes follow each other without a seam: batches may hold elements of two passes.
        """
        if count is not None:
            count = positive("repeat", count)
        return self._then(Repeat(name=self._unique("repeat"), count=count))

    def take(self, count: int) -> PecanPipeline:
        """Keep the first `count` elements (batches, behind `batch`).  One worker runs such a pipeline."""
        return self._then(Take(name=self._unique("take"), count=natural("take", count)))

    def skip(self, count: int) -> PecanPipeline:
        """Leave out the first `count` elements (batches, behind `batch`).  One worker runs such a pipeline."""
        return self._then(Skip(name=self._unique("skip"), count=natural("skip", count)))

    def prefetch(self, count: int) -> PecanPipeline:
        """Keep `count` elements (batches, behind `batch`) ready ahead of what takes them."""
        count = positive("prefetch", count)
        return self._then(Prefetch(name=self._unique("prefetch"), count=count))

    def autocache(self, *, name: str | None = None, version: str = "", refresh: float = 0.0) -> PecanPipeline:
        """Let elements be kept here, where later epochs and other jobs read them instead of computing them again.

        Whether that is worth it, and at which of several points, is decided before the first epoch.  `version` stands
        for what cannot be seen of the functions before (modules that they import in their bodies, files, environment
        variables): change it where those have changed.  It must stand before `batch`, `shuffle`, `take` and the like.
        `refresh`: the share of splits that are computed again in each epoch after a job's first, and kept anew.
        """
        if (where := mixes_splits(self._plan)) is not None:
            raise PlanError(
                f"autocache: it stands behind {where}, but only what a split of one source gives can be kept: put it "
                "before."
            )
        return self._then(Autocache(name=self._unique(name or "autocache"), version=version, refresh=refresh))

    # --- joins ---------------------------------------------------------------------------------------------

    def zip(self, *others: PecanPipeline) -> PecanPipeline:
        """Pair elements of several pipelines; their columns must differ.  One worker runs such a pipeline."""
        return self._join("zip", others)

    def concat(self, *others: PecanPipeline) -> PecanPipeline:
        """Follow this pipeline's elements by those of others."""
        return self._join("concat", others)

    def mix(self, *others: PecanPipeline, weights: Sequence[float], stop: MixStop = "all") -> PecanPipeline:
        """Draw elements from several pipelines at random, in proportion to `weights`.

        Ends when all have run out, or with ``stop="first"`` when the first has.
        """
        if stop not in ("first", "all"):
            raise PlanError(f"mix: stop must be 'first' or 'all', but got {stop!r}.")
        weights = of_kind("mix(weights=...)", weights, Sequence[float])
        if len(weights) != len(others) + 1 or not all(0 < weight < math.inf for weight in weights):
            raise PlanError(
                f"mix: weights needs one positive number per pipeline ({len(others) + 1}), but got {list(weights)}."
            )
        return self._join("mix", others, weights=tuple(float(w) for w in weights), stop=stop)

    def _join(self, kind: JoinKind, others: Sequence[PecanPipeline], **details: Any) -> PecanPipeline:
        if not others:
            raise PlanError(f"{kind} needs at least one other pipeline.")
        inputs = [self._plan]
        taken = {op.name for op in self._plan.all_ops()}
        for other in others:
            if not isinstance(other, PecanPipeline):
                raise PlanError(f"{kind} needs pipelines, but got {type(other).__name__}.")
            if other._engine != self._engine:
                raise PlanError(f"{kind}: pipelines of different engines ({self._engine}, {other._engine}).")
            inputs.append(renamed(other._plan, taken))
        return self._with(Plan(head=Join(kind=kind, inputs=tuple(inputs), **details)))

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

    def peek(self, count: int = 1) -> Element | list[Element]:
        """Run the first elements (or batches) in this process, without Ray, and return them.

        Returns one element, or a list for ``count > 1``.
        """
        count = positive("peek", count)
        set_patience(self._config.storage_patience_s)
        found: list[Element] = []
        with_limit = run_inprocess(self._plan, engine=self._engine, seed=self._seed)
        for element in with_limit:
            found.append(element)
            if len(found) == count:
                break
        with_limit.close()
        if not found:
            raise PlanError(f"peek: the pipeline {self._name} yields nothing.")
        return found[0] if count == 1 else found

    def explain(self, format: ExplainFormat = "text", *, again: bool = False) -> str:
        """Return in words what each operator does, and which order AutoOrder has chosen and why.

        `format` is "text" (a table, which a notebook shows as HTML), "html", "json" or "mermaid".  Where no order is
        kept, or with `again`, a sample is run in a process of its own, for at most ``Config(sample_seconds=...)``;
        jobs that are started behind it use the same order.  Raises `OpError` where an operator does.
        """
        return explain(self._name, self._order.told(again=again), format)

    def save_order(self, path: str | os.PathLike[str], *, again: bool = False) -> None:
        """Write the order that AutoOrder chooses, whatever the seed, to a file for ``Config(order_file=path)``.

        One that is kept is not looked for again, unless `again`.
        """
        self._order.save(path, again=again)

    def __len__(self) -> int:
        """Return the number of batches of an epoch for one trainer; raises TypeError where it is not known."""
        count = num_batches(self._plan)
        if count is None:
            raise TypeError(f"the length of pipeline {self._name} is not known without reading its data")
        return count

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        ops = "".join(f".{as_written(op)}" for op in self._plan.ops)
        head = self._plan.head
        start = head.kind if isinstance(head, Join) else type(head).__name__
        return f"PecanPipeline({start}, name={self._name!r}, engine={self._engine!r}){ops}"

    def fingerprint(self, upto: str | None = None) -> str:
        """Return a stable hash of the data's identity and of the operators' code, up to the operator named."""
        return fingerprint(self._plan, upto=upto)

    def iter_batches(
        self,
        *,
        epochs: int | None = 1,
        workers: Workers | AutoWorkers | None = None,
        format: Format = "numpy",
        device: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        share: bool | str = False,
        max_lag: int | None = None,
        order: Order = "relaxed",
        visitation: Visitation | None = None,
        sharding: Sharding = "dynamic",
        on_error: OnError = "raise",
        prefetch_bytes: int = 256 << 20,
        job: str | None = None,
        debug: bool = False,
        state: Mapping[str, Any] | None = None,
        allow_changed_source: bool = False,
    ) -> Batches:
        """Run the pipeline on Ray and return an iterator over its batches.

        Epochs follow each other in one sequence.  `rank` of `world_size` trainers share a job: each gets its
        own, equally many batches; in a loop of Ray Train the run says which and how many.  `workers` fixes the numbers
        of workers; without it AutoPlacement finds them while the job runs, or there is one local worker where
        static sharding needs a fixed number.  `debug` runs everything in this very process, with plain tracebacks.
        A pipeline without `batch` yields single elements.  `device`: with ``format="torch"``, where batches go.

        `share`: read what one group of workers makes for all jobs with the same pipeline, or for those of a name.  Who
        is slow skips what has left the group's window; with `max_lag` all wait for one that is so many batches behind.
        `visitation` is "exactly_once", or for a job that may skip "at_most_once".

        `state`: go on where `Batches.state_dict` was taken, with what was not yielded by then; `epochs` counts from the
        first run on.  Raises StateError for a state that is damaged, or of another pipeline, version or data; with
        `allow_changed_source` other data is told and no error.
        """
        if not (debug := of_kind("debug", debug, bool)):
            refuse_at_exit()
        allow_changed_source = of_kind("allow_changed_source", allow_changed_source, bool)
        rank, world_size, job = placed(self._name, rank, world_size, job)
        options = IterOptions(
            epochs=epochs,
            workers=workers if workers is not None else Workers() if sharding == "static" else AutoWorkers(),
            format=format,
            device=None if device is None else str(device),
            rank=rank,
            world_size=world_size,
            order=order,
            visitation=visitation or ("at_most_once" if share and max_lag is None else "exactly_once"),
            sharding=sharding,
            on_error=on_error,
            prefetch_bytes=prefetch_bytes,
            job=job,
            share=share,
            max_lag=max_lag,
        )
        set_patience(self._config.storage_patience_s)
        # Trainers that share a job must run one plan: it is that of the first one to have an order.
        saved, found = (None, self._order) if state is None else self._saved(state, options, debug)
        found.check()
        count = epochs != 1 and found.movable and self._config.order_file is None
        shared = None
        if share and not debug:
            begin, seed = self.with_config(progress=False).iter_batches, self._seed
            shared = share_request(self._plan, self._name, self._engine, seed, self._config, options, begin)
        options = own_options(options, visitation) if shared is None else options
        skip_bad, job_is = on_error != "raise", job_size(options, self._config, debug=debug)
        looks = not debug and shared is None and found.looks_ahead(skip_bad=skip_bad, job=job_is)
        with own_process_ahead(self._engine, looks):  # while the workers start
            return Batches(
                self._plan,
                name=self._name,
                engine=self._engine,
                seed=self._seed if saved is None else saved.seed,
                config=replace(self._config, reorder_check=None),
                options=options,
                debug=debug,
                order=functools.partial(
                    found.ordered, skip_bad=skip_bad, once=not count or rank > 0, job=job_is, here=debug
                ),
                parts=None if debug else found.parts,
                look_again=count,
                saved=saved,
                allow_changed_source=allow_changed_source,
                go_on=functools.partial(self._go_on, options, debug, allow_changed_source),
                share=shared,
            )

    # --- inside --------------------------------------------------------------------------------------------

    def _saved(self, state: Mapping[str, Any], options: IterOptions, debug: bool) -> tuple[SavedState, JobOrder]:
        """Return a state, and the order that it pins; raises PecanError unless one may go on from it."""
        if debug:
            raise PlanError("iter_batches: debug=True cannot go on from a state.")
        seed = self._seed if self._seeded else None
        saved = fitting_state(state, options, engine=self._engine, seed=seed, parts=self._order.parts)
        return saved, self._order.pinned(
            saved.point.op_order, saved.point.decoders, cuts_elements=saved.point.cuts_elements
        )

    def _go_on(self, options: IterOptions, debug: bool, other: bool, state: Mapping[str, Any]) -> Callable[[], Batches]:
        self._saved(state, options, debug)
        given: dict[str, Any] = {**vars(options), "debug": debug, "allow_changed_source": other}
        return functools.partial(self.iter_batches, state=state, **given)

    def _with(self, plan: Plan) -> PecanPipeline:
        new = object.__new__(PecanPipeline)
        new._plan, new._name, new._engine = plan, self._name, self._engine
        new._seed, new._seeded, new._config = self._seed, self._seeded, self._config
        return new

    @functools.cached_property
    def _order(self) -> JobOrder:
        return JobOrder(
            self._plan,
            name=self._name,
            engine=self._engine,
            seed=self._seed,
            config=self._config,
            seeded=self._seeded,
        )

    def _then(self, op: Op) -> PecanPipeline:
        settle(op, method_name(op))
        return self._with(self._plan.then(op))

    def _unique(self, name: str | None, fn: Function | None = None) -> str:
        taken = {op.name for op in self._plan.all_ops()}
        name = of_kind("name", name, str | None)
        if not name:
            name = getattr(fn, "__name__", None) or type(fn).__name__
            name = "map" if name == "<lambda>" else name
        elif fn is not None and name in taken:
            raise PlanError(f"the name {name!r} is taken by another operator of the pipeline {self._name}.")
        return free_name(name, taken)
