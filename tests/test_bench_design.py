"""The plan of a bench, and the prompts it draws from."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpx.bench.design import NULL_ARM, Design, choose, design, gather, mtp_arm
from mtpx.bench.learning import PROMPTS
from mtpx.bench.suites import BenchPrompt, Message, distinct, prompt_file, suite, suite_names
from mtpx.errors import BenchError

NAMES = ("chat", "code", "prose")


def prompts(sizes: list[int]) -> list[BenchPrompt]:
    return [
        BenchPrompt(f"p{i}", name, prompt=f"{name} {i}")
        for name, size in zip(NAMES, sizes, strict=False)
        for i in range(size)
    ]


plans = st.builds(
    lambda sizes, depths, repeats, seed: design(
        prompts(sizes), [mtp_arm(d) for d in depths], repeats=repeats, seed=seed
    ),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True),
    st.integers(1, 3),
    st.integers(0, 2**32),
)


@given(plans)
def test_every_prompt_gets_as_many_blocks_of_every_arm(plan: Design) -> None:
    counts = Counter((b.arm, b.suite, b.prompt) for b in plan.blocks)
    assert len(counts) == plan.prompts * len(plan.arms)
    assert set(counts.values()) == {plan.repeats}


@given(plans)
def test_either_arm_goes_first_equally_often(plan: Design) -> None:
    for arm in plan.arms:
        orders = Counter(b.order for b in plan.blocks if b.arm == arm.name)
        assert abs(orders["ABBA"] - orders["BAAB"]) <= 1


@given(plans)
def test_every_block_runs_both_arms_twice_with_one_of_them_at_either_end(plan: Design) -> None:
    for block in plan.blocks:
        runs = [arm.name for arm in plan.runs(block)]
        assert Counter(runs) == {"plain": 2, block.arm: 2}
        assert runs[0] == runs[3]
        assert runs[1] == runs[2]


@given(plans)
def test_a_prompts_repeats_lie_a_whole_pass_apart(plan: Design) -> None:
    step = plan.prompts * len(plan.arms)
    for start in range(0, len(plan.blocks), step):
        once = Counter((b.arm, b.suite, b.prompt) for b in plan.blocks[start : start + step])
        assert set(once.values()) == {1}


@given(plans)
def test_a_design_survives_being_written_and_read(plan: Design) -> None:
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Design) == plan


def test_equal_suites_take_turns() -> None:
    plan = design(prompts([6, 6]), [mtp_arm(1)], seed=3)
    pairs = [{a.suite, b.suite} for a, b in zip(plan.blocks[::2], plan.blocks[1::2], strict=True)]
    assert all(pair == {"chat", "code"} for pair in pairs)


def test_a_seed_makes_the_same_design_again() -> None:
    assert design(prompts([5, 5]), [mtp_arm(1)], seed=8) == design(
        prompts([5, 5]), [mtp_arm(1)], seed=8
    )


def test_another_seed_makes_another_order() -> None:
    one, other = (design(prompts([6, 6]), [mtp_arm(1)], seed=s).blocks for s in (1, 2))
    assert one != other


def test_the_work_counts_every_run_of_every_arm() -> None:
    plan = design(prompts([6]), [mtp_arm(1), mtp_arm(3)], repeats=2)
    # 2 arms × 6 prompts × 2 repeats blocks, each with two plain runs and two of its own.
    assert plan.work() == {"plain": 48, "depth 1": 24, "depth 3": 24}


def test_without_a_baseline_every_block_is_one_run_of_its_arm() -> None:
    plan = design(prompts([3]), [mtp_arm(1)], baseline=False)
    assert [[arm.name for arm in plan.runs(b)] for b in plan.blocks] == [["depth 1"]] * 3


def test_the_null_control_is_plain_under_another_name() -> None:
    assert (NULL_ARM.mode, NULL_ARM.depth, NULL_ARM.name) == ("plain", 0, "null")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: design(prompts([2]), [mtp_arm(1)], repeats=0), "--repeats must be 1 or more"),
        (lambda: design([], [mtp_arm(1)]), "at least one prompt"),
        (lambda: design(prompts([2]), [mtp_arm(2), mtp_arm(2)]), "'depth 2' is given twice"),
        (lambda: mtp_arm(0), "at least 1 draft a round, got depth 0"),
        (lambda: choose(prompts([3, 3]), 7, 0), "--prompts must be 1 to 6, .* got 7"),
        (lambda: choose(prompts([3]), 0, 0), "--prompts must be 1 to 3, .* got 0"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused_in_a_sentence(call: object, sentence: str) -> None:
    assert callable(call)
    with pytest.raises(BenchError, match=sentence):
        call()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.data(), st.integers(0, 99))
def test_a_total_is_shared_out_evenly_among_suites(
    sizes: list[int], data: st.DataObject, seed: int
) -> None:
    total = data.draw(st.integers(1, sum(sizes)))
    chosen = Counter(p.suite for p in choose(prompts(sizes), total, seed))
    assert chosen.total() == total
    for name, size in zip(NAMES, sizes, strict=False):
        # A suite gets less than another only if it has no more to give.
        assert chosen[name] == size or chosen[name] >= max(chosen.values()) - 1


@given(st.integers(1, 10), st.integers(0, 99))
def test_no_prompt_is_chosen_twice(total: int, seed: int) -> None:
    chosen = choose(prompts([6, 4]), total, seed)
    assert len(set(chosen)) == len(chosen) == total


def test_six_of_chat_and_six_of_code_unless_told() -> None:
    assert Counter(p.suite for p in gather([], [])) == {"chat": 6, "code": 6}


def test_ones_own_file_is_used_whole_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(f"Question {i}?" for i in range(9)))
    assert Counter(p.suite for p in gather([], [path])) == {"mine": 9}


def test_a_file_and_a_suite_go_together(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(f"Question {i}?" for i in range(9)))
    assert Counter(p.suite for p in gather(["code"], [path], total=10)) == {"code": 5, "mine": 5}


def test_a_suite_named_twice_is_used_once() -> None:
    assert Counter(p.suite for p in gather(["code", "code"], [])) == {"code": 6}


# -- suites ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", suite_names())
def test_a_shipped_suite_has_twelve_prompts_or_more_and_no_two_alike(name: str) -> None:
    assert len(distinct(suite(name))) >= 12


def test_five_suites_ship() -> None:
    assert suite_names() == ["chat", "code", "prose", "rewrite", "structured"]


def test_shipped_prompts_are_chats_that_end_with_a_question() -> None:
    for name in suite_names():
        for prompt in suite(name):
            assert prompt.messages is not None
            roles = [m.role for m in prompt.messages]
            assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


def test_shipped_prompts_are_like_no_other_and_like_none_a_policy_learns_on() -> None:
    every = [prompt for name in suite_names() for prompt in suite(name)]
    learned = [
        BenchPrompt(str(i), "learning", messages=[Message("user", t)])
        for i, t in enumerate(PROMPTS)
    ]
    assert len(distinct([*every, *learned])) == len(every) + len(PROMPTS)


def test_a_prompt_may_have_several_turns() -> None:
    assert any(len(p.messages or []) > 1 for name in suite_names() for p in suite(name))


def test_an_unknown_suite_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(
        BenchError,
        match="there is no suite 'poems'; there are chat, code, prose, rewrite, structured",
    ):
        suite("poems")


def test_a_text_file_holds_one_question_a_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("First?\n\nSecond?\n", encoding="utf-8")
    assert [(p.id, p.suite, p.content) for p in prompt_file(path)] == [
        ("line-1", "mine", [{"role": "user", "content": "First?"}]),
        ("line-3", "mine", [{"role": "user", "content": "Second?"}]),
    ]


def test_a_jsonl_file_may_name_its_ids_and_suites(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"id": "a", "suite": "s", "prompt": "raw"}\n{"prompt": "more"}\n')
    assert [(p.id, p.suite, p.content) for p in prompt_file(path)] == [
        ("a", "s", "raw"),
        ("line-2", "mine", "more"),
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"prompt": "ok"}\n{"prompt": ', "line 2: "),
        ('{"prompt": "ok"}\n\n{"text": "x"}', "line 3: .*text"),
        ('{"prompt": "a", "messages": []}', 'line 1: give either "messages" or "prompt"'),
        ('{"id": "a"}', 'line 1: give either "messages" or "prompt"'),
        ('{"prompt": "  "}', "line 1: the prompt is empty"),
        ('{"messages": []}', "line 1: the prompt is empty"),
        ('{"messages": [{"role": "user"}]}', "line 1: .*content"),
        ("\n\n", "holds no prompt"),
    ],
)
def test_a_broken_prompt_file_is_refused_with_the_number_of_the_line(
    tmp_path: Path, line: str, sentence: str
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(line)
    with pytest.raises(BenchError, match=sentence):
        prompt_file(path)


@given(st.binary(max_size=200))
def test_any_bytes_in_a_prompt_file_give_prompts_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    for suffix in (".jsonl", ".txt"):
        path = tmp_path_factory.mktemp("p") / f"mine{suffix}"
        path.write_bytes(content)
        with suppress(BenchError):
            assert prompt_file(path)


def test_a_missing_prompt_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="cannot be read: No such file"):
        prompt_file(tmp_path / "none.txt")


def test_two_prompts_alike_are_refused() -> None:
    with pytest.raises(BenchError, match="s/a and s/b are the same"):
        distinct([BenchPrompt("a", "s", prompt="x"), BenchPrompt("b", "s", prompt="x")])


def test_two_prompts_of_one_name_are_refused() -> None:
    with pytest.raises(BenchError, match="two prompts are called s/a"):
        distinct([BenchPrompt("a", "s", prompt="x"), BenchPrompt("a", "s", prompt="y")])
