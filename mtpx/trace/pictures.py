"""The pictures of a trace's page: each a function of one run of the summary, and of where that is in it."""

from __future__ import annotations

import math

from markupsafe import Markup

from mtpx.bench.fastest import precision_of
from mtpx.trace.summary import RunSummary
from mtpx.trace.svg import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Picture, path, steps, ticks, whole_ticks

BAR = 46.0
"""Widest bar."""


def ratios(run: RunSummary, at: str) -> Markup | None:
    """Each verdict's interval over the blocks it rests on, against 1 and the margin."""
    found = [(f"{at}/verdicts/{i}", v.arm, v) for i, v in enumerate(run.verdicts)]
    found += [
        (f"{at}/against_fastest/{i}", f"{v.arm} / {precision_of(v.against)}", v)
        for i, v in enumerate(run.against_fastest)
    ]
    verdicts = [(w, name, v) for w, name, v in found if v.low is not None and v.high is not None]
    if not verdicts:
        return None
    rows = sum(1 + len(v.per_suite) for _, _, v in verdicts)
    picture = Picture("MTP rate over plain rate, with intervals", 34.0 * rows + TOP + BOTTOM)
    shown = [b.ratio for b in run.blocks if b.ratio is not None]
    ends = [
        x for _, _, v in verdicts for x in (v.low, v.high, 1.0, 1.0 + v.margin) if x is not None
    ]
    low, high = min(shown + ends), max(shown + ends)
    room = 0.04 * (high - low) or 0.01
    scale = picture.x_axis(ticks(low - room, high + room, 7), "× the plain rate")
    base = picture.height - BOTTOM
    pays = 1.0 + verdicts[0][2].margin
    picture.add("line", class_="rule", x1=scale(1.0), x2=scale(1.0), y1=TOP, y2=base)
    picture.add("line", class_="axis", x1=scale(pays), x2=scale(pays), y1=TOP, y2=base)
    picture.add("text", "pays →", class_="tick", x=scale(pays) + 3, y=TOP - 3)
    y = TOP + 17.0
    for place, name, v in verdicts:
        for j, b in enumerate(run.blocks):
            if (b.arm, b.against) == (v.arm, v.against) and b.ratio is not None:
                label = f"{b.suite}/{b.prompt}: {b.ratio:.3f}"
                where = f"{at}/blocks/{j}/ratio"
                picture.mark(
                    "circle",
                    label,
                    where,
                    b.ratio,
                    class_="dot",
                    cx=scale(b.ratio),
                    cy=y + 9,
                    r=3.0,
                )
        _interval(picture, scale, y, name, v.ratio, v.low, v.high, place, "mean")
        y += 34.0
        for k, part in enumerate(v.per_suite):
            where = f"{place}/per_suite/{k}"
            _interval(picture, scale, y, part.name, part.ratio, part.low, part.high, where, "part")
            y += 34.0
    return picture.markup()


def _interval(
    picture: Picture,
    scale: object,
    y: float,
    name: str,
    ratio: float | None,
    low: float | None,
    high: float | None,
    at: str,
    kind: str,
) -> None:
    assert callable(scale)
    picture.add("text", name[:24], class_="tick", x=4.0, y=y - 6)
    if low is not None and high is not None:
        picture.add("line", class_=f"whisker {kind}", x1=scale(low), x2=scale(high), y1=y, y2=y)
    if ratio is not None:
        label = f"{name}: {ratio:.3f}"
        x = scale(ratio) - 5.0
        picture.mark(
            "rect",
            label,
            f"{at}/ratio",
            ratio,
            class_=kind,
            x=x,
            y=y - 5.0,
            width=10.0,
            height=10.0,
        )


