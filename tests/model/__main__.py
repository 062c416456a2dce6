"""Check the model of the control plane's core with Spin: ``python -m tests.model``.

Needs Debian's packages `spin` and `gcc`.  First the model as it is, where Spin must find nothing; then each planted
fault, which it must find.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).with_name("exactly_once.pml")
SEARCH_DEPTH = 100_000
"""Steps of a history: more than any has."""
ENDS = re.compile(r"errors: (\d+)\n\s*([\d.e+]+) states, stored")


@dataclass(frozen=True)
class Check:
    """What may happen in a history, and the fault that is planted, if one is."""

    deaths: int = 0
    suspicions: int = 0
    crashes: int = 0
    repeats: int = 0
    units: int = 2
    fault: str = ""

    def __str__(self) -> str:
        happens = ", ".join(f"{name.lower()} {value}" for name, value in self.limits().items())
        return f"{self.fault or 'no fault'}: {happens}"

    def limits(self) -> dict[str, int]:
        """Return how often each thing may happen, by the preprocessor's names."""
        return {
            "DEATHS": self.deaths,
            "SUSPICIONS": self.suspicions,
            "CRASHES": self.crashes,
            "REPEATS": self.repeats,
            "UNITS": self.units,
        }

    def definitions(self) -> list[str]:
        """Return the preprocessor's options."""
        return [f"-D{name}={value}" for name, value in self.limits().items()] + [f"-D{self.fault}"] * bool(self.fault)


WITHOUT_FAULT = (
    Check(),
    Check(suspicions=1),
    Check(deaths=1, crashes=1),
    Check(crashes=1, repeats=1),
    Check(suspicions=1, crashes=1, units=1),
)
"""What takes at most a minute and 2 GB: a suspicion and a crash of two units have more than 30 million states."""
FAULTS = (
    Check(suspicions=1, fault="FAULT_NO_FENCE"),
    Check(deaths=1, fault="FAULT_GIVEN_OUT_AT_ONCE"),
    Check(repeats=1, fault="FAULT_NO_NUMBERS"),
    Check(crashes=1, fault="FAULT_NO_JOURNAL"),
    Check(deaths=1, crashes=1, fault="FAULT_NO_ADOPTION"),
    Check(suspicions=1, fault="FAULT_SETTLED_BEFORE_IT_IS_FENCED"),
)


def run(check: Check) -> tuple[int, str]:
    """Explore all histories; return the number of errors (Spin stops at the first one) and of states."""
    with tempfile.TemporaryDirectory() as folder:

        def call(*command: str) -> str:
            return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout

        call("spin", "-a", *check.definitions(), str(MODEL))
        call("gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c")
        found = ENDS.search(told := call("./pan", f"-m{SEARCH_DEPTH}"))
        cut_off = "max search depth too small" in told
        if found is None or cut_off:
            raise RuntimeError(f"{check}: Spin did not come to an end:\n{told}")
        return int(found[1]), found[2]


def main() -> int:
    """Run all checks; return 1 if one of them does not end as it must."""
    missing = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    if missing:
        sys.stderr.write(f"{' and '.join(missing)} not found: apt-get install spin gcc\n")
        return 2
    wrong = 0
    for check in (*WITHOUT_FAULT, *FAULTS):
        errors, states = run(check)
        right = bool(errors) == bool(check.fault)
        wrong += not right
        sys.stdout.write(f"{'as it must be' if right else 'WRONG'}: {check}: {errors} errors, {states} states\n")
        sys.stdout.flush()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
