"""The order that a pipeline's jobs run: pinned by a file, kept from an earlier look, or found by a look now."""

from __future__ import annotations

import copy
import functools
import logging
import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path

from pecan_ray.autocache.decision import Kept, has_points, with_kept_points
from pecan_ray.autoorder.accepted import Ordered, Ordering, ReorderResult
from pecan_ray.autoorder.call_in_subprocess import JobEnd, begin_look
from pecan_ray.autoorder.exchange_check import NO_TIME
from pecan_ray.autoorder.explain import as_json
from pecan_ray.autoorder.kept_order import KeptOrder, check_folder, keep_order, load_kept, order_key, pinned_order
from pecan_ray.autoorder.op_samples import costs_of
from pecan_ray.autoorder.order import order_plan, order_rejection, reorder_after_epoch, uses_subprocess
from pecan_ray.autoorder.order_request import ELEMENTS, LEAST_RUNS, SECONDS, JobSize, OrderRequest, runs_allowed
from pecan_ray.autoorder.rewrites import apply_rewrites
from pecan_ray.autoorder.trial import COMPARING
from pecan_ray.engines.available_cpus import available_cpus
from pecan_ray.engines.counting import OpCount
from pecan_ray.errors import ColumnError, StateError, describe_error
from pecan_ray.options import Config, EngineName
from pecan_ray.plan.fingerprint import describe_operators, describe_plan
from pecan_ray.plan.op_sequences import OpOrders, op_order_of, op_sequences
from pecan_ray.plan.operators import ElementOp, Plan
from pecan_ray.reorder import Mode
from pecan_ray.user_files import user_cache_folder

logger = logging.getLogger("pecan_ray")

# docs/decisions/autoorder.md#115-kept-orders-are-compared-again
CHECKED_AGAIN = 16
"""Elements on which a kept order is compared again beside a later job."""
# docs/decisions/autoorder.md#139-a-look-goes-on-beside-its-job
WAITED_S = 10.0
"""A job waits so long for a look, or for `Config(sample_seconds=...)` if that is longer: then it begins without."""
ASKED_TIMES = 2.0
"""A look that somebody asks for has so many times as long as one before a job: it takes the time that it needs."""
STILL_LOOKING = (
    "AutoOrder is still looking, so the job begins in the order as it is written. What is found is run from the next "
    "epoch on of which nothing has begun, and by later jobs"
)
SEEDED = (
    'a seed is given, so that only orders are looked for that leave results equal, as by reorder="strict". '
    '`pecan explain --save order.json` looks for one by reorder="safe", which Config(order_file=...) pins'
)


