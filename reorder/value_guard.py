"""Are these still the values that the user meant?  Every element is compared with itself in the user's order.

An element draws the same random numbers in every order, so what an exchange of augmentations may change is little:
pixels between pixels, rounding, the strength of a contrast.  What it may not change, column by column:

- *small numbers and texts* (labels, sizes, boxes, sentences): equal, but for rounding;
- the *mean* of all elements, channel by channel: by `SHIFT` standard deviations;
- their *spread*: by the factor `SPREAD`;
- what *all elements have in common* (a mean of 0, a peak of 1), or would have: by `COMMON` standard deviations;
- the *range* that no element left: by `BEYOND` of it;
- how much of an array has *one value* (a border, a mask): by `BORDER` of its size;
- *single elements*: a share of `ELEMENTS` at most may differ by more than `ELEMENT_SHIFT` standard deviations, or
  `ELEMENT_SPREAD` times the spread, and their spreads together by `LOUDNESS`;
- *which element it is*: a share of `ELEMENTS` at most may differ from itself by `UNLIKE` times what lies between two
  elements.  Seen on the array made small, mean and scale apart: a flip that is lost, or one of a mask that no longer
  follows its image, leaves everything else as it was;
- *a few elements alone*: none may be grossly another where the others are hardly others.  The shares above are for
  what is hard to tell of an element (a wall has nothing to recognise it by, nor a spread to keep); the array made
  small, whatever its brightness and contrast, moves by `GROSS` standard deviations for no such reason, and no side of
  it becomes `RESHAPED` times as long: portraits that one of the operators would have turned upright.

The last three, and equality, are not asked of `free` columns: those for which exchanged operators both draw random
numbers (another cut of the same picture), or for which one draws others in every run.  Their distributions may differ
by chance too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pecan_ray.reorder.value_summary import Field, Text, ValueSummary, by_channels

Path: TypeAlias = tuple[str, str]
"""Column, and the way to a value within it."""
Summaries: TypeAlias = Mapping[Path, ValueSummary]
"""What is kept of an element."""

SHIFT = 0.2
SPREAD = 1.25
SPREAD_OF_NOISE = 4.0
"""Interpolation takes much of the spread of noise, whose neighbours are not alike: how much depends on the order."""
COMMON = 0.1
COMMON_END = 0.6
"""As `COMMON`, for the least and the largest value, which interpolation changes more than a mean."""
BEYOND = 0.25
BORDER = 0.06
BORDER_OF_EXPOSED = 0.2
"""Half of an exposed array has one value: whatever blurs its edges changes more."""
END = 0.1
"""Share of the range by which its ends may move where all elements reach them."""
ELEMENTS = 0.05
ELEMENT_SHIFT = 1.0
ELEMENT_SPREAD = 3.0
LOUDNESS = 0.45
"""Change of the elements' spreads (root mean square of its logarithm): what is lost at some edges changes less;"""
LOUDNESS_OF_SOUND = 0.08
"""and of single rows of numbers, where hardly anything else than a scale makes a difference."""
UNLIKE = 0.55
GROSS = 0.25
"""Standard deviations by which the blocks of a single element may move, in the mean of their sizes,"""
GROSS_OF_CLASSES = 0.35
"""and share of what lies between two elements for maps of classes,"""
BEYOND_OTHERS = 3.0
"""unless those of the others (but for a share of `ELEMENTS`) move as much, by this factor.  What moves by chance or by
interpolation spreads evenly: of 91 harmless exchanges no element came to 0.22."""
RESHAPED = 1.25
CHANCE = 3.0
"""Standard errors by which distributions of other cuts may differ beyond these bounds."""
NOISE = 3.0
"""An array whose blocks vary by less than so many times what those of noise would,"""
TEXTURE = 0.15
"""or by less than this share of all that varies, has nothing by which to recognise an element."""
ROUNDING = 2e-3
"""Share of the largest value that half a precision may change."""
SMALL_CHANGE = 5e-3
"""Share of their range by which numbers in small arrays may differ: a box behind a resize is rounded elsewhere."""
OTHER_IDS = 0.02
"""Share of a long row of integers (words by their numbers) that may be others."""
FEW_LABELS = 64
"""Whole numbers of a range this small must be equal."""


MISSING = Text(0, "missing")
"""Stands for a value that an element does not have."""


