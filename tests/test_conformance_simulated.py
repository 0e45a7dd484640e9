"""The conformance kit: the simulated engine passes, and every kind of broken engine is caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

import mtpx.simulate.engine as engine_module
from mtpx.backend import Drafts, EngineOptions, FloatArray, GoOn, Outcome, Slot
from mtpx.carry import Adopted, CarriedHead
from mtpx.errors import BackendError
from mtpx.sampling import USE_ACCEPT, USE_COMMIT, Array, draw
from mtpx.simulate import Language, Regime, SimulatedDrafts, SimulatedEngine
from mtpx.simulate.slot import SimulatedSlot, Snapshot
from mtpx.testing import CHECKS, Check, Subject, run_kit
from mtpx.testing.greedy import every_depth_gives_the_plain_text

REGIME = Regime(acceptance=[0.8, 0.7, 0.6], spread=0.9)
PROMPTS = [[1, 2, 3, 4, 5], [7, 3, 9, 11, 2, 2, 5, 8], [4, *range(16), *range(16)] * 3]

Load = Callable[[EngineOptions], SimulatedEngine]


def engine(options: EngineOptions, kind: type[SimulatedEngine] = SimulatedEngine) -> Any:
    return kind(REGIME, vocab=16, options=options)


def subject(load: Load = engine, **changes: Any) -> Subject:
    return replace(
        Subject("simulated", load, PROMPTS, tolerance=1e-9, samples=600, tokens=20), **changes
    )


SUBJECTS = {
    "simulated": subject(),
    "recurrent": subject(
        lambda options: SimulatedEngine(REGIME, vocab=16, options=options, checkpoint=5)
    ),
    "two tokens": subject(
        lambda options: SimulatedEngine(
            replace_regime(acceptance=[0.6, 0.5]),
            language=Language(vocab=4, sharpness=0.6),
            options=options,
        ),
        prompts=[[0, 1, 2], [3, 3]],
        tokens=6,
    ),
}


def replace_regime(**changes: Any) -> Regime:
    return Regime(**{"acceptance": [0.8, 0.7, 0.6], "spread": 0.9} | changes)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SUBJECTS)
def test_the_simulated_engine_conforms(name: str, check: Check) -> None:
    found = check(SUBJECTS[name])
    assert found.ties == 0
    assert not found.skipped


# Broken engines. Each is wrong in one way that leaves most of its text plausible.


class StaleTargetRow(SimulatedEngine):
    """Keeps a rejected draft's row in place of its predecessor."""

    def _judge(self, slot: SimulatedSlot, drafts: list[int], q: list[Array]) -> Any:
        result = super()._judge(slot, drafts, q)
        if result[0] < len(drafts):
            slot.states[-1] ^= 1
        return result


class RecycledHeadRow(SimulatedEngine):
    """Takes a row made from the head's own hidden state for a valid one."""

    def verify(self, slots: Sequence[Slot], drafts: Drafts, depths: Sequence[int]) -> list[Outcome]:
        outcomes = super().verify(slots, drafts, depths)
        for slot in self._ready(slots):
            if len(slot.head_rows) > slot.valid and slot.queue:
                slot.valid += 1
                slot.queue.pop(0)
        return outcomes


class CutsLeaveARow(SimulatedEngine):
    """Trims the head for accepted drafts only, so that a cut leaves a provisional row."""

    def plain(self, slots: Sequence[Slot]) -> list[Outcome]:
        outcomes = super().plain(slots)
        for slot in self._ready(slots, draining=False):
            if len(slot.head_rows) > slot.valid and slot.queue:
                slot.valid += 1
                slot.queue.pop(0)
        return outcomes


class DrawsUniformsAgain(SimulatedEngine):
    """Forgets to count its rounds."""

    def _commit(self, slot: SimulatedSlot, *rest: Any) -> Outcome:
        outcome = super()._commit(slot, *rest)
        slot.round = 0
        return outcome


class OneStreamForAll(SimulatedEngine):
    def open(self, *arguments: Any, request: int = 0, **named: Any) -> SimulatedSlot:
        return super().open(*arguments, request=0, **named)


