"""Values of Pillow, PyTorch, TensorFlow and JAX, told without importing any of them: whoever holds one has."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from pecan_ray.errors import MissingExtraError
from pecan_ray.sources.copies import attributes_of

REGISTERED = 2
"""What NumPy answers (`dtype.isbuiltin`) for a number type that another library has added, such as bfloat16."""
WIDE_MODES = {"I": 4, "F": 4, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
"""Bytes of a pixel's value in Pillow's modes with more than one."""


def is_pil_image(value: Any) -> bool:
    """Tell whether a value is an image of Pillow."""
    # Who holds an image has imported its library, so a look at `sys.modules` is enough and imports nothing.
    kind = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return kind is not None and isinstance(value, kind)


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a tensor of PyTorch."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def _is_eager(value: Any) -> bool:
    kind = getattr(sys.modules.get("tensorflow"), "Tensor", None)
    return kind is not None and isinstance(value, kind) and hasattr(value, "numpy")


def is_text_tensor(value: Any) -> bool:
    """Tell whether a value is a tensor of TensorFlow that holds texts, and not a symbolic one."""
    return _is_eager(value) and value.dtype.name == "string"


def _is_jax(value: Any) -> bool:
    kind = getattr(sys.modules.get("jax"), "Array", None)
    # Of random keys NumPy has no type: jax.random.key_data(key) are its numbers.
    return kind is not None and isinstance(value, kind) and isinstance(value.dtype, np.dtype)


def pil_image_bytes(picture: Any) -> int:
    """Return the bytes of an image of Pillow, decoded."""
    width, height = picture.size
    return int(width * height * len(picture.getbands()) * WIDE_MODES.get(picture.mode, 1))


def tensor_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor's items."""
    return int(tensor.numel() * tensor.element_size())


def as_array(value: Any) -> npt.NDArray[Any] | None:
    """Return an image or a tensor as an array of the same type of numbers; None for anything else.

    TensorFlow's tensors of texts, and symbolic ones, are something else.  Raises `MissingExtraError` where ml_dtypes is
    not installed, for types that NumPy has from there alone, such as bfloat16.
    """
    if _is_eager(value) or _is_jax(value):
        array = np.asarray(value)
        return None if array.dtype.hasobject else array
    if is_pil_image(value):
        # The numbers of a palette's pixels are places in it; without the palette they mean nothing.
        return np.asarray(value.convert("RGBA") if value.mode in ("P", "PA") else value)
    if not is_tensor(value) or value.is_meta or value.is_nested or value.is_quantized:
        return None
    dense = value.detach().cpu()
    # PyTorch conjugates and negates by a bit of the tensor, which NumPy does not know.
    dense = dense.resolve_conj().resolve_neg() if has_memory(value) else dense.to_dense()
    try:
        return np.asarray(dense.numpy())
    except TypeError:
        return _of_registered_type(dense)


def _of_registered_type(dense: Any) -> npt.NDArray[Any] | None:
    """Return a tensor of a type that NumPy lacks, such as bfloat16, as an array of the type that ml_dtypes adds."""
    torch = sys.modules["torch"]
    if dense.dtype == torch.complex32:  # nobody has it beside torch
        return np.asarray(dense.to(torch.complex64).numpy())
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingExtraError(
            f"tensors of {dense.dtype} need ml_dtypes, which is not installed: pip install ml_dtypes. Or make another "
            "type of them by a map before (tensor.float()).",
            extra="torch",
        ) from error
    kind = getattr(ml_dtypes, str(dense.dtype).removeprefix("torch."), None)
    # A type of this name may be packed otherwise there: bits are taken over only if both sizes agree.
    if kind is None or np.dtype(kind).itemsize != dense.element_size():
        return None
    # NumPy takes no bfloat16 from torch, but the same bits as integers.
    bits = torch.uint8 if dense.element_size() == 1 else torch.int16
    return np.asarray(dense.contiguous().view(bits).numpy().view(kind))


def with_arrays_inside(value: Any) -> Any:
    """Return a value with arrays in the place of the tensors in it; torch cannot pickle all that NumPy can."""
    if isinstance(value, dict):
        return {name: with_arrays_inside(one) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(with_arrays_inside, value))
    array = as_array(value) if is_tensor(value) else None
    return value if array is None else array


def has_memory(tensor: Any) -> bool:
    """Tell whether a tensor of PyTorch has its items in memory side by side: sparse ones have not."""
    return tensor.layout is sys.modules["torch"].strided


def as_tensor(array: npt.NDArray[Any]) -> Any:
    """Return an array that may be written into as a tensor of torch that shares its memory, also of ml_dtypes' types.

    Raises TypeError for a type that torch does not have.
    """
    torch = sys.modules["torch"]
    if array.dtype.isbuiltin != REGISTERED:
        return torch.from_numpy(array)
    own = getattr(torch, array.dtype.name, None)
    if own is None or not own.is_floating_point:
        raise TypeError(f"torch has no {array.dtype.name}")
    return torch.from_numpy(array.view("u1" if array.itemsize == 1 else "i2")).view(own)


def notes_of(value: Any) -> dict[str, Any]:
    """Return what an image of Pillow carries beside its pixels (mode, format, palette, notes); of others nothing.

    What the class of an opened file keeps for its decoding does not count.
    """
    if not is_pil_image(value):
        return {}
    palette = value.getpalette() if value.mode in ("P", "PA") else None
    notes = {"mode": value.mode, "format": value.format, "palette": palette and bytes(palette), "info": value.info}
    return notes | attributes_of(value)


def with_array(value: Any, array: npt.NDArray[Any]) -> Any:
    """Return an array as a value of the same library: an image of Pillow, a tensor, or the array itself."""
    if is_pil_image(value):
        made = sys.modules["PIL.Image"].fromarray(array)
        made.info = dict(value.info)
        return made
    return as_tensor(array).to(value.device) if is_tensor(value) else array


def type_name(value: Any) -> str:
    """Return what kind of image or tensor a value is; empty for anything else."""
    if is_pil_image(value):
        return f"Image[{value.mode}]"
    return str(value.dtype) if is_tensor(value) else ""


def shares_storage(tensor: Any) -> bool:
    """Tell whether others may have the memory of a tensor of PyTorch: another tensor, or what it was made of."""
    try:
        storage = tensor.untyped_storage()
        # Of a tensor alone there are two users of the storage: it, and `storage`.
        return not storage.resizable() or int(sys.modules["torch"]._C._storage_Use_Count(storage._cdata)) > 2
    except (AttributeError, NotImplementedError, RuntimeError):  # sparse ones have none; the count is no public name
        return True