class JobOrder:
    """The order of one pipeline."""

    def __init__(
        self, plan: Plan, *, name: str, engine: EngineName, seed: int, config: Config, seeded: bool = False
    ) -> None:
        """`seeded`: the user has given the seed, so that two runs have equal results."""
        self._plan, self._name, self._engine, self._seed = plan, name, engine, seed
        self._config, self._seeded = config, seeded
        # A seed does not switch the search off, and bounds what it may change: which orders a look finds depends on
        # what a machine measures (docs/decisions/autoorder.md#149-a-seed-and-an-order).
        self._mode: Mode = "strict" if seeded and config.reorder == "safe" else config.reorder
        self._found: Ordering | None = None
        self._state_pins: Ordering | None = None

    @functools.cached_property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """What the plan consists of, which can take a while where data lies in memory."""
        return describe_plan(self._plan)

    @functools.cached_property
    def parts_behind(self) -> tuple[tuple[str, str], ...]:
        """The same without the first source."""
        # Not for this alone: to hash data in memory takes long.
        return self.parts[1:] if "parts" in vars(self) else describe_operators(self._plan)

    @functools.cached_property
    def _key(self) -> str:
        switches = f"exchanges={self._config.reorder_exchanges} rewrites={self._config.reorder_rewrites}"
        parts = (*self.parts, ("switches", switches))
        return order_key(parts, self._plan.sources(), self._engine, self._mode)

    @functools.cached_property
    def _file(self) -> Path | None:
        """Where its order is kept, if orders are."""
        folder = self._config.order_folder
        if folder is None:
            folder = user_cache_folder("orders")
        return Path(folder, f"{self._key}.json") if os.fspath(folder) else None

    @property
    def movable(self) -> bool:
        """Return whether there are operators to exchange."""
        return self._mode != "off" and any(stretch.movable > 1 for stretch in op_sequences(self._plan))

    @property
    def _can_change(self) -> bool:
        """Return whether there are operators to exchange, or to rewrite: a single one, too.

        No job looks for the sake of a single one, but it runs what `explain()` has found.
        """
        rewrites = self._engine == "python" and self._config.reorder_rewrites and self._mode in COMPARING
        return self.movable or (rewrites and any(stretch.movable for stretch in op_sequences(self._plan)))

    def pinned(self, order: OpOrders, decoders: tuple[str, ...] = (), *, cuts_elements: bool) -> JobOrder:
        """Return the order under which a state was taken, so that values stay what they were.

        A file that pins another one comes first, unless the state `cuts_elements`: their outputs are told by places.
        Raises StateError then, and for an order of other operators.
        """
        if not order:
            return self
        found = KeptOrder(order, self._name, decoders=decoders).ordering(self._plan, self._mode)
        if found is None:
            raise StateError(f"the state was taken under the order {_to_str(order)}, which this pipeline cannot have.")
        if self._config.order_file is not None:
            file = self._pinned()
            if cuts_elements and file is not None and op_order_of(file.plan) != order:
                raise StateError(
                    f"the state was taken under the order {_to_str(order)}, and elements are partly delivered in it; "
                    f"{os.fspath(self._config.order_file)} pins {_to_str(op_order_of(file.plan))}. Go on without "
                    "Config(order_file=...), or pin the order of the state."
                )
            return self
        other = copy.copy(self)
        other._state_pins = replace(found, origin="the state was taken under it")
        return other

    def check(self) -> None:
        """Raise `PlanError` where a pinned order does not fit, or a folder that is named can keep none."""
        # The folder of all pipelines is no choice of the user's: a job does without it.
        if self._config.order_folder and self._mode != "off":
            check_folder(self._config.order_folder)
        self._pinned()

    def ordered(self, *, skip_bad: bool, once: bool, job: JobSize | None) -> Ordered:
        """Return the plan to run, ordered and pushed down into decoders; it is looked at again unless `once`.

        Decoders take over what was run and measured with them, or what a file pins; nothing where nothing was sampled.
        What goes wrong here is told and leaves the plan as it is, unless an order is pinned: the job shows an error
        itself, where and as it should; or runs, on workers that have what this process lacks (files, packages).
        """
        end = JobEnd()
        try:
            # Another order, a rewrite, or a point at which something is kept.
            if not (self._is_pinned or self.movable or has_points(self._plan) or self._known() is not None):
                written = functools.partial(as_json, self._name, Ordering(self._plan, self._plan, self._mode))
                return Ordered(order=op_order_of(self._plan), order_text=written, end=end)
            return self._decide(end, skip_bad=skip_bad, once=once, job=job)
        except BaseException as error:  # whatever a user's function, object or source can raise
            # The job runs as it is written, and what still looks for it would look in vain.
            end.finish()
            # A missing column is the user's own order's, on an element.
            if self._is_pinned or isinstance(error, (KeyboardInterrupt, ColumnError)):
                raise
            message = _ended_with(error)
            logger.warning("%s: %s", self._name, message)
            return Ordered(order=op_order_of(self._plan), notes=(message.partition("\n")[0],))

    def _decide(self, end: JobEnd, *, skip_bad: bool, once: bool, job: JobSize | None) -> Ordered:
        ordering, beside = self._ordering(end, skip_bad=skip_bad, once=once, job=job)
        plan = ordering.plan if ordering.changed else self._plan
        order = op_order_of(plan)
        keeps = self._keeps(plan, ordering, JobSize(1.0, 1.0) if job is None else job)
        messages = self._tell(plan, ordering, keeps)
        # As the Pecan paper has it; other modes look once (docs/decisions/autoorder.md#122-what-autoorder-has-no-more).
        asks_again = ordering.mode == "pecan" and not (once or self._is_pinned)
        return Ordered(
            None if keeps.plan is self._plan else keeps.plan,
            order,
            messages,
            ordering.op_seconds(),
            # A look that goes on has taken too long to tell.
            ordering.row_seconds() if beside is None or ordering.final else math.inf,
            reorder_after_epoch=functools.partial(self._after_epoch, ordering, end, skip_bad) if asks_again else None,
            background_search=beside,
            # A pinned order stays the user's, also where this job could not run in it.
            on_fallback=None if self._is_pinned else functools.partial(self._replace, self._plan),
            decoders=ordering.decoders,
            epoch_estimate=keeps.epoch_estimate,
            order_text=functools.partial(as_json, self._name, ordering),
            end=end,
        )

    def _tell(self, plan: Plan, ordering: Ordering, keeps: Kept) -> tuple[str, ...]:
        """Log what is done to a plan, and return it."""
        rewrites = apply_rewrites(plan, self._engine, ordering.decoders)[1]
        told = (*(one.description() for one in rewrites), *keeps.notes, *self._seed_notes())
        messages = tuple(text for text in (ordering.summary(), *told) if text)
        # Warnings are what changes values, or makes random ones the same in each epoch.
        loud = {*keeps.frozen, *([ordering.summary()] if ordering.may_change_values else ())}
        for text in messages:
            logger.log(logging.WARNING if text in loud else logging.INFO, "%s: %s", self._name, text)
        return messages

    def order_text(self, *, again: bool = False) -> Ordering:
        """Return the order with what was measured of every operator; `again`: look anew, whatever is kept."""
        self.check()
        # One bad element of many must not hide all that is to be told, and no job waits for a command.
        request = self._request(skip_bad=True, sample_all=True)
        request = replace(request, seconds=ASKED_TIMES * request.seconds)
        pinned = self._pinned()
        found = pinned or (None if again else self._known())
        if found is not None and not found.sequences and found.origin:
            # Nothing was written down with it of what a sample shows.
            sampled = order_plan(replace(request, plan=found.plan, mode="off"))
            notes = (*found.notes, *sampled.notes)
            found = replace(found, sequences=sampled.sequences, seconds=sampled.seconds, notes=notes)
        elif found is None or (pinned is None and len(found.sequences) < len(op_sequences(self._plan))):
            known = () if found is None else found.sequences
            found = self._keep(order_plan(request, known), again=again)
        self._found = replace(found, notes=tuple(dict.fromkeys([*found.notes, *self._seed_notes()])))
        return self._found

    def explain_ordering(self, *, again: bool = False) -> Ordering:
        """Return what `order_text` does; among its notes is what a job on this machine would keep, and why."""
        found = self.order_text(again=again)
        plan = found.plan if found.changed else self._plan
        keeps = self._keeps(plan, found, JobSize(1.0, available_cpus()))
        return replace(found, notes=(*found.notes, *keeps.notes))

    def save(self, path: str | os.PathLike[str], *, again: bool = False) -> None:
        """Write the order to a file, by which it can be pinned.

        A seed does not matter here: an order that is pinned is the same each time.
        """
        order = self
        if self._seeded:
            config = replace(self._config, order_file=None)
            order = JobOrder(self._plan, name=self._name, engine=self._engine, seed=self._seed, config=config)
        KeptOrder.of(order.order_text(again=again), self._name).save(path)

    def _keeps(self, ordered: Plan, ordering: Ordering, job: JobSize) -> Kept:
        """Return an ordered plan as it is to run, with what it keeps."""
        plan, _ = apply_rewrites(ordered, self._engine, ordering.decoders)
        known = len(ordering.sequences) == len(op_sequences(self._plan))  # also those in which nothing can move
        as_sampled = _on_elements(plan) == _on_elements(ordered)

        def measured_order() -> Ordering:
            # Costs are those of the operators that run: a rewritten plan is sampled by itself.
            if known and as_sampled:
                return ordering
            request = self._request(skip_bad=True, sample_all=True)
            return order_plan(replace(request, plan=self._plan if as_sampled else plan, mode="off"))

        return with_kept_points(
            plan,
            lambda branch: costs_of(branch, [one.sample for one in measured_order().sequences]),
            name=self._name,
            engine=self._engine,
            seed=self._seed,
            cache=self._config.cache,
            cpus=job.cpus,
            workers=job.workers,
        )

    def _seed_notes(self) -> tuple[str, ...]:
        """Say that a seed bounds what an order may change, where it does."""
        bounded = self._mode != self._config.reorder and not self._is_pinned
        return (SEEDED,) if bounded and self.movable else ()

    def _request(self, *, skip_bad: bool, sample_all: bool = False, job: JobSize | None = None) -> OrderRequest:
        config = self._config
        return OrderRequest(
            self._plan,
            self._engine,
            self._mode,
            self._seed,
            ELEMENTS if config.sample_elements is None else config.sample_elements,
            SECONDS if config.sample_seconds is None else config.sample_seconds,
            skip_bad=skip_bad,
            sample_all=sample_all,
            # Where the user has bounded the look, the job does not.
            job=job if config.sample_elements is None and config.sample_seconds is None else None,
            exchanges=config.reorder_exchanges,
            rewrites=config.reorder_rewrites,
        )

    def _ordering(
        self, end: JobEnd, *, skip_bad: bool, once: bool, job: JobSize | None
    ) -> tuple[Ordering, Callable[[], ReorderResult | None] | None]:
        """Return the order to run, and what looks beside the job until that ends, if anything does.

        What was found stays, for this pipeline and later ones.  `once`: the job has no later epoch to run it in.
        """
        # Decision 24: pinned, kept, found, or as written: the first that there is.
        if (pinned := self._pinned()) is not None:
            return pinned, None
        if (known := self._known()) is not None:
            # Decision 115: a sample does not show all, so long jobs compare a kept order on other elements.
            again = known.changed and runs_allowed(self._plan, job) >= LEAST_RUNS
            return known, functools.partial(self._compare_order, known, end, skip_bad) if again else None
        request = self._request(skip_bad=skip_bad, job=job)
        request = replace(request, in_subprocess=uses_subprocess(request))
        look = begin_look(functools.partial(self._search_later, request, end))
        # Decision 139: a look holds up a job no longer. What it finds is a later version of the plan.
        waited_s = max(WAITED_S, self._config.sample_seconds or 0.0)
        # What is kept at points belongs to an order.
        goes_on = job is not None and job.continues and request.in_subprocess
        if goes_on and not has_points(self._plan) and not wait([look], waited_s).done:
            written = Ordering(self._plan, self._plan, self._mode, notes=(STILL_LOOKING,), final=False)
            return written, None if once else functools.partial(self._found_late, look)
        return look.result(), None

    def _search_later(self, request: OrderRequest, end: JobEnd) -> Ordering:
        found = order_plan(request, job=end)
        # Decision 24: a look whose time was over says nothing about the pipeline, so the next job looks again.
        if found.final:
            found = self._found = self._keep(found)
        return found

    def _found_late(self, look: Future[Ordering]) -> ReorderResult:
        """Wait for a look that goes on beside a job, and return what it has found."""
        try:
            found = look.result()
        except Exception as error:  # whatever a user's function, a source or the look's process can raise
            return ReorderResult(None, (), _ended_with(error))
        if not (found.changed or found.decoders):
            return ReorderResult(None, (), found.summary())
        if found.may_change_values:
            logger.warning("%s: %s", self._name, found.summary())
        plan, done = apply_rewrites(found.plan, self._engine, found.decoders)
        text = "; ".join((found.summary(), *(one.description() for one in done)))
        return ReorderResult(plan, op_order_of(found.plan), text, found.decoders, as_json(self._name, found))

    @property
    def _is_pinned(self) -> bool:
        return self._config.order_file is not None or self._state_pins is not None

    def _pinned(self) -> Ordering | None:
        if self._state_pins is not None:
            return self._state_pins
        return pinned_order(self._plan, self._mode, self._engine, self._config, self._name)

    def _known(self) -> Ordering | None:
        """Return the order that was found before: by this pipeline, or by another one like it."""
        if self._found is None and self._can_change and self._file is not None:
            kept = load_kept(self._file)
            self._found = None if kept is None else self._located(kept)
        return self._found

    def _located(self, kept: KeptOrder) -> Ordering | None:
        """Return a kept order, and where it is kept; None where another version has written it."""
        found = kept.ordering(self._plan, self._mode)
        if found is None or self._file is None:
            return found and replace(found, origin=kept.why)
        why = f" ({kept.why})" if kept.why else ""
        place = f"it is kept in {self._file} since {kept.found}{why}"
        return replace(found, origin=f"{place}; `pecan explain --again` looks anew")

    def _keep(self, found: Ordering, *, again: bool = False) -> Ordering:
        """Keep what a look has found; return what another process has kept meanwhile, if one has."""
        if not (found.final and found.sequences and self._can_change) or self._file is None:
            return found
        mine = KeptOrder.of(found, self._name)
        # Decision 24: of two processes that look at a time the first one is right, so that all jobs run one order.
        kept = keep_order(self._file, mine, instead=again)
        other = None if kept is mine else self._located(kept)
        if other is not None and (op_order_of(other.plan), other.decoders) != (op_order_of(found.plan), found.decoders):
            return other
        # Theirs cannot be read here, or is the same: mine has what was measured just now.
        if kept is not mine:
            keep_order(self._file, mine, instead=True)
        return found

    def _after_epoch(
        self, ordering: Ordering, end: JobEnd, skip_bad: bool, counts: Mapping[str, OpCount]
    ) -> ReorderResult | None:
        """Ask again after the first epoch."""
        found = reorder_after_epoch(ordering, counts, self._request(skip_bad=skip_bad), end)
        if found is not None and found.plan is not None:
            self._replace(found.plan, found.reason)
        return found

    def _compare_order(self, kept: Ordering, end: JobEnd, skip_bad: bool) -> ReorderResult | None:
        """Compare a few elements under a kept order again; if they differ, this job and later ones run the user's."""
        try:
            request = replace(self._request(skip_bad=skip_bad), elements=CHECKED_AGAIN)
            rejected = order_rejection(request, op_order_of(kept.plan), end)
        except Exception as error:  # whatever a user's function, a source or the process can raise
            logger.info("%s: the order that is kept was not compared again: %s", self._name, describe_error(error))
            return None
        # That there was no time says nothing against the order.
        if not rejected or rejected == NO_TIME:
            return None
        why = f"results of the order that was kept are others than those of the order as it is written: {rejected}"
        self._replace(self._plan, why)
        return ReorderResult(None, (), f"{why}. The job goes back to your order, and later jobs run it", dropped=True)

    def _replace(self, plan: Plan, why: str) -> None:
        """Keep another order from now on, whatever becomes of bad elements."""
        kept = KeptOrder(op_order_of(plan), self._name, self._mode, why=why)
        if self._file is not None:
            keep_order(self._file, kept, instead=True)
        self._found = self._located(kept)


def _ended_with(error: BaseException) -> str:
    return f"AutoOrder left the order as it is written, since its look ended with {describe_error(error)}"


def _to_str(orders: OpOrders) -> str:
    return "; ".join(" -> ".join(names) for names in orders)


def _on_elements(plan: Plan) -> list[ElementOp]:
    """Return what costs are of; names say less: a decoder that reduces is called as the user's."""
    return [op for op in plan.all_ops() if isinstance(op, ElementOp)]
