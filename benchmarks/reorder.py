"""What AutoOrder gains: images per second of one worker's engine in the user's order and in AutoOrder's.

    python benchmarks/reorder.py [--data FOLDER] [--rounds 5] [--json FILE]

Both orders run in one process, alternating, on the same photographs; medians and spreads are printed.  Figure 3 of
the Pecan paper is crop, flip, rotate, shear -> resize -> cast to float16: once with the decoder, crop and resize of
`pecan_ray.images`, which are pushed down into one another, and once with functions that AutoOrder cannot look into.
The two examples are op for op as in the paper's Table 1.  Beside are the bound, the gain if the operators that
something was moved in front of took no time at all (decoding less can gain more); the seconds that `sample_profile`
takes for 300 elements, and those of the whole search; and those of the decision alone for 1,000 operators.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pecan_ray as pecan
from examples import image_ops, resnet50, simclr
from examples.photographs import derived_photographs
from pecan_ray.autoorder.accepted import Ordering
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.rewrites import apply_rewrites
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.registry import build_engine
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Plan
from pecan_ray.reorder import ProfiledOp, auto_order

BATCH = 32


class OneSlot:
    """Memory that is used again for every batch, as a worker's ring is by a trainer that keeps up."""

    def __init__(self) -> None:
        self._free: list[Any] = []

    def acquire(self, nbytes: int) -> Any:
        """Return memory of at least `nbytes`."""
        fitting = [slot for slot in self._free if len(slot.buffer) >= nbytes]
        if fitting:
            self._free.remove(fitting[0])
            return fitting[0]
        return FreeSlot(self._free, nbytes)


class FreeSlot:
    """One piece of memory."""

    def __init__(self, free: list[Any], nbytes: int) -> None:
        self._free, self.buffer = free, memoryview(bytearray(nbytes))

    def release(self) -> None:
        """Give it back."""
        self._free.append(self)


def figure_3(root: str, engine: EngineName) -> pecan.PecanPipeline:
    """Return the pipeline of the paper's Figure 3; the crop is 8 to 100 % of the photograph, uniformly."""
    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(root), name="figure3", engine=engine)
    pipe = pipe.map(pecan.images.Decode(), on="image").map(pecan.images.RandomCrop(), on="image", name="random_crop")
    ops = operators(engine)
    for augmentation in (ops.random_flip, ops.random_rotate, ops.random_shear):
        pipe = pipe.map(augmentation, on="image")
    resize = pecan.images.Resize(224, 224)
    return pipe.map(resize, on="image", name="resize").map(select_and_cast(engine), name="cast").batch(BATCH)


def figure_3_by_own_functions(root: str, engine: EngineName) -> pecan.PecanPipeline:
    """Return the same with a decoder that crops and casts to float32, which AutoOrder cannot look into."""
    ops = operators(engine)
    return (
        pecan.PecanPipeline(pecan.sources.ImageFolder(root), name="figure3", engine=engine)
        .map(decode_and_crop(engine), on="image", name="decode_and_crop")
        .map(ops.random_flip, on="image")
        .map(ops.random_rotate, on="image")
        .map(ops.random_shear, on="image")
        .map(ops.resize, on="image")
        .map(select_and_cast(engine), name="cast")
        .batch(BATCH)
    )


def decode_and_crop(engine: EngineName) -> Callable[..., Any]:
    """Return the operator that decodes, crops and casts to float32, as ResNet50's programs do in one step."""
    crop = pecan.images.RandomCrop()
    if engine == "tensorflow":
        import tensorflow as tf

        def part(encoded: Any, rng: Any) -> Any:
            box = crop.box(tf.image.extract_jpeg_shape(encoded), rng)
            return tf.cast(tf.image.decode_and_crop_jpeg(encoded, tf.stack(box), channels=3), tf.float32)

        return part
    decode = pecan.images.Decode()
    return lambda encoded, rng: crop(decode(encoded), rng).astype("float32")


def operators(engine: EngineName) -> ModuleType:
    """Return the module of an engine's image operators."""
    if engine == "tensorflow":
        from examples import image_ops_tf

        return image_ops_tf
    from examples import image_ops

    return image_ops


def select_and_cast(engine: EngineName) -> Callable[[Any], Any]:
    """Return the operator that casts to float16."""
    if engine == "tensorflow":
        import tensorflow as tf

        return lambda element: {"image": tf.cast(element["image"], tf.float16)}
    return lambda element: {"image": image_ops.to_half(element["image"])}


PIPELINES: dict[str, Callable[[str, EngineName], pecan.PecanPipeline]] = {
    "Figure 3": figure_3,
    "Figure 3, own functions": figure_3_by_own_functions,
    "ResNet50": lambda root, engine: resnet50.pipeline(root, engine=engine, batch=BATCH),
    "SimCLR": lambda root, engine: simclr.pipeline(root, engine=engine, batch=BATCH),
}


