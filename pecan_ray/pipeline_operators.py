"""The methods of `PecanPipeline` that add an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pecan_ray.batching_operators import BatchingMethods
from pecan_ray.engines.seeded_globals import with_seeded_globals
from pecan_ray.engines.set_up import with_setup
from pecan_ray.engines.token_rows import TokensAlone
from pecan_ray.errors import PlanError
from pecan_ray.peer_names import explain_foreign_arguments
from pecan_ray.plan.arguments import a_function, a_value_of, natural, positive
from pecan_ray.plan.operators import (
    SPLITS_OF_A_SHUFFLE,
    Autocache,
    Batch,
    ElementOp,
    Filter,
    FlatMap,
    Function,
    Join,
    JoinKind,
    Map,
    MixStop,
    Pack,
    Plan,
    Prefetch,
    Repeat,
    Shuffle,
    Skip,
    Take,
    Unbatch,
    wants_epoch,
)
from pecan_ray.plan.option_types import of_kind
from pecan_ray.plan.own_attributes import function_name
from pecan_ray.plan.renaming import with_new_names
from pecan_ray.plan.shape import first_op_across_splits
from pecan_ray.plan.weight_schedule import WeightSchedule, checked_weights
from pecan_ray.sources.by_index import ByIndex
from pecan_ray.sources.resampled import Resampled

if TYPE_CHECKING:
    from typing_extensions import Self


@explain_foreign_arguments
class OperatorMethods(BatchingMethods):
    """Each returns a new pipeline, with one operator more."""

    # --- operators on elements -----------------------------------------------------------------------------

    def map(
        self,
        fn: Function,
        *,
        on: str | None = None,
        rows: int | None = None,
        name: str | None = None,
        keep_position: bool = False,
        random: bool | None = None,
        processes: bool = False,
        seed_globals: bool = False,
        setup: Callable[[], Any] | None = None,
    ) -> Self:
        """Apply a function to each element (or to each batch, behind `batch`).

        With `rows` the function gets that many elements at a time, as columns (fewer at an epoch's end), and returns
        columns with as many rows, each made of the element in the same row: elements come out.

        `keep_position` keeps AutoOrder from moving it; `processes` runs it in a process pool, for code that
        holds the GIL.  `setup` is called once in each process that runs the function, which takes what it returns as
        its second argument: a tokenizer, a model (python engine).  `seed_globals` seeds `random`, `numpy.random` and
        torch for each element, for functions of libraries that draw from them: the threads of a process then run it
        one after the other (python engine).
        """
        if rows is not None:
            return self._map_rows(
                fn,
                positive("map(rows=...)", rows),
                on=on,
                name=name,
                keep_position=keep_position,
                random=random,
                processes=processes,
                seed_globals=seed_globals,
                setup=setup,
            )
        checked = a_function("map", fn) if on is None else a_value_of(f"map(on={on!r})", fn)
        if setup is not None:
            checked = self._with_setup(checked, setup)
        if of_kind("map(seed_globals=...)", seed_globals, bool):
            checked = self._with_seeded_globals(checked)
        return self._then(
            Map(
                name=self._given_or_unique(name, fn, "map"),
                fn=checked,
                on=on,
                keep_position=keep_position,
                random=random,
                processes=processes,
            )
        )

    def _map_rows(self, fn: Function, rows: int, **options: Any) -> Self:
        """Stack `rows` elements at a time, apply a function, and split what it returns into elements again."""
        # Decision 181: these operators keep order, states and positions, whatever stands around them.
        stacked = self._then(Batch(name=self._unique(f"rows of {rows}"), size=rows)).map(fn, **options)
        return stacked._then(Unbatch(name=stacked._unique(f"map(rows={rows})"), same_rows=True))

    def _with_setup(self, fn: Function, setup: Callable[[], Any]) -> Function:
        if self._engine != "python":
            raise PlanError(
                f"map(setup=...): the {self._engine} engine puts functions into a graph, which is made once: make what "
                'they need before, or use engine="python".'
            )
        return with_setup(fn, a_function("map(setup=...)", setup))

    def _with_seeded_globals(self, fn: Function) -> Function:
        if self._engine != "python":
            raise PlanError(
                f"map(seed_globals=True): the {self._engine} engine puts functions into a graph, which draws from no "
                'global generator: use engine="python", or tf.random.stateless_uniform and a parameter `rng`.'
            )
        if wants_epoch(fn):
            raise PlanError(
                f"map(seed_globals=True): {function_name(fn)} has a parameter `epoch`, which cannot be given to it "
                "then: leave one of both out."
            )
        return with_seeded_globals(fn)

    def filter(self, fn: Function, *, on: str | None = None, name: str | None = None) -> Self:
        """Keep the elements for which the function is true.

        A function with a state of its own, such as a set of what it has seen, has one in each worker.  In the python
        engine it is not asked again about elements that it let pass and that the worker gave back, since they filled
        no batch.  What a lost worker held goes through the filters of others.
        """
        return self._then(Filter(name=self._given_or_unique(name, fn, "filter"), fn=a_function("filter", fn), on=on))

    def flat_map(self, fn: Function, *, on: str | None = None, name: str | None = None) -> Self:
        """Replace each element by those that the function returns (any iterable of elements)."""
        name = self._given_or_unique(name, fn, "flat_map")
        return self._then(FlatMap(name=name, fn=a_function("flat_map", fn, many=True), on=on))

    # --- operators on the sequence -------------------------------------------------------------------------

    def pack(
        self,
        length: int,
        *,
        on: str = "tokens",
        among: int = 1024,
        padding: int = 0,
        along: Mapping[str, float] | None = None,
    ) -> Self:
        """Put the token lists of elements together into rows of `length` tokens, as far as they fit.

        Each row has the columns `on`, "segment" (1, 2, ... for the sequences in it, 0 for padding) and "position" (of a
        token in its segment, from 0); of other columns those that are packed along.  Of `among` elements at a time the
        longest are placed first, one that is longer than a row is cut, and the rows come in a random order: no token is
        lost or repeated.  Behind it follows ``batch(n)``; `pecan_ray.cu_seqlens` tells where segments begin.

        Args:
            length: tokens in a row.
            on: the column with the tokens.
            among: elements whose tokens share rows.
            padding: stands behind the tokens of a row.
            along: other columns with a number for each token, or one for all, and what stands for padding in each:
                ``{"labels": -100, "loss_mask": 0}``.  None: no other column has a number for each token, or it is an
                error; ``{}`` leaves such columns out.
        """
        if self._engine != "python":
            raise PlanError(
                f'pack: the {self._engine} engine has no pack: use engine="python", or pack the data before.'
            )
        length, among = positive("pack", length), positive("pack(among=...)", among)
        others: dict[str, Any] = dict(of_kind("pack(along=...)", {} if along is None else along, Mapping[str, Any]))
        if taken := others.keys() & {of_kind("pack(on=...)", on, str), "segment", "position"}:
            raise PlanError(f"pack(along=...): the column {min(taken)!r} is one that pack makes itself.")
        checks = along is None
        tokens = TokensAlone(on, tuple(others), others=checks)
        # It leaves out what cannot be packed, so it stays right before.
        alone = self.map(tokens, name=self._unique("pack_tokens"), keep_position=True)
        rows: dict[str, Any] = {"length": length, "on": on, "among": among, "padding": padding}
        return alone._then(Pack(name=alone._unique("pack"), **rows, along=others, checks_others=checks))

    def shuffle(
        self, buffer: int, seed: int | None = None, reshuffle: bool = True, splits: int = SPLITS_OF_A_SHUFFLE
    ) -> Self:
        """Draw elements at random from a buffer per worker, and visit the splits in a random order, several at a time.

        Shuffles with equal seeds have equal orders over equally many elements, so that `zip` pairs what belongs
        together: where one worker runs the pipeline (`zip`, `take`, `skip`), one with a `seed` draws from its buffer
        alone, over the order of the source.  The buffer is drained at the end of each pass, also of those of a `repeat`
        behind it: with one for all elements, and one worker, each pass has each element once.

        Args:
            buffer: elements to draw from. As many as the source has give a uniformly random order.
            seed: replaces the pipeline's seed.
            reshuffle: draw another order in each pass. False: one order for all passes, also when the program is run
                again, so that `take` and `skip` choose the same elements each time.
            splits: a worker fills its buffer from so many splits at a time, if the buffer has so many elements, so that
                files that are sorted by class are mixed. 1 reads one after the other, as is always done where the
                splits are not shuffled, and of `from_tf_data`.
        """
        buffer, splits = positive("shuffle", buffer), positive("shuffle(splits=...)", splits)
        name = self._unique("shuffle")
        return self._then(Shuffle(name=name, buffer=buffer, seed=seed, reshuffle=reshuffle, splits=splits))

    def repeat(self, count: int | None = None) -> Self:
        """Pass over the data `count` times within one epoch; None: without end.

        Each pass runs what is written before anew: it reads, shuffles and draws again, and nothing of it is kept.  A
        shuffle before it is drained at the end of each pass; one behind it mixes passes.  Batches at the end of the
        pipeline go on over the seam, so that an epoch has one smaller batch at most; where `take`, `skip` or `zip` lets
        one worker run the pipeline, each pass ends with its own, as in tf.data.  Without a `count`, passes that yield
        no element end in an error.
        """
        if count is not None:
            count = positive("repeat", count)
        return self._then(Repeat(name=self._unique("repeat"), count=count))

    def take(self, count: int) -> Self:
        """Keep the first `count` elements (batches, behind `batch`).  One worker runs such a pipeline.

        Behind a shuffle these are others in each pass, unless it has ``reshuffle=False``.
        """
        return self._then(Take(name=self._unique("take"), count=natural("take", count)))

    def skip(self, count: int) -> Self:
        """Leave out the first `count` elements (batches, behind `batch`).  One worker runs such a pipeline.

        Behind a shuffle these are others in each pass, unless it has ``reshuffle=False``.
        """
        return self._then(Skip(name=self._unique("skip"), count=natural("skip", count)))

    def prefetch(self, count: int) -> Self:
        """Keep `count` elements (batches, behind `batch`) ready ahead of what takes them."""
        count = positive("prefetch", count)
        return self._then(Prefetch(name=self._unique("prefetch"), count=count))

    def with_length(self, count: int) -> Self:
        """Say how many elements, or batches, come out here in an epoch, where `len` cannot know it.

        Behind `filter`, `flat_map` and over archives that is not known without reading.  The number is believed, and
        nothing is cut or filled for it: `len`, progress and loops that ask for a length go by it.
        """
        return self._with(self._plan.with_length(positive("with_length", count)))

    def autocache(self, *, name: str | None = None, version: str = "", refresh: float = 0.0) -> Self:
        """Let elements be kept here, where later epochs and other jobs read them instead of computing them again.

        Whether that is worth it, and at which of several points, is decided before the first epoch.  `version` stands
        for what cannot be seen of the functions before (modules that they import in their bodies, files, environment
        variables): change it where those have changed.  It must stand before `batch`, `shuffle`, `take` and the like.
        `refresh`: the share of splits that are computed again in each epoch after a job's first, and kept anew.
        What is random before this point is the same in every epoch once it is kept, and jobs warn of it by name: put
        the point before it, or give `refresh`; ``map(fn, random=False)`` says of a function that it is not random.
        """
        if (where := first_op_across_splits(self._plan)) is not None:
            raise PlanError(
                f"autocache: it stands behind {where}, but only what a split of one source gives can be kept: put it "
                "before."
            )
        if isinstance(self._plan.head, (ByIndex, Resampled)):
            raise PlanError(
                "autocache: a sampler gives each split other elements in each epoch, so what one epoch keeps would be "
                "wrong in all others. Let the data set keep what is expensive, or read it without a sampler."
            )
        by_epoch = (op for op in self._plan.ops if isinstance(op, ElementOp) and wants_epoch(op.fn))
        if (one := next((op.name for op in by_epoch if op.random is not False), None)) is not None:
            raise PlanError(
                f"autocache: it stands behind {one}, which is given the number of the epoch: what is kept in one epoch "
                f"would be taken in all others. Put autocache before it, or write random=False for {one} if its "
                "results are the same in each epoch."
            )
        return self._then(
            Autocache(
                name=self._unique(of_kind("autocache(name=...)", name, str | None) or "autocache"),
                version=version,
                refresh=refresh,
            )
        )

    # --- joins ---------------------------------------------------------------------------------------------

    def zip(self, *others: Self) -> Self:
        """Pair element i with element i of the others, up to the end of the shortest; their columns must differ.

        Sides that are shuffled need equal seeds, ``shuffle(n, seed=1)``, for equal orders.

        Several workers make the pairs where sources have rows with numbers (`Arrays`, `Items`, data sets of torch, and
        all that a sampler reads), with maps alone in front of the zip and the shortest first.  Else one worker does,
        and `batches.explain()` says why.
        """
        return self._join("zip", others)

    def concat(self, *others: Self) -> Self:
        """Follow this pipeline's elements by those of others."""
        return self._join("concat", others)

    def mix(self, *others: Self, weights: Sequence[float] | WeightSchedule, stop: MixStop = "all") -> Self:
        """Draw elements from several pipelines at random, in proportion to `weights`; a `WeightSchedule` changes them.

        Ends when all have run out, or with ``stop="first"`` when the first has.  From one with a weight of 0 nothing is
        drawn, nor waited for; one worker runs such a pipeline.
        """
        if stop not in ("first", "all"):
            raise PlanError(f"mix: stop must be 'first' or 'all', but got {stop!r}.")
        schedule = weights if isinstance(weights, WeightSchedule) else None
        given = weights.at(0) if isinstance(weights, WeightSchedule) else weights
        first = checked_weights("mix(weights=...)", given, len(others) + 1)
        mixed = self._join("mix", others, weights=first, stop=stop, schedule=schedule)
        join = mixed._plan.head
        assert isinstance(join, Join)
        if self._engine == "tensorflow" and join.counts_draws and join.leaves_out and stop == "all":
            raise PlanError(
                "mix: in the tensorflow engine draws from what has run out count, so with a weight of 0 by elements it "
                'would never end: write stop="first", a schedule by epochs, or engine="python".'
            )
        return mixed

    def _join(self, kind: JoinKind, others: Sequence[Self], **details: Any) -> Self:
        if not others:
            raise PlanError(f"{kind} needs at least one other pipeline.")
        inputs = [self._plan]
        taken = {op.name for op in self._plan.all_ops()}
        for other in others:
            if not isinstance(other, OperatorMethods):
                raise PlanError(f"{kind} needs pipelines, but got {type(other).__name__}.")
            if other._engine != self._engine:
                raise PlanError(f"{kind}: pipelines of different engines ({self._engine}, {other._engine}).")
            inputs.append(with_new_names(other._plan, taken))
        return self._with(Plan(head=Join(kind=kind, inputs=tuple(inputs), **details)))