class HeadAlwaysOn(SimulatedEngine):
    def open(self, *arguments: Any, head: bool = True, **named: Any) -> SimulatedSlot:
        return super().open(*arguments, head=True, **named)


class DeafToEnds(SimulatedEngine):
    def open(
        self, *arguments: Any, end_ids: frozenset[int] = frozenset(), **named: Any
    ) -> SimulatedSlot:
        return super().open(*arguments, **named)


class OneEndOnly(SimulatedEngine):
    def open(
        self, *arguments: Any, end_ids: frozenset[int] = frozenset(), **named: Any
    ) -> SimulatedSlot:
        return super().open(*arguments, end_ids=frozenset(sorted(end_ids)[:1]), **named)


class SwallowsNaN(SimulatedEngine):
    def _target_row(self, slot: SimulatedSlot, token: int) -> Array:
        return np.nan_to_num(super()._target_row(slot, token))


class StatesMeet(SimulatedEngine):
    """Keeps something in the class: the engine that ran last."""

    last: ClassVar[SimulatedEngine | None] = None

    def _append_row(self, slot: SimulatedSlot, token: int) -> int:
        if StatesMeet.last not in (None, self) and slot.states:
            slot.states[-1] ^= 1
        StatesMeet.last = self
        return super()._append_row(slot, token)

    def close(self) -> None:
        StatesMeet.last = None
        super().close()


class RaggedRowsSlip(SimulatedEngine):
    """In a batch of different depths, the last slot reads its neighbour's row."""

    def verify(self, slots: Sequence[Slot], drafts: Drafts, depths: Sequence[int]) -> list[Outcome]:
        outcomes = super().verify(slots, drafts, depths)
        if len(set(depths)) > 1:
            self._ready(slots)[-1].states[-1] ^= 1
        return outcomes


class ChunksForget(SimulatedEngine):
    """A second chunk of prompt does not see the last row of the first."""

    def prefill(self, slot: Slot, max_tokens: int) -> bool:
        mine = self._own(slot)
        if mine.states and len(mine.states) < len(mine.ids) - 1:
            mine.states[-1] ^= 1
        return super().prefill(slot, max_tokens)


class RoomForOneMore(SimulatedEngine):
    def __init__(self, *arguments: Any, options: EngineOptions, **named: Any) -> None:
        wider = replace(options, max_width=options.max_width + 1)
        super().__init__(*arguments, options=wider, **named)


def wrong_acceptance(
    p: Sequence[Array], q: Sequence[Array], drafts: Sequence[int], u: Array
) -> Any:
    """Any draft the target could have drawn stands."""
    for j, token in enumerate(drafts):
        if p[j][token] <= 0.0:
            return j, draw(p[j], float(u[j, USE_COMMIT]))
    return len(drafts), draw(p[len(drafts)], float(u[-1, USE_COMMIT]))


def wrong_residual(p: Sequence[Array], q: Sequence[Array], drafts: Sequence[int], u: Array) -> Any:
    """A rejected draft is replaced by a fresh draw from p."""
    for j, token in enumerate(drafts):
        if not u[j, USE_ACCEPT] * q[j][token] < p[j][token]:
            return j, draw(p[j], float(u[j, USE_COMMIT]))
    return len(drafts), draw(p[len(drafts)], float(u[-1, USE_COMMIT]))


def discards_the_wrong_row(slot: SimulatedSlot) -> None:
    if slot.flight is not None:
        slot.flight = None
        del slot.states[-2 if len(slot.states) > 1 else -1]


def adopts_everything(slot: SimulatedSlot, snapshot: Snapshot | None) -> None:
    if snapshot is not None:
        slot.states = list(snapshot.states[: len(slot.ids) - 1])


def adopts_foreign_rows(slot: SimulatedSlot, entry: CarriedHead | None) -> None:
    carried = entry.usable_by(slot.ids, entry.session) if entry else None
    if carried is not None:
        slot.head_rows, slot.valid = carried.handle[: carried.rows], carried.rows
        slot.outcome = Adopted(carried.rows, 0, carried.last_pair_key + 1)