class Pass(NamedTuple):
    """One pass over the data, from the first batch on."""

    rate: float
    """Images per second."""
    cpu_ms: float
    """CPU time of an image, which other load on the machine hardly changes."""


def run(plan: Plan, engine: EngineName, threads: int) -> Pass:
    """Make one pass."""
    sources = list(plan.sources())
    running = build_engine(engine, plan, EngineOptions(threads=threads), OneSlot())
    rows, began, cpu = 0, None, 0.0
    for produced in running.batches(AllLeases(sources, 0, 1)):
        if began is None:
            began, cpu = time.perf_counter(), time.process_time()
        else:
            rows += produced.rows
        if produced.slot is not None:
            produced.slot.release()
    running.close()
    assert began is not None
    return Pass(rows / (time.perf_counter() - began), 1000.0 * (time.process_time() - cpu) / rows)


def bound(ordering: Ordering) -> float:
    """Return the speed-up if the operators behind those that moved took no time: no order can gain more."""
    (found,) = ordering.sequences
    seconds = {op.name: op.seconds or 0.0 for op in found.sample.ops}
    user, order = found.names, found.policy_order.order
    relieved = [name for name in user if set(order[: order.index(name)]) - set(user[: user.index(name)])]
    total = sum(seconds.values())
    return total / (total - sum(seconds[name] for name in relieved))


def compare(pipe: pecan.PecanPipeline, ordering: Ordering, rounds: int, threads: int) -> dict[str, list[Pass]]:
    """Run both orders in turn."""
    plans = {
        "user's order": ordering.before,
        "AutoOrder": apply_rewrites(ordering.plan, pipe.engine, ordering.decoders)[0],
    }
    passes: dict[str, list[Pass]] = {name: [] for name in plans}
    for _ in range(rounds):
        for name, plan in plans.items():
            passes[name].append(run(plan, pipe.engine, threads))
    return passes


def decision_seconds(count: int = 1000, mode: Any = "pecan") -> float:
    """Return the median time that the decision takes for so many operators."""
    ops = [ProfiledOp(f"op{number}", inflation=(0.5, 1.0, 2.0)[number % 3]) for number in range(count)]
    times = []
    for _ in range(5):
        began = time.perf_counter()
        auto_order(ops, mode)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of folders of JPEGs (default: photographs derived from scikit-image's)")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--engines", nargs="+", default=["python", "tensorflow"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    root = args.data or str(derived_photographs(args.images))
    facts: dict[str, Any] = {
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}",
        "rounds": args.rounds,
        "decision_seconds_1000_ops": decision_seconds(),
    }
    print(f"{facts['machine']}; medians of {args.rounds} alternations, {args.threads} threads")
    for engine in args.engines:
        for name, make in PIPELINES.items():
            pipe = make(root, engine)
            began = time.perf_counter()
            ordering = order_plan(OrderRequest(pipe.plan, engine, "safe"))
            searching = time.perf_counter() - began
            sampling = pecan.sample_profile(pipe, 300).seconds
            passes = compare(pipe, ordering, args.rounds, args.threads)
            rates = {order: [one.rate for one in made] for order, made in passes.items()}
            medians = {order: statistics.median(values) for order, values in rates.items()}
            cpu = {order: statistics.median(one.cpu_ms for one in made) for order, made in passes.items()}
            ratio, cpu_ratio = medians["AutoOrder"] / medians["user's order"], cpu["user's order"] / cpu["AutoOrder"]
            spread = ", ".join(
                f"{order} {medians[order]:.0f} ({min(values):.0f} to {max(values):.0f})"
                for order, values in rates.items()
            )
            costs = "CPU ms/img {:.2f} -> {:.2f}: {:.2f}x".format(cpu["user's order"], cpu["AutoOrder"], cpu_ratio)
            most = bound(ordering)
            print(f"{engine:10s} {name:23s} {ratio:.2f}x of at most {most:.2f}x  img/s: {spread}; {costs}", flush=True)
            print(f"           sampled 300 elements in {sampling:.1f} s, searched for {searching:.1f} s", flush=True)
            print(f"           order: {', '.join(op.name for op in ordering.plan.ops)}", flush=True)
            for text in ordering.notes:
                print(f"           {text}", flush=True)
            facts[f"{engine} {name}"] = {
                "ratio": ratio,
                "cpu_ratio": cpu_ratio,
                "bound": most,
                "images_per_second": rates,
                "sampling_seconds": sampling,
                "search_seconds": searching,
            }
    print(f"the decision for 1,000 operators: {1000 * facts['decision_seconds_1000_ops']:.1f} ms")
    if args.json:
        args.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
