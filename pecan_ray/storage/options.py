"""What a source says of the storage that its paths lie in: endpoints, accounts, and where secrets are found.

A source is pickled into plans, journals and jobs.  So a secret is never a value in it: it is the name of an environment
variable, which each machine looks up when it opens the storage.

Decisions: docs/decisions/security.md.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pecan_ray.errors import PlanError, SourcePermissionError
from pecan_ray.storage.backend import MAGIC
from pecan_ray.storage.pattern_expansion import literal_prefix

SECRET = re.compile(
    r"secret|passw|pwd|credential|token|connection_?string|signature|bearer|private|(api|access|account|shared)_?key|"
    r"(^|_)(key|sas|sig|pat|jwt|auth|authorization|cookie)(_|$)"
)
"""Names of options whose values are secrets, as `_to_str` spells them."""
LEAST_RANDOM = 24
"""Characters: a shorter value cannot be told from a name."""
RANDOMNESS = 0.85
"""Of the entropy that so many characters out of 64 can have: 97 of 100 random values of 40 have more, words less."""
# Names alone were not enough: docs/decisions/security.md#166-secrets-by-what-they-are.
_OPAQUE = re.compile(r"[A-Za-z0-9+/_=~.-]+")
_HEX = re.compile(r"[0-9a-fA-F]{32,}")
_MARKED = re.compile(
    r"-----BEGIN|^(ghp|gho|github_pat|hf|glpat|sk|xox[a-z])[_-]\w{16}|^eyJ[\w-]+\.|[Bb]earer \S|://[^/\s@]*:[^/\s]*@"
)
_NAMED = re.compile(r"([\w-]+) ?[=:] ?[^\s&;,]")
"""A name and a value within a value: `sig=...`, `AccountKey=...`."""
HARMLESS = (None, True, False, "anon", "cloud", "google_default")
"""Values that are no secret, whatever they are called: of gcsfs's ``token`` some are ways to find one."""


@dataclass(frozen=True)
class Env:
    """The value of an environment variable, looked up on each machine that reads: for secrets in `storage_options`.

    >>> Env("HF_TOKEN")
    Env('HF_TOKEN')
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PlanError(f"Env(name) needs the name of an environment variable, but got {self.name!r}.")

    def __repr__(self) -> str:
        return f"Env({self.name!r})"

    def value(self, option: str) -> str:
        """Return it; raises SourcePermissionError, naming the variable, where there is none on this machine."""
        found = os.environ.get(self.name)
        if found is None:
            raise SourcePermissionError(
                f"storage_options: {option} is the environment variable {self.name}, which is not set on this machine. "
                "Give it to all nodes: ray job submit --runtime-env-json '{\"env_vars\": {...}}'.",
                path="",
            )
        return found


class StorageOptions(Mapping[str, Any]):
    """Options for what lies below some paths; made, or unpickled, they count in this process."""

    def __init__(self, prefixes: Sequence[str], options: Mapping[str, Any]) -> None:
        self._prefixes, self._options = tuple(prefixes), dict(options)
        # A worker unpickles the source, and later opens its paths by their names alone.
        for prefix in self._prefixes:
            if _of_prefix.get(prefix) != self:
                _of_prefix[prefix] = self

    def __getitem__(self, name: str) -> Any:
        return self._options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def __repr__(self) -> str:
        # Names only: the text may come into logs.
        return f"StorageOptions({', '.join(sorted(map(str, self._options)))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._options == dict(other)

    def __hash__(self) -> int:
        # By names, since values may be dicts; `==` compares the values.
        return hash(tuple(sorted(map(str, self._options))))

    def __reduce__(self) -> tuple[Any, ...]:
        return StorageOptions, (self._prefixes, self._options)

    def resolved(self) -> dict[str, Any]:
        """Return the options with the values of environment variables; to be kept nowhere."""
        found: dict[str, Any] = _resolved(self._options, "")
        return found


_of_prefix: dict[str, StorageOptions] = {}


def storage_options(options: Any, patterns: Sequence[str]) -> StorageOptions | None:
    """Return a source's options, which count for its paths from now on; raises PlanError for a secret among them."""
    if options is None:
        return None
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise PlanError(f"storage_options must be a dict by name, but got {type(options).__name__}.")
    local = next((path for path in patterns if "://" not in path), None)
    if local is not None:
        raise PlanError(f"storage_options are for paths like s3://, hf:// or az://, but {local} is on this machine.")
    _check_no_secret(options, "")
    return StorageOptions([_prefix(pattern) for pattern in patterns], dict(options))


def options_of(path: str) -> StorageOptions | None:
    """Return the options that count for a path: those of the longest prefix."""
    fitting = [prefix for prefix in _of_prefix if _below(path, prefix)]
    return _of_prefix[max(fitting, key=len)] if fitting else None


def _prefix(pattern: str) -> str:
    fixed = literal_prefix(pattern)
    if magic := MAGIC.search(fixed):
        fixed = fixed[: magic.start()]
    return pattern.rstrip("/") if fixed == pattern else fixed[: fixed.rfind("/") + 1]


def _below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix if prefix.endswith("/") else f"{prefix}/")


def _check_no_secret(value: Any, where: str, name: str = "") -> None:
    if isinstance(value, Mapping):
        for name, one in value.items():
            _check_no_secret(one, f"{where}[{name!r}]" if where else str(name), str(name))
    elif isinstance(value, (list, tuple)):
        for place, one in enumerate(value):
            _check_no_secret(one, f"{where}[{place}]", name)
    elif not isinstance(value, Env) and value not in HARMLESS and (_is_secret_name(name) or _is_secret(value)):
        variable = re.sub(r"\W", "_", name).upper()
        what = "is a secret" if _is_secret_name(name) else "looks like a secret"
        raise PlanError(
            f"storage_options: {where} {what}, and a source travels in plans and journals. Name the environment "
            f"variable that holds it on every node: {name}=pecan_ray.sources.Env({variable!r})."
        )


def _is_secret_name(name: str) -> bool:
    """Tell whether a name is one of a secret, in any spelling: account_key, accountKey, AccountKey, account-key."""
    to_str = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return SECRET.search(re.sub(r"\W", "_", to_str).lower()) is not None


def _is_secret(value: Any) -> bool:
    """Tell whether a value is a secret by what it is: marked as one, with a user and a password, or random."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        return False
    if _MARKED.search(text) or any(map(_is_secret_name, _NAMED.findall(text))):
        return True
    if _HEX.fullmatch(text):
        return True
    mixed = all(any(map(kind, text)) for kind in (str.isupper, str.islower, str.isdigit))
    if len(text) < LEAST_RANDOM or not mixed or _OPAQUE.fullmatch(text) is None:
        return False
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares) >= RANDOMNESS * math.log2(min(len(text), 64))


def _resolved(value: Any, where: str) -> Any:
    if isinstance(value, Env):
        return value.value(where)
    if isinstance(value, Mapping):
        return {name: _resolved(one, str(name)) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_resolved(one, where) for one in value)
    return value
