"""Which version of an installed package a function or class belongs to: another one may compute something else."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path

CODE = (".py", ".so", ".pyd", ".dll")
"""Endings of the files of a package that count where nothing tells its version."""


def library_version(module: str) -> str:
    """Return what tells the version of the package of a module; empty for modules of Python.

    A package that was installed from a folder keeps its version while its files change, so those count.
    """
    top = module.partition(".")[0]
    if not top or top in sys.stdlib_module_names:
        return ""
    loaded = sys.modules.get(top)
    version = getattr(loaded, "__version__", "")
    file = getattr(loaded, "__file__", None)
    paths = [file] if file else [str(path) for path in getattr(loaded, "__path__", ())]
    # With the time of its files, since a module may be loaded again in another version.
    return _version(top, version if isinstance(version, str) else "", tuple((path, _changed(path)) for path in paths))


def _changed(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:  # in an archive, or gone
        return 0


@functools.lru_cache(maxsize=1024)
def _version(top: str, version: str, files: tuple[tuple[str, int], ...]) -> str:
    distributions = list(_distributions(top, version))
    known = version or ",".join(sorted(one.version for one in distributions))
    if known and not any(map(_is_of_a_folder, distributions)):
        return known
    return known + "+" + _digest_of([Path(path) for path, _ in files])


def _distributions(top: str, version: str) -> Iterator[importlib.metadata.Distribution]:
    """Yield what was installed that a module belongs to; mostly it has its name."""
    try:
        yield importlib.metadata.distribution(top)
        return
    except importlib.metadata.PackageNotFoundError:
        # Reading all of them takes seconds.
        names = [] if version else importlib.metadata.packages_distributions().get(top, [])
    for name in sorted(set(names)):
        yield importlib.metadata.distribution(name)


def _is_of_a_folder(distribution: importlib.metadata.Distribution) -> bool:
    text = distribution.read_text("direct_url.json")
    return text is not None and "dir_info" in json.loads(text)


def _digest_of(paths: list[Path]) -> str:
    """Return a digest of the code below some paths, by its content: copies on other machines are of other times."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        root = path.parent if path.name == "__init__.py" else path
        for one in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if one.suffix in CODE and one.is_file():
                digest.update(f"{one.relative_to(root.parent)} {one.stat().st_size}\n".encode())
                digest.update(one.read_bytes())
    return digest.hexdigest()
