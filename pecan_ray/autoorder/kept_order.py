"""An order of a pipeline's operators as a file: kept for the next job, saved, shown, pinned, written by hand."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeGuard

from pecan_ray.autoorder.accepted import STRETCHES_AS_JSON, OpSequenceOrder, Ordering
from pecan_ray.autoorder.exchange_check import OpOrder
from pecan_ray.autoorder.rewrites import apply_rewrites
from pecan_ray.errors import PecanError, PlanError, describe_error
from pecan_ray.job.codec import Json
from pecan_ray.options import Config, EngineName
from pecan_ray.plan.op_sequences import OpSequence, apply_op_order, op_sequences
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.splits import Source
from pecan_ray.reorder import Mode
from pecan_ray.sources.audio_folder import AudioFolder
from pecan_ray.sources.image_folder import ImageFolder
from pecan_ray.storage import list_files, list_folder
from pecan_ray.user_files import written_beside

logger = logging.getLogger("pecan_ray")

FORMAT = 1
"""Grows whenever what was written before cannot be read as it is."""
SHARED = 0o644
"""Users may share a folder of orders."""


def _are_names(written: Json) -> bool:
    return isinstance(written, list) and all(isinstance(name, str) for name in written)


def _are_orders(written: Json) -> TypeGuard[list[list[str]]]:
    return isinstance(written, list) and all(order and _are_names(order) for order in written)


@dataclass(frozen=True)
class KeptOrder:
    """The order of every stretch of a pipeline whose operators can be exchanged."""

    orders: tuple[OpOrder, ...]
    """The operators of each stretch, as they are to run."""
    pipeline: str = ""
    mode: str = ""
    found: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    """When, in ISO 8601."""
    why: str = ""
    """Where it is not what a look has found."""
    facts: Mapping[str, Json] = field(default_factory=dict)
    """What was measured, as JSON; nothing in a file that was written by hand."""
    decoders: tuple[str, ...] = ()
    """Operators that take over the work of those that directly follow them (`pecan_ray.autoorder.rewrites`)."""

    @classmethod
    def of(cls, ordering: Ordering, pipeline: str) -> KeptOrder:
        """Return what a look at a pipeline has found."""
        orders = tuple(one.accepted.order for one in ordering.sequences)
        # All that was measured goes along: the next job shows it without a look.
        facts = {
            "stretches": STRETCHES_AS_JSON.encode(ordering.sequences),
            "seconds": ordering.seconds,
            "notes": ordering.notes,
        }
        return cls(orders, pipeline, ordering.mode, facts=facts, decoders=ordering.decoders)

    def to_text(self) -> str:
        """Return what its file holds."""
        return json.dumps({"format": FORMAT, **vars(self)}, indent=1)

    @classmethod
    def from_json(cls, written: Json) -> KeptOrder:
        """Return what was written; raises ValueError for anything else."""
        form = written.get("format") if isinstance(written, dict) else type(written).__name__
        if not isinstance(written, dict) or type(form) is not int or form != FORMAT:
            raise ValueError(f"it needs to be an object with format {FORMAT}, but has {form!r}")
        known = ("format", *(one.name for one in fields(cls)))
        if unknown := sorted(written.keys() - {*known}):
            raise ValueError(f"it has {_to_str(unknown)}, which no order file has: those have {_to_str(known)}")
        orders, decoders, facts = written.get("orders"), written.get("decoders", []), written.get("facts")
        if not _are_orders(orders):
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
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError, PecanError):
            found: tuple[OpSequenceOrder, ...] = STRETCHES_AS_JSON.decode(self.facts["stretches"])
            seconds, notes = float(self.facts["seconds"]), tuple(map(str, self.facts["notes"]))
            if all(one.names in known.values() for one in found):
                return replace(ordering, sequences=found, seconds=seconds, notes=notes)
        return ordering

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, whole or not at all."""
        with written_beside(Path(path), self.to_text(), SHARED) as written:
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


