"""An order of a pipeline's operators as a file: kept for the next job, saved, shown, pinned, written by hand."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pecan_ray.autoorder.adopted import Ordering, StretchOrder
from pecan_ray.autoorder.exchange_check import OpOrder
from pecan_ray.autoorder.facts_json import FactJson, from_json, to_json
from pecan_ray.autoorder.in_rows import RowsAtOnce
from pecan_ray.autoorder.push_down import choices
from pecan_ray.autoorder.reduced_copies import can_keep_copies, kinds
from pecan_ray.errors import PecanError, PlanError
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import ElementOp, Join, Plan
from pecan_ray.plan.stretches import orders_in, reordered, stretches

logger = logging.getLogger("pecan_ray")

FORMAT = 1
"""Grows whenever what was written before cannot be read as it is."""
MOST_HURRIED_LOOKS = 3
"""After so many looks that had too little time the order stays as it is written: each holds up a first batch."""


@dataclass(frozen=True)
class KeptOrder:
    """The order of every stretch of a pipeline whose operators can be exchanged."""

    orders: tuple[OpOrder, ...]
    """The operators of each stretch, as they are to run."""
    pipeline: str = ""
    mode: str = ""
    fingerprint: str = ""
    """Of the pipeline and the settings that it was found for."""
    found: str = ""
    """When, in ISO 8601."""
    why: str = ""
    """Where it is not what a look has found."""
    facts: FactJson = None
    """What was measured, as JSON."""
    hurried_looks: int = 0
    """So many looks at this pipeline had too little time: the last one, and those right before it."""
    decoders: tuple[str, ...] = ()
    """Operators that take over the work of those that directly follow them (`pecan_ray.autoorder.push_down`)."""

    @property
    def worth_another_look(self) -> bool:
        """Whether the next job should look again: on a quieter machine, a look may find more in its time."""
        return 0 < self.hurried_looks < MOST_HURRIED_LOOKS

    @classmethod
    def of(cls, ordering: Ordering, pipeline: str, fingerprint: str, why: str = "") -> KeptOrder:
        """Return what a look at a pipeline has found."""
        orders = tuple(one.adopted.order for one in ordering.stretches)
        facts = {
            "stretches": to_json(ordering.stretches),
            "seconds": ordering.seconds,
            "notes": list(ordering.notes),
        }
        hurried = any(one.hurried for one in ordering.stretches)
        return cls(orders, pipeline, ordering.mode, fingerprint, _now(), why, facts, int(hurried), ordering.decoders)

    @classmethod
    def in_place(
        cls, plan: Plan, pipeline: str, mode: str, fingerprint: str, why: str, decoders: tuple[str, ...] = ()
    ) -> KeptOrder:
        """Return the order of a plan as it is, in place of one that a look has found."""
        return cls(orders_in(plan), pipeline, mode, fingerprint, _now(), why, decoders=decoders)

    def to_json(self) -> dict[str, FactJson]:
        """Return it as a value that JSON has."""
        return {
            "format": FORMAT,
            "pipeline": self.pipeline,
            "mode": self.mode,
            "fingerprint": self.fingerprint,
            "found": self.found,
            "why": self.why,
            "orders": [list(order) for order in self.orders],
            "decoders": list(self.decoders),
            "facts": self.facts,
            "hurried_looks": self.hurried_looks,
        }

    @classmethod
    def from_json(cls, written: FactJson) -> KeptOrder:
        """Return what was written; raises ValueError for anything else."""
        if not isinstance(written, dict) or written.get("format") != FORMAT:
            found = written.get("format") if isinstance(written, dict) else type(written).__name__
            raise ValueError(f"it needs to be an object with format {FORMAT}, but has {found!r}")
        orders = written.get("orders")
        if not isinstance(orders, list) or not all(isinstance(order, list) for order in orders):
            raise ValueError("orders must be a list of lists of operators' names")
        if not all(isinstance(name, str) for order in orders for name in order):
            raise ValueError("an operator's name must be a string")
        if not all(orders):
            raise ValueError("an order must have an operator's name at least (leave out an order that has none)")
        decoders = written.get("decoders", [])
        if not isinstance(decoders, list) or not all(isinstance(name, str) for name in decoders):
            raise ValueError("decoders must be a list of operators' names")
        told = {name: str(written.get(name, "")) for name in ("pipeline", "mode", "fingerprint", "found", "why")}
        hurried = written.get("hurried_looks")
        looks = hurried if isinstance(hurried, int) else 0
        facts = written.get("facts")
        _check_facts(facts)
        return cls(tuple(map(tuple, orders)), facts=facts, hurried_looks=looks, decoders=tuple(decoders), **told)

    def ordering(self, plan: Plan, mode: Any) -> Ordering | None:
        """Return the plan in this order, with what was measured; None where it was written for other operators."""
        ops = {op.name: op for op in plan.all_ops() if isinstance(op, ElementOp)}
        known = {tuple(sorted(one.names)): one.names for one in stretches(plan)}
        if any(tuple(sorted(order)) not in known for order in self.orders):
            return None
        after = reordered(plan, {known[tuple(sorted(order))]: order for order in self.orders})
        try:
            found: tuple[StretchOrder, ...] = from_json((self.facts or {}).get("stretches", []), ops)
            seconds, notes = (self.facts or {}).get("seconds", 0.0), (self.facts or {}).get("notes", ())
            fitting = all(one.names in known.values() for one in found)
        except (KeyError, TypeError, ValueError, AttributeError, ImportError, PecanError):
            return None  # another version has written it
        if not fitting:
            return None
        return Ordering(plan, after, mode, found, seconds, tuple(notes), decoders=self.decoders)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, whole or not at all."""
        with _written(Path(path), self) as written:
            os.replace(written, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KeptOrder:
        """Read a file; raises `PlanError` where it is none of ours."""
        try:
            return cls.from_json(json.loads(Path(path).read_text()))
        except OSError as error:
            raise PlanError(f"cannot read the order file {path}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise PlanError(
                f"{path} is no order file: {error}. Write one by `pecan explain --save {path}`, or by hand: "
                f'{{"format": {FORMAT}, "orders": [["first", "second"]]}}.'
            ) from error


def _check_facts(facts: FactJson) -> None:
    """Raise ValueError for facts that cannot be told: what stands in `stretches` may be of another version."""
    if facts is None:
        return
    if not isinstance(facts, dict):
        raise ValueError(f"facts must be an object, or left out, but is {facts!r:.40}")
    seconds, notes = facts.get("seconds", 0.0), facts.get("notes", [])
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds < math.inf:
        raise ValueError(f"facts.seconds must be a number, at least 0, but is {seconds!r:.40}")
    if not isinstance(notes, list) or not all(isinstance(one, str) for one in notes):
        raise ValueError(f"facts.notes must be a list of texts, but is {notes!r:.40}")


def check_decoders(found: Ordering, engine: EngineName, path: str | os.PathLike[str], pipeline: str) -> None:
    """Raise `PlanError` for a pinned order with a decoder that has nothing to take over in it."""
    able = [way.decoder for one in stretches(found.plan) for some in choices(one.ops, engine) for way in some]
    source = None if isinstance(found.plan.head, Join) else found.plan.head
    in_rows = [one.rewrite.decoder for one in RowsAtOnce().matches(found.plan.ops, engine, source)]
    copies = can_keep_copies(found.plan, found.before) if engine == "python" else None
    able += [one.name for one in kinds(copies)] if copies is not None else []
    for name in found.decoders:
        if name not in (*able, *in_rows):
            raise PlanError(
                f"the order file {path} lets {name!r} take over what follows it, but in the pipeline {pipeline} on "
                f'the {engine} engine it cannot: those that can are {_spelled(able)}. Take it out of "decoders".'
            )


def check_fits(order: KeptOrder, plan: Plan, path: str | os.PathLike[str], pipeline: str) -> None:
    """Raise `PlanError` for a pinned order that is not one of the pipeline's operators."""
    again = f"Correct it, or write it anew by `pecan explain --save {path}`"
    runs = [one.names for one in stretches(plan)]
    known = [name for names in runs for name in names]
    seen: set[str] = set()
    for names in order.orders:
        for name in names:
            if name not in known:
                raise PlanError(
                    f"the order file {path} names the operator {name!r}, but the pipeline {pipeline} has none of this "
                    f"name that can be exchanged with others: it has {_spelled(known)}. {again}."
                )
            if name in seen:
                raise PlanError(f"the order file {path} names the operator {name!r} twice. {again}.")
            seen.add(name)
        home = next((run for run in runs if names and names[0] in run), ())
        for name in names:
            if name not in home:
                raise PlanError(
                    f"the order file {path} puts {name!r} beside {names[0]!r}, but in the pipeline {pipeline} "
                    f"batching, a shuffle or a join lies between them. {again}."
                )
        missing = [name for name in home if name not in names]
        if missing:
            raise PlanError(
                f"the order file {path} does not say where the operator {missing[0]!r} of the pipeline {pipeline} "
                f"runs: beside {_spelled(names)} it needs {_spelled(missing)}. {again}."
            )


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _spelled(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


class OrderFolder:
    """A folder with an order for each pipeline that was looked at.

    One that cannot be written keeps nothing: the next job looks again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def file(self, key: str) -> Path:
        """Return where an order lies, or would lie."""
        return self._path / f"{key}.json"

    def load(self, key: str) -> KeptOrder | None:
        """Return the order that is kept; None if there is none that can be read."""
        try:
            return KeptOrder.load(self.file(key))
        except PlanError:
            return None

    def keep(self, key: str, order: KeptOrder) -> KeptOrder:
        """Keep an order, unless one is kept; return the one that is."""
        with self._told_if_it_fails(), _written(self.file(key), order) as written:
            try:
                os.link(written, self.file(key))
            except FileExistsError:
                kept = self.load(key)
                if kept is not None:
                    return kept
                os.replace(written, self.file(key))  # what lies there cannot be read
            except OSError:  # a file system without hard links
                os.replace(written, self.file(key))
        return order

    def replace(self, key: str, order: KeptOrder) -> None:
        """Keep an order in place of whatever is kept."""
        with self._told_if_it_fails():
            order.save(self.file(key))

    @contextlib.contextmanager
    def _told_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            logger.info(
                "the order of operators is not kept in %s, so that the next job looks again: %s", self._path, error
            )


@contextlib.contextmanager
def _written(path: Path, order: KeptOrder) -> Iterator[str]:
    """Write an order to a file of another name beside its place, which is gone afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.fchmod(handle, 0o644)  # users may share a folder
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(order.to_json(), file, indent=1)
        yield name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def usual_folder() -> Path:
    """Return the folder of orders in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "pecan_ray" / "orders"
