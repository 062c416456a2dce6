"""Images that are left to the trainer's accelerator: which operators may be, and what is made of them there."""

from __future__ import annotations

import functools
import pickle
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from examples.photographs import derived_photographs
from pecan_ray import images
from pecan_ray.autoorder.rewrites import known_at_once
from pecan_ray.engines.python.deferral import Finisher
from pecan_ray.errors import CutError, MissingExtraError
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.job.stats import JobStats
from pecan_ray.known.accelerated_images import MAX_DIFFERENCE, ImageFinisher, find_device, is_device
from pecan_ray.known.encoded_images import EncodedImage, encoded_image
from pecan_ray.known.image_run import ImageRun, image_run
from pecan_ray.options import AutoWorkers, IterOptions
from pecan_ray.plan.fingerprint import describe_plan
from pecan_ray.plan.operators import Map, Plan, wants_rng
from pecan_ray.plan.windows import Decision, Deployment, Window
from pecan_ray.runtime.accelerator import offered_accelerator
from tests.long_form import some_later
from tests.unit.known.known_functions import encode, generators, photograph

torch = pytest.importorskip("torch")

TRAINING: tuple[Callable[..., Any], ...] = (
    images.Decode(),
    images.RandomCrop(),
    images.Resize(64, 48),
    images.RandomFlip(),
)
EVALUATION: tuple[Callable[..., Any], ...] = (images.Decode(), images.Resize(80, 96), images.CenterCrop(64, 64))


def to_float(image: Any) -> Any:
    return image.astype(np.float32) / 255


def mean_free(image: Any) -> Any:
    return image - image.mean()


def large(image: Any) -> bool:
    return bool(image.shape[0] > 10)


def turned(image: Any) -> Any:
    return image[::-1]


def pipeline(*functions: Callable[..., Any]) -> pecan.PecanPipeline:
    """A pipeline whose operators are op0, op1 and so on."""
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(image=np.zeros(2), label=np.arange(2)))
    for number, fn in enumerate(functions):
        pipe = pipe.map(fn, on="image", name=f"op{number}")
    return pipe


def with_training(pipe: pecan.PecanPipeline) -> pecan.PecanPipeline:
    for fn in TRAINING:
        pipe = pipe.map(fn, on="image")
    return pipe.batch(2)


def run_of(plan: Plan) -> ImageRun | None:
    return image_run(plan, describe_plan(plan))


def guarded(plan: Plan) -> Plan:
    """A plan as a worker runs it that leaves images to the trainer."""
    run = run_of(plan)
    assert run is not None
    return run.guarded(plan)


def merged(plan: Plan, *, reduces: bool) -> Plan:
    """A plan of which AutoOrder has made one operator of the known ones."""
    found = next(match for match in known_at_once(plan.ops, None) if match.rewrite.reduces == reduces)
    return Plan(head=plan.head, ops=(*found.replacement, *plan.ops[found.replaced :]))


def ran(plan: Plan, value: Any, seed: int) -> Any:
    """What a worker makes of a value, with the generators that its engine gives to operators."""
    draw = generators(seed)
    for op in plan.ops:
        if isinstance(op, Map):
            rng = draw if getattr(op.fn, "draws_by_name", False) else draw(op.name)
            value = op.fn(value, rng=rng) if wants_rng(op.fn) else op.fn(value)
    return value


def finished(plan: Plan, values: Sequence[bytes], *, stay: bool = False) -> Any:
    """What comes of a batch of files whose images are left to the trainer."""
    run = run_of(plan)
    assert run is not None
    rows = np.empty(len(values), object)
    for seed, value in enumerate(values):
        rows[seed] = ran(pickle.loads(pickle.dumps(run.guarded(plan))), value, seed)
        assert type(rows[seed]) is bytes
    left = run.unfinished({"image": rows})
    assert left is not None
    notes = list[str]()
    finisher = Finisher(plan, ImageFinisher("cpu"), stay=stay)
    made = finisher.finish(left, {"image": rows, "label": np.arange(3)}, notes.append)
    assert len(notes) == 1 and "run where batches arrive, on the accelerator" in notes[0]
    return made["image"]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = derived_photographs(12, cache=Path(tmp_path_factory.mktemp("photographs")))
    return [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]