@dataclass(frozen=True)
class ColumnDifference:
    """By how much a column differs behind another order, over the elements that were compared."""

    column: str
    elements: int
    """Values that were compared."""
    changed: int
    """Of those, how many are not exactly equal."""
    shift: float = 0.0
    """Of the mean, in standard deviations: that of the channel that moved most."""
    spread: float = 1.0
    """Standard deviation over that in the user's order."""
    unlike: float | None = None
    """Distance of an element from itself over that between elements: the middle one; None: nothing to recognise."""
    apart: float = 0.0
    """Distance of a value from itself, in standard deviations: the mean over all; infinite where values cannot be laid
    on one another."""
    refused: str = ""
    """Why these are not the values that the user meant; empty if they may be."""

    def told(self) -> str:
        """Say it in words."""
        if not self.changed:
            return f"{self.column!r}: equal on {self.elements} elements"
        said = [f"mean moved by {self.shift:.2g} standard deviations", f"spread {self.spread:.2f}x"]
        if self.unlike is not None:
            said.append(f"an element differs from itself by {self.unlike:.0%} of what lies between elements")
        if math.isfinite(self.apart):
            said.insert(0, f"a value by {self.apart:.2g} standard deviations")
        return f"{self.column!r}: {self.changed} of {self.elements} elements differ; {', '.join(said)}"


@dataclass
class ValueGuard:
    """Pairs of elements, as they come out of the user's order and of another one."""

    noise: frozenset[str] = frozenset()
    """Columns that enter as noise: there is nothing by which to recognise an element."""
    exposed: bool = False
    """Whether elements are pushed to the ends of their range, which then stay where they are."""
    pairs: dict[Path, list[tuple[ValueSummary, ValueSummary]]] = field(default_factory=dict)

    def add(self, before: Summaries, after: Summaries) -> None:
        """Take the values of one more element into account."""
        for path in before.keys() | after.keys():
            self.pairs.setdefault(path, []).append((before.get(path, MISSING), after.get(path, MISSING)))

    def differences(self, free: Collection[str] = ()) -> Iterator[ColumnDifference]:
        """Yield what has become of each column, and of each value within one."""
        for (column, path), pairs in sorted(self.pairs.items(), key=lambda entry: entry[0]):
            noise = column in self.noise
            yield compare(column + path, pairs, free=column in free, noise=noise, exposed=self.exposed)

    def refused(self, free: Collection[str] = ()) -> str:
        """Return why the other order is refused; empty if it is not."""
        return next((one.refused for one in self.differences(free) if one.refused), "")


def compare(
    name: str,
    pairs: Sequence[tuple[ValueSummary, ValueSummary]],
    *,
    free: bool = False,
    noise: bool = False,
    exposed: bool = False,
) -> ColumnDifference:
    """Compare the values of one column."""
    numbers = [(a, b) for a, b in pairs if isinstance(a, Field) and isinstance(b, Field)]
    changed = sum(not _same(a, b) for a, b in pairs)
    texts = sum(a != b for a, b in pairs if isinstance(a, Text) or isinstance(b, Text))
    if texts and not free:
        refused = f"column {name!r}: {texts} of {len(pairs)} values are others"
        return ColumnDifference(name, len(pairs), changed, apart=math.inf, refused=refused)
    if not changed or not numbers:
        return ColumnDifference(name, len(pairs), changed, apart=math.inf if changed else 0.0)
    found = _Numbers(numbers)
    shift, spread = found.shift(), found.spread()
    unlike = None if noise else found.unlikeness()
    ends = found.other_ends() if exposed else ""
    refused = ends or next(_refusals(found, free=free, unlike=unlike, noise=noise, exposed=exposed), "")
    return ColumnDifference(
        name,
        len(pairs),
        changed,
        shift=shift,
        spread=spread,
        unlike=None if unlike is None else float(np.median(unlike)),
        apart=found.apart(),
        refused=f"column {name!r}: {refused}" if refused else "",
    )


def _same(a: ValueSummary, b: ValueSummary) -> bool:
    if isinstance(a, Field) and isinstance(b, Field):
        return (
            a.shape == b.shape
            and a.low == b.low
            and a.high == b.high
            and np.array_equal(a.means, b.means)
            and np.array_equal(a.deviations, b.deviations)
            and np.array_equal(a.points, b.points)
        )
    return a == b