def adopts_no_rows(slot: SimulatedSlot, entry: CarriedHead | None) -> None:
    slot.skipped = len(slot.states)


def loses_the_queue(slot: SimulatedSlot) -> None:
    slot.queue.clear()


def rewinds_tokens_only(slot: SimulatedSlot, position: int) -> int:
    slot.discard_flight()
    gone = len(slot.ids) - min(position, len(slot.ids))
    if gone:
        del slot.ids[-gone:]
        del slot.states[:gone]
        slot.flush()
        del slot.head_rows[len(slot.ids) - 1 :]
        slot.valid = len(slot.head_rows)
    return len(slot.ids)


def logprob_of_scaled_logits(logits: Array, token: int, top: int) -> Any:
    from mtpx.simulate.language import token_logprob

    return token_logprob(logits / 0.8, token, top)


class NeverStops(SimulatedEngine):
    def propose(
        self, slots: Sequence[Slot], caps: Sequence[int], go_on: GoOn | None = None
    ) -> SimulatedDrafts:
        return super().propose(slots, caps)


class ShowsOneConfidence(SimulatedEngine):
    """Asks with the newest confidence alone."""

    def propose(
        self, slots: Sequence[Slot], caps: Sequence[int], go_on: GoOn | None = None
    ) -> SimulatedDrafts:
        asked = None if go_on is None else lambda sure: go_on(sure[:, -1:])
        return super().propose(slots, caps, asked)


class TellsTheFirstConfidence(SimulatedEngine):
    """Asked about a lone slot by number, with that of draft 1 after every step."""

    def propose(
        self, slots: Sequence[Slot], caps: Sequence[int], go_on: GoOn | None = None
    ) -> SimulatedDrafts:
        alone = getattr(go_on, "alone", None)
        if alone is None:
            return super().propose(slots, caps, go_on)
        first: list[float] = []

        def asked(sure: FloatArray) -> list[bool]:
            first.append(float(sure[0, 0]))
            return [bool(alone(first[0]))]

        return super().propose(slots, caps, asked)


class StopsAnotherSlot(SimulatedEngine):
    def propose(
        self, slots: Sequence[Slot], caps: Sequence[int], go_on: GoOn | None = None
    ) -> SimulatedDrafts:
        asked = None if go_on is None else lambda sure: list(go_on(sure))[::-1]
        return super().propose(slots, caps, asked)


def dropped(drafts: SimulatedDrafts, which: Sequence[bool]) -> SimulatedDrafts:
    """Those of the slots that are told are as if they had never been made."""

    def kept(rows: list[Any]) -> list[Any]:
        return [[] if gone else row for row, gone in zip(rows, which, strict=True)]

    return replace(
        drafts,
        tokens=kept(drafts.tokens),
        q=kept(drafts.q),
        log_confidence=kept(drafts.log_confidence),
    )


class DropsDraftsForTheNextConfidence(SimulatedEngine):
    """Where the second step is unsure it takes draft 1 back too."""

    def propose(
        self, slots: Sequence[Slot], caps: Sequence[int], go_on: GoOn | None = None
    ) -> SimulatedDrafts:
        made = super().propose(slots, caps)
        if go_on is None:
            return made
        return dropped(made, [not one for one in go_on(made.confidence[:, :2])])


class DropsADraftForItsToken(SimulatedEngine):
    """A chain that stops at draft 2 is thrown away if it began with a token of the lower half."""

    def propose(
        self, slots: Sequence[Slot], caps: Sequence[int], go_on: GoOn | None = None
    ) -> SimulatedDrafts:
        made = super().propose(slots, caps, go_on)
        if go_on is None:
            return made
        return dropped(made, [len(row) == 2 and row[0] < 8 for row in made.tokens])


def broken(kind: type[SimulatedEngine]) -> Load:
    return lambda options: engine(options, kind)