def acceptance(run: RunSummary, at: str) -> Markup | None:
    """Conditional acceptance with its interval as a bar, unconditional as a ring."""
    known = [(i, p) for i, p in enumerate(run.acceptance) if p.conditional is not None]
    if not known:
        return None
    picture = Picture("Acceptance by draft position")
    scale = picture.y_axis([0, 0.2, 0.4, 0.6, 0.8, 1.0], "accepted", "{:.0%}")
    middles = picture.places([f"position {p.position}" for _, p in known])
    wide = min(BAR, 0.6 * (WIDTH - LEFT - RIGHT) / len(known))
    for x, (i, p) in zip(middles, known, strict=True):
        c = p.conditional
        assert c is not None
        where = f"{at}/acceptance/{i}"
        label = f"position {p.position}, if all before stood: {c.rate:.1%} of {c.trials}"
        _bar(picture, label, f"{where}/conditional/rate", c.rate, x, wide, scale, "a")
        picture.add("line", class_="whisker", x1=x, x2=x, y1=scale(c.low), y2=scale(c.high))
        u = p.unconditional
        if u is not None:
            label = f"position {p.position}, of all verified: {u.rate:.1%} of {u.trials}"
            place = f"{where}/unconditional/rate"
            picture.mark(
                "circle", label, place, u.rate, class_="ring", cx=x, cy=scale(u.rate), r=5.0
            )
    return picture.markup()


def _bar(
    picture: Picture,
    label: str,
    at: str,
    value: float,
    x: float,
    wide: float,
    scale: object,
    kind: str,
) -> None:
    assert callable(scale)
    y, base = scale(value), picture.height - BOTTOM
    picture.mark(
        "rect",
        label,
        at,
        value,
        class_=kind,
        x=x - wide / 2,
        y=y,
        width=wide,
        height=max(0.0, base - y),
    )


def reliability(run: RunSummary, at: str) -> Markup | None:
    """How often drafts stood over how sure the head was, with intervals, against the diagonal."""
    if not run.reliability:
        return None
    picture = Picture("How often drafts stood, by how sure the head was", 300.0)
    y = picture.y_axis([0, 0.2, 0.4, 0.6, 0.8, 1.0], "stood", "{:.0%}")
    x = picture.x_axis([0, 0.2, 0.4, 0.6, 0.8, 1.0], "the head was sure to", "{:.0%}")
    picture.add("line", class_="rule", x1=x(0.0), x2=x(1.0), y1=y(0.0), y2=y(1.0))
    for i, row in enumerate(run.reliability):
        stood, where = row.stood, f"{at}/reliability/{i}/stood/rate"
        label = f"said {row.said:.1%}: {stood.rate:.1%} of {stood.trials} stood"
        middle = x(row.said)
        picture.add(
            "line", class_="whisker", x1=middle, x2=middle, y1=y(stood.low), y2=y(stood.high)
        )
        picture.mark(
            "circle", label, where, stood.rate, class_="a", cx=middle, cy=y(stood.rate), r=5.0
        )
    return picture.markup()


def costs(run: RunSummary, at: str) -> Markup | None:
    """What a full round costs, by depth and route, with the spread of all rounds of its kind."""
    known = [(i, r) for i, r in enumerate(run.rounds) if r.full_cost_ms is not None]
    if not known:
        return None
    picture = Picture("Cost of a full round by depth and route")
    highest = max(
        max(r.full_cost_ms or 0.0, r.round_ms.p90 if r.round_ms else 0.0) for _, r in known
    )
    scale = picture.y_axis(ticks(0.0, highest), "ms a round")
    names = []
    for _, r in known:
        kind = r.mode if r.mode != "mtp" else "parked" if r.depth == 0 else f"depth {r.depth}"
        names.append(f"{kind}\n{r.route}" + (f" ×{r.width}" if r.width > 1 else ""))
    middles = picture.places(names)
    wide = min(BAR, 0.6 * (WIDTH - LEFT - RIGHT) / len(known))
    for x, name, (i, r) in zip(middles, names, known, strict=True):
        cost = r.full_cost_ms
        assert cost is not None
        label = f"{name.replace(chr(10), ', ')}: {cost:.3g} ms"
        where = f"{at}/rounds/{i}/full_cost_ms"
        _bar(picture, label, where, cost, x, wide, scale, "a" if r.route == "compiled" else "b")
        if r.round_ms:
            picture.add(
                "line",
                class_="whisker",
                x1=x,
                x2=x,
                y1=scale(r.round_ms.p10),
                y2=scale(r.round_ms.p90),
            )
    return picture.markup()


