"""What a message to a process of functions costs beside the functions: CPU time of both ends, for each element.

    python benchmarks/function_processes.py [--messages 60] [--elements 100]

The function is that of the case `python-code` of benchmarks/peers.  In turn the process runs it by itself, over the
same lines, and for the elements of a message; medians, and medians of the ratios within a turn, are printed.  Another
checkout is measured by ``PYTHONPATH=CHECKOUT python benchmarks/function_processes.py``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]


def alone(places: range) -> float:
    """Run the function over some lines; return the microseconds of one."""
    from benchmarks.peers.cases.python_code import trigrams
    from benchmarks.peers.cases.text import lines

    known = lines()
    began = time.thread_time_ns()
    for place in places:
        trigrams(known[place % len(known)])
    return (time.thread_time_ns() - began) / len(places) / 1e3


def for_element(element: dict[str, Any]) -> dict[str, Any]:
    """Run the function for an element."""
    from benchmarks.peers.cases.python_code import trigrams_of

    return trigrams_of(element)


def cpu_ns(pid: int) -> int:
    """Return how long the threads of a process were on a CPU."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads)


def measured(messages: int, elements: int) -> dict[str, list[float]]:
    """Return microseconds for an element, by what takes them, one for each turn."""
    from benchmarks.peers.cases.text import lines
    from pecan_ray.engines.python.processes import Processes

    processes = Processes({"alone": alone, "element": for_element}, 1)
    known = lines()
    processes.call("alone", range(elements), {})
    processes.call("element", {"item": known[0]}, {})
    (pid,) = [child.pid for child in active_children() if child.pid is not None]
    found: dict[str, list[float]] = {"function": [], "process": [], "caller": []}
    for message in range(messages):
        places = range(message * elements, (message + 1) * elements)
        found["function"].append(processes.call("alone", places, {}))
        arguments: list[tuple[Any, dict[str, Any]]] = [({"item": known[place % len(known)]}, {}) for place in places]
        before, began = cpu_ns(pid), time.thread_time_ns()
        answers = processes.call_all("element", arguments)
        found["caller"].append((time.thread_time_ns() - began) / elements / 1e3)
        found["process"].append((cpu_ns(pid) - before) / elements / 1e3)
        assert all(answer.returned for answer in answers)
    processes.close()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=60)
    parser.add_argument("--elements", type=int, default=100, help="in a message")
    args = parser.parse_args()
    found = measured(args.messages, args.elements)
    function = statistics.median(found["function"])
    print(f"the function alone: {function:.0f} us")
    for name in ("process", "caller"):
        shares = [one / own for one, own in zip(found[name], found["function"], strict=True)]
        print(f"{name}: {statistics.median(found[name]):.1f} us, {statistics.median(shares):.3f} of the function")


if __name__ == "__main__":
    sys.path.append(str(HERE))
    main()
