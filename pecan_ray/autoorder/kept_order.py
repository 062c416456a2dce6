"""An order of a pipeline's operators as a file: kept for the next job, saved, shown, pinned, written by hand."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import itertools
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pecan_ray.autoorder.accepted import OpSequenceOrder, Ordering
from pecan_ray.autoorder.exchange_check import OpOrder
from pecan_ray.autoorder.op_samples import FactJson, from_json, to_json
from pecan_ray.autoorder.rewrites import apply_rewrites
from pecan_ray.errors import PecanError, PlanError
from pecan_ray.options import EngineName
from pecan_ray.plan.op_sequences import apply_op_order, op_order_of, op_sequences
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.splits import Source
from pecan_ray.reorder import Mode
from pecan_ray.sources.audio_folder import AudioFolder
from pecan_ray.sources.image_folder import ImageFolder
from pecan_ray.storage import list_files, list_folder

logger = logging.getLogger("pecan_ray")

FORMAT = 1
"""Grows whenever what was written before cannot be read as it is."""


def _are_names(written: FactJson) -> bool:
    return isinstance(written, list) and all(isinstance(name, str) for name in written)


@dataclass(frozen=True)
class KeptOrder:
    """The order of every stretch of a pipeline whose operators can be exchanged."""

    orders: tuple[OpOrder, ...]
    """The operators of each stretch, as they are to run."""
    pipeline: str = ""
    mode: str = ""
    found: str = ""
    """When, in ISO 8601."""
    why: str = ""
    """Where it is not what a look has found."""
    facts: Mapping[str, FactJson] = field(default_factory=dict)
    """What was measured, as JSON; nothing in a file that was written by hand."""
    decoders: tuple[str, ...] = ()
    """Operators that take over the work of those that directly follow them (`pecan_ray.autoorder.rewrites`)."""

    @classmethod
    def of(cls, ordering: Ordering, pipeline: str) -> KeptOrder:
        """Return what a look at a pipeline has found."""
        orders = tuple(one.accepted.order for one in ordering.sequences)
        # All that was measured goes along: the next job shows it without a look.
        facts = {"stretches": to_json(ordering.sequences), "seconds": ordering.seconds, "notes": ordering.notes}
        return cls(orders, pipeline, ordering.mode, _now(), facts=facts, decoders=ordering.decoders)

    @classmethod
    def in_place(cls, plan: Plan, pipeline: str, mode: str, why: str) -> KeptOrder:
        """Return the order of a plan as it is, in place of one that a look has found."""
        return cls(op_order_of(plan), pipeline, mode, _now(), why)

    def to_json(self) -> dict[str, FactJson]:
        """Return it as a value that JSON has."""
        return {"format": FORMAT, **vars(self)}

    @classmethod
    def from_json(cls, written: FactJson) -> KeptOrder:
        """Return what was written; raises ValueError for anything else."""
        if not isinstance(written, dict) or written.get("format") != FORMAT:
            found = written.get("format") if isinstance(written, dict) else type(written).__name__
            raise ValueError(f"it needs to be an object with format {FORMAT}, but has {found!r}")
        orders, decoders, facts = written.get("orders"), written.get("decoders", []), written.get("facts")
        if not isinstance(orders, list) or not all(order and _are_names(order) for order in orders):
            raise ValueError("orders must be a list of lists of operators' names, of which none is empty")
        if not _are_names(decoders):
            raise ValueError("decoders must be a list of operators' names")
        told = {name: str(written.get(name, "")) for name in ("pipeline", "mode", "found", "why")}
        facts = facts if isinstance(facts, dict) else {}
        return cls(tuple(map(tuple, orders)), facts=facts, decoders=tuple(decoders), **told)

    def ordering(self, plan: Plan, mode: Any) -> Ordering | None:
        """Return the plan in this order; None where it was written for other operators.

        With what was measured, as far as this version can read it: an order needs the names alone.
        """
        # An order belongs to the stretch that has the same operators.
        known = {tuple(sorted(one.names)): one.names for one in op_sequences(plan)}
        if any(tuple(sorted(order)) not in known for order in self.orders):
            return None
        after = apply_op_order(plan, {known[tuple(sorted(order))]: order for order in self.orders})
        ordering = Ordering(plan, after, mode, decoders=self.decoders)
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError, ImportError, PecanError):
            found: tuple[OpSequenceOrder, ...] = from_json(self.facts["stretches"])
            seconds, notes = float(self.facts["seconds"]), tuple(map(str, self.facts["notes"]))
            if all(one.names in known.values() for one in found):
                return replace(ordering, sequences=found, seconds=seconds, notes=notes)
        return ordering

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


def check_decoders(found: Ordering, engine: EngineName, path: str | os.PathLike[str], pipeline: str) -> None:
    """Raise `PlanError` for a pinned order with a decoder that has nothing to take over in it."""
    _, done = apply_rewrites(found.plan, engine, found.decoders)
    for name in sorted({*found.decoders} - {one.decoder for one in done}):
        raise PlanError(
            f"the order file {path} lets {name!r} take over what follows it, which it cannot in {pipeline} "
            f'on the {engine} engine. Take it out of "decoders", or write it anew by `pecan explain --save {path}`.'
        )


def check_matches(order: KeptOrder, plan: Plan, path: str | os.PathLike[str], pipeline: str) -> None:
    """Raise `PlanError` for a pinned order that is not one of the pipeline's operators."""
    runs = [one.names for one in op_sequences(plan)]
    for names in order.orders:
        if sorted(names) in map(sorted, runs):
            continue
        unknown = next((f": none is named {name!r}" for name in names if not any(name in run for run in runs)), "")
        exchangeable = "; or ".join(map(_to_str, runs)) or "none"
        raise PlanError(
            f"the order file {path} has the order {_to_str(names)}, which the pipeline {pipeline} cannot have"
            f"{unknown}. An order names each operator once of those that can be exchanged with each other, which are "
            f"{exchangeable}. Correct it, or write it anew by `pecan explain --save {path}`."
        )


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _to_str(names: Sequence[str]) -> str:
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
            # As good as none where it cannot be read; a pinned file is the user's, and an error then.
            return KeptOrder.load(self.file(key))
        except PlanError:
            return None

    def keep(self, key: str, order: KeptOrder) -> KeptOrder:
        """Keep an order, unless one is kept; return the one that is."""
        with self._warn_on_failure(), _written(self.file(key), order) as written:
            try:
                # A link fails if the name is taken, so of two processes the first one's order is kept (decision 24).
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
        with self._warn_on_failure():
            order.save(self.file(key))

    @contextlib.contextmanager
    def _warn_on_failure(self) -> Iterator[None]:
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
    # In the same folder, because links and renames do not cross file systems.
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.fchmod(handle, 0o644)  # users may share a folder
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(order.to_json(), file, indent=1)
        yield name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def default_order_folder() -> Path:
    """Return the folder of orders in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "pecan_ray" / "orders"


# --- what it is found by: everything that the choice depends on, as far as it is known at once ------------------

KEY_FORMAT = 13
"""Grows whenever the choice is made by other rules, so that what was kept before is looked for anew."""


def order_key(parts: Sequence[tuple[str, str]], sources: Iterable[Source], engine: EngineName, mode: Mode) -> str:
    """Return 32 hexadecimal digits that stand for a pipeline whose order is chosen.

    `parts` is what `pecan_ray.plan.fingerprint.describe_plan` tells of its plan.  Where the data cannot be listed its
    place counts alone: who reads it says why.
    """
    # Every file counts: by its first 1,000 alone other data behind those had their order
    # (docs/decisions/autoorder.md#115-kept-orders-are-compared-again).
    text = repr((KEY_FORMAT, list(parts), list(map(look_of, sources)), engine, mode))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def look_of(source: Source) -> str:
    """Return a hash of what lies at a source's place: every file's path, size and version, at the cost of a listing."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        if isinstance(source, (AudioFolder, ImageFolder)):
            listed = [list_folder(f"{source.root}/{name}") for name in source.classes]
        else:
            listed = [list_files(getattr(source, "patterns", ()))]
        for file in itertools.chain.from_iterable(listed):
            digest.update(repr((file.path, file.size, file.version)).encode(errors="surrogatepass"))
    except Exception as error:  # a storage can raise anything
        return type(error).__name__
    return digest.hexdigest()
