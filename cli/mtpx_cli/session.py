"""`mtpx session`: conversations that are kept under a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mtpx_cli.terminal import note, say

if TYPE_CHECKING:
    from mtpx.sessions import SessionInfo

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")


@click.group()
def session() -> None:
    """List, show and drop kept conversations.

    \b
    mtpx chat --session holiday
    mtpx session list
    mtpx session show holiday
    """


@session.command("list")
@_json
def list_(as_json: bool) -> None:
    """List kept conversations, the one used last first.

    \b
    mtpx session list
    """
    from mtpx import sessions
    from mtpx.paths import sessions_dir

    found = sessions.sessions(sessions_dir())
    if as_json:
        _say_json(found)
        return
    if not found:
        note("no conversation is kept yet: mtpx chat --session NAME keeps one", dim=True)
        return
    from mtpx_cli.draw import clean, console, table

    rows = [
        [clean(i.name), "–" if i.error else str(i.turns), _size(i), _when(i), clean(i.pack)]
        for i in found
    ]
    console().print(table(["session", "turns", "state", "used", "pack"], rows, trailing=1))
    for i in found:
        if i.error:
            note(f"{clean(i.name)}: {clean(i.error)}")


@session.command()
@click.argument("name")
@_json
def show(name: str, as_json: bool) -> None:
    """Show what was said in session NAME.

    \b
    mtpx session show holiday
    mtpx session show holiday --json
    """
    from mtpx import sessions, transcript
    from mtpx.errors import SessionError
    from mtpx.paths import sessions_dir

    folder = sessions_dir()
    found = sessions.info(folder, name)
    if found.error:
        raise SessionError(found.error)
    path = folder / name / sessions.CONVERSATION
    if as_json:
        _say_json({**_facts(found), "messages": transcript.read(path).messages})
        return
    from mtpx_cli.draw import clean

    system, turns = transcript.load(path)
    note(f"{clean(found.pack)}; {len(turns)} turns, state {_size(found)}, used {_when(found)}")
    if system:
        say(f"system: {clean(system)}\n")
    for turn in turns:
        say(f">>> {clean(turn.question)}\n{_lines(turn.answer)}\n")


@session.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--quiet", "-q", is_flag=True, help="No remarks on stderr.")
def drop(names: tuple[str, ...], quiet: bool) -> None:
    """Delete sessions: what was said and what was computed.

    \b
    mtpx session drop holiday
    """
    from mtpx import sessions
    from mtpx.paths import sessions_dir

    folder = sessions_dir()
    for name in names:
        sessions.info(folder, name)  # all of them are there, or none is deleted
    for name in names:
        sessions.drop(folder, name)
        if not quiet:
            note(f"dropped {name}", dim=True)


def _facts(found: SessionInfo) -> dict[str, Any]:
    import msgspec

    facts: dict[str, Any] = msgspec.to_builtins(found)
    return facts


def _say_json(value: Any) -> None:
    import msgspec

    say(msgspec.json.encode(value).decode())


def _size(found: SessionInfo) -> str:
    return f"{found.state_bytes / 1e6:,.1f} MB" if found.state_bytes else "none"


def _when(found: SessionInfo) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(found.used).strftime("%Y-%m-%d %H:%M")


def _lines(text: str) -> str:
    """Text without escape sequences, its line breaks kept."""
    from mtpx_cli.draw import clean

    return "\n".join(clean(line) for line in text.splitlines())
