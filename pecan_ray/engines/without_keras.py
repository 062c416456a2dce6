"""Importing TensorFlow in half of the time: its own import of Keras waits until a program asks for `tf.keras`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

EAGER = ("keras.src.optimizers", "tf_keras.src.optimizers")
"""What TensorFlow imports at its end, so that saved models find Keras' optimizers, and does without if it cannot."""


def import_tensorflow() -> None:
    """Import TensorFlow, without Keras unless that is there already.

    `tf.keras` stays usable: it is imported when it is first used.  Raises `ImportError` if there is no TensorFlow.
    """
    modules: dict[str, Any] = sys.modules
    if "tensorflow" in modules:
        return
    kept_away = [name for name in EAGER if name not in modules]
    modules.update(dict.fromkeys(kept_away))  # None: Python takes it for a module that is not there
    try:
        importlib.import_module("tensorflow")
    finally:
        for name in kept_away:
            del modules[name]
