"""What a head's training is made of: answers by the hundred, batches, the loss, the mixture."""

from __future__ import annotations

import random
import re
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_makers import PROMPTS, answered_of, answers_of, head_of, trunk_of

from mtpx_train.acceptance import held_out_prompts, suite_prompts
from mtpx_train.batches import Answered, collate, endless, epoch
from mtpx_train.curve import acceptance_curve
from mtpx_train.fit import FitPlan, Progress, chain_hits, most_frequent, shape
from mtpx_train.generate import Prompt, choose, decode_lanes, decode_wave, loops
from mtpx_train.loss import draft_loss
from mtpx_train.mixture import SLOT, misspell, read_mixture
from mtpx_train.packing import toml
from mtpx_train.shards import Shard


@pytest.fixture(scope="module")
def weights(tiny_pack: Path) -> Path:
    return tiny_pack / "weights"


def test_a_wave_gives_what_transformers_generates(weights: Path) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    for answer, prompt in zip(answers_of(trunk_of(weights)), PROMPTS, strict=True):
        wanted = model.generate(
            torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=2
        )[0]
        # A wave cuts loops short.
        assert answer.tokens.tolist() == wanted[: len(answer.tokens)].tolist()


def test_states_kept_while_generating_are_those_of_one_forward(weights: Path) -> None:
    trunk = trunk_of(weights)
    for answer in answers_of(trunk):
        ids = answer.tokens[None, :-1]
        with torch.inference_mode():
            none = torch.zeros(1, dtype=torch.long)
            _, hidden = trunk.forward(ids, trunk.cache(1, ids.shape[1]), 0, none)
            mass = trunk.logits(hidden[0]).logsumexp(dim=-1)
        torch.testing.assert_close(answer.hidden[:-1], hidden[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(answer.mass, mass[answer.start - 1 :], atol=1e-4, rtol=1e-4)


def test_an_answer_does_not_depend_on_who_runs_beside_it(weights: Path) -> None:
    trunk = trunk_of(weights)
    together = answers_of(trunk)
    for prompt, answer in zip(PROMPTS, together, strict=True):
        alone = decode_wave(trunk, [Prompt(prompt, 0.0, "made")], 24, frozenset({2}), 5)[0]
        assert alone.tokens.tolist() == answer.tokens.tolist()


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.lists(st.floats(0, 1), min_size=3, max_size=3)),
        max_size=15,
    )
)
def test_the_curve_is_drawn_whole_within_its_frame(curve: list[tuple[int, list[float]]]) -> None:
    root = ElementTree.fromstring(acceptance_curve(curve))
    width, height = (float(n) for n in root.attrib["viewBox"].split()[2:])
    dots = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(dots) == 3 * len(curve)
    for dot in dots:
        assert 0 <= float(dot.attrib["cx"]) <= width
        assert 0 <= float(dot.attrib["cy"]) <= height


def test_a_better_rate_stands_higher_and_a_later_one_further_right() -> None:
    root = ElementTree.fromstring(acceptance_curve([(0, [0.2]), (5000, [0.5])]))
    first, last = root.iter("{http://www.w3.org/2000/svg}circle")
    assert float(last.attrib["cx"]) > float(first.attrib["cx"])
    assert float(last.attrib["cy"]) < float(first.attrib["cy"])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_answers_shared_out_among_threads_come_back_in_the_order_of_their_prompts(
    weights: Path, threads: int
) -> None:
    trunk = trunk_of(weights)
    prompts = [Prompt(prompt, 0.0, f"kind {i}") for i, prompt in enumerate(PROMPTS)]
    counted: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        answers = decode_lanes(trunk, prompts, 24, frozenset({2}), 5, counted.append)
    finally:
        torch.set_num_threads(before)
    assert [a.tokens.tolist() for a in answers] == [a.tokens.tolist() for a in answers_of(trunk)]
    assert [a.kind for a in answers] == [p.kind for p in prompts]
    assert counted == sorted(counted)
    assert 0 < counted[-1] <= sum(len(a.tokens) - a.start for a in answers)


def test_the_seed_fixes_what_is_drawn(weights: Path) -> None:
    trunk = trunk_of(weights)
    first, again = (answers_of(trunk, temperature=1.5) for _ in range(2))
    assert [a.tokens.tolist() for a in first] == [a.tokens.tolist() for a in again]
    greedy = answers_of(trunk)
    assert [a.tokens.tolist() for a in first] != [a.tokens.tolist() for a in greedy]


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    logits = torch.tensor([1.0, 0.0, 2.0]).repeat(20_000, 1)
    drawn = choose(logits, torch.full((20_000,), 0.8), torch.Generator().manual_seed(0))
    found = torch.bincount(drawn, minlength=3) / 20_000
    torch.testing.assert_close(found, torch.softmax(logits[0] / 0.8, dim=-1), atol=0.015, rtol=0.0)


