"""The command `mtpx`: subcommands are imported when they are used, errors are one line."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from io import StringIO
from pathlib import Path

import click

from mtpx_cli.terminal import INTERRUPTED, READER_GONE, complain, is_terminal, lenient

COMMANDS = {
    "chat": ("mtpx_cli.chat", "chat", "Talk with a model."),
    "run": ("mtpx_cli.run", "run", "Answer one prompt; for scripts."),
    "bench": ("mtpx_cli.bench", "bench", "Measure whether MTP pays here."),
    "warm": ("mtpx_cli.warm", "warm", "Compile a model's step once, for this machine."),
    "pack": ("mtpx_cli.pack", "pack", "List, fetch, check and remove models."),
    "doctor": ("mtpx_cli.doctor", "doctor", "What runs here, and if not, why."),
    "config": ("mtpx_cli.config", "config", "Show settings and where they come from."),
    "completion": ("mtpx_cli.completion", "completion", "Print a shell's completion script."),
    "session": ("mtpx_cli.session", "session", "List, show and drop kept conversations."),
    "trace": ("mtpx_cli.trace", "trace", "Read what runs recorded."),
    "policy": ("mtpx_cli.policy", "policy", "Compare depth policies; see what was learned."),
    "measure": ("mtpx_cli.measure", "measure", "Measure this machine's cost table."),
    "head": ("mtpx_cli.head", "head", "Train an MTP head for a model that has none."),
    "plan": ("mtpx_cli.plan", "plan", "Show which depth a cost table calls for, and why."),
}
"""Name → module, attribute, help line. The line stands here so that `mtpx --help` imports nothing."""


class ReaderGone(Exception):
    """Whoever read stdout has left (`| head`)."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            # Libraries that look for their files from here end the process in words of their own.
            Path.cwd()
        except OSError:
            raise click.ClickException(
                "the folder this was started in is gone; go to another one (cd ~) and try again"
            ) from None
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click would leave with status 1, which means something else after `bench --check`.
            raise ReaderGone from error
        except KeyboardInterrupt:
            if is_terminal(sys.stderr):
                click.echo(err=True)  # what the shell says next begins on a line of its own
            ctx.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(COMMANDS)}."
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib import metadata

        click.echo(f"mtpx {metadata.version('mtpx-lm')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run language models that carry multi-token-prediction heads, and measure whether it pays.

    \b
    mtpx chat                            talk with the embedded model
    mtpx run "Why is the sky blue?"      one answer, for scripts
    mtpx bench --plain-baseline          does MTP pay here? (about two minutes)
    mtpx trace report                    what the last bench recorded
    """
    from mtpx_cli.defaults import use

    use(ctx)


def main() -> None:
    """The entry point. Exit status: 0 done, 2 cannot be done as asked, 130 interrupted, 141 the reader
    of stdout went away; `mtpx bench --check` has more."""
    if sys.stdout is None:
        # The next file to be opened would take its place, and be written to.
        complain("stdout is closed, so an answer would be lost: send it to a file or to /dev/null")
        sys.exit(2)
    lenient()
    try:
        status = cli.main(prog_name="mtpx", standalone_mode=False)
    except click.ClickException as error:
        from mtpx.errors import shortened

        said = StringIO()
        error.show(said)
        with suppress(OSError):  # nobody reads stderr; the status still tells
            click.echo(shortened(said.getvalue()), err=True, nl=False)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except ReaderGone:
        sys.exit(READER_GONE)
    except OSError as error:
        # A full disk under stdout, a folder nobody may look into: sentences, not bugs.
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{error.strerror or error}")
        sys.exit(2)
    except Exception as error:
        from mtpx.errors import MtpxError

        if not isinstance(error, MtpxError):
            raise
        complain(str(error))
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)
