"""The benchmark of models under other orders of data, in a tiny form."""

from __future__ import annotations

import pytest
import torch

from benchmarks.accuracy_orders import overlap, say_order, split_orders, train_classifier, train_detector

SPLITS, EPOCHS = 40, 3


def test_cached_first_is_another_order_of_the_same_splits_and_reads_less() -> None:
    plain, passes = split_orders(0, SPLITS, EPOCHS, cached_first=False)
    first, fewer = split_orders(0, SPLITS, EPOCHS, cached_first=True)
    for epochs in (plain, first):
        assert [sorted(epoch) for epoch in epochs] == [list(range(SPLITS))] * EPOCHS, "each split once an epoch"
    assert first != plain and fewer < passes / 2


@pytest.mark.slow
def test_a_classifier_learns() -> None:
    assert train_classifier(0, 1, True) > 50, "ten digits: 10 % by chance"


def test_a_detector_is_trained_in_a_changed_order() -> None:
    order = say_order().split(", ")
    assert order.index("shrink") < order.index("cast"), "as it is written it casts first"
    assert 0 <= train_detector(0, 1, "pecan", trained=64, tested=8) <= 100


def test_overlap_is_intersection_over_union() -> None:
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.5, 1.0], [0.0, 0.0, 0.5, 0.5]])
    others = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0], [0.5, 0.5, 1.0, 1.0]])
    assert overlap(boxes, others).tolist() == pytest.approx([1.0, 0.5, 0.0])
