"""Algorithm 2 of the Pecan paper: its four pipelines, its barriers, its exception."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pecan_ray.errors import PlanError
from pecan_ray.reorder import NEUTRAL_BAND, Mode, ProfiledOp, auto_order
from tests.unit.commuting import any_pair


def image_op(name: str, inflation: float = 1.0, **facts: Any) -> ProfiledOp:
    image = frozenset({"image"})
    return ProfiledOp(name, inflation, reads=image, writes=image, **facts)


def order(ops: list[ProfiledOp], mode: Mode = "pecan") -> list[str]:
    return list(auto_order(ops, mode, commutes=any_pair).order)


# Factors: those shipped with the paper's code where there are any (ResNet50 and RetinaNet), else from the shapes.
RESNET50 = [
    image_op("decode_crop", 8.668, changes_kind=True),
    image_op("flip"),
    image_op("rotate"),
    image_op("shear"),
    image_op("resize", 0.6087),
    image_op("mean_subtract"),
    image_op("cast_one_hot", 0.4993, changes_rank=True),
    ProfiledOp("batch", 1.0, fixed="batch"),
]
SIMCLR = [
    image_op("duplicate_cast", 8.0, changes_rank=True),
    image_op("crop_resize", 0.64),
    image_op("flip"),
    image_op("jitter"),
    image_op("blur"),
    image_op("clip"),
    image_op("to_grayscale", 1 / 3),
    image_op("tile", 3.0),
    image_op("reshape", 1.0, changes_rank=True),
    ProfiledOp("batch", 1.0, fixed="batch"),
]
RETINANET = [
    image_op("decode", 4.908, changes_kind=True),
    image_op("cast_normalize", 3.997),
    ProfiledOp("flip", 1.0, reads=frozenset({"image", "boxes"}), writes=frozenset({"image", "boxes"})),
    image_op("label_extract", 2.328, changes_rank=True),
    image_op("cast_bf16", 0.679, custom_dtype_cast=True),
    ProfiledOp("batch", 1.0, fixed="batch"),
]
SOUND, FRAMES = frozenset({"source"}), frozenset({"source", "frames"})
ASR = [
    ProfiledOp("decode", 2.0, changes_kind=True),
    ProfiledOp("add_text", 1.001, keep_position=True),
    ProfiledOp("vectorize", 1.01, changes_kind=True),
    ProfiledOp("fourier", 1.6, changes_rank=True),
    ProfiledOp("pad", 4.4, reads=FRAMES, writes=FRAMES),
    ProfiledOp("spec_augment", 1.0, reads=FRAMES, writes=SOUND),
    ProfiledOp("speed_perturb", 1.0, reads=FRAMES, writes=FRAMES),
    ProfiledOp("pitch_perturb", 1.0, reads=SOUND, writes=SOUND),
    ProfiledOp("reverb", 1.0, reads=SOUND, writes=SOUND),
    ProfiledOp("batch", 1.0, fixed="batch"),
]


@pytest.mark.parametrize("mode", ["pecan", "safe"])
def test_resnet50_resizes_before_it_flips_rotates_and_shears(mode: Mode) -> None:
    expected = ["decode_crop", "resize", "flip", "rotate", "shear", "mean_subtract", "cast_one_hot", "batch"]
    assert order(RESNET50, mode) == expected


def test_simclr_turns_gray_before_all_other_augmentations() -> None:
    assert order(SIMCLR) == [
        "duplicate_cast",
        "to_grayscale",
        "crop_resize",
        *("flip", "jitter", "blur", "clip"),
        *("tile", "reshape", "batch"),
    ]


@pytest.mark.parametrize("mode", ["pecan", "safe"])
def test_retinanet_casts_and_normalizes_right_after_the_flip(mode: Mode) -> None:
    expected = ["decode", "flip", "cast_normalize", "label_extract", "cast_bf16", "batch"]
    assert order(RETINANET, mode) == expected


@pytest.mark.parametrize("mode", ["pecan", "safe"])
def test_asr_pads_after_all_augmentations(mode: Mode) -> None:
    assert order(ASR, mode) == [
        *("decode", "add_text", "vectorize", "fourier"),
        *("spec_augment", "speed_perturb", "pitch_perturb", "reverb", "pad"),
        "batch",
    ]


def test_a_move_says_what_moved_from_where_to_where_and_why() -> None:
    (move,) = auto_order(RESNET50).moves
    name, start, to, reason = move
    assert (name, start, to) == ("resize", 4, 1) == (move.name, move.from_, move.to)
    assert "0.609" in reason and "'flip'" in reason and "smaller" in reason
    (move,) = auto_order(RETINANET).moves
    assert (move.name, move.from_, move.to) == ("cast_normalize", 1, 2)
    assert "larger" in move.reason and "'flip'" in move.reason


@pytest.mark.parametrize(
    ("barrier", "reason"),
    [
        (ProfiledOp("barrier", 1.0, keep_position=True), "keep_position=True"),
        (ProfiledOp("barrier", 1.0, changes_kind=True), "between numbers and text"),
        (ProfiledOp("barrier", 1.0, changes_rank=True), "number of dimensions"),
        (ProfiledOp("barrier", 1.0, fixed="shuffle"), "shuffle"),
        (ProfiledOp("barrier", 0.5, fixed="batch", keep_position=True), "keep_position=True; batch"),
    ],
)
@pytest.mark.parametrize("mode", ["pecan", "safe", "strict"])
def test_nothing_crosses_a_barrier(barrier: ProfiledOp, reason: str, mode: Mode) -> None:
    ops = [
        ProfiledOp("a", 4.0),
        ProfiledOp("b", 1.0),
        barrier,
        ProfiledOp("c", 1.0),
        ProfiledOp("d", 0.1),
    ]
    plan = auto_order(ops, mode, commutes=lambda pair: True)
    assert plan.order == ("b", "a", "barrier", "d", "c")
    ((name, why),) = plan.fixed
    assert name == "barrier" and reason in why


def test_a_deflating_cast_to_bfloat16_goes_to_the_end() -> None:
    ops = [
        ProfiledOp("cast", 0.5, custom_dtype_cast=True),
        ProfiledOp("pad", 2.0),
        ProfiledOp("flip", 1.0),
        ProfiledOp("resize", 0.5),
    ]
    plan = auto_order(ops)
    assert plan.order == ("resize", "flip", "pad", "cast")
    assert "CPUs" in next(move.reason for move in plan.moves if move.name == "cast")


def test_the_noise_of_a_sample_does_not_move_an_op_when_a_band_is_given() -> None:
    ops = [ProfiledOp("pad", 4.0), ProfiledOp("speed", 1.007), ProfiledOp("reverb", 0.998), ProfiledOp("pitch", 1.0)]
    assert auto_order(ops, neutral_band=NEUTRAL_BAND).order == ("speed", "reverb", "pitch", "pad")
    assert auto_order(ops).order == ("reverb", "pitch", "pad", "speed")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        *(({"inflation": one}, "'op': inflation must be a finite") for one in (float("nan"), -1.0, 0.0, True, "2")),
        ({"name": ""}, "non-empty string"),
        ({"seconds": float("nan")}, "seconds must be a finite number >= 0"),
        ({"elements": 0.0}, "elements must be"),
        ({"bytes_in": 0.0}, "bytes_in must be"),
        ({"reads": "image"}, "a set of column names"),
    ],
)
def test_impossible_facts_are_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        ProfiledOp(**{"name": "op", "inflation": 1.0, **facts})


def test_unknown_modes_and_names_are_refused() -> None:
    ops, mode, name = [ProfiledOp("flip", 1.0)], cast(Mode, "best"), cast(ProfiledOp, "flip")
    with pytest.raises(PlanError, match="mode must be one of 'strict', 'safe', 'pecan', 'off'"):
        auto_order(ops, mode)
    with pytest.raises(PlanError, match="forbidden names the op 'flop'"):
        auto_order(ops, forbidden=[("flip", "flop")])
    with pytest.raises(PlanError, match="two ops are named 'flip'"):
        auto_order([ProfiledOp("flip", 1.0), ProfiledOp("flip", 1.0)])
    with pytest.raises(PlanError, match="neutral_band"):
        auto_order(ops, neutral_band=1.0)
    with pytest.raises(PlanError, match="needs ProfiledOp"):
        auto_order([name])