def depth_over_time(run: RunSummary, at: str) -> Markup | None:
    """Mean depth as a line of steps over its range; what the policy held best is dashed."""
    stretches = run.timeline
    if not stretches:
        return None
    total = stretches[-1].first + stretches[-1].rounds
    picture = Picture("Depth over time", 220.0)
    deepest = max(s.deepest for s in stretches)
    y = picture.y_axis([float(t) for t in whole_ticks(0, max(1, deepest))], "depth")
    x = picture.x_axis(ticks(0, total, 8), "MTP rounds")
    spans = [(x(s.first), x(s.first + s.rounds), s) for s in stretches]
    upper = [(a, b, y(s.deepest)) for a, b, s in spans]
    lower = [(b, a, y(s.shallowest)) for a, b, s in reversed(spans)]
    band = steps(upper) + "L" + steps(lower)[1:] + "Z"
    picture.add("path", class_="band", d=band)
    picture.add("path", class_="line a", d=steps([(a, b, y(s.depth)) for a, b, s in spans]))
    said = [(a, b, y(s.selected)) for a, b, s in spans if s.selected is not None]
    if said:
        picture.add("path", class_="line dashed b", d=steps(said))
    return picture.markup()


DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2", "1 4", "12 4", "6 2 1 2")
"""A line's pattern by depth: lines that cross are told apart without their colours."""


def beliefs(run: RunSummary, at: str) -> Markup | None:
    """What the policy expected of each depth, a line a depth, its name at its end."""
    points = run.belief_over_time
    depths = sorted({depth for point in points for depth in point.tokens_per_s})
    if len({point.after for point in points}) < 2:
        return None
    rounds = max(sum(s.rounds for s in run.timeline), points[-1].after)
    picture = Picture("What the policy believed", 260.0)
    fastest = max(speed for point in points for speed in point.tokens_per_s.values())
    y = picture.y_axis(ticks(0.0, fastest), "tok/s")
    x = picture.x_axis(ticks(0, rounds, 8), "MTP rounds")
    ends: list[float] = []
    for n, depth in enumerate(depths):
        known = [(p.after, p.tokens_per_s[depth]) for p in points if depth in p.tokens_per_s]
        kind = f"line p{n % 7}"
        line = path([(x(after), y(speed)) for after, speed in known])
        picture.add("path", class_=kind, stroke_dasharray=DASHES[n % len(DASHES)] or None, d=line)
        end = y(known[-1][1]) - 5.0
        while any(abs(end - other) < 12.0 for other in ends):
            end -= 12.0
        ends.append(end)
        name = f"depth {depth}"
        picture.add("text", name, class_="tick", x=x(known[-1][0]), y=end, text_anchor="end")
    return picture.markup()


def speed_over_time(run: RunSummary, at: str) -> Markup | None:
    """Delivered tokens a second along the run."""
    known = [s for s in run.timeline if s.tokens_per_s is not None]
    if len(known) < 2:
        return None
    # A run of rounds as short as one is all noise; thirty-two parts are a trend.
    size = math.ceil(len(known) / 64)
    groups = [known[i : i + size] for i in range(0, len(known), size)]
    means = [
        sum(s.rounds for s in g) / sum(s.rounds / (s.tokens_per_s or 1.0) for s in g)
        for g in groups
    ]
    picture = Picture("Speed over time", 180.0)
    y = picture.y_axis(ticks(0.0, max(means)), "tok/s")
    total = run.timeline[-1].first + run.timeline[-1].rounds
    x = picture.x_axis(ticks(0, total, 8), "MTP rounds")
    points = [
        (x(g[0].first + (g[-1].first + g[-1].rounds - g[0].first) / 2), y(m))
        for g, m in zip(groups, means, strict=True)
    ]
    picture.add("path", class_="line a", d=path(points))
    return picture.markup()


