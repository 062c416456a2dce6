"""The peers: torch's DataLoader and tf.data, which say what is right wherever they have a habit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.parity.chains import Chain, Step
from tests.parity.ours import is_even, is_negative
from tests.parity.seen import Repeated

TORCHS_STEPS = ("noise", "take", "skip", "shuffle", "batch")
"""In this order: a DataLoader shuffles what its data set has, and makes batches of it."""
WHOLE = 20
"""A buffer for all elements: a DataLoader shuffles them all."""


class Loop(Repeated):
    def __init__(self, again: Any) -> None:
        self._repeated = again

    def again(self) -> Any:
        return self._repeated


class TfData:
    name = "tf.data"
    SAME = ("batch", "cache", "prefetch", "repeat", "shuffle", "skip", "take", "unbatch")
    """Methods that take the same arguments in the same order."""
    OWN = ("noise", "even", "nothing")

    def offers(self, chain: Chain) -> bool:
        inputs = chain.head[1].get("inputs", ())
        return all(map(self.offers, inputs)) and {name for name, _ in chain.steps} <= {*self.OWN, *self.SAME}

    def produced(self, chain: Chain) -> Callable[[], Loop]:
        import tensorflow as tf

        data = self._built(tf, chain)
        return lambda: Loop(data)

    def _built(self, tf: Any, chain: Chain) -> Any:
        data = self._head(tf, chain.head)
        for name, arguments in chain.steps:
            if name == "noise":
                data = data.map(lambda element: {**element, "x": tf.random.uniform([], dtype=tf.float64)})
            elif name in self.OWN:
                data = data.filter(is_even if name == "even" else is_negative)
            else:
                data = getattr(data, name)(*arguments.values())
        return data

    def _head(self, tf: Any, head: Step) -> Any:
        kind, arguments = head
        if kind == "rows":
            first, column = arguments["first"], arguments["column"]
            return tf.data.Dataset.range(first, first + arguments["count"]).map(lambda i: {column: i})
        inputs = [self._built(tf, chain) for chain in arguments["inputs"]]
        if kind == "concat":
            return inputs[0].concatenate(inputs[1])
        if kind == "zip":
            return tf.data.Dataset.zip(*inputs).map(
                lambda *elements: {k: v for one in elements for k, v in one.items()}
            )
        return tf.data.Dataset.sample_from_datasets(inputs, seed=3, stop_on_empty_dataset=True)


class DataLoader:
    name = "DataLoader"

    def offers(self, chain: Chain) -> bool:
        """Tell whether a chain can be built: a data set by index, shuffled as a whole or not, in batches."""
        kind, arguments = chain.head
        names, steps = [name for name, _ in chain.steps], dict(chain.steps)
        if kind == "mix" or not all(self._indexed(one) for one in arguments.get("inputs", ())):
            return False
        in_order = [name for name in TORCHS_STEPS if name in names] == names
        shuffle = steps.get("shuffle", {"buffer": WHOLE, "reshuffle": True})
        return in_order and shuffle["reshuffle"] and shuffle["buffer"] >= WHOLE

    def _indexed(self, chain: Chain) -> bool:
        return self.offers(chain) and not {"shuffle", "batch"} & {name for name, _ in chain.steps}

    def produced(self, chain: Chain) -> Callable[[], Loop]:
        """Return what opens a loader: each has a generator of its own where there is a seed."""
        import torch
        from torch.utils.data import DataLoader as Torchs

        steps = dict(chain.steps)
        data, shuffle, batch = _dataset(chain), steps.get("shuffle"), steps.get("batch", {})
        options = {"batch_size": batch.get("size"), "drop_last": batch.get("drop_remainder", False)}
        if shuffle is not None:
            options["shuffle"] = True

        def opened() -> Loop:
            seed = None if shuffle is None else shuffle["seed"]
            generator = None if seed is None else torch.Generator().manual_seed(seed)
            return Loop(Torchs(data, generator=generator, **options))

        return opened


def _dataset(chain: Chain) -> Any:
    from torch.utils.data import ConcatDataset, StackDataset, Subset

    kind, arguments = chain.head
    steps = dict(chain.steps)
    data: Any
    if kind == "rows":
        data = Numbers(**arguments, noise="noise" in steps)
    else:
        inputs = [_dataset(one) for one in arguments["inputs"]]
        data = ConcatDataset(inputs) if kind == "concat" else _Zipped(StackDataset(*inputs))
    first = min(steps.get("skip", {"count": 0})["count"], len(data))
    stop = min(steps.get("take", {"count": len(data)})["count"], len(data))
    return data if (first, stop) == (0, len(data)) else Subset(data, range(first, stop))


class Numbers:
    """Elements with numbers, and a random one if it is asked for, as a data set of torch by index."""

    def __init__(self, count: int, column: str, first: int, noise: bool) -> None:
        self._count, self._column, self._first, self._noise = count, column, first, noise

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        element: dict[str, Any] = {self._column: index + self._first}
        return {**element, "x": torch.rand([], dtype=torch.float64)} if self._noise else element


class _Zipped:
    def __init__(self, stack: Any) -> None:
        self._stack = stack

    def __len__(self) -> int:
        return len(self._stack)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: value for element in self._stack[index] for name, value in element.items()}


def torch_loader(chain: Chain) -> Any:
    return DataLoader().produced(chain)().again()


PEERS = (DataLoader(), TfData())
