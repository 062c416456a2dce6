"""Importing TensorFlow in half of the time: its own imports of Keras and JAX wait until a program asks for them."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterator
from typing import Any

EAGER = ("keras.src.optimizers", "tf_keras.src.optimizers", "jax")
"""What TensorFlow imports, and does without if it cannot: Keras' optimizers for saved models, `jax.jit` for TFLite."""
WITH_JIT = ("tensorflow.lite.python.util", "tensorflow.lite.python.lite")
"""Modules of TFLite's converter that hold `jax.jit` as `_jit`."""


def import_tensorflow() -> None:
    """Import TensorFlow, without Keras and JAX unless they are there already.

    `tf.keras` and TFLite's converter stay usable: what they need is imported when they are first used.  Raises
    `ImportError` if there is no TensorFlow.
    """
    modules: dict[str, Any] = sys.modules
    if "tensorflow" in modules:
        return
    kept_away = [name for name in EAGER if name not in modules]
    modules.update(dict.fromkeys(kept_away))  # None: Python takes it for a module that is not there
    try:
        with _without_collections():
            importlib.import_module("tensorflow")
    finally:
        for name in kept_away:
            # Also behind a failure, or the user's own `import jax` would fail for the rest of the process.
            del modules[name]
    # TFLite's converter holds `_jit` from the moment of its import, so it has to be put there by hand.
    for module in (modules[name] for name in WITH_JIT if name in modules):
        if getattr(module, "_jit", None) is None:
            module._jit = _jit


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Do not look for garbage among what modules make, which stays: that takes a quarter of the import's CPU time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Else the next collections, of young objects, would look at all of them.  What the program has frozen stays so.
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        if collects:
            gc.enable()


def _jit(*arguments: Any, **options: Any) -> Any:
    """Do what `jax.jit` does, which is imported now."""
    return importlib.import_module("jax").jit(*arguments, **options)
