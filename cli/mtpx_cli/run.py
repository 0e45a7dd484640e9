"""`mtpx run`: one prompt, one answer; text on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from mtpx_cli.choosing import Chosen, depth_options
from mtpx_cli.loading import EngineArguments, F, engine_options, load_model
from mtpx_cli.terminal import INTERRUPTED, complain, is_terminal, note, say

if TYPE_CHECKING:
    from mtpx.answer import Generation
    from mtpx.api import TraceTo
    from mtpx.generation import Stream


_DECODING = [
    click.option("--temperature", type=float, metavar="T", help="0 is greedy."),
    click.option(
        "--top-p", type=float, metavar="P", help="The likeliest tokens of mass P; 1 is off."
    ),
    click.option("--top-k", type=int, metavar="K", help="The K likeliest tokens; 0 is off."),
    click.option("--min-p", type=float, metavar="P", help="From P times the likeliest; 0 is off."),
    click.option(
        "--repeat-penalty", type=float, metavar="R", help="On all tokens so far; 1 is off."
    ),
    click.option("--presence-penalty", type=float, metavar="A", help="On the answer's; 0 is off."),
    click.option("--frequency-penalty", type=float, metavar="A", help="By their count; 0 is off."),
    click.option("--seed", type=int, help="Default: drawn anew where sampling needs one."),
]


def decoding_options(command: F) -> F:
    """Add how an answer is drawn: depth and policy (received as `chosen`), sampling and seed, each the
    pack's or the default unless given."""
    command = depth_options(command)
    for option in reversed(_DECODING):
        command = option(command)
    return command


@click.command()
@click.argument("prompt", required=False)
@click.option("--pack", metavar="NAME|DIR", help="Default: the last one used, else the embedded.")
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the chat template.")
@click.option("--max-tokens", type=int, default=512, show_default=True, help="Most tokens.")
@decoding_options
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
    chosen: Chosen,
    seed: int | None,
    stop: tuple[str, ...],
    ignore_eos: bool,
    as_json: bool,
    trace: str | None,
    trace_text: bool,
    quiet: bool,
    engine: EngineArguments,
    **sampling: Any,
) -> None:
    """Answer PROMPT and exit. "-" (or no PROMPT, in a pipe) reads it from stdin.

    \b
    mtpx run "Name three rivers."
    git diff | mtpx run - --system "Write a commit message." --max-tokens 60
    mtpx run "Name three rivers." --json --depth 2 --trace rivers.jsonl

    The answer goes to stdout, as it comes; progress and a summary go to stderr. Sampling is the pack's
    own unless given. Ctrl-C keeps what was made.

    \b
    --json prints one object (docs/json.md):
      text, tokens, token_ids, prompt_tokens, rounds
      tok_s                    decode rate, from the first round's arrival to the last
      prefill_ms, ttft_ms      time to read the prompt, to the first token
      accepted_per_position    for each draft position: reached, accepted, rate
      stop                     end, length, context, stop or interrupt
      depth, policy            as asked for; what chose the depths
      mean_depth, speculation  drafts verified a round; on, or why nothing was drafted
      energy_j                 joules of all rounds, where there is a meter
      pack, backend, device, seed, sampling, looped, logprobs, reused

    \b
    Exit status: 0 done, 2 it cannot be done as asked (one sentence on stderr),
    130 interrupted, 141 the reader of stdout went away.
    """
    from mtpx.errors import PromptError, SamplingError

    if sampling["logprobs"] is not None and not as_json:
        raise SamplingError("--logprobs prints into JSON: add --json")
    if trace_text and trace is None:
        raise PromptError("--trace-text needs --trace FILE")
    _check_sampling(sampling)
    text = _prompt(prompt)
    if not (text if raw else text.strip()):
        raise PromptError("the prompt is empty: give some text, or - to read it from stdin")
    _check_text(("prompt", text), ("system prompt", system or ""), ("stop string", "".join(stop)))
    line = PrefillLine(quiet)
    with load_model(pack, engine, quiet=quiet) as model:
        stream = model.stream(
            text,
            system=system,
            raw=raw,
            max_tokens=max_tokens,
            seed=seed,
            depth=chosen.depth,
            policy=chosen.policy,
            stop=stop,
            ignore_eos=ignore_eos,
            trace=_trace(trace, trace_text),
            on_prefill=line,
            **sampling,
        )
        interrupted = _print(stream, as_json, line)
        result = stream.result
        if as_json:
            import msgspec

            say(msgspec.json.encode(result).decode())
        if not quiet:
            note(summary(result, model.engine.info.context_limit), dim=True)
    if interrupted:
        click.get_current_context().exit(INTERRUPTED)


