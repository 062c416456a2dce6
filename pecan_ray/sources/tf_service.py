"""tf.data service within a dataset that is made for one of our workers: it is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.sources.tf_order import replaced

CALLS = ("_register_dataset", "_from_dataset_id")
"""Functions by which tf.data sends a dataset to its service, and reads from there."""


@contextmanager
def without_service(name: str) -> Iterator[None]:
    """Raise PlanError where this thread asks for tf.data service meanwhile, in the function of this name.

    TensorFlow asks the dispatcher while the dataset is made, and waits for one that does not answer.
    """
    from tensorflow.python.data.experimental.ops import data_service_ops

    def refused(_: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*given: Any, **named: Any) -> Any:
            raise PlanError(
                f"from_tf_data: {name} uses tf.data service (distribute, register_dataset, from_dataset_id), which "
                "would give each shard all of the data, in an order that cannot be read again. Leave it out: workers "
                f"of this job run what {name} returns."
            )

        return refuse

    with ExitStack() as stack:
        for call in CALLS:
            stack.enter_context(replaced(data_service_ops, call, refused))
        yield
