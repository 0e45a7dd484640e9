"""`mtpx bench --turns`: four ways through the same conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import Command

from mtpx.bench.turns import ARMS, BLIND, COLD, PLAIN, WARM, conversations
from mtpx.errors import BenchError
from mtpx.trace.reader import read
from mtpx.trace.schema import RequestRecord, RunRecord


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "q.txt"
    path.write_text("".join(f"What is {n} and why is it so?\n" for n in "abcdef"))
    return path


@pytest.fixture
def bench(mtpx: Command, tiny_pack: Path, questions: Path) -> Any:
    def bench(*options: str) -> Any:
        always = (
            "--prompt-file",
            str(questions),
            "--max-tokens",
            "8",
            "--quiet",
            "--compile",
            "off",
        )
        return mtpx("bench", str(tiny_pack), *always, *options)

    return bench


def test_every_arm_goes_through_the_same_turns(bench: Any, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    done = bench("--turns", "3", "--depths", "2", "--json", "--trace", str(trace))
    assert done.status == 0
    found = json.loads(done.out)
    arms = {arm["arm"]: arm for arm in found["arms"]}
    assert list(arms) == list(ARMS)
    assert (found["conversations"], found["depth"], found["carry"]) == (2, 2, "armed")
    assert [row["turn"] for row in found["turns"]] == [1, 2, 3]
    assert all(arm["turns"] == arm["same_text"] == 4 for arm in arms.values())
    assert arms[COLD]["reused_tokens"] == 0
    assert arms[WARM]["adopted"] > 0 == arms[BLIND]["adopted"]
    assert arms[BLIND]["reused_tokens"] > 0
    assert arms[PLAIN]["acceptance"] == []
    for ratio in ("ttft", "speed"):
        assert arms[COLD][ratio] is None
        assert arms[WARM][ratio]["low"] < arms[WARM][ratio]["ratio"] < arms[WARM][ratio]["high"]
    records = list(read(trace))
    assert isinstance(records[0], RunRecord)
    timed = [r for r in records if isinstance(r, RequestRecord) and not r.warmup]
    assert [r.arm for r in timed[:8]] == [*ARMS, *ARMS[1:], ARMS[0]]
    prompts = {(r.prompt, r.prompt_sha256) for r in timed}
    assert len(prompts) == 6


def test_the_table_shows_every_arm_and_what_was_reused(bench: Any) -> None:
    done = bench("--turns", "3", "--depths", "2")
    assert done.status == 0
    for said in ("Warm turns", "warm with carry", "rows adopted", "Time to the first token"):
        assert said in done.out


def test_a_conversation_that_outgrows_the_context_ends_and_says_so(bench: Any) -> None:
    done = bench("--turns", "6", "--context", "130", "--json")
    (note,) = json.loads(done.out)["notes"]
    assert note.startswith("conversation 1 ended after ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--turns", "7"), "there are 6 questions for conversations of 7 turns"),
        (("--turns", "3", "--depths", "9"), "depth 9 is outside what this head can do (1 to 4)"),
        (("--turns", "3", "--context", "60"), "no second turn fits into the context"),
    ],
)
def test_what_cannot_be_benched_is_a_sentence(
    bench: Any, options: tuple[str, ...], said: str
) -> None:
    assert said in bench(*options).complaint


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--plain-baseline",), "--turns is a bench of its own, without --plain-baseline"),
        (("--depths", "1,2"), "give --depths a single number"),
    ],
)
def test_options_of_the_other_bench_are_refused(
    bench: Any, options: tuple[str, ...], said: str
) -> None:
    done = bench("--turns", "3", *options)
    assert done.status == 2
    assert said in done.err


def test_no_question_is_asked_twice() -> None:
    assert conversations(["a", "b", "c", "d", "e"], 2) == [["a", "b"], ["c", "d"]]
    with pytest.raises(BenchError, match="at least 2 turns"):
        conversations(["a"], 1)