def pinned_order(plan: Plan, mode: Mode, engine: EngineName, config: Config, pipeline: str) -> Ordering | None:
    """Return the order that a file pins, if one does; raises `PlanError` where it does not fit the pipeline."""
    if config.order_file is None:
        return None
    path = os.fspath(config.order_file)
    order = KeptOrder.load(path)
    found = order.ordering(plan, mode)
    why = _misfit(order, plan, pipeline)
    if found is not None and not why:
        _, done = apply_rewrites(found.plan, engine, found.decoders)
        for name in sorted({*found.decoders} - {one.decoder for one in done}):
            why = f'lets {name!r} take over what it cannot in {pipeline} on the {engine} engine, by "decoders"'
        if found.changed and not config.reorder_exchanges:
            why = "asks for what Config(reorder_exchanges=False) excludes"
        if found.decoders and not config.reorder_rewrites:
            why = "asks for what Config(reorder_rewrites=False) excludes"
    if found is None or why:
        raise PlanError(f"the order file {path} {why}. Correct it, or write it anew by `pecan explain --save {path}`.")
    return replace(found, origin=f"{path} pins it")


def _misfit(order: KeptOrder, plan: Plan, pipeline: str) -> str:
    """Return why an order is not one of the pipeline's operators; empty if it is."""
    runs = {tuple(sorted(one.names)): one for one in op_sequences(plan)}
    seen = set[OpOrder]()
    for names in order.orders:
        stretch, has = runs.get(tuple(sorted(names))), f"has the order {_to_str(names)},"
        if stretch is None:
            return f"{has} which the pipeline {pipeline} cannot have{_unlike(runs.values(), names)}"
        if stretch.names in seen:
            return f"{has} and another one of the same operators"
        if (kept := _moved_kept(stretch, names)) is not None:
            return f"{has} which moves {kept!r}, or others across it, in {pipeline}, where it has keep_position=True"
        seen.add(stretch.names)
    return ""


def _unlike(runs: Collection[OpSequence], names: OpOrder) -> str:
    unknown = next((f": none is named {name!r}" for name in names if not any(name in run.names for run in runs)), "")
    exchangeable = "; or ".join(_to_str(run.names) for run in runs) or "none"
    return (
        f"{unknown}. An order names each operator once of those that can be exchanged with each other, which are "
        f"{exchangeable}"
    )


def _moved_kept(stretch: OpSequence, names: OpOrder) -> str | None:
    """Return an operator with `keep_position` that has others before it in an order than in the user's; None: none."""
    kept = [op.name for op in stretch.ops if op.keep_position]
    users = stretch.names
    return next((name for name in kept if {*names[: names.index(name)]} != {*users[: users.index(name)]}), None)


def _to_str(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise `PlanError` where orders are to be kept in what is no folder, and cannot be made one."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(
            f"no orders can be kept in order_folder={os.fspath(path)!r}: {describe_error(error)}. Name a folder, or "
            'order_folder="" to keep none.'
        ) from error


def load_kept(path: Path) -> KeptOrder | None:
    """Return the order that is kept at a place; None if there is none that can be read."""
    try:
        # As good as none where it cannot be read; a pinned file is the user's, and an error then.
        return KeptOrder.load(path)
    except PlanError:
        return None


def keep_order(path: Path, order: KeptOrder, *, instead: bool = False) -> KeptOrder:
    """Keep an order, `instead` of whatever is kept or if nothing is; return the one that is kept then.

    Where nothing can be written nothing is kept: the next job looks again.
    """
    try:
        with written_beside(path, order.to_text(), SHARED) as written:
            try:
                if not instead:
                    # A link fails if the name is taken, so of two processes the first one is right (decision 24).
                    os.link(written, path)
                    return order
            except FileExistsError:
                if (kept := load_kept(path)) is not None:
                    return kept
            except OSError:  # a file system without hard links
                pass
            os.replace(written, path)
    except OSError as error:
        logger.info("the order of operators is not kept at %s, so that the next job looks again: %s", path, error)
    return order


# --- what it is found by: everything that the choice depends on, as far as it is known at once ------------------

KEY_FORMAT = 18
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
