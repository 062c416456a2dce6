"""In which order the nodes of several prices are tried for a remote worker, as Ray's label selectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pecan_ray.plan.prices import Prices, PriceTier


def sort_by_price(
    selector: Mapping[str, str], prices: Prices | None, nodes: Sequence[Mapping[str, str]]
) -> list[dict[str, str]]:
    """Return the selectors of tiers, the cheapest first; whoever finds no room on any takes what `selector` means.

    Args:
        selector: Of all nodes that remote workers may run on.
        prices: Of these nodes; None: nobody has said.
        nodes: The labels of the cluster's nodes, among which those of a tier are looked for that only its name tells.
    """
    if prices is None:
        return []
    labels = [(tier, _labels_of(tier, nodes)) for tier in sorted(prices.tiers, key=lambda tier: tier.price)]
    cheap = [one for tier, one in labels if one and tier.price <= prices.remote_worker]
    dear = [one for tier, one in labels if one and tier.price > prices.remote_worker]
    outside = _outside(dear)
    # Between cheap and dear tiers come the nodes of none, which cost as much as any remote worker.
    asked = [*cheap, *([outside, *dear] if outside else [])]
    return [{**selector, **one} for one in asked if _check_consistency(selector, one)]


def _check_consistency(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Tell whether no label is asked for with two values."""
    return all(selector.get(key, value) == value for key, value in labels.items())


def _labels_of(tier: PriceTier, nodes: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the labels of a tier's nodes; where only its name is known, that which some node has."""
    if tier.labels:
        return dict(tier.labels)
    keys = sorted(key for labels in nodes for key, value in labels.items() if value == tier.label)
    return {keys[0]: tier.label} if keys else {}


def _outside(tiers: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the selector of nodes of none of some tiers, by one label of each: a selector can leave out no pair."""
    left_out: dict[str, set[str]] = {}
    for labels in tiers:
        key = min(labels)
        left_out.setdefault(key, set()).add(labels[key])
    return {key: f"!in({','.join(sorted(values))})" for key, values in left_out.items()}
