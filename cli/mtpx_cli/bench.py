"""`mtpx bench`: does MTP pay here, for this model, on this machine, for this text?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtpx_cli.bench_rows import RowRange, bench_rows, refuse_beside_rows
from mtpx_cli.bench_run import load_models, run_plan
from mtpx_cli.choosing import policy_options
from mtpx_cli.loading import ENGINE_NAMES, EngineArguments, engine_options
from mtpx_cli.terminal import note

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtpx.bench.design import Arm
    from mtpx.bench.result import BenchResult
    from mtpx.policy.registry import PolicyOptions

ANSWERS = ["pays", "does not pay"]

AGAINST = ["fastest", "same"]

NULL_REPEATS = 3
"""Blocks a prompt of a null control alone. It has to know the machine to ±2 %: blocks of two seconds a run
differ by 3 to 5 % where other programs run, and 12 prompts × 3 blocks know it to ±1 to 2 %, in six
minutes at 30 tokens/s."""

HOLDS, DENIED, UNSETTLED = 0, 1, 3
"""Exit statuses of `--check`, and of the null control alone; 2 is an error."""


class Depths(click.ParamType[tuple[int | str, ...]]):
    """Depths and names of policies, separated by commas."""

    name = "N[,N...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | str, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(parts):
            self.fail(
                f"{value!r} is not a depth, such as 1, or several, such as 0,1,3,auto", param, ctx
            )
        return tuple(int(part) if part.lstrip("-").isdecimal() else part for part in parts)


def sampling(command: Callable[..., None]) -> Callable[..., None]:
    """The options that are fields of `mtpx.sampling.Sampling`."""
    for option in reversed(
        [
            click.option(
                "--temperature", type=float, default=0.0, show_default=True, help="0 is greedy."
            ),
            click.option("--top-p", type=float, default=1.0, show_default=True),
            click.option("--top-k", type=int, default=0, show_default=True, help="0 is off."),
            click.option("--min-p", type=float, default=0.0, show_default=True),
            click.option("--repeat-penalty", type=float, default=1.0, show_default=True),
            click.option("--presence-penalty", type=float, default=0.0, show_default=True),
            click.option("--frequency-penalty", type=float, default=0.0, show_default=True),
        ]
    ):
        command = option(command)
    return command


@click.command()
@click.argument("pack", required=False)
@click.option(
    "--plain-baseline",
    is_flag=True,
    help="Match every MTP run with a plain one. Without it there is no verdict.",
)
@click.option(
    "--depths",
    "--depth",
    type=Depths(),
    help="What to time, each an arm of its own: a depth (0 is plain decode), auto (what --policy says, "
    "the adaptive one unless given), auto-nocuts (the same without confidence cuts), or a policy by "
    "name.  [default: auto]",
)
@policy_options
@click.option(
    "--prompts",
    type=int,
    help="Prompts in all.  [default: 6 a suite, and all of your own]",
)
@click.option(
    "--repeats",
    type=int,
    help=f"Blocks a prompt and depth.  [default: 1; {NULL_REPEATS} for a null control alone]",
)
@click.option("--suite", "suites", multiple=True, help="A shipped suite.  [default: chat and code]")
@click.option(
    "--prompt-file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Your own prompts: JSON Lines, or text with one a line.",
)
@click.option(
    "--max-tokens", type=int, default=64, show_default=True, help="Token budget of a run."
)
@sampling
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Of the sampling, the choice of prompts and their order.",
)
@click.option(
    "--margin",
    type=float,
    default=0.02,
    show_default=True,
    help="What MTP must gain to pay, as a fraction.",
)
@click.option(
    "--ignore-eos",
    is_flag=True,
    help="Decode on after the end of the text; what follows it is not part of the rate.",
)
@click.option(
    "--null-control",
    is_flag=True,
    help="Time plain against plain: is this machine quiet enough? Alone unless --depths is given.",
)
@click.option(
    "--looks",
    type=int,
    default=1,
    show_default=True,
    help="Looks at the result, 1 to 5, at which the bench may stop early; each spends some of the 5 %.",
)
@click.option(
    "--cold",
    is_flag=True,
    help="A learning policy starts every run from nothing, instead of learning from block to block.",
)
@click.option(
    "--turns",
    type=click.IntRange(min=2),
    metavar="N",
    help="Instead: conversations of N turns, cold, warm without and with the carry, and plain.",
)
@click.option(
    "--rows",
    type=RowRange(),
    help="Instead: what a forward of the target over 1 to K rows costs, in every precision (or the one "
    "given) and tier, eager and, where it is made, compiled.",
)
@click.option(
    "--against",
    type=click.Choice(AGAINST),
    default="fastest",
    show_default=True,
    help="What MTP has to beat where --precision names one: plain decode in the same and in the fastest "
    "that the pack declares good (half as long again, two copies of the model in memory), or in the same.",
)
@click.option(
    "--check",
    type=click.Choice(ANSWERS),
    help="Exit with 0 if this is the verdict, 1 if it is the other, 3 if there is none. MTP pays where it "
    "beats all that it is held --against.",
)
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(path_type=Path),
    help="Where the trace goes.  [default: the state directory]",
)
@click.option(
    "--html", type=click.Path(path_type=Path), help="Write a page with pictures, one offline file."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, on one line.")
@click.option("--quiet", "-q", is_flag=True, help="No progress on standard error.")
@engine_options
@click.pass_context
def bench(
    ctx: click.Context,
    /,
    pack: str | None,
    plain_baseline: bool,
    depths: tuple[int | str, ...] | None,
    prompts: int | None,
    repeats: int | None,
    suites: tuple[str, ...],
    files: tuple[Path, ...],
    max_tokens: int,
    seed: int,
    margin: float,
    ignore_eos: bool,
    null_control: bool,
    looks: int,
    cold: bool,
    turns: int | None,
    rows: int | None,
    against: str,
    check: str | None,
    trace_path: Path | None,
    html: Path | None,
    as_json: bool,
    quiet: bool,
    policy: PolicyOptions | None,
    engine: EngineArguments,
    **sampled: Any,
) -> None:
    """Time PACK with its MTP head and, with --plain-baseline, without it: does MTP pay?

    \b
    mtpx bench --plain-baseline
    mtpx bench smollm2-135m --plain-baseline --depths 1,2 --suite code
    mtpx bench --depths 0,1,2,3,auto
    mtpx bench --plain-baseline --precision int8
    mtpx bench --turns 6
    mtpx bench --rows 1..8

    Every prompt is decoded in blocks of four runs, plain, MTP, MTP, plain or the other way round. The
    sample size is fixed before the first one. PACK is the last one used unless given. Several arms are
    also compared with each other: the policy with the best fixed depth, for one. In a precision that is
    not the fastest, plain decode in that one runs in every block, too, and MTP is held against both.

    \b
    Exit status: 0 done; with --check 0, 1 or 3; with --null-control alone 0 if the machine is quiet
    enough for a verdict, 3 if not; 2 it cannot be done as asked, 130 interrupted.
    """
    from mtpx.bench.design import NULL_ARM, design, gather
    from mtpx.bench.records import BenchOptions
    from mtpx.bench.verdict import MIN_PROMPTS
    from mtpx.sampling import Sampling
    from mtpx.trace.page import check_writable

    if rows is not None:
        refuse_beside_rows(ctx, ENGINE_NAMES)
        bench_rows(rows, pack, engine, repeats=repeats, as_json=as_json, quiet=quiet)
        return
    if turns is not None:
        from mtpx_cli.bench_turns import bench_turns

        _refuse_beside_turns(ctx)
        bench_turns(
            turns,
            pack,
            engine,
            depths=depths,
            prompts=prompts,
            suites=suites,
            files=files,
            max_tokens=max_tokens,
            sampled=sampled,
            seed=seed,
            trace=trace_path or _default_trace(),
            as_json=as_json,
            quiet=quiet,
            command=ctx.command_path,
        )
        if trace_path is None:
            _prune()
        return
    arms = _arms(depths, null_control, policy)
    baseline = plain_baseline or null_control or (depths is not None and 0 in depths)
    judged = baseline and any(arm.mode == "mtp" for arm in arms)
    _refuse_idle_check(check, arms, baseline)
    if not judged and _given(ctx, "against"):
        raise click.UsageError(
            "--against says what MTP has to beat: it needs a depth, and matched plain runs "
            "(--plain-baseline)."
        )
    if repeats is None:
        repeats = NULL_REPEATS if null_control and depths is None else 1
    chosen = gather(suites, files, prompts, seed)
    plan = design(chosen, arms, repeats=repeats, seed=seed, baseline=baseline, looks=looks)
    options = BenchOptions(
        max_tokens=max_tokens,
        sampling=Sampling(**sampled),
        ignore_eos=ignore_eos,
        margin=margin,
        command=ctx.command_path,
        cold=cold,
        policy=policy,
    )
    if baseline and not quiet and arms != [NULL_ARM] and len(chosen) < MIN_PROMPTS:
        note(
            f"{len(chosen)} prompt{'s' if len(chosen) > 1 else ''}: {MIN_PROMPTS} are the least a verdict "
            "can rest on, so this will show figures and draw none"
        )
    path = trace_path or _default_trace()
    if html is not None:
        # Before half an hour is spent on what cannot be written.
        check_writable(html)
    with load_models(pack, engine, against if judged else "", quiet=quiet) as models:
        name = models.model.pack.name
        result = run_plan(models, plan, chosen, options, path, quiet=quiet)
    if trace_path is None:
        _prune()
    if html is not None:
        _write_page(html, path)
    if as_json:
        _print_json(name, path, result)
    else:
        _print(result, path, html)
    _leave(ctx, check, result)


def _arms(
    depths: tuple[int | str, ...] | None, null_control: bool, policy: PolicyOptions | None
) -> list[Arm]:
    from mtpx.bench.design import NULL_ARM, mtp_arm, policy_arm
    from mtpx.policy.registry import ADAPTIVE

    if depths is None and null_control:
        return [NULL_ARM]
    auto = "auto" if policy is None or policy.name == ADAPTIVE else policy.name
    asked = tuple(auto if depth == "auto" else depth for depth in depths or ("auto",))
    if len(asked) > 1:
        # The plain runs of every pair are depth 0.
        asked = tuple(depth for depth in asked if depth != 0) or asked
    arms = [policy_arm(d) if isinstance(d, str) else mtp_arm(d) for d in asked]
    return [*arms, NULL_ARM] if null_control else arms


def _given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _refuse_beside_turns(ctx: click.Context) -> None:
    """Options that shape the other bench and would do nothing in this one."""
    names = (
        "plain_baseline",
        "null_control",
        "repeats",
        "looks",
        "cold",
        "against",
        "check",
        "html",
        "margin",
    )
    for name in (*names, "ignore_eos", "policy"):
        if _given(ctx, name):
            raise click.UsageError(
                f"--turns is a bench of its own, without --{name.replace('_', '-')}."
            )


def _refuse_idle_check(check: str | None, arms: list[Arm], baseline: bool) -> None:
    if check is None:
        return
    if not baseline:
        raise click.UsageError(
            "--check needs a verdict, and a verdict needs matched plain runs: add --plain-baseline."
        )
    if sum(arm.mode == "mtp" for arm in arms) != 1:
        raise click.UsageError("--check is about one verdict: give --depths exactly one depth.")


def _default_trace() -> Path:
    from mtpx.paths import traces_dir
    from mtpx.trace.files import new_trace_path

    return new_trace_path(traces_dir(), "bench")


def _prune() -> None:
    from mtpx.paths import traces_dir
    from mtpx.trace.files import prune

    prune(traces_dir())


def _write_page(html: Path, trace: Path) -> None:
    from mtpx.trace.page import write_page
    from mtpx.trace.summary import summarise_files

    write_page(html, summarise_files([str(trace)]))


def _print(result: BenchResult, path: Path, html: Path | None) -> None:
    from mtpx_cli.bench_view import draw_result, pasteable, speed_lines
    from mtpx_cli.draw import console

    out = console()
    for part in draw_result(result):
        out.print(part)
    # Not wrapped: tables and paths are there to be copied.
    if result.rates:
        out.print("\n".join(["", *pasteable(result), ""]), soft_wrap=True)
        for line in speed_lines(result):
            out.print(line)
    page = f"\nPage: {html}" if html else ""
    out.print(
        f"\nTrace: {path}\n`mtpx trace report` shows its rounds and acceptance.{page}",
        soft_wrap=True,
    )


def _print_json(pack: str, path: Path, result: BenchResult) -> None:
    import msgspec

    found = {"pack": pack, "trace": str(path), **msgspec.to_builtins(result)}
    click.echo(msgspec.json.encode(found))


def _leave(ctx: click.Context, check: str | None, result: BenchResult) -> None:
    """The exit status: errors first, then what `--check` asks, then whether Ctrl-C ended it."""
    from mtpx.bench.fastest import leading
    from mtpx.bench.result import INTERRUPTED
    from mtpx.errors import BenchError

    if result.stopped not in ("", INTERRUPTED):
        raise BenchError(f"the bench was stopped by an error: {result.stopped}")
    if check is not None:
        asked = {arm.name for arm in result.design.arms if arm.mode == "mtp"}
        own = next(v for v in result.verdicts if v.arm in asked)
        found = leading(own, result.fastest(own.arm)).verdict
        ctx.exit(UNSETTLED if found not in ANSWERS else HOLDS if found == check else DENIED)
    if result.stopped:
        raise KeyboardInterrupt
    if not any(arm.mode == "mtp" for arm in result.design.arms):
        control = result.verdicts[0].null_control
        ctx.exit(HOLDS if control is not None and control.quiet else UNSETTLED)
