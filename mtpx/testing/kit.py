"""The kit's list of checks, and running all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from mtpx.testing import greedy, rules, sampled, stopping
from mtpx.testing.drive import Finding
from mtpx.testing.subject import Subject

Check = Callable[[Subject], Finding]

CHECKS: tuple[Check, ...] = (
    greedy.every_depth_gives_the_plain_text,
    greedy.a_plain_run_gives_the_parked_text,
    greedy.every_accepted_count_leaves_a_plain_state,
    greedy.a_cut_leaves_a_plain_state,
    greedy.a_parked_slot_resumes_as_if_never_parked,
    greedy.ragged_batches_give_each_slot_what_it_gets_alone,
    greedy.plain_is_the_same_pipelined,
    greedy.two_engines_do_not_meet,
    sampled.sampled_text_has_the_target_distribution,
    sampled.a_confidence_cut_keeps_the_distribution,
    sampled.deciding_on_the_next_confidence_is_caught,
    sampled.deciding_on_the_drawn_token_is_caught,
    sampled.a_seed_and_a_request_name_the_text,
    sampled.no_uniform_is_used_twice,
    stopping.being_asked_changes_no_draft,
    stopping.a_chain_that_stops_leaves_a_plain_state,
    stopping.stopping_early_keeps_the_distribution,
    rules.an_accepted_end_ends_the_run,
    rules.nothing_is_delivered_after_an_end,
    rules.a_budget_is_never_exceeded,
    rules.logprobs_are_those_of_the_raw_logits,
    rules.rewinding_restores_the_state,
    rules.a_snapshot_outlives_its_slot,
    rules.a_session_carries_the_heads_rows,
    rules.width_is_capped_and_closing_makes_room,
    rules.prefill_may_come_in_any_chunks,
    rules.damaged_logits_raise,
)


@dataclass(frozen=True)
class CheckResult:
    """One check's result; `detail` is the failure, or why something was skipped."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    compared: int = 0
    ties: int = 0
    detail: str = ""


@dataclass(frozen=True)
class KitReport:
    """What passed, what did not, and how many differences were shown to be numerical ties."""

    subject: str
    results: list[CheckResult]

    @property
    def ok(self) -> bool:
        return all(result.status != "failed" for result in self.results)

    @property
    def ties(self) -> int:
        return sum(result.ties for result in self.results)

    def __str__(self) -> str:
        lines = [f"conformance of {self.subject}: {'passed' if self.ok else 'FAILED'}"]
        for r in self.results:
            ties = f", {r.ties} numerical ties" if r.ties else ""
            detail = f": {r.detail}" if r.detail else ""
            name = r.name.replace("_", " ")
            lines.append(f"  {r.status:7}  {name} ({r.compared} compared{ties}){detail}")
        return "\n".join(lines)


def run_kit(subject: Subject, checks: Sequence[Check] = CHECKS) -> KitReport:
    """Run every check and report; what an engine raises is a failure of that check, not of the run."""
    return KitReport(subject.name, [_result(subject, check) for check in checks])


def _result(subject: Subject, check: Check) -> CheckResult:
    name = check.__name__
    try:
        found = check(subject)
    except AssertionError as failure:
        return CheckResult(name, "failed", detail=str(failure))
    except Exception as error:
        return CheckResult(name, "failed", detail=f"raised {type(error).__name__}: {error}")
    status: Literal["passed", "skipped"] = "passed" if found.compared else "skipped"
    return CheckResult(name, status, found.compared, found.ties, found.skipped)