def _refusals(
    found: _Numbers, *, free: bool, unlike: npt.NDArray[np.float64] | None, noise: bool, exposed: bool
) -> Iterator[str]:
    count = len(found.pairs)
    if found.small and not free:
        off = found.off_small()
        if off:
            yield f"the numbers of {off} of {count} elements are others"
        return
    if not free and (off := found.reshaped()):
        yield f"{off} of {count} elements have another shape"
    if found.ids and not free and (off := found.off_ids()):
        yield f"the numbers of {off} of {count} elements are others"
    lost = found.lost_finite()
    if lost > ROUNDING:
        yield f"{lost:.1%} more of its values are infinite or NaN"
    if (shift := found.shift()) > SHIFT + (found.chance_of_shift() if free else 0.0):
        yield f"its mean moves by {shift:.2f} standard deviations"
    bound = SPREAD_OF_NOISE if noise else SPREAD * (found.chance_of_spread() if free else 1.0)
    if not 1 / bound <= (spread := found.spread()) <= bound:
        yield f"its spread becomes {spread:.2f} times as large"
    if not noise:
        yield from found.not_in_common()
    if (beyond := found.beyond()) > BEYOND:
        yield f"its values leave their range by {beyond:.0%} of it"
    if (border := found.border()) > (BORDER_OF_EXPOSED if exposed else BORDER) + (
        found.chance_of_border() if free else 0.0
    ):
        yield f"{border:.0%} of an array more, or less, has one single value"
    if free or noise:
        return
    allowed = 1 + math.ceil(ELEMENTS * count)
    if (moved := found.moved()) > allowed:
        yield f"{moved} of {count} elements are brighter, darker or of another spread than they were"
    if (louder := found.louder()) > (LOUDNESS_OF_SOUND if found.sounds else LOUDNESS):
        yield f"elements become {math.exp(louder):.2f} times as strong, or weak"
    if unlike is not None and (others := int((unlike > UNLIKE).sum())) > allowed:
        yield f"{others} of {count} elements are hardly to be recognised"
    if not exposed and (few := found.grossly_other(unlike, allowed)):
        yield f"{few} of {count} elements are quite other ones, beyond what the rest differ by"