@pytest.mark.parametrize(
    ("functions", "is_merged"),
    [(TRAINING, False), (TRAINING, True), (EVALUATION, False), ((*TRAINING, to_float), False)],
)
def test_photographs_are_what_operators_make_of_them_but_for_rounding(
    functions: Any, is_merged: bool, photographs: list[bytes]
) -> None:
    """One operator that AutoOrder has made, with equal pixels, draws what the operators draw that it stands for."""
    plan = pipeline(*functions).batch(4).plan
    alone = np.stack([ran(plan, file, seed) for seed, file in enumerate(photographs)])
    made = finished(merged(plan, reduces=False) if is_merged else plan, photographs)
    assert made.shape == alone.shape and made.dtype == alone.dtype
    levels = np.abs(made.astype(np.float64) - alone) * (255 if made.dtype == np.float32 else 1)
    assert levels.max() <= MAX_DIFFERENCE + 1e-4 and 0 < levels.mean() < 0.15


def by_pillow(mode: str, colour: tuple[int, ...], **options: Any) -> bytes:
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.new(mode, (90, 70), colour).save(file, "JPEG", **options)
    return file.getvalue()


def rgb(names: bytes = b"RGB") -> bytes:
    """Not transformed, as Adobe's marker says; names stand in the headers of the frame and of its scan."""
    file = by_pillow("RGB", (10, 200, 30), keep_rgb=True)
    for behind in (b"\x11\0", b"\0"):
        file = file.replace(
            b"".join(b"%c%s" % (name, behind) for name in b"RGB"), b"".join(b"%c%s" % (name, behind) for name in names)
        )
    return file


def colours() -> Any:
    return cv2.imdecode(np.frombuffer(photograph(70, 90), np.uint8), cv2.IMREAD_COLOR)


FILES: dict[str, tuple[Callable[[], bytes], bool]] = {
    "gray": (lambda: encode(colours()[..., 0]), True),
    "one pixel": (lambda: encode(colours()[:1, :1]), True),
    "progressive": (lambda: encode(colours(), cv2.IMWRITE_JPEG_PROGRESSIVE, 1), False),
    "CMYK": (lambda: by_pillow("CMYK", (10, 200, 30, 40)), False),
    "RGB by Adobe's marker": (lambda: rgb(names=b"\1\2\3"), False),
    "RGB by names": (lambda: rgb().replace(b"Adobe", b"Other"), False),
    "Adobe's YCbCr": (lambda: rgb(names=b"\1\2\3").replace(b"d" + bytes(5), b"d" + bytes(4) + b"\1"), True),
    "PNG": (lambda: encode(colours(), kind=".png"), False),
}
"""By kind: the file, and whether it travels as it is."""


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_not_every_decoder_takes_travels_as_pixels_among_others(kind: str) -> None:
    file, travels = FILES[kind][0](), FILES[kind][1]
    plan = pipeline(*TRAINING).batch(4).plan
    run = run_of(plan)
    assert run is not None
    image = EncodedImage.unpacked(ran(run.guarded(plan), file, 1))
    assert (image.steps is not None) == travels and (image.data == file) == travels
    made = finished(plan, [photograph(), file, photograph(50, 40)])
    assert np.abs(made[1].astype(int) - ran(plan, file, 1)).max() <= MAX_DIFFERENCE
    if not travels:
        assert made[1].tobytes() == ran(plan, file, 1).tobytes()


@pytest.mark.parametrize("file", [b"", b"\xff\xd8\xff", b"no image", photograph()[:-200]])
def test_what_is_no_image_fails_on_the_worker_as_ever(file: bytes) -> None:
    plan = pipeline(*TRAINING).batch(4).plan
    with pytest.raises(ValueError, match="are not an image that OpenCV can decode"):
        ran(guarded(plan), file, 0)


def test_a_crop_that_is_larger_than_its_image_fails_on_the_worker_as_ever() -> None:
    plan = pipeline(images.Decode(), images.CenterCrop(100, 100)).batch(4).plan
    with pytest.raises(ValueError, match=r"70 x 90 is smaller than CenterCrop\(100, 100\)"):
        ran(guarded(plan), photograph(70, 90), 0)


BROKEN = photograph().replace(b"\xff\xdb", b"\xff\xfe")
"""A frame that is well, but without the tables that its data need."""


