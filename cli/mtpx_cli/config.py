"""`mtpx config`: what is set, and where it was set."""

from __future__ import annotations

import click

from mtpx_cli.terminal import note, say


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")
@click.option("--path", "only_path", is_flag=True, help="Print where the settings file belongs.")
def config(as_json: bool, only_path: bool) -> None:
    """Show every setting, its value, and where it comes from.

    \b
    mtpx config
    MTPX_TEMPERATURE=0.7 mtpx config
    "${EDITOR:-vi}" "$(mtpx config --path)"

    A flag wins over the environment, the environment over the file, the file over the default. In the
    file (TOML), a setting is a line:

    \b
    temperature = 0.7
    depth = "off"
    system = "You answer in one sentence."
    """
    from mtpx import paths, settings

    path = paths.settings_file()
    if only_path:
        say(str(path))
        return
    found = settings.load()
    if as_json:
        import msgspec

        rows = {
            name: {"value": found[name].value, "source": found[name].source}
            for name in settings.DEFAULTS
            if name in found
        }
        say(msgspec.json.encode({"file": str(path), "set": rows}).decode())
        return
    from mtpx_cli.draw import clean

    shown = {
        name: clean(found[name].value) if name in found else default
        for name, default in settings.DEFAULTS.items()
    }
    first = max(map(len, shown))
    width = max(min(40, len(value)) for value in shown.values())
    for name, value in shown.items():
        source = clean(found[name].source) if name in found else "default"
        say(f"{name:{first}}  {value:{width}}  {source}")
    if not path.exists():
        note(f"there is no settings file yet; it would be {path}", dim=True)
    for name in settings.unknown_variables():
        note(f"{name} is in the environment, and no setting is called so", dim=True)