@given(
    st.lists(st.integers(0, 99), max_size=30),
    st.lists(st.integers(0, 9), min_size=8, max_size=12),
)
def test_a_phrase_said_three_times_is_a_loop(before: list[int], phrase: list[int]) -> None:
    assert loops(np.array(before + 3 * phrase))


def test_a_text_without_repetition_is_no_loop() -> None:
    assert not loops(np.arange(200))
    assert not loops(np.array([5, 5, 5]))


@given(
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(0, 2**16),
    st.floats(0.1, 3.0),
)
@settings(max_examples=30, deadline=None)
def test_the_loss_and_its_gradient_are_those_of_plain_cross_entropy(
    S: int, N: int, seed: int, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator) * scale

    states, target, output = draw(S, N, 8), draw(N, 8), draw(20, 8)
    ids = torch.arange(0, 20, 2)
    weight = torch.rand(S, N, generator=generator)
    mass = (target @ output.T).logsumexp(dim=-1)

    p = torch.softmax(target @ output.T, dim=-1)[:, ids]
    mine, plain = states.clone().requires_grad_(), states.clone().requires_grad_()
    found = draft_loss(mine, weight, target, mass, output[ids])
    log_q = torch.log_softmax(plain @ output[ids].T, dim=-1)
    wanted = -(weight * (p * log_q).sum(dim=-1)).sum(dim=1)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)

    coefficients = torch.arange(1.0, S + 1)
    (found * coefficients).sum().backward()  # type: ignore[no-untyped-call]
    (wanted * coefficients).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(mine.grad, plain.grad, atol=1e-4, rtol=1e-4)


def _fake(lengths: list[tuple[int, int]]) -> list[Answered]:
    """Answers (prompt, answer tokens) whose token at place i of sequence n is 100·n + i."""
    tokens = [torch.arange(100 * n, 100 * n + p + a) for n, (p, a) in enumerate(lengths)]
    shard = Shard(
        tokens=torch.cat(tokens).int(),
        hidden=torch.cat(tokens).float()[:, None].repeat(1, 4).bfloat16(),
        mass=torch.cat([t[p:] for t, (p, _) in zip(tokens, lengths, strict=True)]).float(),
        lengths=torch.tensor([p + a for p, a in lengths]),
        starts=torch.tensor([p for p, _ in lengths]),
        about=[],
    )
    from mtpx_train.batches import sequences

    return sequences(shard)


sizes = st.lists(st.tuples(st.integers(1, 9), st.integers(2, 9)), min_size=1, max_size=9)


@given(sizes, st.integers(1, 40), st.integers(0, 99))
def test_an_epoch_holds_every_answer_once(
    lengths: list[tuple[int, int]], tokens: int, seed: int
) -> None:
    answers = _fake(lengths)
    batches = epoch(answers, tokens, random.Random(seed))
    assert sorted(a.first for batch in batches for a in batch) == [a.first for a in answers]
    assert all(
        len(batch) == 1 or len(batch) * max(a.answer for a in batch) <= tokens for batch in batches
    )


@given(sizes, st.integers(0, 12))
def test_going_on_gives_the_batches_that_were_to_come(
    lengths: list[tuple[int, int]], skip: int
) -> None:
    answers = _fake(lengths)
    whole, rest = endless(answers, 12, 3, 0), endless(answers, 12, 3, skip)
    for _ in range(skip):
        next(whole)
    for _ in range(5):
        assert [a.first for a in next(whole)] == [a.first for a in next(rest)]


@given(sizes)
def test_a_batch_lines_up_tokens_states_and_positions(lengths: list[tuple[int, int]]) -> None:
    answers = _fake(lengths)
    batch = collate(answers, 3, torch.float32)
    P = batch.prompt_columns
    for row, a in enumerate(answers):
        for column in range(a.answer):
            place = a.start - 1 + column
            assert batch.tokens[row, P + column] == a.shard.tokens[a.first + place]
            assert batch.positions[row, P + column] == place
            assert batch.mass[row, column] == a.shard.mass[a.mass_first + column]
            sees = batch.mask[row, 0, column].nonzero().squeeze(-1)
            assert batch.positions[row, sees].tolist() == list(range(place + 1))


@given(st.floats(0, 1), st.floats(0.01, 0.5))
def test_the_rate_stays_between_nothing_and_its_peak(done: float, warm_up: float) -> None:
    assert 0 <= shape(done, warm_up) <= 1