BROKEN_ENGINES: list[tuple[type[SimulatedEngine], str, str]] = [
    (StaleTargetRow, "every_accepted_count_leaves_a_plain_state", "no tie|stale"),
    (StaleTargetRow, "every_depth_gives_the_plain_text", "no tie"),
    (RecycledHeadRow, "every_accepted_count_leaves_a_plain_state", "head's KV is stale"),
    (CutsLeaveARow, "a_cut_leaves_a_plain_state", "head's KV is stale"),
    (DrawsUniformsAgain, "no_uniform_is_used_twice", "draws with the uniforms"),
    (OneStreamForAll, "a_seed_and_a_request_name_the_text", "another request gave the same"),
    (HeadAlwaysOn, "a_plain_run_gives_the_parked_text", "keeps head pairs"),
    (DeafToEnds, "an_accepted_end_ends_the_run", "instead|where plain"),
    (DeafToEnds, "nothing_is_delivered_after_an_end", "no tie|tokens where"),
    (OneEndOnly, "an_accepted_end_ends_the_run", "."),
    (SwallowsNaN, "damaged_logits_raise", "raised nothing"),
    (StatesMeet, "two_engines_do_not_meet", "no tie"),
    (RaggedRowsSlip, "ragged_batches_give_each_slot_what_it_gets_alone", "no tie|stale"),
    (ChunksForget, "prefill_may_come_in_any_chunks", "stale"),
    (NeverStops, "a_chain_that_stops_leaves_a_plain_state", "were let make"),
    (StopsAnotherSlot, "a_chain_that_stops_leaves_a_plain_state", "were let make"),
    (ShowsOneConfidence, "being_asked_changes_no_draft", "of shape"),
    (TellsTheFirstConfidence, "being_asked_changes_no_draft", "from the draft's own"),
    (DropsDraftsForTheNextConfidence, "stopping_early_keeps_the_distribution", "stop early"),
    (DropsADraftForItsToken, "stopping_early_keeps_the_distribution", "stop early"),
    (RoomForOneMore, "width_is_capped_and_closing_makes_room", "beyond max_width was not refused"),
]


def check_named(name: str) -> Check:
    return next(check for check in CHECKS if check.__name__ == name)


@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    BROKEN_ENGINES,
    ids=[f"{k.__name__}-{n}" for k, n, _ in BROKEN_ENGINES],
)
def test_a_broken_engine_is_caught(kind: type[SimulatedEngine], name: str, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_named(name)(subject(broken(kind)))


OFTEN_WRONG = subject(
    lambda options: SimulatedEngine(
        replace_regime(acceptance=[0.4, 0.4, 0.4]), vocab=16, options=options
    )
)
"""A head that is mostly rejected, so that what follows a rejection shows."""

BROKEN_PARTS: list[tuple[object, str, object, str, str]] = [
    (engine_module, "accept", wrong_acceptance, "sampled_text_has_the_target_distribution", "chi"),
    (engine_module, "accept", wrong_residual, "sampled_text_has_the_target_distribution", "chi"),
    (engine_module, "accept", wrong_acceptance, "a_confidence_cut_keeps_the_distribution", "cut"),
    (engine_module, "PAIR_QUEUE_LIMIT", 300, "a_parked_slot_resumes_as_if_never_parked", "queued"),
    (
        engine_module,
        "token_logprob",
        logprob_of_scaled_logits,
        "logprobs_are_those_of_the_raw_logits",
        "off by",
    ),
    (
        SimulatedSlot,
        "discard_flight",
        discards_the_wrong_row,
        "plain_is_the_same_pipelined",
        "no tie|stale",
    ),
    (
        SimulatedSlot,
        "flush",
        loses_the_queue,
        "a_parked_slot_resumes_as_if_never_parked",
        "cover|stale",
    ),
    (SimulatedSlot, "adopt", adopts_everything, "a_snapshot_outlives_its_slot", "stale"),
    (
        SimulatedSlot,
        "_adopt_head",
        adopts_foreign_rows,
        "a_session_carries_the_heads_rows",
        "another",
    ),
    (
        SimulatedSlot,
        "_adopt_head",
        adopts_no_rows,
        "a_session_carries_the_heads_rows",
        "nothing is",
    ),
    (SimulatedSlot, "rewind", rewinds_tokens_only, "rewinding_restores_the_state", "stale"),
]


@pytest.mark.parametrize(
    ("owner", "part", "wrong", "name", "sentence"),
    BROKEN_PARTS,
    ids=[f"{p}-{n}-{i}" for i, (_, p, _, n, _) in enumerate(BROKEN_PARTS)],
)
def test_a_broken_part_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    part: str,
    wrong: object,
    name: str,
    sentence: str,
) -> None:
    monkeypatch.setattr(owner, part, wrong)
    with pytest.raises(AssertionError, match=sentence):
        check_named(name)(OFTEN_WRONG)


