"""What workers do with their time, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SlowElements:
    """Elements that took many times as long as most others of their worker; or sums of workers."""

    count: int = 0
    seconds: float = 0.0
    """Seconds of all these elements."""
    worst_s: float = 0.0
    """Seconds of the slowest element."""
    worst: str = ""
    """The slowest element and the operators that it went through, in words."""

    def __add__(self, other: SlowElements) -> SlowElements:
        worst = max(self, other, key=lambda one: one.worst_s)
        return SlowElements(self.count + other.count, self.seconds + other.seconds, worst.worst_s, worst.worst)


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of a worker's threads by what they did, as looks at them now and then have found; or sums of workers."""

    observed_s: float = 0.0
    """Seconds for which it had work, and was looked at."""
    threads_s: float = 0.0
    """The threads that it had for operators, times `observed_s`."""
    cpu_s: float = 0.0
    """Of its process on CPUs meanwhile."""
    reading_s: float = 0.0
    """Of threads in the source, waiting for storage included."""
    batching_s: float = 0.0
    """Of threads that put elements together."""
    blocked_s: float = 0.0
    """In which something waited since finished batches were not taken."""
    operators: tuple[tuple[str, float], ...] = ()
    """Of threads in each operator, waiting inside of its function included."""
    in_processes: tuple[str, ...] = ()
    """The operators whose functions run in processes of their own (`processes=True`): `cpu_s` lacks these."""
    locked_s: float = 0.0
    """Seconds in which a thread that wanted Python's lock waited for it."""
    slow: SlowElements = field(default_factory=SlowElements)
    """Elements that took many times as long as most, where rows come in order."""

    def __add__(self, other: StageSeconds) -> StageSeconds:
        operators: dict[str, float] = dict(self.operators)
        for name, seconds in other.operators:
            operators[name] = operators.get(name, 0.0) + seconds
        return StageSeconds(
            self.observed_s + other.observed_s,
            self.threads_s + other.threads_s,
            self.cpu_s + other.cpu_s,
            self.reading_s + other.reading_s,
            self.batching_s + other.batching_s,
            self.blocked_s + other.blocked_s,
            tuple(operators.items()),
            tuple(sorted({*self.in_processes, *other.in_processes})),
            self.locked_s + other.locked_s,
            self.slow + other.slow,
        )

    @property
    def busy_s(self) -> float:
        """Of threads in any stage of the work."""
        return self.computing_s + self.batching_s + self.reading_s

    @property
    def computing_s(self) -> float:
        """Of threads in all operators."""
        return sum(seconds for _, seconds in self.operators)