def test_an_image_that_no_decoder_takes_fails_on_its_worker_and_what_comes_to_the_trainer_is_refused() -> None:
    plan = pipeline(*TRAINING).batch(4).plan
    for run in (plan, guarded(plan)):
        with pytest.raises(ValueError, match="not an image"):
            ran(run, BROKEN, 0)
    packed = EncodedImage(BROKEN, (70, 90), (70, 90)).packed()
    with pytest.raises(CutError, match="cannot be decoded where its batch arrives: ValueError"):
        ImageFinisher("cpu").finish([packed])


def damaged(random: Random, file: bytearray) -> bytes:
    """A file of which some bytes are others, or gone; most of them of its headers."""
    scan = file.find(b"\xff\xda") + 14
    first, last = random.choice(((2, scan), (2, scan), (scan, len(file) - 2)))
    for _ in range(random.choice((1, 1, 2, 5))):
        file[random.randrange(first, last)] = random.randrange(256)
    if random.random() < 0.3:
        at = random.randrange(first, last)
        del file[at : at + random.randrange(50)]
    return bytes(file)


@pytest.mark.parametrize("seed", some_later(range(20), *range(2, 20)))
def test_every_file_that_is_left_to_the_trainer_can_be_decoded(seed: int) -> None:
    """Of 30,000 files with damaged headers or data, none that was left could not."""
    random, left = Random(seed), 0
    for _ in range(150):
        file = damaged(random, bytearray(photograph(70, 90, seed)))
        if (image := encoded_image(file)) is not None:
            left += 1
            assert images.decoded(file).shape[:2] == image.stored
    assert 30 < left < 145


def test_one_image_that_the_accelerators_decoder_refuses_is_left_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in decodes, as torchvision says that it does: all or none."""
    asked = list[int]()

    def decode_jpeg(files: list[Any], mode: str, device: str) -> list[Any]:
        asked.append(len(files))
        if any(len(file) == 7 for file in files):
            raise RuntimeError("nvjpegDecode failed")
        return [file[:1] for file in files]

    io = types.SimpleNamespace(decode_jpeg=decode_jpeg, ImageReadMode=types.SimpleNamespace(RGB="rgb"))
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace(io=io))
    files = [EncodedImage(bytes(size), (1, 1), (1, 1)) for size in (5, 7, 6)]
    found = ImageFinisher("cuda:0")._by_accelerator(files)
    assert [one is None for one in found] == [False, True, False] and asked == [3, 1, 1, 1]


PLANS: dict[str, tuple[Callable[[], pecan.PecanPipeline], str]] = {
    "training": (lambda: pipeline(*TRAINING).batch(2), "op0, op1, op2, op3"),
    "shuffled": (lambda: pipeline(*TRAINING).shuffle(5).batch(2), "op0, op1, op2, op3"),
    "arithmetic behind": (lambda: pipeline(*TRAINING, to_float).batch(2), "op0, op1, op2, op3, op4"),
    "another column": (
        lambda: pipeline(*TRAINING).map(functools.partial(np.add, 1), on="label").batch(2),
        "op0, op1, op2, op3",
    ),
    "before the decoder": (lambda: pipeline(bytes, *EVALUATION).batch(2), "op1, op2, op3"),
    "no batch": (lambda: pipeline(*TRAINING), ""),
    "no decoder": (lambda: pipeline(*TRAINING[1:]).batch(2), ""),
    "turned by EXIF": (lambda: pipeline(images.Decode(upright=True), *TRAINING[1:]).batch(2), ""),
    "any size": (lambda: pipeline(images.Decode(), images.RandomCrop()).batch(2), ""),
    "rotated": (lambda: pipeline(*TRAINING, images.RandomRotate()).batch(2), ""),
    "by values": (lambda: pipeline(*TRAINING, mean_free).batch(2), ""),
    "a function of pixels": (lambda: pipeline(*TRAINING, turned).batch(2), ""),
    "a filter of pixels": (lambda: pipeline(*TRAINING).filter(large, on="image").batch(2), ""),
    "a filter of elements": (lambda: pipeline(*TRAINING).filter(lambda x: True).batch(2), ""),
    "kept before": (lambda: with_training(pipeline(bytes).autocache()), "Decode, RandomCrop, Resize, RandomFlip"),
    "kept behind": (lambda: pipeline(*TRAINING[:2]).autocache().map(TRAINING[2], on="image").batch(2), ""),
    "padded": (lambda: pipeline(*TRAINING).padded_batch(2), ""),
}


@pytest.mark.parametrize("name", PLANS)
def test_which_operators_may_be_left(name: str) -> None:
    pipe, names = PLANS[name]
    run = run_of(pipe().plan)
    assert ("" if run is None else run.names) == names
    if run is not None:
        assert run.unfinished({"label": np.arange(2)}) is None


def offered(accelerator: Any, functions: Any = TRAINING, engine: Any = "python", **options: Any) -> Any:
    plan = pipeline(*functions).batch(2).plan
    workers = AutoWorkers(accelerator=accelerator, **options)
    return offered_accelerator(plan, describe_plan(plan), engine, IterOptions(workers=workers))


def test_what_a_trainer_offers_and_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered(False).choice == "off" and offered(False).images is None and not offered(False).note
    assert "PyTorch sees no CUDA device" in offered(True).note and offered(True).choice == "off"
    assert offered("always").choice == "always" and "run on cpu from the start" in offered("always").note
    assert "the tensorflow engine leaves nothing" in offered("always", engine="tensorflow").note
    assert "no operators can be left to it" in offered(True, [images.Decode()]).note
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert "AutoWorkers(accelerator=True) allows it, and pixels then differ" in offered(False).note
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torchvision" else object())
    with pytest.raises(MissingExtraError, match="cuda:1 by torchvision, which is not installed"):
        offered(True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert offered(True).choice == "auto" and "op3 may run on cuda:1, if that is faster" in offered(True).note
    assert 'mode "pecan" does not decide' in offered(True, mode="pecan").note
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="PyTorch, which is not installed"):
        find_device(None)
    assert offered(False).choice == "off", "what is not allowed needs no library"


def explained(phase: Any = "add_local", reason: str = "", *, on: bool = False, **more: Any) -> str:
    """What `explain()` says of the place of decoding, behind one decision of AutoPlacement's."""
    step = PlacementStep(1.0, Window(0.1, 1, 10), Deployment(1, 0), Decision(Deployment(1, 0), phase, reason))
    line: str = offered(**more).explain(JobStats("job", 1.0, timeline=(step,), accelerator=on))
    return line


