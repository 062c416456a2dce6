"""Which devices batches go to: one of torch, or a mesh of JAX; the frameworks are imported where they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pecan_ray.errors import PlanError
from pecan_ray.integrations.formats import converter
from pecan_ray.plan.operators import Plan

if TYPE_CHECKING:
    from pecan_ray.integrations.devices import OnDevice
    from pecan_ray.integrations.jax_arrays import OnMesh


def device_copies(device: str | None) -> OnDevice | None:
    """Return what copies batches to a device of torch; None where they may stay."""
    if device is None:
        return None
    from pecan_ray.integrations.devices import on_device

    return on_device(device)


def conversion(
    convert: Callable[[dict[str, Any]], dict[str, Any]], device: OnDevice | OnMesh | None
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what makes of columns a batch of the format, on the device."""
    return convert if device is None else lambda columns: device.deliver(columns, convert, None)


def mesh_copies(
    sharding: Any, format: str, plan: Plan, rank: int | None, world_size: int | None
) -> tuple[OnMesh, int | None, int | None]:
    """Return what places batches on a mesh of JAX, and the rank and world size of this process of JAX.

    Raises PlanError where the mesh does not divide the batches, and for what is no sharding.
    """
    if format != "jax":
        raise PlanError(
            f'sharding must be "dynamic", "static" or "off", or with format="jax" a jax.sharding.NamedSharding, but '
            f"got {sharding!r:.80} with format={format!r}."
        )
    converter("jax")  # it says what is missing
    from pecan_ray.integrations.jax_arrays import on_mesh, place_of_process

    rank, world_size = place_of_process(rank, world_size)
    return on_mesh(sharding, plan, rank or 0, world_size or 1), rank, world_size
