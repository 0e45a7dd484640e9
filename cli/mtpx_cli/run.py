"""`mtpx run`: one prompt, one answer; text on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from mtpx_cli.loading import engine_options, load_model

if TYPE_CHECKING:
    from mtpx.api import Model, TraceTo
    from mtpx.generation import Generation, Stream


class DepthParam(click.ParamType[int | str]):
    """A number of drafts a round, or "off"."""

    name = "depth"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if value == "off":
            return "off"
        try:
            depth = int(value)
        except ValueError:
            depth = -1
        if depth < 0:
            self.fail(f"{value!r} is neither a number of drafts nor off", param, ctx)
        return depth


@click.command()
@click.argument("prompt", required=False)
@click.option("--pack", metavar="NAME|DIR", help="Default: the last one used, else the embedded.")
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the chat template.")
@click.option("--max-tokens", type=int, default=512, show_default=True)
@click.option("--depth", type=DepthParam(), metavar="N|off", help="Drafts a round; off is plain.")
@click.option("--temperature", type=float, metavar="T", help="0 is greedy.")
@click.option("--top-p", type=float, metavar="P")
@click.option("--top-k", type=int, metavar="K")
@click.option("--min-p", type=float, metavar="P")
@click.option("--repeat-penalty", type=float, metavar="R")
@click.option("--presence-penalty", type=float, metavar="A")
@click.option("--frequency-penalty", type=float, metavar="A")
@click.option("--seed", type=int, help="Default: drawn anew where sampling needs one.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable.")
@click.option("--ignore-eos", is_flag=True, help="Go on after the end of the answer.")
@click.option("--logprobs", type=int, metavar="K", help="Log-probabilities and K rivals (--json).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout instead of text.")
@click.option("--trace", metavar="FILE", help="Record every round to FILE.")
@click.option("--trace-text", is_flag=True, help="Put prompt and answer into the trace, too.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary on stderr.")
@engine_options
def run(
    prompt: str | None,
    pack: str | None,
    system: str | None,
    raw: bool,
    max_tokens: int,
    depth: int | str | None,
    seed: int | None,
    stop: tuple[str, ...],
    ignore_eos: bool,
    as_json: bool,
    trace: str | None,
    trace_text: bool,
    quiet: bool,
    backend: str,
    device: str,
    threads: int | None,
    context: int | None,
    **sampling: Any,
) -> None:
    """Answer PROMPT and exit. "-" (or no PROMPT, in a pipe) reads it from stdin.

    \b
    mtpx run "Name three rivers."
    git diff | mtpx run - --system "Write a commit message." --max-tokens 60
    mtpx run "Name three rivers." --json --depth 2 --trace rivers.jsonl
    """
    from mtpx.errors import PromptError, SamplingError

    if sampling["logprobs"] is not None and not as_json:
        raise SamplingError("--logprobs prints into JSON: add --json")
    if trace_text and trace is None:
        raise PromptError("--trace-text needs --trace FILE")
    text = _prompt(prompt)
    if not text.strip():
        raise PromptError("the prompt is empty: give some text, or - to read it from stdin")
    with load_model(
        pack, backend=backend, device=device, threads=threads, context=context, quiet=quiet
    ) as model:
        stream = model.stream(
            text,
            system=system,
            raw=raw,
            max_tokens=max_tokens,
            seed=seed,
            depth=depth,  # type: ignore[arg-type]  # a str here is "off"
            stop=stop,
            ignore_eos=ignore_eos,
            trace=_trace(trace, trace_text),
            on_prefill=None if quiet else _prefill_line(),
            **sampling,
        )
        interrupted = _print(stream, as_json)
        result = stream.result
        if as_json:
            import msgspec

            click.echo(msgspec.json.encode(result))
        if not quiet:
            click.echo(click.style(_summary(result, model), dim=sys.stderr.isatty()), err=True)
    if interrupted:
        raise KeyboardInterrupt


def _prompt(argument: str | None) -> str:
    from mtpx.errors import PromptError

    if argument is not None and argument != "-":
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise PromptError("the prompt is not valid UTF-8") from None
        return argument
    if argument is None and sys.stdin.isatty():
        raise click.UsageError('Missing argument "PROMPT" (or - to read it from stdin).')
    data = sys.stdin.buffer.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PromptError(
            f"stdin is not valid UTF-8: byte {error.start} is 0x{data[error.start]:02x}; "
            "convert it first (iconv -t UTF-8)"
        ) from None


def _trace(path: str | None, text: bool) -> TraceTo | None:
    if path is None:
        return None
    from pathlib import Path

    from mtpx.api import TraceTo
    from mtpx_cli.main import complain

    return TraceTo(Path(path), text=text, command="mtpx run", warn=complain)


def _prefill_line() -> Any:
    """Tokens of a long prompt computed so far, on a terminal."""
    if not sys.stderr.isatty():
        return None

    def report(done: int, total: int) -> None:
        click.echo(f"\r\x1b[Kreading the prompt: {done} of {total} tokens", err=True, nl=False)
        if done + 256 >= total:
            click.echo("\r\x1b[K", err=True, nl=False)

    return report


def _print(stream: Stream, as_json: bool) -> bool:
    """Print pieces as they come. → whether Ctrl-C ended it; what was made is kept."""
    last = "\n"
    try:
        for piece in stream:
            if not as_json:
                click.echo(_shown(piece), nl=False)
                sys.stdout.flush()
                last = piece[-1:] or last
    except KeyboardInterrupt:
        return True
    finally:
        stream.close()
        if last != "\n":
            click.echo()
    return False


def _shown(piece: str) -> str:
    """A model may write escape sequences; a terminal must not obey them."""
    if not sys.stdout.isatty():
        return piece
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in piece)


def _summary(result: Generation, model: Model) -> str:
    parts = [f"{result.tokens} tokens"]
    if result.tok_s is not None:
        parts.append(f"{result.tok_s:.1f} tok/s")
    if result.ttft_ms is not None:
        parts.append(f"first token {result.ttft_ms / 1e3:.2f} s")
    if result.speculation != "on":
        parts.append(f"plain: {result.speculation}")
    else:
        rates = " ".join(
            "–" if p.rate is None else f"{p.rate:.2f}" for p in result.accepted_per_position
        )
        parts.append(f"depth {result.depth}, accepted {rates or '–'}")
    endings = {
        "length": "stopped at --max-tokens",
        "context": f"the context of {model.engine.info.context_limit} tokens is full",
        "interrupt": "interrupted",
        "stop": "stopped at a stop string",
    }
    if result.stop in endings:
        parts.append(endings[result.stop])
    if result.looped:
        parts.append("the text repeats itself")
    return "; ".join(parts)
