"""A histogram of numbers whose range nobody knows beforehand, in constant memory.

Values fall into cells of one width, aligned to zero. Where there would be too many cells, the
width doubles and neighbours merge: so few distinct values (rewards of 0 and 1) stay exact to a
millionth, and many are known to within a hundredth of their range.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: The width to begin with; a power of two, so that doubling keeps the cells aligned.
_FINEST = 2.0**-20
#: Cells that are kept at most.
_MOST = 128
#: Cells beyond this index lose their neighbours to the precision of a float, and of JSON.
_FARTHEST = 2.0**53

#: What is beyond counts as this: the sums of larger ones are infinite.
_LARGEST = 1e300


@dataclass(frozen=True, slots=True)
class Bar:
    """``count`` values from ``low`` up to ``high``; equal where it is one value."""

    low: float
    high: float
    count: int


class Histogram:
    """Counts of values by where they lie."""

    def __init__(self) -> None:
        self._width = _FINEST
        self._cells: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Count one finite value."""
        value = max(-_LARGEST, min(_LARGEST, value))
        while abs(value) / self._width >= _FARTHEST:
            self._widen()
        self._count(math.floor(value / self._width), 1)

    def merge(self, other: "Histogram") -> None:
        """Count what another one has counted as well, which stays as it is."""
        state = other.state()
        while self._width < state["width"]:
            self._widen()
        for cell, count in state["cells"]:
            middle = (cell + 0.5) * state["width"]
            self._count(math.floor(middle / self._width), count)

    def _count(self, cell: int, count: int) -> None:
        self._cells[cell] = self._cells.get(cell, 0) + count
        while len(self._cells) > _MOST:
            self._widen()

    def _widen(self) -> None:
        self._width *= 2
        merged: dict[int, int] = {}
        for cell, count in self._cells.items():
            merged[cell // 2] = merged.get(cell // 2, 0) + count
        self._cells = merged

    def bars(self, most: int = 10) -> list[Bar]:
        """At most ``most`` bars, in order: one per value where there are so few, else of equal
        width, empty ones included. Rewards within 0 and 1 are shown on that whole range.
        """
        if not self._cells:
            return []
        cells = sorted(self._cells.items())
        if len(cells) <= most and self._width == _FINEST:
            return [Bar(value := self._low(cell), value, count) for cell, count in cells]
        low, high = self._low(cells[0][0]), self._low(cells[-1][0] + 1)
        if low >= 0 and high <= 1 + self._width:
            low, high = 0.0, 1.0
        step = high / most - low / most
        counts = [0] * most
        for cell, count in cells:
            middle = self._low(cell) + self._width / 2
            counts[max(0, min(most - 1, int((middle - low) / step)))] += count
        edges = [low + step * number for number in range(most)] + [high]
        return [Bar(edges[number], edges[number + 1], counts[number]) for number in range(most)]

    def _low(self, cell: int) -> float:
        return cell * self._width

    def state(self) -> dict[str, Any]:
        """Everything that ``from_state`` needs, as JSON-able values."""
        return {"width": self._width, "cells": list(self._cells.items())}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Histogram":
        """A histogram that goes on where ``state`` was taken."""
        histogram = cls()
        histogram._width = state["width"]
        histogram._cells = dict(map(tuple, state["cells"]))
        return histogram
