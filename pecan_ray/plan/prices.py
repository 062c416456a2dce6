"""What an hour of a deployment costs: c_a n_a + c_w n_w (Pecan §5.1), with remote workers of several prices."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.plan.option_types import settle

GB = 1e9
"""Bytes of a gigabyte as clouds bill it."""
HOUR_S = 3600.0
"""Prices are for an hour, runs and rows in seconds."""


def checked_price(name: str, value: float, unit: str = "$ per hour") -> float:
    """Return the price if it is one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < math.inf:
        raise PlanError(f"{name} must be a price in {unit}, at least 0, but got {value!r}.")
    return float(value)


@dataclass(frozen=True)
class PriceTier:
    """Remote nodes of one price (spot, on demand, a zone), and how many workers fit on them."""

    label: str
    """The name of the tier."""
    price: float
    """$ per hour of one worker."""
    limit: int
    """Workers that fit on these nodes."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The labels of these nodes, as Ray knows them; empty: a node that has any label of the value `label` is one."""

    def __post_init__(self) -> None:
        checked_price(f"PriceTier({self.label!r}, price=...)", self.price)
        settle(self, "PriceTier")
        if self.limit < 0:
            raise PlanError(f"PriceTier({self.label!r}, limit=...) must be a whole number >= 0, but got {self.limit}.")

    def has(self, node: Mapping[str, str]) -> bool:
        """Tell whether a node of these labels is of this tier."""
        if not self.labels:
            return self.label in node.values()
        return all(node.get(key) == value for key, value in self.labels.items())


@dataclass(frozen=True)
class Prices:
    """$ per hour.  Remote workers fill the cheapest tier first; those that fit into no tier cost `remote_worker`."""

    accelerator_host: float = math.nan
    """One trainer's host with its accelerators."""
    remote_worker: float = math.nan
    tiers: tuple[PriceTier, ...] = ()
    """Nodes of other prices, by label; empty: every remote worker costs the same."""
    transfer_per_gb: float = 0.0
    """$ for a gigabyte (10^9 bytes) of batches that remote workers send: data that leaves a zone or region costs."""

    def __post_init__(self) -> None:
        checked_price("Prices(accelerator_host=...)", self.accelerator_host)
        checked_price("Prices(remote_worker=...)", self.remote_worker)
        checked_price("Prices(transfer_per_gb=...)", self.transfer_per_gb, "$ per gigabyte")
        settle(self, "Prices")
        labels = [tier.label for tier in self.tiers]
        if len(set(labels)) != len(labels) or "" in labels:
            raise PlanError(f"every price tier needs a label of its own, but got {labels}.")

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Prices:
        """Return the prices that a report's JSON has as nested mappings."""
        tiers = tuple(PriceTier(**tier) for tier in fields.get("tiers", ()))
        transfer = fields.get("transfer_per_gb", 0.0)
        return cls(fields["accelerator_host"], fields["remote_worker"], tiers, transfer)

    def at(self, node: Mapping[str, str]) -> float:
        """Return the price of a worker on a node of these labels: of the cheapest tier that it is of."""
        return min((tier.price for tier in self.tiers if tier.has(node)), default=self.remote_worker)

    def remote_per_hour(self, remote: int, paid: Sequence[float] = ()) -> float:
        """Return the price of that many remote workers.

        Args:
            remote: The workers.
            paid: $ per hour of those that run, by their nodes. The dearest of them are drained first, and tiers that
                are cheaper than these are full: a worker is placed on a dear node only where they have no room.
        """
        kept = sorted(paid)[:remote]
        total, left, dearest = sum(kept), remote - len(kept), max(kept, default=0.0)
        # Beside the tiers there are nodes of none, without a limit.
        for tier in sorted((*self.tiers, PriceTier("", self.remote_worker, remote)), key=lambda tier: tier.price):
            if tier.price >= dearest:
                taken = min(left, max(0, tier.limit - kept.count(tier.price)))
                total, left = total + taken * tier.price, left - taken
        return total + left * dearest

    def row_transfer(self, nbytes: float) -> float:
        """Return what rows of so many bytes from remote workers cost: $ an hour for a row a second."""
        return nbytes / GB * HOUR_S * self.transfer_per_gb

    def per_hour(self, clients: int, remote: int, paid: Sequence[float] = ()) -> float:
        """Price of the trainers' hosts and of the remote workers together; `paid`: of those that run."""
        return self.accelerator_host * clients + self.remote_per_hour(remote, paid)


GCP_TPU_V2 = Prices(accelerator_host=4.96, remote_worker=0.42)
"""TPUv2-8 host and n2-standard-8, Google Cloud, europe-west4, April 2023 (Pecan §6.1)."""
