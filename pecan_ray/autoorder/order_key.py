"""What a kept order is found by: everything that the choice depends on, as far as it is known at once."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from pecan_ray.options import EngineName
from pecan_ray.plan.fingerprint import canonical_text
from pecan_ray.plan.splits import Source
from pecan_ray.reorder import Mode
from pecan_ray.sources.audio_folder import AudioFolder
from pecan_ray.sources.image_folder import ImageFolder
from pecan_ray.storage import list_files, list_folder

FORMAT = 11
"""Grows whenever the choice is made by other rules, so that what was kept before is looked for anew."""


def order_key(
    parts: Sequence[tuple[str, str]],
    sources: Sequence[Source],
    engine: EngineName,
    mode: Mode,
    check: Callable[..., Any] | None,
) -> str:
    """Return 32 hexadecimal digits that stand for a pipeline whose order is chosen.

    `parts` is what `pecan_ray.plan.fingerprint.described` tells of its plan.  Where the data cannot be listed its
    place counts alone: who reads it says why.
    """
    looks = [look_of(source) for source in sources]
    text = repr((FORMAT, list(parts), looks, engine, mode, None if check is None else canonical_text(check)))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def look_of(source: Source) -> str:
    """Return a hash of what lies at a source's place: every file's path, size and version, at the cost of a listing."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        if isinstance(source, (AudioFolder, ImageFolder)):
            classes = source.classes
            digest.update(repr(classes).encode(errors="surrogatepass"))
            folders = (f"{source.root}/{name}" for name in classes)
            files = itertools.chain.from_iterable(map(list_folder, folders))
        else:
            files = itertools.chain(list_files(getattr(source, "patterns", ())))
        for file in files:
            digest.update(repr((file.path, file.size, file.version)).encode(errors="surrogatepass"))
    except Exception as error:  # a storage can raise anything
        return type(error).__name__
    return digest.hexdigest()