def test_explain_says_where_photographs_are_decoded_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert explained(accelerator=False, functions=[bytes]) == ""
    assert "decoding: on workers: AutoWorkers(accelerator=False), the default" in explained(accelerator=False)
    assert "on workers: it is not used, because PyTorch sees no CUDA" in explained(accelerator=True)
    assert "run on cpu, where batches arrive: as AutoWorkers" in explained(accelerator="always", on=True)
    assert "run on workers: an image could not be finished" in explained(accelerator="always")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert "run on workers: cuda:0 was not tried yet" in explained(accelerator=True)
    moved = explained("accelerator", "it waits", on=True, accelerator=True)
    assert moved.endswith("run on cuda:0, where batches arrive: it waits")
    back = "-7 %: workers decode again."
    assert explained("back", back, accelerator=True).endswith(f"run on workers: {back}")


def test_images_stay_on_the_device_that_the_loop_wants_but_for_arithmetic(photographs: list[bytes]) -> None:
    """Among images that a worker has decoded."""
    files = [photographs[0], FILES["PNG"][0](), photographs[1]]
    for functions, stays in ((TRAINING, True), ((*TRAINING, to_float), False)):
        made, alone = (finished(pipeline(*functions).batch(4).plan, files, stay=stay) for stay in (True, False))
        assert isinstance(made, torch.Tensor) == stays and np.array_equal(np.asarray(made), alone)
    assert is_device("cuda", "cuda:1") and not is_device("cuda:0", "cuda:1") and not is_device(None, "cuda:0")


@pytest.mark.parametrize(("options", "stays"), [({}, False), ({"format": "torch"}, True), ({"format": "jax"}, False)])
def test_which_loops_want_tensors_where_images_are_finished(options: Any, stays: bool) -> None:
    plan = pipeline(*TRAINING).batch(2).plan
    told = IterOptions(workers=AutoWorkers(accelerator="always"), **options)
    assert offered_accelerator(plan, describe_plan(plan), "python", told).images_stay == stays
