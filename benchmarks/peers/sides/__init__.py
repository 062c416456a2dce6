"""The sides: one module per loader, each used as its documentation recommends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any


@dataclass(frozen=True)
class Side:
    """Where a loader's code is, and what it needs."""

    module: str
    """In this package, or with its full name."""
    function: str = "batches"
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "peer"
    """"ours", "peer", or "bound" for a physical limit."""
    checkout: str = ""
    """Folder whose code it runs; empty: this checkout's."""

    @property
    def path(self) -> str:
        """The module's full name."""
        return self.module if "." in self.module else f"{__name__}.{self.module}"

    @property
    def missing(self) -> str | None:
        """The package that is not installed, if any."""
        return next((name for name in self.needs if find_spec(name) is None), None)


def _ours(engine: str, *needs: str, **options: Any) -> Side:
    return Side("ours", needs=needs, options={"engine": engine, **options}, kind="ours")


SIDES: dict[str, Side] = {
    "pecan python": _ours("python"),
    "pecan python, automatic": _ours("python", workers="auto"),
    "pecan python, its operators": _ours("python", operators="library"),
    "pecan tensorflow": _ours("tensorflow", "tensorflow"),
    "pecan from_tf_data": Side(
        "ours", "existing", needs=("tensorflow",), options={"engine": "tensorflow"}, kind="ours"
    ),
    "threads": Side("threads", kind="bound"),
    "threads, best order": Side("threads", options={"part": "best order"}, kind="bound"),
    "compute only": Side("threads", "compute_only", kind="bound"),
    "decode only": Side("threads", "part_only", options={"part": "decode"}, kind="bound"),
    "memcpy": Side("threads", "memcpy", kind="bound"),
    "tf.data": Side("tf_data", needs=("tensorflow",), options={"variant": "plain"}),
    "tf.data, fused": Side("tf_data", needs=("tensorflow",), options={"variant": "fused"}),
    "tf.data, best order": Side("tf_data", needs=("tensorflow",), options={"variant": "best"}, kind="bound"),
    "tf.data, same functions": Side("tf_data", "numpy_function", needs=("tensorflow",)),
    "tf.data service": Side("tf_service", needs=("tensorflow",), options={"variant": "fused"}),
    "tf.data service, plain": Side("tf_service", needs=("tensorflow",), options={"variant": "plain"}),
    "tf.data, epochs": Side("tf_data", "epochs", needs=("tensorflow",)),
    "tf.data service, epochs": Side("tf_service", "epochs", needs=("tensorflow",)),
    "torch DataLoader": Side("torch_loader", needs=("torch",)),
    "torch DataLoader, any order": Side("torch_loader", needs=("torch",), options={"in_order": False}),
    "Ray Data": Side("ray_data", needs=("ray.data",)),
    "SPDL": Side("spdl_loader", needs=("spdl",)),
    "Grain": Side("grain_loader", needs=("grain",)),
    "Grain, processes": Side("grain_loader", "processes", needs=("grain",)),
    "WebDataset": Side("webdataset_loader", needs=("webdataset", "torch")),
    "PyArrow, this process": Side("tables", "by_pyarrow", kind="bound"),
    "torch DataLoader, tables": Side("tables", "by_torch", needs=("torch",)),
    "Ray Data, tables": Side("tables", "by_ray_data", needs=("ray.data",)),
    "tf.data, tables": Side("tables", "by_tf_data", needs=("tensorflow",)),
}
