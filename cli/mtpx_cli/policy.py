"""`mtpx policy`: compare depth policies on recorded machines; see and forget what was learned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtpx.policy import DepthPolicy
    from mtpx.simulate.scenario import Scenario
    from mtpx.simulate.score import Score

BARS = "▁▂▃▄▅▆▇█"


@click.group()
def policy() -> None:
    """Compare depth policies; see and forget what they learned.

    \b
    mtpx policy show
    """


@policy.command()
@click.option(
    "--regimes",
    type=click.Path(path_type=Path),
    help="A TOML file of regimes, instead of those that come with mtpx.",
)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A recorded run as a regime (an estimate). May be repeated.",
)
@click.option(
    "--random", "drawn", type=int, metavar="N", help="N regimes drawn at random, instead."
)
@click.option(
    "--policy",
    "names",
    multiple=True,
    metavar="NAME",
    help="adaptive, ollama, fixed:N, or module:Class of your own. May be repeated.",
)
@click.option("--only", metavar="TEXT", help="Only regimes whose name or kind contains TEXT.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 1_000_000), default=4000, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON, on one line.")
def compare(
    regimes: Path | None,
    traces: tuple[Path, ...],
    drawn: int | None,
    names: tuple[str, ...],
    only: str | None,
    seeds: int,
    rounds: int,
    as_json: bool,
) -> None:
    """Drive policies through regimes on a virtual clock and score them.

    Shares are of what the best fixed depth, plain decode and a per-round oracle are expected to
    deliver. docs/regimes.md has the file format.

    \b
    mtpx policy compare
    mtpx policy compare --policy adaptive --policy fixed:2 --rounds 500
    mtpx policy compare --random 40 --seeds 3
    """
    from mtpx.simulate.score import score

    chosen = _scenarios(regimes, traces, drawn, only)
    makers = [(name, _maker(name)) for name in names or ("adaptive", "ollama")]
    scores = []
    for scenario in chosen:
        for name, make in makers:
            one = score(make, scenario, rounds=rounds, seeds=seeds)
            scores.append((name, one))
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode([{"name": n, **msgspec.to_builtins(s)} for n, s in scores]))
        return
    _draw(scores, rounds, seeds, estimate=bool(traces))


def _scenarios(
    regimes: Path | None, traces: tuple[Path, ...], drawn: int | None, only: str | None
) -> list[Scenario]:
    from mtpx.errors import PolicyError
    from mtpx.simulate.drawn import drawn as draw
    from mtpx.simulate.recorded import recorded
    from mtpx.simulate.scenario import load_scenarios, shipped

    found: list[Scenario] = []
    if regimes is not None:
        found += load_scenarios(regimes)
    found += [recorded(path) for path in traces]
    if drawn is not None:
        found += draw(drawn)
    if not found:
        found = shipped()
    if only is not None:
        word = only.casefold()
        names = ", ".join(s.name for s in found)
        found = [s for s in found if word in s.name.casefold() or word == s.kind]
        if not found:
            raise PolicyError(f"no regime is called anything like {only!r}; there are {names}")
    return found


def _maker(name: str) -> Callable[[], DepthPolicy]:
    """A function that makes a fresh policy; it is called once here, so that a wrong name is refused
    before anything runs."""
    from mtpx.policy.registry import make_policy

    head, _, depth = name.partition(":")

    def make() -> DepthPolicy:
        if head == "fixed" and depth.isdecimal():
            return make_policy("fixed", depth=int(depth))
        return make_policy(name)

    make()
    return make


def _draw(scores: list[tuple[str, Score]], rounds: int, seeds: int, *, estimate: bool) -> None:
    from mtpx_cli.draw import clean, console, heading, indented, table

    out = console()
    rows = []
    pictures = []
    last = ""
    for name, s in scores:
        regime = clean(s.scenario) if s.scenario != last else ""
        bar = f"{s.bar} {'held' if s.ok else 'MISSED'}" if name == "adaptive" else ""
        shares = [f"{share:.3f}" for share in (s.static, s.worst, s.plain, s.oracle, s.first)]
        settled = "–" if s.settle is None else str(s.settle)
        rows.append((regime, clean(name), *shares, settled, bar))
        deepest = max(1.0, *s.depths, float(s.best_depth))
        picture = "".join(BARS[round((len(BARS) - 1) * d / deepest)] for d in s.depths)
        pictures.append((regime, clean(name), picture, f"{deepest:.0f}", str(s.best_depth)))
        last = s.scenario
    columns = ("", "", "static", "worst", "plain", "oracle", "200", "settled", "bar")
    out.print(
        heading(f"Share of the best static depth, from cold ({rounds} rounds, {seeds} seeds)")
    )
    out.print(indented(table(columns, rows, left=2)))
    out.print(
        indented(
            "static: of the best static depth, mean; worst: of the unluckiest seed; 200: in the first "
            "200 rounds; settled: rounds until a window of them is within 5 %."
        )
    )
    out.print(heading("Depth over rounds (worst seed)"))
    out.print(indented(table(("", "", "", "top", "best"), pictures, left=3)))
    missed = [s.scenario for name, s in scores if name == "adaptive" and not s.ok]
    adaptive = sum(name == "adaptive" for name, _ in scores)
    mine = sorted(s.static for name, s in scores if name == "adaptive")
    if len(mine) > 1:
        mean = sum(mine) / len(mine)
        out.print(
            indented(
                f"Adaptive, over {len(mine)} regimes: mean {mean:.3f}, least {mine[0]:.3f} static."
            )
        )
    if adaptive:
        said = f"missed in {', '.join(map(clean, missed))}" if missed else "all held"
        out.print(indented(f"Bars of the adaptive policy: {said}."))
    if estimate:
        out.print(
            indented(
                "A recorded run is an estimate: what it did not show is drawn from its own costs and "
                "acceptance."
            )
        )


@policy.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, on one line.")
def show(as_json: bool) -> None:
    """Show what policies learned on this machine, one entry a pack and device.

    \b
    mtpx policy show
    """
    from mtpx.policy.store import Saved, kept, policies_dir

    found = kept()
    if as_json:
        import msgspec

        click.echo(
            msgspec.json.encode(
                {
                    str(path): saved if isinstance(saved, Saved) else {"error": str(saved)}
                    for path, saved in found.items()
                }
            )
        )
        return
    if not found:
        click.echo(f"Nothing was learned yet ({policies_dir()} holds no state).")
        return
    from mtpx_cli.draw import clean, console, heading, indented

    out = console()
    for path, saved in found.items():
        if not isinstance(saved, Saved):
            out.print(heading(clean(path.name)))
            out.print(indented(clean(saved)))
            continue
        key = saved.key
        out.print(heading(clean(f"{key.pack} on {key.device} ({key.backend}), {key.policy}")))
        out.print(indented(*map(clean, _lines(saved.state))))
        out.print(indented(clean(path)))


def _lines(state: dict[str, Any]) -> list[str]:
    """What a state says, for a reader; another policy's state may hold anything."""
    lines = [f"selected depth {state['selected']}"] if "selected" in state else []
    costs = state.get("costs")
    for group, one in costs.items() if isinstance(costs, dict) else ():
        cells = one.get("ms") if isinstance(one, dict) else None
        if isinstance(cells, dict) and cells:
            priced = ", ".join(f"{d}: {c[0]:.1f}" for d, c in sorted(cells.items()) if c)
            lines.append(f"ms a round by depth, width {str(group).split('/')[0]}: {priced}")
    models = state.get("acceptance")
    for mode, one in models.items() if isinstance(models, dict) else ():
        rates = one.get("rates") if isinstance(one, dict) else None
        if isinstance(rates, list) and rates:
            said = ", ".join(f"{100 * r:.0f} %" for r in rates if isinstance(r, float))
            lines.append(f"acceptance by position, {mode}: {said}")
    return lines or ["a state without anything to show"]


@policy.command()
@click.argument("pack", required=False)
def reset(pack: str | None) -> None:
    """Forget what was learned for PACK, or for every pack.

    \b
    mtpx policy reset smollm2-135m
    """
    from mtpx.policy.store import reset as forget

    gone = forget(pack)
    what = f"for {pack}" if pack else "so far"
    if not gone:
        click.echo(f"Nothing was learned {what}.")
    else:
        click.echo(f"Forgot {len(gone)} state{'s' if len(gone) > 1 else ''} learned {what}.")
