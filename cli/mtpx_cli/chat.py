"""`mtpx chat`: talk with a model in the terminal."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtpx.config import Environment
from mtpx_cli.choosing import Chosen
from mtpx_cli.loading import EngineArguments, engine_options, fetching, load_model
from mtpx_cli.names import complete_pack
from mtpx_cli.run import decoding_options
from mtpx_cli.terminal import INTERRUPTED, complain, is_terminal, note

if TYPE_CHECKING:
    from mtpx.api import Model
    from mtpx.packs import Pack
    from mtpx.sessions import Kept
    from mtpx_cli.conversing import Chat, Choices, Look

MAX_TOKENS = 2048
"""Of one answer unless told: nobody reads more at once, and a small model that repeats itself stops."""


@click.command()
@click.argument("pack", required=False, metavar="[PACK|DIR]", shell_complete=complete_pack)
@click.option("--system", default="", metavar="TEXT", help="System prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=MAX_TOKENS, show_default=True)
@decoding_options
@click.option(
    "--thinking", type=click.Choice(["on", "off"]), help="Where the model's template knows it."
)
@click.option(
    "--trace/--no-trace",
    "keep_traces",
    default=True,
    help="Record every round in the state directory.  [default: trace]",
)
@click.option("--trace-text", is_flag=True, help="Put questions and answers into the trace, too.")
@click.option(
    "--session", metavar="NAME", help="Keep the conversation under a name, and go on with it."
)
@click.option(
    "--session-budget",
    type=click.IntRange(min=0),
    metavar="MB",
    help="Most that all sessions' computed states take on disk.  [default: 4096]",
)
@click.option(
    "--snapshot-min-tokens",
    type=click.IntRange(min=0),
    metavar="N",
    help="Go on from a recurrent model's snapshot only after this many tokens.  [default: 256]",
)
@click.option("--quiet", "-q", is_flag=True, help="Answers and errors, nothing else.")
@engine_options
def chat(
    pack: str | None,
    system: str,
    max_tokens: int,
    chosen: Chosen,
    seed: int | None,
    thinking: str | None,
    keep_traces: bool,
    trace_text: bool,
    session: str | None,
    session_budget: int | None,
    snapshot_min_tokens: int | None,
    quiet: bool,
    engine: EngineArguments,
    **sampling: Any,
) -> None:
    """Talk with PACK: the last one used unless given, else the embedded one.

    \b
    mtpx chat
    mtpx chat smollm2-135m --system "You answer in one sentence." --temperature 0.7
    mtpx chat ./folder-with-gguf-or-safetensors --depth off
    mtpx chat --session holiday
    printf 'Hello\\nAnd again\\n' | mtpx chat --quiet

    /help lists what can be typed; Ctrl-C stops an answer, Ctrl-D leaves. From a pipe every line is a
    question, and what is between two lines of three double quotes is one.

    When the conversation outgrows the context, the oldest turns leave it whole; the system prompt
    stays. With --session it is there the next time, and so is what was computed for it, if the model is
    the same (`mtpx session list`). What can be set by a flag can be set for good: see `mtpx config`.

    \b
    Exit status: 0 done, 2 it cannot be done as asked, 130 interrupted.
    """
    from mtpx_cli.defaults import require_settings

    require_settings()
    _check(sampling, seed)
    person = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    smart = person and Environment.from_environ().term not in ("dumb", "unknown")
    if snapshot_min_tokens is not None:
        _set_floor(snapshot_min_tokens)
    kept = None if session is None else _kept(session, session_budget)
    if kept is not None and pack is None:
        pack = kept.pack or None
    found = _resolved(pack, quiet)
    if not quiet:
        note(_greeting(found, person), dim=True)
    choices = _choices(max_tokens, chosen, sampling, seed, thinking)
    look = _look(quiet)
    given = click.get_current_context().get_parameter_source("compile")
    default = given is click.core.ParameterSource.DEFAULT
    how = "background" if default and person else engine.compile
    options: dict[str, Any] = {"system": system, "person": person, "trace_text": trace_text}
    if kept is not None:
        kept.pack = _spelled(pack)
        options["kept"] = kept
        if not quiet:
            _show_kept(kept)
    if keep_traces:
        options["trace"] = _trace()

    if how == "now" and not quiet:
        note("compiling comes first, if it was not done: minutes, once", dim=True)

    def load() -> Model:
        return load_model(pack, replace(engine, compile=how), quiet=True)

    status = _typed(load, choices, look, options) if smart else _piped(load, choices, look, options)
    if keep_traces:
        _prune()
    click.get_current_context().exit(status)


def _check(sampling: dict[str, Any], seed: int | None) -> None:
    """Refuse what no model could sample with, before one is loaded."""
    from mtpx.api import SEEDS
    from mtpx.errors import SamplingError
    from mtpx.sampling import Sampling

    Sampling(**{name: value for name, value in sampling.items() if value is not None})
    if seed is not None and not 0 <= seed < SEEDS:
        raise SamplingError(f"seed must be from 0 to {SEEDS - 1}, got {seed}")


def _resolved(pack: str | None, quiet: bool) -> Pack:
    """The pack, fetched before the prompt is shown if it has to be."""
    from mtpx import packs

    with fetching(quiet=quiet) as report:
        return packs.resolve(packs.default_name() if pack is None else pack, progress=report)


def _set_floor(tokens: int) -> None:
    from mtpx.carry import set_snapshot_min_tokens

    if not set_snapshot_min_tokens(tokens):
        complain("snapshot-min-tokens was settled before and cannot change now; it stays as it was")


def _kept(name: str, budget: int | None) -> Kept:
    from mtpx.paths import sessions_dir
    from mtpx.sessions import BUDGET_MB, Kept

    most = BUDGET_MB if budget is None else budget
    return Kept(sessions_dir(), name, budget=most * 10**6, warn=complain)


def _spelled(pack: str | None) -> str:
    from mtpx import packs

    return packs.spelled(packs.default_name() if pack is None else pack)


def _show_kept(kept: Kept) -> None:
    turns = len(kept.turns)
    said = f"{turns} turn{'s' if turns > 1 else ''} so far" if turns else "new"
    note(f"session {kept.name}: {said}", dim=True)


def _greeting(pack: Pack, person: bool) -> str:
    if pack.contract is not None:
        head = f"with an MTP head (up to {pack.contract.draft_depth_limit} drafts a round)"
    else:
        head = "without an MTP head: it decodes plain"
    hint = ". /help, Ctrl-D leaves" if person else ""
    return f"{pack.name} {head}{hint}"


def _choices(
    max_tokens: int,
    chosen: Chosen,
    sampling: dict[str, Any],
    seed: int | None,
    thinking: str | None,
) -> Choices:
    from mtpx_cli.conversing import Choices

    return Choices(
        max_tokens=max_tokens,
        depth=chosen.depth,
        policy=chosen.policy,
        sampling={name: value for name, value in sampling.items() if value is not None},
        seed=seed,
        thinking=None if thinking is None else thinking == "on",
    )


def _look(quiet: bool) -> Look:
    from mtpx_cli.conversing import Look

    env = Environment.from_environ()
    flowing = is_terminal(sys.stdout) and env.term not in ("dumb", "unknown")
    return Look(flowing=flowing, styled=flowing and not env.no_color, quiet=quiet)


def _trace() -> Path:
    from mtpx.paths import traces_dir
    from mtpx.trace.files import new_trace_path

    return new_trace_path(traces_dir(), "chat")


def _prune() -> None:
    from mtpx.errors import TraceError
    from mtpx.paths import traces_dir
    from mtpx.trace.files import prune

    try:
        prune(traces_dir())
    except TraceError as error:
        complain(str(error))


def _piped(load: Callable[[], Model], choices: Choices, look: Look, options: dict[str, Any]) -> int:
    from mtpx_cli.conversing import Chat
    from mtpx_cli.lines import Lines

    chat = Chat(load, Lines(), choices, look, **options)
    try:
        return _converse(chat)
    finally:
        chat.close()


def _typed(load: Callable[[], Model], choices: Choices, look: Look, options: dict[str, Any]) -> int:
    from mtpx.paths import state_dir
    from mtpx_cli.commands import COMMANDS
    from mtpx_cli.conversing import Chat
    from mtpx_cli.live import silent_keys
    from mtpx_cli.typing_line import Typed

    reader = Typed(state_dir() / "chat-history.jsonl", COMMANDS, complain, styled=look.styled)
    loading = Loading(load, reader.interrupt)
    chat = Chat(loading.wait, reader, choices, look, **options)
    loading.start()
    with silent_keys():  # between prompts too: an Enter typed ahead must not become a line break
        status = _converse(chat)
    if not loading.over:
        # It cannot be stopped inside a library's import, and must not outlive the interpreter.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    chat.close()
    return status


class Loading:
    """Loads the model while the person types; `failed(error)` is called when that cannot be done."""

    def __init__(self, load: Callable[[], Model], failed: Callable[[Exception], None]) -> None:
        self._load, self._failed = load, failed
        self._model: Model | None = None
        self._error: Exception | None = None
        # Not the thread's own end: Python 3.11 takes a thread for dead whose join Ctrl-C interrupted.
        self._over = threading.Event()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def start(self) -> None:
        threading.Thread(target=self._run, name="loading", daemon=True).start()

    def _run(self) -> None:
        try:
            self._model = self._load()
        except Exception as error:
            self._error = error
            self._failed(error)
        finally:
            self._over.set()

    def wait(self) -> Model:
        """The model, when it is there. Raises what loading raised."""
        while not self._over.wait(0.1):  # an untimed wait would not hear Ctrl-C
            pass
        if self._error is not None:
            raise self._error
        assert self._model is not None
        return self._model


def _converse(chat: Chat) -> int:
    """Questions and answers until there are no more. → exit status."""
    from mtpx.errors import BackendError, MtpxError, PackError
    from mtpx_cli.commands import obey
    from mtpx_cli.conversing import Interrupted, Leave

    status = 0
    while True:
        try:
            line = chat.reader.read()
            if line is None:
                return status
            if not line.strip():
                continue
            if line.startswith("/"):
                obey(chat, line)
            else:
                chat.ask(line)
            chat.keep()
        except Leave:
            return status
        except Interrupted:
            return INTERRUPTED
        except KeyboardInterrupt:
            if not chat.person:
                return INTERRUPTED
            chat.say(
                "Ctrl-D leaves" if chat.loaded else "the model is still loading; Ctrl-D leaves"
            )
        except (BackendError, PackError) as error:
            if not chat.loaded:
                raise  # there is nobody to talk with
            status = _failed(chat, error)
        except MtpxError as error:
            status = _failed(chat, error)


def _failed(chat: Chat, error: Exception) -> int:
    """Say it. A person goes on and leaves with 0; a script is told by the exit status."""
    complain(str(error))
    return 0 if chat.person else 2
