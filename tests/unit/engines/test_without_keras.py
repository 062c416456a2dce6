"""TensorFlow is imported without Keras, which comes when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTS = """
import sys
from pecan_ray.engines.without_keras import import_tensorflow

import_tensorflow()
tensorflow = sys.modules["tensorflow"]
print(any(name.partition(".")[0] == "keras" for name in sys.modules))
print(tensorflow.keras.layers.Rescaling(0.5)(tensorflow.ones((1, 2))).numpy().tolist())
print(type(tensorflow.keras.optimizers.Adam()).__name__)
import_tensorflow()  # once more does nothing
print(sys.modules["tensorflow"] is tensorflow)
"""


def test_keras_comes_when_it_is_asked_for() -> None:
    pytest.importorskip("keras")
    """Half of the time of TensorFlow's import is Keras', which few operators need."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["False", "[[0.5, 0.5]]", "Adam", "True"]
