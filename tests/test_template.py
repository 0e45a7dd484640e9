"""Chat templates, rendered as transformers renders them, and kept in their sandbox."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpx.errors import PackError, PromptError
from mtpx.text import ChatTemplate

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
ALTERNATING = """{{ bos_token }}
{%- for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('roles must alternate, got ' ~ message['role']) }}
    {% endif %}
    {%- if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]
    {%- else %}{{ message['content'] }}{{ eos_token }}{% endif %}
{%- endfor %}
"""
TOOLS = """
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- if tools %}{% for tool in tools %}
{{ tool | tojson }}
{{ tool | tojson(indent=2) }}
{%- endfor %}{% endif %}
{%- for message in messages[::-1] %}
    {%- if loop.index0 > 5 %}{% break %}{% endif %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- macro tag(name, body='') %}<{{ name }}>{{ body | replace('a', 'A') }}</{{ name }}>{% endmacro %}
    {{- tag(message.role, message.content) ~ loop.last ~ ns.last }}
    {%- if message.role == 'assistant' %}{% generation %}{{ message.content.split(' ') | join('_') }}
    {% endgeneration %}{% endif %}
{%- endfor %}
{{ extra | default('none') }} {{ messages | map(attribute='role') | list | length }}
"""
TEMPLATES = {"chatml": CHATML, "alternating": ALTERNATING, "tools": TOOLS}
TALK = [
    {"role": "user", "content": "  Was <b>ist</b> 'das' & \"jenes\"? 日本 😀\n"},
    {"role": "assistant", "content": "a plain answer"},
    {"role": "user", "content": "more {{ 7 * 7 }} {% raw %}"},
]
TEXTS = {"bos_token": "<s>", "eos_token": "</s>"}


def as_transformers_does(source: str, messages: list[dict[str, Any]], **names: Any) -> str:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    tools = names.pop("tools", None)
    rendered, _ = utils.render_jinja_template(
        [messages], chat_template=source, tools=tools, **names
    )
    return str(rendered[0])


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_a_conversation_renders_as_transformers_renders_it(source: str, prompt: bool) -> None:
    names = {"tools": [{"name": "f", "parameters": {"x": "<é>"}}], "extra": "more"}
    expected = as_transformers_does(source, TALK, add_generation_prompt=prompt, **TEXTS, **names)
    assert ChatTemplate(source, TEXTS).render(TALK, prompt, **names) == expected


@given(
    contents=st.lists(st.text(max_size=20), min_size=1, max_size=5),
    template=st.sampled_from(sorted(TEMPLATES)),
)
def test_any_text_renders_as_transformers_renders_it(contents: list[str], template: str) -> None:
    roles = ["user", "assistant"]
    talk = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    expected = as_transformers_does(TEMPLATES[template], talk, add_generation_prompt=True, **TEXTS)
    assert ChatTemplate(TEMPLATES[template], TEXTS).render(talk) == expected


@pytest.mark.model
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("talk", [TALK, [{"role": "system", "content": "Be brief."}, *TALK]])
def test_the_embedded_models_template_renders_as_transformers_renders_it(
    embedded_weights: Path, talk: list[dict[str, str]], prompt: bool
) -> None:
    from mtpx.checkpoint.gguf import read_gguf

    source = read_gguf(embedded_weights).metadata["tokenizer.chat_template"]
    expected = as_transformers_does(source, talk, add_generation_prompt=prompt)
    assert ChatTemplate(source).render(talk, prompt) == expected


def test_the_date_is_todays() -> None:
    said = ChatTemplate("{{ strftime_now('%Y') }}").render(TALK)
    assert said in {str(datetime.now().year + d) for d in (-1, 0)}


def test_rendering_does_not_change_the_messages() -> None:
    talk = [{"role": "user", "content": "x"}]
    with pytest.raises(PackError):
        ChatTemplate("{{ messages[0].update(role='y') }}").render(talk)
    assert talk == [{"role": "user", "content": "x"}]


def test_a_template_that_refuses_the_messages_is_quoted() -> None:
    with pytest.raises(
        PromptError, match="refuses the messages: roles must alternate, got assistant"
    ):
        ChatTemplate(ALTERNATING).render([{"role": "assistant", "content": "x"}])


@pytest.mark.parametrize(
    "source",
    ["{{ messages[0].absent.deep }}", "{{ 1 / 0 }}", "{{ messages + 1 }}", "{{ 'a' | int + 'b' }}"],
)
def test_a_template_that_fails_on_the_messages_says_so(source: str) -> None:
    with pytest.raises(PromptError, match="fails on these messages"):
        ChatTemplate(source).render(TALK)


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ x",
        "{% nothing %}",
        "{{ x | nofilter }}",
        "{% for x in y %}",
        "{{" + "(" * 5000,
        "{{ " + "-" * 50_000 + "1 }}",
        "{% if x %}" * 200 + "{% endif %}" * 200,
    ],
    ids=lambda source: source[:20],
)
def test_what_is_no_template_is_refused(source: str) -> None:
    with pytest.raises(PackError, match="cannot be used"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "messages",
    [[], ["hi"], [{"content": "no role"}], [{"role": 3, "content": "x"}]],
)
def test_messages_that_are_none_are_refused(messages: Any) -> None:
    with pytest.raises(PromptError, match="message"):
        ChatTemplate(CHATML).render(messages)


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ raise_exception.__globals__['os'] }}",
    "{{ self.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ ''|attr('__class__') }}{{ (''|attr('__class__')).mro() }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ '%s' % messages }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_an_escape_from_the_sandbox_is_stopped(source: str) -> None:
    with pytest.raises((PackError, PromptError)):
        ChatTemplate(source).render(TALK)


TEN = "{% set r = range(100000) %}"
BOMBS = {
    "a loop in a loop": TEN + "{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "a long range": "{% for a in range(10 ** 12) %}{% endfor %}",
    "output without end": TEN + "{% for a in r %}{{ 'x' * 10000 }}{% endfor %}",
    "a literal printed without end": TEN + "{% for a in r %}" + "x" * 1000 + "{% endfor %}",
    "a repeated text": "{{ 'x' * 10 ** 10 }}",
    "a repeated list": "{{ ([1] * 10 ** 10) | length }}",
    "a doubled text": "{% set ns = namespace(s='xxxxxxxx') %}{% for a in range(99) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "an added text": "{% set ns = namespace(s='xxxxxxxx') %}{% for a in range(99) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "a block set to itself": "{% set ns = namespace(s='xxxxxxxx') %}{% for a in range(99) %}"
    "{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}{% endfor %}",
    "a huge power": "{{ 10 ** (10 ** 10) }}",
    "a growing number": "{% set ns = namespace(n=3) %}{% for a in range(99999) %}"
    "{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "a padded text": "{{ 'x'.ljust(10 ** 10) }}",
    "a centred text": "{{ 'x' | center(10 ** 10) }}",
    "a formatted number": "{{ '%010000000000d' % 1 }}",
    "a format method": "{{ '{:>10000000000}'.format(1) }}",
    "a joined text": TEN + "{{ r | join('x' * 10000) | length }}",
    "a join method": TEN + "{{ ('x' * 10000).join(r | map('string')) | length }}",
    "a replaced text": "{{ ('x' * 100000) | replace('x', 'y' * 10000) | length }}",
    "a replace method": "{{ ('x' * 100000).replace('x', 'y' * 10000) | length }}",
    "an indented text": "{{ ('\\n' * 100000) | indent(10 ** 6) | length }}",
    "indented JSON": "{{ messages | tojson(indent=10 ** 9) | length }}",
    "bytes": "{{ (1).to_bytes(10 ** 10, 'big') | length }}",
    "encoded text": "{{ ('x'.encode() * 10 ** 10) | length }}",
    "a macro calling itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macros doubling": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a loop calling itself": TEN + "{% for a in [r] recursive %}{{ loop([r, r]) }}{% endfor %}",
    "slices": "{{ [] | slice(10 ** 10) | list }}",
    "batches": "{{ [1] | batch(10 ** 10, 'x') | list }}",
    "rounding": "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    "lorem ipsum": "{{ lipsum(n=10 ** 9) }}",
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS.keys())
def test_a_template_that_would_never_end_or_fill_memory_is_stopped(source: str) -> None:
    with pytest.raises((PackError, PromptError)):
        ChatTemplate(source).render(TALK)


def test_a_long_conversation_is_no_bomb() -> None:
    talk = [{"role": "user", "content": "word " * 200} for _ in range(2000)]
    assert len(ChatTemplate(CHATML).render(talk)) > 2_000_000
