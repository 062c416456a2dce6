"""All rows of a column at once, for functions that are meant for one element.

A function is given a `RowsColumn` in the place of its element's number or array.  It can be added to, compared,
rounded, cast: whatever is done to each number by itself, with the same result in any array.  Anything else that a
function might do with it (ask whether it is true, take a mean, sort it, index it, hand it to another library) raises
`NotInRowsError`, and is noted where the function goes on in spite of that.  So what comes out is what each element by
itself would give, whatever the data are: that needs no sample.
"""

from __future__ import annotations

import math
import operator
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from pecan_ray.errors import describe_error

NumberArray: TypeAlias = "npt.NDArray[Any]"

EXACT_NAMES = (
    "add subtract multiply divide floor_divide remainder negative positive absolute fabs sqrt square maximum minimum "
    "fmax fmin equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor logical_not "
    "bitwise_and bitwise_or bitwise_xor invert left_shift right_shift floor ceil trunc rint sign signbit copysign "
    "isnan isinf isfinite"
)
EXACT = frozenset(EXACT_NAMES.split())
"""Functions of NumPy on single numbers whose results the standards of arithmetic prescribe to the last bit."""
ROUNDED_NAMES = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan arctan2 sinh cosh tanh arcsinh arccosh "
    "arctanh power float_power cbrt hypot logaddexp logaddexp2 deg2rad rad2deg reciprocal"
)
ROUNDED = frozenset(ROUNDED_NAMES.split())
"""Those whose last bit depends on how they are computed: alone, or several at a time."""
NUMBERS = "biuf"
"""Kinds of dtypes that columns may have."""


REPORTED = frozenset({"raise", "call", "log"})
"""What `np.errstate` may be set to that a function can see.  NumPy tells of integers that overflow as numbers alone."""


class NotInRowsError(Exception):
    """A function does something that is not done to each number by itself."""


