"""The geometry of the charts: numbers in, numbers out; a template draws them as SVG.

Widths and heights are attributes of SVG elements: the pages allow no style but their own
sheet, so nothing can be drawn with inline styles.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from prefect_prime.encoding import number
from prefect_prime.local.pages_render import show_brief, show_number
from prefect_prime.local.pages_rollouts import MAX_VALUES, Bar

#: The drawing's size in its own units, and what is kept for labels above and below.
WIDTH, HEIGHT = 480, 170
_TOP, _BOTTOM = 18, 22
#: A bar that stands for one among very many is still seen.
_LEAST = 2.0
_GAP = 4.0
_WIDEST = 96.0
#: Two bars stand side by side in the middle, not at the edges.
_SLOTS = 4


class DrawnBar(NamedTuple):
    """One bar, and what is written above and below it."""

    x: float
    y: float
    width: float
    height: float
    bar: Bar
    above: str
    below: str
    anchor: str

    @property
    def middle(self) -> float:
        """Where what is above is centred."""
        return round(self.x + self.width / 2, 1)

    @property
    def label_x(self) -> float:
        """Where what is below is anchored: a label at an edge would be cut in the middle."""
        return {"start": self.x, "end": self.x + self.width}.get(self.anchor, self.middle)


def histogram(bars: Sequence[Bar]) -> list[DrawnBar]:
    """The bars of a histogram, from left to right."""
    if not bars:
        return []
    tallest = max(bar.rollouts for bar in bars)
    slot = WIDTH / max(len(bars), _SLOTS)
    left = (WIDTH - slot * len(bars)) / 2
    room = HEIGHT - _TOP - _BOTTOM
    few = len(bars) <= MAX_VALUES
    drawn = []
    for place, bar in enumerate(bars):
        width = min(slot - _GAP, _WIDEST)
        height = max(_LEAST, room * bar.rollouts / tallest) if bar.rollouts else 0.0
        labelled = few or place in {0, len(bars) // 2, len(bars) - 1}
        at = bar.high if place == len(bars) - 1 else bar.low
        drawn.append(
            DrawnBar(
                x=round(left + place * slot + (slot - width) / 2, 1),
                y=round(HEIGHT - _BOTTOM - height, 1),
                width=round(width, 1),
                height=round(height, 1),
                bar=bar,
                above=show_number(bar.rollouts) if few else "",
                below=show_brief(at) if labelled else "",
                anchor="middle" if few else {0: "start", len(bars) - 1: "end"}.get(place, "middle"),
            )
        )
    return drawn


class Stage(NamedTuple):
    """A stage of a trace: where it lies in the whole, in hundredths, and its length."""

    name: str
    start: float
    width: float
    milliseconds: float


def stages(timing: Mapping[str, Any]) -> list[Stage]:
    """The stages of a trace that have begun and ended, in order."""
    spans = []
    for name, stage in timing.items():
        if isinstance(stage, dict):
            start, end = number(stage.get("start")), number(stage.get("end"))
            if start is not None and end is not None and end >= start:
                spans.append((start, end, name))
    if not spans:
        return []
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    whole = (last - first) or 1.0
    return [
        Stage(
            name=name,
            start=round(100 * (start - first) / whole, 2),
            width=round(max(0.5, 100 * (end - start) / whole), 2),
            milliseconds=1000 * (end - start),
        )
        for start, end, name in sorted(spans)
    ]
