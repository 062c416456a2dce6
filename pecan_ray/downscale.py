"""Arrays of pixels at a smaller size, by OpenCV."""

from __future__ import annotations

from typing import Any

import numpy as np

from pecan_ray.warps import ImageSize, opencv

RESIZABLE = tuple(np.dtype(one) for one in ("uint8", "uint16", "int16", "float32", "float64"))


def area_average(image: Any, size: ImageSize) -> Any:
    """Return an array at a smaller size: each pixel the mean of those that it stands for, bilinear below two."""
    if image.shape[:2] == size:
        return image
    cv2 = opencv()
    few = 2 * size[0] > image.shape[0] and 2 * size[1] > image.shape[1]
    try:
        made = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR if few else cv2.INTER_AREA)
    except cv2.error as error:  # too many channels
        raise ValueError(_not_resizable(image)) from error
    return made.reshape(*size, *image.shape[2:])  # OpenCV drops the last axis of images with one channel


def check_image_array(image: Any) -> Any:
    """Return an array that can be resized; raises ValueError for another."""
    if not (2 <= image.ndim <= 3 and image.size and image.dtype in RESIZABLE):
        raise ValueError(_not_resizable(image))
    return image


def _not_resizable(image: Any) -> str:
    return f"an array of shape {image.shape} and dtype {image.dtype} is not an image that OpenCV can resize"
