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
from pathlib import Path

MODEL = Path(__file__).with_name("exactly_once.pml")
SEARCH_DEPTH = 100_000
"""Steps of a history: more than any has."""
ENDS = re.compile(r"errors: (\d+)\n\s*([\d.e+]+) states, stored")


LIMITS = {"DEATHS": 0, "SUSPICIONS": 0, "CRASHES": 0, "REPEATS": 0, "UNITS": 2}
"""How often each thing may happen in a history, by the preprocessor's names, unless a check says something else."""


class Check:
    """What may happen in a history, and the fault that is planted, if one is."""

    def __init__(self, fault: str = "", **limits: int) -> None:
        self.fault, self.limits = fault, LIMITS | limits

    def __str__(self) -> str:
        happens = ", ".join(f"{name.lower()} {value}" for name, value in self.limits.items())
        return f"{self.fault or 'no fault'}: {happens}"

    def definitions(self) -> list[str]:
        """Return the preprocessor's options."""
        return [f"-D{name}={value}" for name, value in self.limits.items()] + [f"-D{self.fault}"] * bool(self.fault)


WITHOUT_FAULT = (
    Check(),
    Check(SUSPICIONS=1),
    Check(DEATHS=1, CRASHES=1),
    Check(CRASHES=1, REPEATS=1),
    Check(SUSPICIONS=1, CRASHES=1, UNITS=1),
)
"""What takes at most a minute and 2 GB: a suspicion and a crash of two units have more than 30 million states."""
FAULTS = (
    Check("FAULT_NO_FENCE", SUSPICIONS=1),
    Check("FAULT_GIVEN_OUT_AT_ONCE", DEATHS=1),
    Check("FAULT_NO_NUMBERS", REPEATS=1),
    Check("FAULT_NO_JOURNAL", CRASHES=1),
    Check("FAULT_NO_ADOPTION", DEATHS=1, CRASHES=1),
    Check("FAULT_SETTLED_BEFORE_IT_IS_FENCED", SUSPICIONS=1),
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
