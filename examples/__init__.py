"""Example pipelines: the four of the Pecan paper's Table 1, step by step in their authors' order.

The modules of this package are pickled by value, so workers run their functions whether or not they can
import `examples`.
"""

from __future__ import annotations

import sys

import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])