class _Numbers:
    """Pairs of arrays of one column."""

    def __init__(self, pairs: Sequence[tuple[Field, Field]]) -> None:
        self.pairs = pairs
        self.before, self.after = [a for a, _ in pairs], [b for _, b in pairs]
        channels = {len(one.means) for pair in pairs for one in pair}
        self._by_channel = len(channels) == 1
        self.means = self._stacked("means", "mean")
        self.deviations = self._stacked("deviations", "deviation")
        largest = max(max(abs(one.low), abs(one.high)) for one in self.before)
        self._least = ROUNDING * largest + 1e-12
        """What is no difference."""
        spreads = self._spreads(0)
        everywhere = math.sqrt(float((spreads**2).mean() + self.means[0].mean(axis=0).var()))
        self._scale = np.maximum(np.maximum(spreads, everywhere / 10), 5 * self._least)
        """Standard deviation by channel; of channels that hardly vary, a share of the others'."""

    def _stacked(self, by_channel: str, over_all: str) -> npt.NDArray[np.float64]:
        """Return [before or after, element, channel]."""
        name = by_channel if self._by_channel else over_all
        return np.array([[np.atleast_1d(getattr(one, name)) for one in side] for side in (self.before, self.after)])

    def _spreads(self, side: int) -> npt.NDArray[np.float64]:
        within, between = (self.deviations[side] ** 2).mean(axis=0), self.means[side].var(axis=0)
        return np.asarray(np.sqrt(within + between), np.float64)

    @property
    def small(self) -> bool:
        """Whether all values are kept whole."""
        return all(one.exact is not None for pair in self.pairs for one in pair)

    @property
    def classes(self) -> bool:
        """Whether they are maps of classes."""
        return all(one.classes for one in self.before)

    def off_small(self) -> int:
        """Return how many elements have numbers that differ by more than rounding."""
        known = np.concatenate([np.asarray(one.exact, np.float64).ravel() for one in self.before])
        known = known[np.isfinite(known)]
        reach = float(np.ptp(known)) if known.size else 0.0
        off = 0
        for a, b in self.pairs:
            if a.shape != b.shape or not (a.exact is not None and b.exact is not None):
                off += 1
                continue
            exactly = a.whole and (not a.shape or reach <= FEW_LABELS)
            bound = 0.0 if exactly else max(SMALL_CHANGE * reach, self._least) + a.whole
            close = np.isclose(b.exact.astype(np.float64), a.exact.astype(np.float64), 0.0, bound, equal_nan=True)
            off += not bool(close.all())
        return off

    @property
    def ids(self) -> bool:
        """Whether they are rows of wide integers, of which each means something else than the next one."""
        return all(one.ids for one in self.before)

    def off_ids(self) -> int:
        """Return how many elements have other ones among those that are looked at."""
        return sum(a.shape != b.shape or float((a.points != b.points).mean()) > OTHER_IDS for a, b in self.pairs)

    def lost_finite(self) -> float:
        """Return the share of values that are no numbers any more."""
        return float(np.mean([a.finite - b.finite for a, b in self.pairs]))

    def shift(self) -> float:
        """Return by how much the mean has moved, in standard deviations."""
        return float((np.abs((self.means[1] - self.means[0]).mean(axis=0)) / self._scale).max())

    def spread(self) -> float:
        """Return the standard deviation over that before: of the channel in which it changed most."""
        ratios = np.maximum(self._spreads(1), self._least) / np.maximum(self._spreads(0), self._least)
        return float(ratios[np.argmax(np.abs(np.log(ratios)))])

    def chance_of_shift(self) -> float:
        """Return by how much the mean of so many elements moves where each is another cut, in standard deviations."""
        moved = (self.means[1] - self.means[0]).std(axis=0) / self._scale
        return CHANCE * float(moved.max()) / math.sqrt(len(self.pairs))

    def chance_of_spread(self) -> float:
        """Return by what factor their spread does."""
        floor = self._least
        ratios = np.log(np.maximum(self.deviations[1], floor) / np.maximum(self.deviations[0], floor))
        return math.exp(CHANCE * float(ratios.std()) / math.sqrt(len(self.pairs)))

    def chance_of_border(self) -> float:
        """Return by how much the share of one value does."""
        moved = np.array([b.common - a.common for a, b in self.pairs])
        return CHANCE * float(moved.std()) / math.sqrt(len(self.pairs))

    def not_in_common(self) -> Iterator[str]:
        """Yield what all elements had in common and have no more."""
        scale = float(self._scale.mean())
        facts = {
            "mean": ("a mean", COMMON),
            "deviation": ("a spread", COMMON),
            "low": ("a least value", COMMON_END),
            "high": ("a largest value", COMMON_END),
        }
        for name, (told, bound) in facts.items():
            before, after = (np.array([getattr(one, name) for one in side]) for side in (self.before, self.after))
            if name in ("mean", "deviation") or not self.classes:
                yield from self._common(before, after, told, bound, scale)
        if self.classes:
            return
        before, after = (
            np.array([max(abs(one.low), abs(one.high)) for one in side]) for side in (self.before, self.after)
        )
        yield from self._common(before, after, "a peak", COMMON_END, scale)

    def _common(
        self,
        before: npt.NDArray[np.float64],
        after: npt.NDArray[np.float64],
        told: str,
        bound: float,
        scale: float,
    ) -> Iterator[str]:
        alike = [float(one.std()) <= scale / 100 for one in (before, after)]
        moved = math.sqrt(float(((after - before) ** 2).mean())) / scale
        if len(before) < 2 or moved <= bound or not any(alike):
            return
        if alike[0]:
            yield f"all elements had {told} of {before.mean():.3g}, which moves by {moved:.2f} standard deviations"
        else:
            yield f"all elements get {told} of {after.mean():.3g}, which moves by {moved:.2f} standard deviations"

    def beyond(self) -> float:
        """Return by what share of their range values leave it."""
        low, high = min(one.low for one in self.before), max(one.high for one in self.before)
        least, largest = min(one.low for one in self.after), max(one.high for one in self.after)
        reach = max(high - low, 5 * self._least)
        return max(low - least, largest - high, 0.0) / reach

    def other_ends(self) -> str:
        """Say that the least or the largest value of all elements has moved; empty if not."""
        if self.classes or self.ids or self.small:
            return ""
        low, high = min(one.low for one in self.before), max(one.high for one in self.before)
        least, largest = min(one.low for one in self.after), max(one.high for one in self.after)
        span = max(high - low, 5 * self._least)
        moved, told = max((abs(least - low) / span, "least"), (abs(largest - high) / span, "largest"))
        return f"the {told} value moves by {moved:.0%} of the range" if moved > END else ""

    def border(self) -> float:
        """Return by what share of an array more, or less, has one value."""
        return abs(float(np.mean([b.common - a.common for a, b in self.pairs])))

    def moved(self) -> int:
        """Return how many elements have another mean or spread."""
        shifts = np.abs(self.means[1] - self.means[0]).mean(axis=1) / float(self._scale.mean())
        floor = float(self._scale.mean()) / 10
        ratios = np.maximum(self.deviations[1], floor) / np.maximum(self.deviations[0], floor)
        spreads = np.exp(np.abs(np.log(ratios))).max(axis=1)
        return int(((shifts > ELEMENT_SHIFT) | (spreads > ELEMENT_SPREAD)).sum())

    @property
    def sounds(self) -> bool:
        """Whether they are single rows of numbers."""
        return all(len(one.shape) == 1 and not one.ids and not one.classes for one in self.before)

    def louder(self) -> float:
        """Return by how much the elements' spreads change: the root mean square of the logarithm."""
        floor = float(self._scale.mean()) / 10
        ratios = np.log(np.maximum(self.deviations[1], floor) / np.maximum(self.deviations[0], floor))
        return math.sqrt(float((ratios**2).mean()))

    def reshaped(self) -> int:
        """Return how many elements have another shape than rounding would give them."""
        return sum(_reshaped(a.shape, b.shape) for a, b in self.pairs)

    def grossly_other(self, unlike: npt.NDArray[np.float64] | None, few: int) -> int:
        """Return how many elements are grossly others where all but a `few` are hardly so."""
        if len(self.pairs) <= few:
            return 0
        if self.classes:
            moved, bound = np.zeros(1) if unlike is None else unlike, GROSS_OF_CLASSES
        else:
            scale = float(self._scale.mean())
            moved, bound = np.array([_moved(a, b, self.sounds) / scale for a, b in self.pairs]), GROSS
        usual = float(np.sort(moved)[: -few or None].max(initial=0.0))
        return int((moved > max(bound, BEYOND_OTHERS * usual)).sum())

    def apart(self) -> float:
        """Return how far a value is from itself."""
        scale = float(self._scale.mean())
        return float(np.mean([_apart(a.points, b.points) / scale for a, b in self.pairs]))

    def unlikeness(self) -> npt.NDArray[np.float64] | None:
        """Return each element's distance from itself, over the middle one between elements; None: cannot be told."""
        if len(self.pairs) < 4:
            return None
        classes = self.classes
        pictures = [(_picture(a, classes), _picture(b, classes)) for a, b in self.pairs]
        shown = [classes or (_shows(a) and _shows(b)) or self._sounds(a, b) for a, b in self.pairs]
        if not any(shown):
            return None
        between = [
            _distance(pictures[i][0], pictures[j][0], classes)
            for step in (1, len(pictures) // 2 or 1)
            for i in range(len(pictures))
            if (j := (i + step) % len(pictures)) != i
        ]
        usual = max(float(np.median(between)), 1e-3)
        return np.array(
            [_distance(a, b, classes) / usual if seen else 0.0 for (a, b), seen in zip(pictures, shown, strict=True)]
        )

    def _sounds(self, a: Field, b: Field) -> bool:
        """Tell whether the strength varies along it, as that of sound does."""
        return all(one.textures.std() > 0.2 * max(float(one.textures.mean()), self._least) for one in (a, b))


def _apart(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    return float(np.abs(a - b).mean()) if a.shape == b.shape and a.size else math.inf


def _reshaped(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) != len(b) or any(max(x, y) > RESHAPED * min(x, y) for x, y in zip(a, b, strict=True))


def _moved(a: Field, b: Field, sounds: bool) -> float:
    """Return by how much the blocks of an array move, brightness and contrast apart; of sounds: of their strength."""
    before, after = (one.textures if sounds else one.blocks for one in (a, b))
    if before.shape != after.shape or not before.size:
        return math.inf if before.shape != after.shape else 0.0
    x, y = (one - one.mean(axis=1, keepdims=True) for one in map(by_channels, (before, after)))
    squares = np.maximum((x * x).sum(axis=1, keepdims=True), 1e-12)
    contrast = np.maximum((x * y).sum(axis=1, keepdims=True), 0.0) / squares
    return float(np.abs(y - contrast * x).mean())


def _shows(one: Field) -> bool:
    """Tell whether it has something by which to recognise an element."""
    return one.structure > max(TEXTURE, NOISE * one.structure_of_noise)


def _picture(one: Field, classes: bool) -> npt.NDArray[np.float64]:
    """Return what an element is recognised by, mean and scale apart."""
    if classes:
        return one.points
    shown = one.blocks if _shows(one) else one.textures
    shown = shown - np.median(shown)
    size = float(np.abs(shown).mean())
    return shown / size if size > 0 else shown


def _distance(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], classes: bool) -> float:
    if a.shape != b.shape:
        return 1.0
    if classes:
        return float((a != b).mean())
    # Of the blocks the middle one counts: corners that a rotation has left empty do not hide what it shows.
    return float(np.median(np.abs(a - b)))