def rivals(run: RunSummary, at: str) -> Markup | None:
    """What fixed depths would have delivered, what the arms did, and the seer's line above."""
    found = run.hindsight
    if found is None or found.oracle_tokens_per_s is None:
        return None
    picture = Picture("Fixed depths, the run itself, and the seer")
    highest = max([found.oracle_tokens_per_s, *(a.tokens_per_s for a in found.arms)])
    scale = picture.y_axis(ticks(0.0, highest), "tok/s")
    names = [f"depth {s.depth}\nfixed" for s in found.depths]
    names += [f"{a.arm[:14]}\nas it ran" for a in found.arms]
    middles = picture.places(names)
    wide = min(BAR, 0.6 * (WIDTH - LEFT - RIGHT) / len(names))
    where = f"{at}/hindsight"
    for i, (x, s) in enumerate(zip(middles, found.depths, strict=False)):
        label = f"depth {s.depth}: {s.tokens_per_s:.3g} tok/s"
        _bar(
            picture, label, f"{where}/depths/{i}/tokens_per_s", s.tokens_per_s, x, wide, scale, "a"
        )
    for i, (x, a) in enumerate(zip(middles[len(found.depths) :], found.arms, strict=True)):
        label = f"{a.arm}: {a.tokens_per_s:.3g} tok/s"
        _bar(picture, label, f"{where}/arms/{i}/tokens_per_s", a.tokens_per_s, x, wide, scale, "b")
    y = scale(found.oracle_tokens_per_s)
    picture.add("line", class_="rule", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)
    picture.add("text", "seer", class_="tick", x=WIDTH - RIGHT, y=y - 4, text_anchor="end")
    return picture.markup()


def shares(run: RunSummary, at: str) -> Markup | None:
    """Where the time went: a bar of parts for plain and for MTP requests."""
    modes = list(dict.fromkeys(part.mode for part in run.spent))
    if not modes:
        return None
    picture = Picture("Where the time went", 52.0 * len(modes) + 24.0)
    kinds = {part.part: i for i, part in enumerate({p.part: p for p in run.spent}.values())}
    for row, mode in enumerate(modes):
        y = 52.0 * row + 22.0
        picture.add("text", f"{mode} requests", class_="tick", x=LEFT, y=y - 6)
        x = LEFT
        for i, part in enumerate(run.spent):
            if part.mode != mode:
                continue
            wide = part.share * (WIDTH - LEFT - RIGHT)
            label = f"{part.part}: {part.share:.1%}"
            kind = f"part p{kinds[part.part] % 7}"
            picture.mark(
                "rect",
                label,
                f"{at}/spent/{i}/share",
                part.share,
                class_=kind,
                x=x,
                y=y,
                width=wide,
                height=22.0,
            )
            if wide > 7 * len(part.part) + 8:
                picture.add("text", part.part, class_="inside", x=x + 5, y=y + 15)
            x += wide
    return picture.markup()


def context(run: RunSummary, at: str) -> Markup | None:
    """Speed by length of context, a mark a group of rounds."""
    lengths = sorted({(row.low, row.high) for row in run.context})
    if len(lengths) < 2:
        return None
    picture = Picture("Speed by length of context")
    scale = picture.y_axis(ticks(0.0, max(row.tokens_per_s for row in run.context)), "tok/s")
    middles = dict(zip(lengths, picture.places([f"{a}–{b}" for a, b in lengths]), strict=True))
    plain = sorted({row.mode for row in run.context} - {"mtp"})
    for mode, kind, shape in (*((m, "b", "circle") for m in plain), ("mtp", "a", "rect")):
        rows = [(i, row) for i, row in enumerate(run.context) if row.mode == mode]
        points = [(middles[row.low, row.high], scale(row.tokens_per_s)) for _, row in rows]
        if not points:
            continue
        picture.add("path", class_=f"line {kind}", d=path(points))
        for (x, y), (i, row) in zip(points, rows, strict=True):
            label = f"{mode}, {row.low}–{row.high} tokens: {row.tokens_per_s:.3g} tok/s"
            where = f"{at}/context/{i}/tokens_per_s"
            if shape == "circle":
                picture.mark(
                    "circle", label, where, row.tokens_per_s, class_=kind, cx=x, cy=y, r=4.5
                )
            else:
                picture.mark(
                    "rect",
                    label,
                    where,
                    row.tokens_per_s,
                    class_=kind,
                    x=x - 4,
                    y=y - 4,
                    width=8.0,
                    height=8.0,
                )
        picture.add("text", mode, class_="tick", x=points[-1][0] + 9, y=points[-1][1] + 4)
    return picture.markup()


PICTURES = {
    "ratios": ratios,
    "acceptance": acceptance,
    "reliability": reliability,
    "costs": costs,
    "depth": depth_over_time,
    "beliefs": beliefs,
    "speed": speed_over_time,
    "rivals": rivals,
    "shares": shares,
    "context": context,
}
