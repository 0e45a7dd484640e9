"""`mtpx completion`: a shell's completion script."""

from __future__ import annotations

import click

from mtpx_cli.terminal import say


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete commands, flags and packs.

    \b
    bash   mtpx completion bash >> ~/.bashrc
    zsh    mtpx completion zsh >> ~/.zshrc
    fish   mtpx completion fish > ~/.config/fish/completions/mtpx.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root()
    script = kind(root.command, {}, "mtpx", "_MTPX_COMPLETE")
    say(script.source_template % script.source_vars())