class Coarse(Language):
    """Logits on a grid, so that the two likeliest tokens are often equal."""

    def logits(self, state: int) -> Array:
        return np.round(super().logits(state) / 2.0) * 2.0


class RoundsDifferently(SimulatedEngine):
    """Forwards of several rows differ in the last bits from those of one, as on a real device."""

    def _judge(self, slot: SimulatedSlot, drafts: list[int], q: list[Array]) -> Any:
        self.jitter = 1e-6 * len(drafts)
        return super()._judge(slot, drafts, q)

    def _launch(self, slot: SimulatedSlot) -> None:
        self.jitter = 0.0
        super()._launch(slot)

    def _target_row(self, slot: SimulatedSlot, token: int) -> Array:
        logits = super()._target_row(slot, token)
        return logits + self.jitter * np.arange(logits.size)


def rounding(options: EngineOptions) -> SimulatedEngine:
    return RoundsDifferently(REGIME, language=Coarse(vocab=16), options=options)


def test_a_difference_within_the_tolerance_is_counted_as_a_tie() -> None:
    found = every_depth_gives_the_plain_text(subject(rounding, tolerance=1e-4))
    assert found.ties > 0


def test_the_same_difference_fails_where_the_candidates_are_not_close() -> None:
    """With a tolerance of 0 nothing is a tie, not even equal logits."""
    with pytest.raises(AssertionError, match="no tie"):
        every_depth_gives_the_plain_text(subject(rounding, tolerance=0.0))


def test_argmax_drafts_skip_the_forbidden_rules_and_say_why() -> None:
    class Argmax(SimulatedEngine):
        def propose(
            self, slots: Sequence[Slot], caps: Sequence[int], go_on: GoOn | None = None
        ) -> Any:
            made = super().propose(slots, caps, go_on)
            return replace(
                made,
                tokens=[[0] * n for n in made.counts],
                q=[[np.eye(16)[0]] * n for n in made.counts],
            )

    report = run_kit(
        subject(broken(Argmax)),
        [check_named("deciding_on_the_drawn_token_is_caught")],
    )
    assert report.results[0].status == "skipped"
    assert "argmax" in report.results[0].detail


def test_a_subject_without_hooks_skips_what_needs_them_and_checks_the_rest() -> None:
    report = run_kit(
        subject(pairs=None, poison=None),
        [
            check_named("damaged_logits_raise"),
            check_named("a_parked_slot_resumes_as_if_never_parked"),
        ],
    )
    assert [r.status for r in report.results] == ["skipped", "passed"]
    assert all(r.detail for r in report.results)


def test_a_report_names_what_failed_and_goes_on() -> None:
    report = run_kit(subject(broken(SwallowsNaN)), CHECKS[-2:])
    assert not report.ok
    assert [r.status for r in report.results] == ["passed", "failed"]
    assert "FAILED" in str(report)
    assert "raised nothing" in str(report)


def test_an_engine_that_raises_fails_its_check_and_not_the_run() -> None:
    def refuse(options: EngineOptions) -> SimulatedEngine:
        raise BackendError("no device")

    report = run_kit(subject(refuse), CHECKS[:1])
    assert report.results[0].detail == "raised BackendError: no device"


def test_a_nearly_certain_target_is_refused_rather_than_passed() -> None:
    certain = subject(
        lambda options: SimulatedEngine(
            REGIME, language=Language(vocab=16, sharpness=200.0), options=options
        )
    )
    with pytest.raises(AssertionError, match="nearly certain"):
        check_named("sampled_text_has_the_target_distribution")(certain)
