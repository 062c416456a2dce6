"""AutoOrder at work on the pipelines of the Pecan paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import asr_transformer, resnet50, retinanet, simclr
from pecan_ray.options import EngineName
from tests.long_form import some_later
from tests.unit.autoorder.sampled_orders import FEW, large_photographs, order

RESNET50 = ("random_flip", "random_rotate", "random_shear")
AUGMENTATIONS = ("random_flip_views", "color_jitter", "gaussian_blur", "clip")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_photographs(tmp_path_factory.mktemp("large"))


@pytest.mark.parametrize("engine", some_later(["python", "tensorflow"], "tensorflow"))
def test_resnet50_resizes_before_it_flips_rotates_and_shears(photographs: Path, engine: EngineName) -> None:
    if engine == "tensorflow":
        pytest.importorskip("tensorflow")
    found = order(resnet50.pipeline(photographs, engine=engine), "pecan", FEW)
    names = found.adopted.order
    assert names[:5] == ("decode_and_random_crop", "resize", *RESNET50)
    assert names[5:] == ("subtract_mean", "cast_and_one_hot")
    assert [move.name for move in found.adopted.moves] == ["resize"]


def test_simclr_turns_gray_before_all_other_augmentations(photographs: Path) -> None:
    found = order(simclr.pipeline(photographs), "pecan", FEW)
    assert found.adopted.order == (
        *("decode", "duplicate_and_cast"),
        *("to_grayscale", "crop_and_resize", *AUGMENTATIONS),
        *("tile", "reshape"),
    )


def test_retinanet_casts_and_normalizes_right_after_the_flip() -> None:
    found = order(retinanet.pipeline(images=8, dtype="bfloat16"), "pecan", FEW)
    assert found.adopted.order == (
        *("decode", "random_flip_with_boxes", "normalize"),
        *("resize_and_crop", "label_extract", "cast"),
    )


@pytest.mark.slow
def test_retinanet_with_a_cast_that_algorithm_2_would_move_keeps_its_result() -> None:
    found = order(retinanet.pipeline(images=10), "pecan")
    # Cast first, the normalization would make float32 of it: the order without that move is the paper's.
    assert found.policy_order.order[1] == "cast"
    assert "dtype is float32 instead of float16" in found.refused[0].reason
    assert found.adopted.order[1:3] == ("random_flip_with_boxes", "normalize")
    assert found.adopted.order.index("cast") > found.adopted.order.index("normalize")


def test_asr_pads_after_all_augmentations() -> None:
    found = order(asr_transformer.pipeline(images=20), "pecan", FEW)
    assert found.adopted.order == (
        *("decode", "add_text", "vectorize", "fourier_transform"),
        *("spec_augment", "speed_perturb", "pitch_perturb", "reverb", "pad"),
    )
