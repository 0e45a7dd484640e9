"""Small pictures as inline SVG: an axis, marks, words. They scale, print, and follow the page's colours.

Nothing is told by colour alone: every mark stands at a labelled place or carries its own word. A mark that
shows one number of the summary says which (`data-at`, a JSON pointer) and how much (`data-value`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

WIDTH = 720.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 16.0, 26.0, 40.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Values low..high on pixels start..stop."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers that span low..high; the first is at or below low, the last at or above high."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        low, high, span = low - 0.5, low + 0.5, 1.0
    raw = span / max(1, wanted)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def whole_ticks(low: int, high: int, wanted: int = 6) -> list[int]:
    """Whole numbers that span low..high."""
    step = max(1, math.ceil((high - low) / wanted))
    return list(range(low, high + step, step)) if high > low else [low, low + 1]


@dataclass(slots=True)
class Picture:
    """An SVG in the making. `title` is read aloud; `height` in the units in which it is 720 wide."""

    title: str
    height: float = 240.0
    parts: list[str] = field(default_factory=list)

    def add(self, name: str, text: str | None = None, **attributes: object) -> None:
        """An element; `class_` and `data_at` become `class` and `data-at`, floats are rounded."""
        said = "".join(
            f' {key.rstrip("_").replace("_", "-")}="{escape(_value(key, value))}"'
            for key, value in attributes.items()
            if value is not None
        )
        end = "/>" if text is None else f">{escape(text)}</{name}>"
        self.parts.append(f"<{name}{said}{end}")

    def mark(self, name: str, label: str, at: str, value: float, **attributes: object) -> None:
        """An element that shows the number `value` at JSON pointer `at`; `label` appears on hovering."""
        said = "".join(
            f' {key.rstrip("_").replace("_", "-")}="{escape(_value(key, v))}"'
            for key, v in attributes.items()
        )
        self.parts.append(
            f'<{name}{said} data-at="{escape(at)}" data-value="{value!r}">'
            f"<title>{escape(label)}</title></{name}>"
        )

    def y_axis(self, values: Sequence[float], unit: str, form: str = "{:g}") -> Scale:
        """A grid of horizontal lines at `values`, named on the left."""
        scale = Scale(values[0], values[-1], self.height - BOTTOM, TOP)
        for value in values:
            y = scale(value)
            self.add("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)
            self.add(
                "text", form.format(value), class_="tick", x=LEFT - 6, y=y + 4, text_anchor="end"
            )
        self.add("text", unit, class_="unit", x=4.0, y=TOP - 14)
        return scale

    def x_axis(self, values: Sequence[float], unit: str, form: str = "{:g}") -> Scale:
        """Values along the bottom."""
        scale = Scale(values[0], values[-1], LEFT, WIDTH - RIGHT)
        base = self.height - BOTTOM
        self.add("line", class_="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base)
        for i, value in enumerate(values):
            end = "end" if i == len(values) - 1 else "middle"
            self.add(
                "text",
                form.format(value),
                class_="tick",
                x=scale(value),
                y=base + 16,
                text_anchor=end,
            )
        self.add("text", unit, class_="unit", x=WIDTH - RIGHT, y=base + 33, text_anchor="end")
        return scale

    def places(self, names: Sequence[str]) -> list[float]:
        """Names side by side along the bottom; returns the middle of each."""
        step = (WIDTH - LEFT - RIGHT) / max(1, len(names))
        base = self.height - BOTTOM
        self.add("line", class_="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base)
        middles = [LEFT + step * (i + 0.5) for i in range(len(names))]
        for x, name in zip(middles, names, strict=True):
            for line, word in enumerate(name.split("\n")):
                self.add(
                    "text", word, class_="tick", x=x, y=base + 16 + 14 * line, text_anchor="middle"
                )
        return middles

    def markup(self) -> Markup:
        inside = "".join(self.parts)
        return Markup(
            f'<svg viewBox="0 0 {WIDTH:g} {self.height:g}" role="img" '
            f'aria-label="{escape(self.title)}">{inside}</svg>'
        )


def path(points: Sequence[tuple[float, float]]) -> str:
    """A line through points."""
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def steps(points: Sequence[tuple[float, float, float]]) -> str:
    """A line of steps through (from, to, y)."""
    return path([p for a, b, y in points for p in ((a, y), (b, y))])


def _value(key: str, value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) and not key.startswith("data") else str(value)
