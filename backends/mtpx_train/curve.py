"""The curve of held-out acceptance against tokens seen, as a picture of its own."""

from __future__ import annotations

from collections.abc import Sequence

from mtpx.trace.svg import WIDTH, Picture, path, ticks

CURVE = "acceptance.svg"
"""Its file's name in the pack's folder."""

INKS = ("#1b6ca8", "#b3541e", "#3d7a37")
DASHES = ("none", "7 4", "2 4")
STYLE = (
    "text{font:12px sans-serif;fill:#333}.grid{stroke:#ddd}.axis{stroke:#888}"
    "path{fill:none;stroke-width:2}"
)


def acceptance_curve(curve: Sequence[tuple[int, Sequence[float]]]) -> str:
    """An SVG file's text. `curve`: (answer tokens seen, acceptance per position, given that the positions
    before were accepted); a line a position, each with its word at its end."""
    picture = Picture("Held-out acceptance per position against answer tokens seen", 300.0)
    top = max((rate for _, rates in curve for rate in rates), default=1.0)
    y = picture.y_axis(ticks(0.0, top), "acceptance on held-out prompts")
    most = max((seen for seen, _ in curve), default=1)
    unit, word = (
        (1e6, "million answer tokens seen") if most >= 1e6 else (1e3, "thousand answer tokens seen")
    )
    x = picture.x_axis(ticks(0.0, most / unit), word)
    positions = min((len(rates) for _, rates in curve), default=0)
    for position in range(positions):
        points = [(x(seen / unit), y(rates[position])) for seen, rates in curve]
        ink = INKS[position % len(INKS)]
        picture.add(
            "path", d=path(points), stroke=ink, stroke_dasharray=DASHES[position % len(DASHES)]
        )
        for at_x, at_y in points:
            picture.add("circle", cx=at_x, cy=at_y, r=2.5, fill=ink)
        given = f"position {position + 1}" + (f", if {position} stood" if position else "")
        end_x, end_y = points[-1]
        # The last line's word stands below it: the lines before are often close above.
        end_y += 18 if position and position == positions - 1 else -8
        picture.add("text", given, x=end_x, y=end_y, text_anchor="end", fill=ink)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {picture.height:g}" role="img" '
        f'aria-label="{picture.title}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(picture.parts)}</svg>\n'
    )
