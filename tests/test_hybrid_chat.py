"""A named conversation with the trained tiny hybrid on MLX, typed in a terminal: stopped, started again,
asked again, edited, interrupted, killed. Whatever happened before, an answer is the one a cold start gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typed_chat import PROMPT, Start, chats, leave

import mtpx

pexpect = pytest.importorskip("pexpect")
pytest.importorskip("mlx.core")

FOLDER = Path(__file__).parent / "fixtures" / "tiny-hybrid"
TEMPLATE = (
    "{% for m in messages %}{% if loop.first %}<s> {% endif %}{{ m['content'] }} . {% endfor %}"
)
TABLE = "k3 v7 ; k1 v0 ; k6 v12 ;"
PATIENCE_S = 180


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """The trained hybrid with a template: every message is a sentence of its language."""
    folder = Path(shutil.copytree(FOLDER, tmp_path / "hybrid"))
    told = {"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


@pytest.fixture
def start(pack: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts the chat named `trip`, in folders of its own."""
    options = ["--backend", "mlx", "--device", "cpu", "--temperature", "0", "--depth", "2"]
    options += ["--session", "trip", "--snapshot-min-tokens", "0", "--max-tokens", "24"]
    with chats(pack, tmp_path, options, patience_s=PATIENCE_S, columns=100) as start:
        yield start


def ask(child: Any, text: str) -> int:
    """How many tokens of its prompt were taken over."""
    child.send(text + "\r")
    child.expect(r"\d+ tokens?; [^\r]*?reused (\d+) of \d+|\d+ tokens?; [^\r]*")
    reused = int(child.match.group(1) or 0)
    child.expect_exact(PROMPT)
    return reused


def messages(tmp_path: Path) -> list[dict[str, str]]:
    path = tmp_path / "state" / "sessions" / "trip" / "conversation.json"
    found: list[dict[str, str]] = json.loads(path.read_text())["messages"]
    return found


def test_a_conversation_goes_on_right_whatever_happened(
    start: Start, pack: Path, tmp_path: Path
) -> None:
    child = start()
    assert ask(child, TABLE) == 0
    assert ask(child, "? k3") > 0
    assert leave(child) == 0

    child = start()
    assert ask(child, "? k6") > 0, "after a restart"
    assert ask(child, "/regen") > 0
    child.send("/edit\r")
    child.expect_exact(PROMPT)
    child.expect_exact("? k6")
    assert ask(child, "\x7fx\x7f1") > 0, "after an edit"

    # An answer interrupted: the turn is whatever was said by then, and what follows is right.
    child.send("/set max_tokens 700\rw4 w9\r")
    child.expect_exact("tok/s, depth")
    child.send("\x03")
    child.expect_exact("stopped")
    child.expect_exact(PROMPT)
    child.send("/set max_tokens 24\r")
    child.expect_exact(PROMPT)
    assert ask(child, "? k1") > 0, "after Ctrl-C"

    child.kill(9)
    child.expect(pexpect.EOF)
    child = start()
    assert ask(child, "? k3") > 0, "after kill -9"
    assert leave(child) == 0

    told = messages(tmp_path)
    assert [m["role"] for m in told] == ["user", "assistant"] * 6
    whole = [i for i in range(1, len(told), 2) if told[i - 1]["content"] != "w4 w9"]
    assert len(whole) == 5
    with mtpx.load(pack, backend="mlx", device="cpu") as model:
        for i in whole:
            cold = model.generate(told[:i], max_tokens=24, temperature=0.0, depth="off")
            assert told[i]["content"] == cold.text, f"turn {i // 2 + 1}"