def _check_sampling(given: dict[str, Any]) -> None:
    """Refuse what no model could sample with, before one is fetched and loaded."""
    from mtpx.sampling import Sampling

    Sampling(**{name: value for name, value in given.items() if value is not None})


def _check_text(*texts: tuple[str, str]) -> None:
    """Bytes of an argument that are no UTF-8 arrive as lone surrogates."""
    from mtpx.errors import PromptError

    for name, text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise PromptError(f"the {name} is not valid UTF-8") from None


def _prompt(argument: str | None) -> str:
    from mtpx.errors import PromptError

    if argument is not None and argument != "-":
        return argument
    if argument is None and is_terminal(sys.stdin):
        raise click.UsageError('Missing argument "PROMPT" (or - to read it from stdin).')
    if sys.stdin is None:
        raise PromptError("there is no stdin to read the prompt from: give it as an argument")
    try:
        data = sys.stdin.buffer.read()
    except OSError as error:
        raise PromptError(f"stdin cannot be read: {error.strerror or error}") from None
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

    return TraceTo(Path(path), text=text, command="mtpx run", warn=complain)


class PrefillLine:
    """Tokens of a long prompt computed so far, on a terminal; gone when they all are."""

    def __init__(self, quiet: bool) -> None:
        self._wanted = not quiet and is_terminal(sys.stderr)
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        if done >= total:
            self.clear()
        elif self._wanted:
            self._shown = True
            click.echo(f"\r\x1b[Kreading the prompt: {done} of {total} tokens", err=True, nl=False)

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            click.echo("\r\x1b[K", err=True, nl=False)


def _print(stream: Stream, as_json: bool, line: PrefillLine) -> bool:
    """Print pieces as they come. → whether Ctrl-C ended it; what was made is kept."""
    from mtpx.errors import MtpxError

    last, interrupted = "\n", False
    try:
        for piece in stream:
            if not as_json:
                say(_shown(piece), end="")
                last = piece
    except KeyboardInterrupt:
        interrupted = True
    except MtpxError:
        # What is said of it begins on a line of its own, also where both streams are one terminal.
        say("", end="" if last.endswith("\n") else "\n")
        raise
    finally:
        line.clear()
        stream.close()
    say("", end="" if last.endswith("\n") else "\n")
    return interrupted


def _shown(piece: str) -> str:
    """A model may write escape sequences; a terminal must not obey them."""
    from mtpx_cli.flow import safe

    return safe(piece) if is_terminal(sys.stdout) else piece


def pace(result: Generation) -> list[str]:
    """How much came and how fast, as the parts of a line."""
    parts = [f"{result.tokens} token{'' if result.tokens == 1 else 's'}"]
    if result.tok_s is not None:
        parts.append(f"{figure(result.tok_s)} tok/s")
    if (ms := result.ttft_ms) is not None:
        parts.append(
            f"first token {figure(ms)} ms" if ms < 1000 else f"first token {ms / 1e3:.2f} s"
        )
    return parts


def accepted(result: Generation) -> str:
    """Acceptance at each draft position, a dash where none was judged."""
    rates = ("–" if p.rate is None else f"{p.rate:.2f}" for p in result.accepted_per_position)
    return " ".join(rates) or "–"


def speculation(result: Generation) -> str:
    """What speculation did for an answer and, if it did nothing, why."""
    if result.speculation != "on":
        return f"plain: {result.speculation}"
    if not any(p.reached for p in result.accepted_per_position):
        return "nothing was drafted"
    depth = f"depth {result.depth}"
    if result.depth == "auto" and result.mean_depth is not None:
        depth = f"{result.policy}: {result.mean_depth:.1f} drafts a round"
    return f"{depth}, accepted {accepted(result)}"


def summary(result: Generation, context: int) -> str:
    """The line under an answer."""
    parts = [*pace(result), speculation(result)]
    if (joules := result.token_energy_j) is not None:
        parts.append(f"{figure(joules)} J/token")
    endings = {
        "length": "stopped at --max-tokens",
        "context": f"the context of {context} tokens is full",
        "interrupt": "interrupted",
        "stop": "stopped at a stop string",
    }
    if result.stop in endings:
        parts.append(endings[result.stop])
    if result.looped:
        parts.append("the text repeats itself")
    return "; ".join(parts)


def figure(value: float) -> str:
    """A positive number with the digits a person reads, small ones included."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"
