"""What can be typed after a slash in a chat."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from mtpx_cli.conversing import Chat, Leave, turn_line
from mtpx_cli.run import figure, speculation

if TYPE_CHECKING:
    from mtpx.api import Depth
    from mtpx.session import Turn


@dataclass(frozen=True, slots=True)
class Command:
    """`run(chat, argument)` may raise `MtpxError`, and `Leave` to end the chat."""

    usage: str
    help: str
    run: Callable[[Chat, str], None]


def obey(chat: Chat, line: str) -> None:
    """Do what a line that begins with a slash says. Raises `MtpxError` when nobody knows how."""
    from mtpx.errors import PromptError

    name, _, argument = line.strip().partition(" ")
    if "\n" in name:
        name, argument = line.strip().split("\n", 1)
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, 1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "/help lists them"
        raise PromptError(
            f"there is no command {_short(name)}; {hint} (to send it to the model, type a space first)"
        )
    command.run(chat, argument.strip())


def _help(chat: Chat, argument: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"{c.usage:{width}}  {c.help}" for c in COMMANDS.values()]
    lines += [
        "",
        "Enter sends, Alt-Enter begins a new line, Tab completes a command.",
        "Ctrl-C stops the answer, Ctrl-D leaves.",
    ]
    click.echo("\n".join(lines))


def _reset(chat: Chat, argument: str) -> None:
    chat.session.reset()
    chat.say("the conversation begins anew")


def _undo(chat: Chat, argument: str) -> None:
    turn = chat.session.undo()
    chat.say(f"taken back: {_short(turn.question)}")


def _regen(chat: Chat, argument: str) -> None:
    turns = _turns(chat)
    if chat.last is not None and chat.last.sampling.greedy and chat.choices.seed is None:
        chat.say("the temperature is 0: the answer can only be the same")
    chat.ask(turns[-1].question, replace=True)


def _edit(chat: Chat, argument: str) -> None:
    turns = _turns(chat)
    text: str | None = argument
    if not argument:
        text = chat.reader.read(turns[-1].question)
    if text and text.strip():
        chat.ask(text, replace=True)


def _system(chat: Chat, argument: str) -> None:
    if argument:
        chat.session.system = "" if argument == "off" else argument
    system = chat.session.system
    chat.say(f"system prompt: {system}" if system else "no system prompt but the model's own")


def _stats(chat: Chat, argument: str) -> None:
    session, last = chat.session, chat.last
    info = session.model.engine.info
    head = f"up to {info.head_depth_limit} drafts a round" if info.head_depth_limit else "none"
    lines = [
        f"model     {info.pack}, {info.quantisation}, decoded in {info.dtype}",
        f"runs on   {info.backend}: {info.device}",
        f"MTP head  {head}",
        f"context   {session.used} of {info.context_limit} tokens",
        f"turns     {len(session.turns)}"
        + (f", the oldest {session.left} have left the context" if session.left else ""),
        f"this chat {chat.answers} answers, {chat.tokens} tokens",
    ]
    if last is not None:
        lines.append(f"last      {turn_line(last, info.context_limit)}")
    lines.append(f"energy    {_energy(chat)}")
    lines.append(f"trace     {chat.trace if chat.trace else 'none'}")
    click.echo("\n".join(lines))


def _energy(chat: Chat) -> str:
    """Joules of the last answer's tokens and what they cover, or a dash and the reason."""
    from mtpx.energy import NoMeter

    meter = chat.session.model.meter
    if isinstance(meter, NoMeter):
        return f"– ({meter.reason})"
    joules = chat.last.token_energy_j if chat.last is not None else None
    said = "–" if joules is None else figure(joules)
    return f"{said} J/token in the last answer ({meter.rail})"


def _depth(chat: Chat, argument: str) -> None:
    choices = chat.choices
    if argument:
        choices.depth = _chosen_depth(chat, argument)
        if argument == "auto" and choices.policy is not None and choices.policy.name == "fixed":
            choices.policy = None  # nothing would be left to choose
    policy = "adaptive" if choices.policy is None else choices.policy.name
    said = str(choices.depth)
    if choices.depth in (None, "auto"):
        said = f"auto: the policy {policy} chooses"
        if choices.policy is not None and choices.policy.name == "fixed":
            told = choices.policy.depth
            said = "as the pack recommends, else 1" if told is None else str(told)
    did = f"; the last answer: {speculation(chat.last)}" if chat.last and not argument else ""
    chat.say(f"depth {said}{did}")


