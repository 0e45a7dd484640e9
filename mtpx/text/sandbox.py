"""Where chat templates run: jinja2's immutable sandbox, with bounds on work and size.

A template comes with the weights and is somebody else's program. jinja2 keeps it from Python's
internals; what it does not bound is how long it runs and how large its strings grow. So every turn of
a loop and every call is counted, everything printed too, and what multiplies text is measured before
it happens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

STEPS = 200_000
"""Loop iterations and calls of one rendering. A long conversation takes a few thousand."""

SIZE = 16_000_000
"""Characters or items of any one value, and characters printed in all. Far above the longest
context's text."""

INTEGER_BITS = 4096
"""Length of a product or power; templates count messages."""

FILTERS_KEPT = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape",
    "first", "float", "groupby", "int", "items", "last", "length", "list", "lower", "map",
    "max", "min", "reject", "rejectattr", "reverse", "safe", "select",
    "selectattr", "sort", "string", "sum", "title", "trim", "unique", "upper", "wordcount",
)  # fmt: skip
"""jinja's filters without a width or a count in them; the rest would be ways around `SIZE`."""


@dataclass(slots=True)
class _Budget:
    steps: int = STEPS
    printed: int = SIZE


_BUDGET: ContextVar[_Budget] = ContextVar("budget")


class Refusal(TemplateError):
    """The template called `raise_exception`: it does not take these messages."""


# `pass_context` on what counts keeps jinja from folding it into a constant when it compiles.


@contextmanager
def limits() -> Iterator[None]:
    """A fresh budget of steps for one rendering."""
    token = _BUDGET.set(_Budget())
    try:
        yield
    finally:
        _BUDGET.reset(token)


def _step() -> None:
    budget = _BUDGET.get()
    budget.steps -= 1
    if budget.steps < 0:
        raise SecurityError(f"it takes more than {STEPS:,} steps")


def _fits(size: int) -> None:
    if size > SIZE:
        raise SecurityError(f"it builds a value of more than {SIZE:,} characters or items")


@pass_context
def _printed(_: Context, value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    budget = _BUDGET.get()
    budget.printed -= len(text)
    if budget.printed < 0:
        raise SecurityError(f"it prints more than {SIZE:,} characters")
    return text


def _measured(value: Any) -> Any:
    if isinstance(value, str | bytes | list | tuple | dict):
        _fits(len(value))
    return value


@pass_context
def _counted(_: Context, items: Any) -> list[Any]:
    """The items of a loop, each a step."""
    return _stepped(items)


def _stepped(items: Any) -> list[Any]:
    out = []
    for item in items:
        _step()
        out.append(item)
    return out


def _joined_size(separator: str, items: list[Any]) -> None:
    _fits(sum(len(str(item)) for item in items) + len(separator) * len(items))


def _replaced_size(text: str, old: str, new: str) -> None:
    _fits(len(text) + text.count(old) * len(new))


def _join(value: Any, d: str = "", attribute: str | int | None = None) -> str:
    items = list(value)
    if attribute is not None:
        items = [item[attribute] for item in items]
    _joined_size(str(d), items)
    return str(d).join(map(str, items))


def _replace(s: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(s), str(old), str(new)
    _replaced_size(text, old, new)
    return text.replace(old, new, -1 if count is None else count)


def _indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = str(s)
    step = len(width) if isinstance(width, str) else max(0, width)
    _fits(len(text) + (text.count("\n") + 1) * step)
    return FILTERS["indent"](text, width, first, blank)  # type: ignore[no-any-return]


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as people write it: jinja's own filter escapes for HTML, which models never saw."""
    if isinstance(indent, int):
        _fits(indent * 2**20)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise Refusal(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; it prints
    as if the marks were not there."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment; `load` makes a template in it."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    # Ways to pad or format to any width at once; templates have no use for them.
    _PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        )
        self.filters = {name: FILTERS[name] for name in FILTERS_KEPT} | {
            "tojson": _tojson,
            "join": _join,
            "replace": _replace,
            "indent": _indent,
            "_counted": _counted,
            "_measured": _measured,
            "_printed": _printed,
        }
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        del self.globals["lipsum"]

    def load(self, source: str) -> Template:
        """Compile `source` with every loop counted, everything printed or assigned measured."""
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = self._through("_counted", loop.iter)
        for assign in list(tree.find_all(nodes.Assign)):
            assign.node = self._through("_measured", assign.node)
        for keyword in list(tree.find_all(nodes.Keyword)):
            keyword.value = self._through("_measured", keyword.value)
        for output in list(tree.find_all(nodes.Output)):
            output.nodes = [
                self._through(
                    "_printed",
                    nodes.Const(n.data, lineno=n.lineno)
                    if isinstance(n, nodes.TemplateData)
                    else n,
                )
                for n in output.nodes
            ]
        return Template.from_code(self, self.compile(tree), self.make_globals(None))

    def _through(self, name: str, value: Any) -> nodes.Filter:
        return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno, environment=self)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        _step()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name == "join" and args:
            args = (list(args[0]), *args[1:])
            _joined_size(owner, args[0])
        elif isinstance(owner, str) and name == "replace" and len(args) > 1:
            _replaced_size(owner, str(args[0]), str(args[1]))
        elif isinstance(__obj, LoopContext) and args:
            args = (_stepped(args[0]), *args[1:])
        return _measured(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str | bytes):
            raise SecurityError("it formats text with %")
        whole = isinstance(left, int) and isinstance(right, int)
        if operator == "*":
            if whole and left.bit_length() + right.bit_length() > INTEGER_BITS:
                raise SecurityError(f"it multiplies to more than {INTEGER_BITS:,} bits")
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | bytes | list | tuple) and isinstance(times, int):
                    _fits(len(value) * times)
        elif operator == "**" and whole and left.bit_length() * right > INTEGER_BITS:
            raise SecurityError(f"it multiplies to more than {INTEGER_BITS:,} bits")
        return _measured(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Any:
        if super().wrap_str_format(value) is not None:
            raise SecurityError("it formats text with str.format")
        return None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, int | float | bytes) or (isinstance(obj, str) and attr in self._PADDING):
            return False
        return super().is_safe_attribute(obj, attr, value)