@dataclass
class RowsWatch:
    """What is known of one run over rows."""

    rows: int
    exactly: bool = False
    """Only what is equal to the last bit by its definition is allowed."""
    channels: int = 0
    """The last two axes of elements are held as one, with so many numbers of a pixel side by side; 0: they are not."""
    rejected: str = ""
    """The first thing that was not allowed: a function may go on in spite of it."""

    def allows(self, function: str) -> bool:
        """Tell whether a function of NumPy gives each number what it would get alone, as exactly as is wanted."""
        return function in EXACT or (function in ROUNDED and not self.exactly)

    def reject(self, why: str) -> NoReturn:
        """Note and raise it."""
        self.rejected = self.rejected or why
        raise NotInRowsError(why)

    def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return what NumPy makes of all rows; whatever it raises is of one row, and a function may go on with that."""
        if not REPORTED.isdisjoint(np.geterr().values()):
            self.reject("errors of arithmetic are raised or reported, of which single numbers have others than rows")
        try:
            return function(*arguments, **keywords)
        except NotInRowsError:
            raise
        except Exception as error:  # whatever NumPy raises of a number that it cannot take
            self.reject(describe_error(error))


class HeldColumn:
    """A column that a function may pass on and do nothing else with: texts, bytes, objects of one class."""

    __slots__ = ("_kind", "_name", "_watch")

    def __init__(self, name: str, kind: type, watch: RowsWatch) -> None:
        self._name, self._kind, self._watch = name, kind, watch

    @property  # type: ignore[misc]  # what `isinstance` asks has the answer of each element
    def __class__(self) -> type:
        return self._kind

    def __getattr__(self, name: str) -> Any:
        return self._watch.reject(f"it uses {name!r} of column {self._name!r}, which holds no numbers of NumPy")


class RowsColumn(NDArrayOperatorsMixin):
    """A column of numbers; see the top of this file."""

    __slots__ = ("_array", "_watch")

    def __init__(self, array: NumberArray, watch: RowsWatch) -> None:
        self._array, self._watch = array, watch

    # --- what an element has too

    @property  # type: ignore[misc]  # what `isinstance` asks has the answer of each element
    def __class__(self) -> type:
        return np.ndarray if self._array.ndim > 1 else self._array.dtype.type

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of each element."""
        return self._array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """That of each element."""
        if channels := self._watch.channels:
            return (*self._array.shape[1:-1], self._array.shape[-1] // channels, channels)
        return self._array.shape[1:]

    @property
    def ndim(self) -> int:
        """Dimensions of each element."""
        return self._array.ndim - (0 if self._watch.channels else 1)

    @property
    def size(self) -> int:
        """Numbers of each element."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of each element."""
        return self.size * self._array.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of each number."""
        return self._array.itemsize

    def astype(self, dtype: Any, **keywords: Any) -> RowsColumn:
        """Return another dtype of it."""
        if keywords.keys() - {"copy"}:
            self._watch.reject(f"it casts with {sorted(keywords)}")
        wanted = np.dtype(dtype)
        if wanted.kind not in NUMBERS or not wanted.isnative:
            self._watch.reject(f"it casts to {wanted}")
        if self._watch.exactly and wanted.kind in "iu" and self._array.dtype.kind == "f":
            # What lies outside of the range becomes whatever the processor makes of it.
            self._watch.reject(f"it casts {self._array.dtype} to {wanted}")
        return self._like(self._watch.run(self._array.astype, wanted))

    def clip(self, min: Any = None, max: Any = None) -> RowsColumn:
        """Return it between two bounds."""
        made: RowsColumn = self._apply(np.clip, (self, min, max))
        return made

    def copy(self) -> RowsColumn:
        """Return a copy."""
        return self._like(self._watch.run(self._array.copy))

    def _like(self, array: NumberArray) -> RowsColumn:
        """Return other numbers of the same elements."""
        return RowsColumn(array, self._watch)

    # --- what NumPy asks

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        name = ufunc.__name__
        # By identity: functions of other libraries may have names of NumPy's.
        if method != "__call__" or getattr(np, name, None) is not ufunc:
            self._watch.reject(f"it calls {name}.{method}")
        if not self._watch.allows(name):
            self._watch.reject(f"it calls {name}" + (", whose last bit may differ" if name in ROUNDED else ""))
        if not self.ndim and inputs[0] is self and keywords.get("out") == (self,):
            keywords = {}  # a number is not written into: its name stands for another one
        if keywords.keys() - {"dtype"}:
            self._watch.reject(f"it calls {name} with {sorted(keywords)}, or writes into its array")
        # Python's operator takes squares, and no powers of 2.
        return self._apply(operator.pow if ufunc is np.power and not keywords else ufunc, inputs, **keywords)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        if function is np.where and len(args) == 3 and not keywords:
            return self._apply(np.where, args)
        if function is np.clip and len(args) == 3 and not keywords:
            return self._apply(np.clip, args)
        return self._watch.reject(f"it calls {getattr(function, '__name__', function)}")

    def _apply(self, function: Callable[..., Any], inputs: tuple[Any, ...], **keywords: Any) -> Any:
        """Return what a function makes of columns and constants, number by number."""
        arrays = [self._given(one) for one in inputs]
        made = self._watch.run(function, *arrays, **keywords)
        if not isinstance(made, np.ndarray) or made.dtype.kind not in NUMBERS or len(made) != self._watch.rows:
            self._watch.reject("it makes something else than numbers")
        if not self.ndim and made.dtype.kind in "iu" and _warnings_are_errors():
            self._watch.reject("warnings are errors, and NumPy warns of integers that overflow as numbers alone")
        return self._like(made)

    def _given(self, value: Any) -> Any:
        """Return an argument as NumPy takes it for all rows; refuse one that would not be the same for each."""
        if issubclass(type(value), RowsColumn):
            # Columns of unlike ranks would be broadcast along rows, and mix elements.
            if value._watch is not self._watch or value.ndim != self.ndim:
                self._watch.reject("it computes with columns of unlike dimensions")
            return value._array
        if value is None or type(value) in (bool, int, float):
            return value
        if isinstance(value, (np.ndarray, np.generic)) and type(value) is not np.ma.MaskedArray:
            if value.ndim <= self.ndim and value.dtype.kind in NUMBERS:
                return self._wide(value) if self._watch.channels else value
            self._watch.reject("it computes with an array of more dimensions, or of no numbers")
        return self._watch.reject(f"it computes with a {type(value).__name__}")

    def _wide(self, constant: Any) -> Any:
        """Return a constant for all pixels of a row, side by side: NumPy's loops are as long as its last axis."""
        channels = self._watch.channels
        if constant.size == 1:
            return constant.reshape(())
        if constant.shape[-1] != channels or constant.size != channels:
            self._watch.reject(f"it computes with an array {list(constant.shape)}, which is not a number for a channel")
        return np.tile(constant.reshape(channels), self._array.shape[-1] // channels)

    # --- what has no meaning for each number by itself

    def __getattr__(self, name: str) -> Any:
        return self._watch.reject(f"it uses {name!r} of its array")


MEANINGLESS = {
    **dict.fromkeys(
        ("bool", "len", "iter", "reversed", "contains"), "asks whether it is true, how long it is, or what is in it"
    ),
    **dict.fromkeys(("getitem", "setitem", "delitem"), "takes or sets parts of it"),
    **dict.fromkeys(("array", "buffer", "fspath", "call", "enter"), "hands it to something that is not known"),
    **dict.fromkeys(
        ("float", "int", "index", "complex", "round", "trunc", "floor", "ceil"), "makes a number of Python"
    ),
    **dict.fromkeys(("str", "repr", "format", "bytes"), "makes a text of it"),
    **dict.fromkeys(("hash", "reduce", "reduce_ex", "copy", "deepcopy", "sizeof"), "hashes, copies or pickles it"),
}
"""Methods of Python that have no meaning for each element by itself, and what a function does that calls them."""


def _warnings_are_errors() -> bool:
    """Tell whether a filter for all modules makes errors of what NumPy warns of."""
    return any(
        action == "error" and module is None and issubclass(RuntimeWarning, kind)
        for action, _, kind, module, _ in warnings.filters
    )


# Python looks up methods with underscores in the class, so `__getattr__` alone would not see them.
def _add_rejection(kind: type, name: str, why: str) -> None:
    def raise_always(self: Any, *args: Any, **keywords: Any) -> Any:
        self._watch.reject(f"it {why}")

    setattr(kind, f"__{name}__", raise_always)


for _name, _why in MEANINGLESS.items():
    _add_rejection(RowsColumn, _name, _why)
    _add_rejection(HeldColumn, _name, _why)
for _name, _operator in vars(NDArrayOperatorsMixin).items():
    if isinstance(_operator, types.FunctionType):
        _add_rejection(HeldColumn, _name.strip("_"), "computes with, or compares, texts or objects")


def array_of(column: Any, watch: RowsWatch) -> NumberArray:
    """Return the array of a column that a function has returned."""
    if not issubclass(type(column), RowsColumn) or column._watch is not watch:
        watch.reject(f"it returns a {type(column).__name__}")
    found: NumberArray = column._array
    return found