def test_time_or_tokens_end_a_training_whichever_comes_first() -> None:
    plan = FitPlan(tokens=100, seed=0, seconds=10.0)
    assert plan.done(Progress(tokens=50, seconds=1.0)) == 0.5
    assert plan.done(Progress(tokens=50, seconds=9.0)) == 0.9
    assert plan.done(Progress(tokens=200, seconds=1.0)) == 1.0


def test_the_draft_vocabulary_is_of_the_most_frequent_answer_tokens() -> None:
    answers = _fake([(2, 3), (1, 2)])
    answers[0].shard.tokens[:] = torch.tensor([9, 9, 4, 4, 7, 9, 4, 1]).int()
    ids, covered = most_frequent(answers, 2, 12)
    assert ids.tolist() == [1, 4]  # answers hold 4 three times, then 1 and 7 once
    assert covered == pytest.approx(4 / 5)


def test_a_chain_is_judged_up_to_its_first_wrong_draft(weights: Path, tmp_path: Path) -> None:
    trunk = trunk_of(weights)
    answers = answered_of(trunk, tmp_path)
    head, vocabulary = head_of(trunk, answers)
    batch = collate(answers, 3, torch.float32)
    with torch.no_grad():
        chains = chain_hits(head(batch, trunk.embedding, trunk.rotary, 3), batch, vocabulary)
    assert chains.reached[0].sum() == sum(a.answer - 1 for a in answers)
    assert 0 < chains.accepted[0].sum() < chains.reached[0].sum()
    for before, after in ((0, 1), (1, 2)):
        assert bool((chains.reached[after] <= chains.accepted[before]).all())
        assert bool((chains.accepted[after] <= chains.reached[after]).all())


def test_a_start_by_regression_foresees_more_than_a_start_without(
    weights: Path, tmp_path: Path
) -> None:
    trunk = trunk_of(weights)
    answers = answered_of(trunk, tmp_path)
    head, vocabulary = head_of(trunk, answers)
    batch = collate(answers, 1, torch.float32)

    def stood() -> int:
        with torch.no_grad():
            states = head(batch, trunk.embedding, trunk.rotary, 1)
            return int(chain_hits(states, batch, vocabulary).accepted.sum())

    fitted = stood()
    with torch.no_grad():
        H = trunk.config.hidden
        head.fc.copy_(torch.cat([0.2 * torch.eye(H), torch.eye(H)], dim=1))
    assert fitted > stood()


def test_every_slot_of_the_mixture_can_be_filled() -> None:
    mixture = read_mixture()
    given = {"passage", "code", "misspelt", "word"}
    templates = [t for kind in mixture.kind for t in kind.templates]
    texts = [*templates, *mixture.follow_up.requests, *mixture.systems.texts]
    texts += [entry for entries in mixture.lists.values() for entry in entries]
    for text in texts:
        assert set(SLOT.findall(text)) <= mixture.lists.keys() | given, text


def test_the_mixture_leaves_room_for_every_kind() -> None:
    mixture = read_mixture()
    assert mixture.own.share + mixture.follow_up.share + mixture.rewriting.share < 0.8
    rng = random.Random(0)
    drawn = {mixture.request(rng)[0] for _ in range(500)}
    assert drawn == {kind.name for kind in mixture.kind if not kind.uses}


def test_no_prompt_that_judges_can_come_out_of_the_mixture() -> None:
    mixture = read_mixture()
    patterns = [
        re.compile(SLOT.sub("(.+)", re.escape(t).replace(r"\{", "{").replace(r"\}", "}")), re.S)
        for kind in mixture.kind
        for t in kind.templates
    ]
    listed = {entry.lower() for entries in mixture.lists.values() for entry in entries}
    for prompt in [*held_out_prompts(), *suite_prompts()]:
        text = prompt.prompt if prompt.messages is None else prompt.messages[-1].content
        for pattern in patterns:
            found = pattern.fullmatch(text or "")
            assert not (found and all(part.lower() in listed for part in found.groups())), text


@given(st.text(alphabet=st.characters(codec="ascii"), max_size=80), st.integers(0, 99))
def test_misspelling_keeps_every_character(text: str, seed: int) -> None:
    wrong = misspell(text, random.Random(seed), share=1.0)
    assert sorted(wrong) == sorted(text)


plain: st.SearchStrategy[Any] = st.one_of(
    st.text(max_size=8),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)
tables: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(st.text(max_size=6), plain, max_size=4),
    lambda inner: st.dictionaries(
        st.text(max_size=6),
        st.one_of(
            plain, st.lists(plain, max_size=3), inner, st.lists(inner, min_size=1, max_size=2)
        ),
        max_size=4,
    ),
    max_leaves=8,
)


@given(tables)
def test_a_table_written_as_toml_is_read_back_as_it_was(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml(table)) == table
