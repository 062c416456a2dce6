"""Pickling for processes of functions, also of tensors of types that torch itself writes and cannot read again."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from typing import Any

from pecan_ray.engines.foreign import has_memory

# The newest one of every supported Python, fixed so that both ends of a pipe agree.
PICKLE_PROTOCOL = 5
UNREAD = frozenset({"uint16", "uint32", "uint64", "complex32"})
"""Types of torch that came after its typed storages, by which it pickles; float8 ones did, too."""


def pickled(value: Any) -> bytes:
    """Return a value pickled; raises what pickle raises where it cannot be."""
    # The plain way is faster, and most functions never import torch.
    if "torch" not in sys.modules:
        return pickle.dumps(value, PICKLE_PROTOCOL)
    written = io.BytesIO()
    pickler = pickle.Pickler(written, PICKLE_PROTOCOL)
    # For this pickler alone: an entry in `copyreg` would change how the user's own code pickles tensors.
    pickler.dispatch_table = {**copyreg.dispatch_table, sys.modules["torch"].Tensor: _reduced}
    pickler.dump(value)
    return written.getvalue()


def _reduced(tensor: Any) -> Any:
    """Return how a tensor is made again."""
    name = str(tensor.dtype).removeprefix("torch.")
    unread = name in UNREAD or name.startswith("float8")
    if not unread or tensor.requires_grad or tensor.device.type != "cpu" or not has_memory(tensor):
        return tensor.__reduce_ex__(PICKLE_PROTOCOL)
    # PyTorch conjugates and negates by a bit of the tensor, which the bytes do not have.
    dense = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return _tensor, (name, tuple(tensor.shape), dense.view(sys.modules["torch"].uint8).numpy().tobytes())


def _tensor(kind: str, shape: tuple[int, ...], data: bytes) -> Any:
    import torch

    # `frombuffer` refuses an empty buffer.
    if not data:
        return torch.empty(shape, dtype=getattr(torch, kind))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(getattr(torch, kind)).reshape(shape)
