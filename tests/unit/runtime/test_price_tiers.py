"""Which nodes a remote worker is to run on, by their prices."""

from __future__ import annotations

from pecan_ray.plan.prices import Prices, PriceTier
from pecan_ray.runtime.price_tiers import sort_by_price

NODES = [{"market": "spot", "zone": "a"}, {"market": "ondemand", "zone": "a"}, {"zone": "b"}]
REMOTE = {"pecan-role": "remote"}
SPOT = PriceTier("spot", 0.1, 4)


def test_tiers_are_tried_the_cheapest_first_and_nodes_of_none_by_their_price() -> None:
    dear = PriceTier("far", 2.0, 4, {"zone": "b"})
    prices = Prices(1.0, 0.4, (dear, PriceTier("ondemand", 0.3, 1), SPOT))
    assert sort_by_price(REMOTE, prices, NODES) == [
        REMOTE | {"market": "spot"},
        REMOTE | {"market": "ondemand"},
        REMOTE | {"zone": "!in(b)"},
        REMOTE | {"zone": "b"},
    ]


def test_what_is_no_tier_of_the_nodes_that_may_be_used_is_left_out() -> None:
    assert sort_by_price(REMOTE, None, NODES) == sort_by_price(REMOTE, Prices(1.0, 0.4), NODES) == []
    assert sort_by_price(REMOTE, Prices(1.0, 0.4, (PriceTier("nowhere", 0.1, 4),)), NODES) == []
    assert sort_by_price({"market": "ondemand"}, Prices(1.0, 0.4, (SPOT,)), NODES) == []


def test_a_worker_costs_what_its_node_costs() -> None:
    prices = Prices(1.0, 0.4, (SPOT, PriceTier("zone a", 0.3, 4, {"zone": "a", "market": "ondemand"})))
    assert [prices.at(node) for node in NODES] == [0.1, 0.3, 0.4]