def _chosen_depth(chat: Chat, argument: str) -> Depth:
    from mtpx.errors import PolicyError

    if argument in ("off", "0"):
        return "off"
    if argument != "auto" and not argument.isdecimal():
        raise PolicyError(
            f"depth is a number of drafts a round, off or auto; got {_short(argument)}"
        )
    limit = chat.session.model.engine.info.head_depth_limit
    if limit == 0:
        raise PolicyError("this model has no MTP head, so nothing can be drafted")
    if argument == "auto":
        return "auto"
    if int(argument) > limit:
        raise PolicyError(f"depth {argument} is beyond this head's limit of {limit} drafts a round")
    return int(argument)


def _set(chat: Chat, argument: str) -> None:
    from mtpx import settings
    from mtpx.errors import SettingsError

    name, _, value = argument.replace("=", " ", 1).partition(" ")
    name = name.replace("-", "_")
    settable = (*settings.SAMPLING, "max_tokens", "thinking", "seed")
    if name and name not in settable:
        near = difflib.get_close_matches(name, settable, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(settable)}"
        raise SettingsError(f"{_short(name)} cannot be set here; {hint}")
    if name and not value.strip():
        raise SettingsError(f"say what {name} is to be: /set {name} VALUE")
    choices = chat.choices
    if name == "seed":
        from mtpx.api import SEEDS

        if not value.strip().isdecimal() or int(value) >= SEEDS:
            raise SettingsError(f"a seed is a number from 0 to {SEEDS - 1}")
        choices.seed = int(value)
    elif name:
        found = settings.check(name, value.strip(), "/set")
        if name == "max_tokens":
            choices.max_tokens = found
        elif name == "thinking":
            if not chat.session.model.thinks:
                raise SettingsError("this model's template has no switch for thinking")
            choices.thinking = found == "on"
        else:
            choices.sampling[name] = found
    chat.say(_set_now(chat))


def _set_now(chat: Chat) -> str:
    choices, manifest = chat.choices, chat.session.model.pack.manifest
    said = [f"max_tokens {choices.max_tokens}"]
    said += [f"{name} {value:g}" for name, value in choices.sampling.items()]
    if choices.seed is not None:
        said.append(f"seed {choices.seed}")
    if choices.thinking is not None:
        said.append(f"thinking {'on' if choices.thinking else 'off'}")
    own = "" if manifest is None else f"temperature {manifest.sampling.temperature:g}"
    if own and "temperature" not in choices.sampling:
        said.append(f"{own} (the pack's)")
    return ", ".join(said)


def _counted(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"


def _save(chat: Chat, argument: str) -> None:
    from mtpx import transcript

    session = chat.session
    path = transcript.save(
        _file(argument, "/save"), session.system, session.turns, pack=session.model.pack.name
    )
    chat.say(f"saved {_counted(len(session.turns))} to {path}")


def _load(chat: Chat, argument: str) -> None:
    from mtpx import transcript

    system, turns = transcript.load(_file(argument, "/load"))
    chat.session.restart(system, turns)
    chat.show(turns[-1:])
    chat.say(f"loaded {_counted(len(turns))}")


def _quit(chat: Chat, argument: str) -> None:
    raise Leave


def _turns(chat: Chat) -> list[Turn]:
    from mtpx.errors import PromptError

    if not chat.session.turns:
        raise PromptError("there is no question yet to ask again")
    return chat.session.turns


def _file(argument: str, name: str) -> str:
    from mtpx.errors import PromptError

    if not argument:
        raise PromptError(f"say which file: {name} FILE")
    return argument


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


COMMANDS = {
    command.usage.split()[0]: command
    for command in (
        Command("/help", "this list", _help),
        Command("/reset", "forget the conversation, keep the system prompt", _reset),
        Command("/undo", "take the last question and its answer back", _undo),
        Command("/regen", "answer the last question once more", _regen),
        Command("/edit [TEXT]", "change the last question and ask it again", _edit),
        Command("/system [TEXT|off]", "show or set the system prompt", _system),
        Command("/stats", "what runs, and how well", _stats),
        Command(
            "/depth [N|off|auto]",
            "drafts a round; off decodes plain, auto lets the policy choose",
            _depth,
        ),
        Command("/set [NAME VALUE]", "temperature 0.7, top_p, max_tokens, seed, ...", _set),
        Command("/save FILE", "write the conversation as JSON", _save),
        Command("/load FILE", "go on with a conversation from a file", _load),
        Command("/quit", "leave, as Ctrl-D does", _quit),
    )
}
