"""The field tables of docs/trace.md, made from the types they describe.

`python -m mtpx.trace.docs` prints them; `python -m mtpx.trace.docs docs/trace.md` rewrites the part of
that file between the two markers. A test fails when the file is stale.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from mtpx import carry
from mtpx.bench import beside, intervals, verdict
from mtpx.errors import TraceError
from mtpx.sampling import Sampling
from mtpx.trace import (
    acceptance,
    anomalies,
    beliefs,
    choices,
    context,
    hindsight,
    reliability,
    requests,
    rounds,
    schema,
    spent,
    summary,
    timeline,
)

BEGIN = "<!-- begin: made by python -m mtpx.trace.docs -->"
END = "<!-- end: made by python -m mtpx.trace.docs -->"

RECORDS: tuple[type[msgspec.Struct], ...] = (
    schema.RunRecord,
    schema.RequestRecord,
    *get_args(carry.CarryOutcome),
    schema.Round,
    schema.SlotRound,
    schema.Route,
    schema.Decision,
    schema.BeliefRecord,
    schema.EndRecord,
    Sampling,
)
RESULTS: tuple[type[msgspec.Struct], ...] = (
    summary.Summary,
    summary.FileSummary,
    summary.RunSummary,
    verdict.Verdict,
    verdict.Part,
    beside.Difference,
    verdict.NullControl,
    intervals.Effect,
    summary.BlockRatio,
    requests.ArmTotals,
    requests.RequestTotals,
    rounds.RouteCounts,
    rounds.RoundsRow,
    rounds.Spread,
    rounds.BreakEven,
    acceptance.PositionAcceptance,
    acceptance.Proportion,
    reliability.ReliabilityRow,
    timeline.Stretch,
    beliefs.BeliefPoint,
    choices.Choice,
    choices.Unsampled,
    hindsight.Hindsight,
    hindsight.StaticDepth,
    hindsight.ArmRegret,
    spent.TimePart,
    context.ContextRow,
    timeline.Drift,
    anomalies.Anomaly,
)


def tables() -> str:
    """Every record of a trace, then everything in the JSON report, as Markdown."""
    major, minor = schema.SCHEMA
    return "\n\n".join(
        [
            f"## Records (schema {major}.{minor})",
            *(_table(struct) for struct in RECORDS),
            "## The JSON report",
            *(_table(struct) for struct in RESULTS),
        ]
    )


def refreshed(page: str) -> str:
    """`page` with the part between the markers made anew. Raises `TraceError` without them."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise TraceError(f"the page needs a line {BEGIN} and, after it, a line {END}")
    return f"{head}{BEGIN}\n\n{tables()}\n\n{END}{tail}"


def _table(struct: type[msgspec.Struct]) -> str:
    config = struct.__struct_config__
    tag = f", `{config.tag_field}`: `{config.tag}`" if config.tag else ""
    hints = get_type_hints(struct)
    lines = [f"### {struct.__name__}{tag}", "", _prose(struct), "", "| field | type | default |"]
    lines.append("|---|---|---|")
    for field in msgspec.structs.fields(struct):
        lines.append(f"| `{field.name}` | {_name(hints[field.name])} | {_default(field)} |")
    return "\n".join(lines)


def _prose(struct: type[msgspec.Struct]) -> str:
    return inspect.getdoc(struct) or ""


def _name(hint: Any) -> str:
    """A type in the words of JSON."""
    words: dict[Any, str] = {
        str: "string",
        int: "integer",
        float: "number",
        bool: "boolean",
        type(None): "null",
        Any: "anything",
    }
    if hint in words:
        return words[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list:
        return f"array of {_name(arguments[0])}"
    if origin is tuple:
        return "array of " + ", ".join(_name(a) for a in arguments)
    if origin is dict:
        return f"object of {_name(arguments[1])}"
    if origin is Literal:
        return " or ".join(f'"{a}"' for a in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_name(a) for a in arguments)
    return f"[{hint.__name__}](#{_anchor(hint)})"


def _anchor(struct: type[msgspec.Struct]) -> str:
    """The heading's anchor as Markdown renderers make it: small letters, hyphens, no punctuation."""
    config = struct.__struct_config__
    if not config.tag:
        return str(struct.__name__.lower())
    return f"{struct.__name__} {config.tag_field} {config.tag}".lower().replace(" ", "-")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        return "always there"
    if value is None:
        return "null"
    return f"`{msgspec.json.encode(value).decode()}`"


def main(arguments: Sequence[str]) -> int:
    """Print the tables, or refresh the page that is named."""
    if not arguments:
        print(tables())
        return 0
    page = Path(arguments[0])
    try:
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
    except (OSError, TraceError) as error:
        print(f"{page} was not refreshed: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
