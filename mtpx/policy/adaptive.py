"""The default policy: measured costs, measured acceptance, and as little asking as will do.

A round at depth d is worth committed(d) / cost(d) tokens per ms. The *selected* depth is the best of those
that were timed. What remains is what to try, and when:

- *Optimism, not climbing.* A depth is tried if its optimistic value beats the selected one's
  (`mtpx.policy.trial`). So a dip behind a wall is found by one jump over it, while behind a dead
  head no cost could make up for the tokens, and nothing is tried.
- *Lean deep.* Rates enter the selection `LEAN` deviations up: a depth too deep observes every position
  and corrects itself, a depth too shallow never sees what it misses.
- *A budget.* What trials may lose, and how often there is one, is limited (`mtpx.policy.asking`).
- *Age.* What was not observed lately is less certain, so a parked policy asks again, cheaply, for ever.

Costs, stalls, throttling: `mtpx.policy.cost`. Drift: `mtpx.policy.drift`. Cuts: `mtpx.policy.cutting`.
What was tried and lost: docs/policy.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mtpx.errors import PolicyError
from mtpx.policy.acceptance import expected_tokens, optimistic_tokens
from mtpx.policy.asking import Asking
from mtpx.policy.cost import MeasuredCosts
from mtpx.policy.cutting import Cutting
from mtpx.policy.experience import MODES, Experience, Group, why_parked
from mtpx.policy.gate import Gate
from mtpx.policy.informed import InformedRound
from mtpx.policy.retiming import Retiming
from mtpx.policy.stretch import Stretch
from mtpx.policy.timing import Timing
from mtpx.policy.trial import Trial
from mtpx.round import Decision, Round, SlotRound

if TYPE_CHECKING:
    from mtpx.backend import FloatArray
    from mtpx.policy import Batch

HYSTERESIS = 1.005
"""A depth must be this much better to be selected instead: a switch costs two transitions."""

LEAN = 0.6
"""Standard deviations of the expected tokens that selection adds."""

REVIEW, LATER, GROWS = 4, 24, 32
"""Rounds between two selections, unless something happened: a few samples hardly move a belief. So many at
first, one more every `GROWS` rounds, and at most `LATER`."""

PATIENCE = 8
"""Rounds of seeding after which depth 1 comes first: it takes 4 where nothing disturbs."""

ROUTES_EVERY = 16
"""Rounds between two looks at the routes of depths that are not in use."""


class AdaptiveDepth:
    """As fast as the best fixed depth, never noticeably slower than plain decode. Without `cuts` every
    draft is verified.

    `prior_costs[d]` is what a round at depth d is taken to cost, in any unit; with `cost_feedback`
    False depths are priced by it for good and nothing is timed. Raises `PolicyError` when that is
    asked for without prices, or a price is none.
    """

    name = "adaptive"

    def __init__(
        self,
        *,
        prior_costs: Sequence[float] = (),
        cost_feedback: bool = True,
        cuts: bool = True,
    ) -> None:
        if not all(0.0 < cost < 1e9 for cost in prior_costs):
            raise PolicyError(
                f"configured costs must be above 0 and finite, found {list(prior_costs)}"
            )
        if not cost_feedback and len(prior_costs) < 2:
            raise PolicyError(
                "cost feedback is off and there are no configured costs for at least depths 0 and "
                "1; leave feedback on, or use a pack with `prior_costs`"
            )
        self.prior_costs = [float(cost) for cost in prior_costs]
        self.cost_feedback = cost_feedback
        self.cuts = cuts
        self.seen = Experience(() if cost_feedback else self.prior_costs)
        self.cutting = Cutting()
        self._timing = Timing(self.seen, self.cutting, feedback=cost_feedback)
        self.selected = 0
        self.asking = Asking()
        self._seeding = 0
        self._retiming = Retiming()
        self._rounds = 0
        self._routes_due = ROUTES_EVERY
        self._review = 0
        self._reviewed: Group | None = None
        self._head = 0
        self._gate = Gate()
        self._decision = Decision()
        self._modes: list[str] = [MODES[0]]
        self._group: Group | None = None
        self._caps: list[int] = []
        self._informed: InformedRound | None = None
        self._kept: InformedRound | None = None
        self._requests: list[int] = []
        self._stretch: Stretch | None = None

    # -- choosing ------------------------------------------------------------------------------

    def propose(self, batch: Batch) -> int:
        stretch = self._stretch
        if stretch is not None:
            if stretch.goes_on(batch):
                stretch.left -= 1
                self._rounds += 1
                self._decision = Decision(selected=stretch.selected, reason=stretch.reason)
                if stretch.informed is not None:
                    stretch.informed.begin()
                return stretch.depth
            self._catch_up()
            self._stretch = None
        limit = batch.limit
        self._modes = [MODES[0] if greedy else MODES[1] for greedy in batch.greedy]
        self._caps = batch.caps
        self._informed = None
        if limit <= 0:
            # Parked by rule, or no token left to draft for: such rounds teach nothing about cost.
            self._group = None
            return self._decide(0, "cap")
        if limit > self._head:
            self._head = limit
        drafting = sum(cap > 0 for cap in batch.caps) if batch.width > 1 else 1
        self._group = group = (batch.width, drafting)
        costs = self.seen.costs_of(group)
        self._rounds += 1
        if self._rounds >= self._routes_due and self.cost_feedback:
            self._routes_due = self._rounds + ROUTES_EVERY
            for depth in list(costs.depths):
                costs.take_route(depth, batch.route(depth).kind)
        if limit == self._head and self._rounds < self._review and group == self._reviewed:
            trial = self.asking.trial
            if trial is None:
                return self._settled(self.selected, limit)
            if not trial.over:
                return self._tried(trial)
        self._review, self._reviewed = self._rounds + self._review_after, group
        if limit < self._head and limit >= max(self.selected, self.cutting.drafting):
            # The end of a budget, and room for what is chosen.
            return self._settled(self.selected, limit)
        unseeded = [depth for depth in (0, 1) if not costs.measured(depth)]
        if unseeded:
            self._review = 0
            self._seeding += 1
            # What gives no sample at depth 0 (something compiles beside it) teaches acceptance at 1.
            return self._decide(unseeded[-(self._seeding > PATIENCE)], "seed")
        self._seeding = 0
        rates, errors = self.seen.rates(self._modes, self._head)
        best = self._best(costs, optimistic_tokens(rates, errors, LEAN), limit)
        if limit < self._head:
            # The end of a budget: choose within it, but neither learn a selection nor try anything.
            return self._settled(best, limit, "cap")
        if best != self.selected:
            self.selected = best
            self.asking.selection_changed()
            self.cutting.recheck()
        return self._scheduled(costs, rates, errors)

    def _scheduled(self, costs: MeasuredCosts, rates: list[float], errors: list[float]) -> int:
        """A trial, if one goes on or is due; else the selected depth, or the one to cut from."""
        self._kept = None
        asking = self.asking
        if asking.trial is not None and (asking.trial.over or asking.trial.depth == self.selected):
            asking.trial = None
        if asking.trial is None and self.cost_feedback:
            hoped = self.seen.hoped(self._modes, len(rates))
            asking.next(costs, rates, errors, self.selected, hoped, self.cutting.depth)
        if asking.trial is not None:
            return self._tried(asking.trial)
        stale = self._stale(costs)
        if stale is not None:
            return self._decide(stale, "probe")
        if self._alone and self.cuts and self.cost_feedback and self.cutting.due:
            self.cutting.look(
                costs,
                expected_tokens(rates),
                self.selected,
                len(rates),
                self.seen.accepts,
                self.seen.means,
            )
        return self._settled(self.selected, self._head)

    def _tried(self, trial: Trial) -> int:
        """A round of a trial. What a depth costs is known: then its chains end where confidence says so, and a
        text that is not worth it loses little."""
        cutting = self.cutting
        if (
            trial.known
            and trial.depth > cutting.drafting
            and cutting.stepwise
            and not cutting.measuring
            and self._informs
        ):
            self._inform(trial.depth)
        return self._decide(trial.depth, trial.reason)

    def _stale(self, costs: MeasuredCosts) -> int | None:
        """A depth that chains are judged by and that was not timed for long."""
        if not (self.cutting.reading and self.cost_feedback and self._alone):
            return None
        judged = range(min(1, self.selected), max(self.selected, self.cutting.depth) + 1)
        return self._retiming.due(costs, judged)

    def _settled(self, best: int, limit: int, why: str = "") -> int:
        """The `best` depth within `limit`, or the one to cut from or to stop before; `why` it is limited, if so."""
        cutting = self.cutting
        if self._informs and self._group:
            depth = cutting.drafting
            if not why and cutting.seeds(self.seen.costs_of(self._group), depth):
                return self._decide(depth, "seed")
            if cutting.reading and not (why and cutting.measuring):
                self._inform(depth)
                return self._decide(min(depth, limit), why or "selected", ahead=not why)
        return self._decide(best, why or ("selected" if best else "park"), ahead=not why)

    @property
    def _alone(self) -> bool:
        """Whether one sequence is decoded. A batch's forward changes shape with each of its cuts, which the
        rehearsal, sequence by sequence, does not see."""
        return self._group is not None and self._group[0] == 1

    @property
    def _informs(self) -> bool:
        """Whether confidences are read and known to mean something."""
        return self._alone and self.cutting.reading and self.seen.calibrated(self._modes)

    def _inform(self, depth: int) -> None:
        """Let confidences decide in this round, which drafts `depth` deep at most: as in the round before,
        until the next review, where it was one of sequences like these."""
        assert self._group is not None
        caps = [min(depth, cap) for cap in self._caps]
        kept = self._kept
        if kept is not None and kept.suits(self._modes, caps):
            kept.begin()
        else:
            kept = self._kept = InformedRound(
                self.cutting,
                self.seen,
                self.seen.costs_of(self._group),
                self._modes,
                caps,
                self.selected,
            )
        self._informed = kept

    @property
    def wants_confidence(self) -> bool:
        """Whether confidences decide in this round, and have not done so while its chain was made."""
        return self._informed is not None and not self._informed.settled

    @property
    def wants_steps(self) -> bool:
        """Whether they also decide how long its chains become."""
        return self._informed is not None and self.cutting.stepwise

    def _decide(self, depth: int, reason: str, *, ahead: bool = False) -> int:
        """This round's depth and, `ahead`, that of the rounds until the next review, if nothing happens."""
        self._decision = Decision(selected=self.selected, reason=reason)
        alone = self._group if self._alone else None
        if ahead and alone is not None and self.cost_feedback and not self.cutting.measuring:
            costs, drafts = self.seen.costs_of(alone), self.cutting.drafts
            self._stretch = Stretch(
                self._review_after - 1,
                self._modes[0] == MODES[0],
                depth,
                self.selected,
                reason,
                self._informed,
                {d: ms for d, ms in costs.curve() if costs.measured(d)},
                drafts.table(depth) if drafts.apart else [],
                self._requests,
                [n - 1.0 for n in expected_tokens(self.seen.means(self._modes[0], self._head))],
            )
        return depth

    def _best(self, costs: MeasuredCosts, tokens: list[float], limit: int) -> int:
        """The timed depth within the limit that is worth most; the selected one on a near-tie."""
        best, best_value, own = 0, 0.0, 0.0
        for depth, ms in costs.curve():
            if depth > limit or not costs.measured(depth):
                continue
            value = tokens[depth] / ms
            if value > best_value:
                best, best_value = depth, value
            if depth == self.selected:
                own = value
        return self.selected if own and best_value <= own * HYSTERESIS else best

    # -- confidence ----------------------------------------------------------------------------

    def go_on(self, confidence: FloatArray) -> list[bool]:
        if self._informed is None:
            return [True] * len(confidence)
        return self._informed.go_on(confidence)

    def lone_goes_on(self, confidence: float) -> bool:
        return self._informed is None or self._informed.lone_goes_on(confidence)

    def lone_verify(self) -> int:
        assert self._informed is not None, "nothing is asked of a round without confidences"
        return self._informed.lone_verify()

    def verify(self, confidence: FloatArray) -> list[int]:
        if self._informed is None:
            return [int(n) for n in np.isfinite(confidence).sum(axis=1)]
        return self._informed.verify(confidence)

    def decision(self) -> Decision:
        if self._informed is not None:
            self._decision.cut, self._decision.stopped = self._informed.cut, self._informed.stopped
        return self._decision

    # -- learning ------------------------------------------------------------------------------

    def observe(self, round: Round) -> None:
        stretch, decision = self._stretch, self._decision
        excluded = self._gate.excluded(round)
        if (
            stretch is not None
            and (not excluded or excluded == "transition")
            and stretch.ordinary(round)
        ):
            decision.excluded, decision.cost_sample = excluded, not excluded
            stretch.pending.append((round, decision, excluded))
            self.cutting.last = round.slots[0].verified
            return
        self._catch_up()
        self._learn(round, decision, excluded)

    def _catch_up(self) -> None:
        """Learn from the rounds of a stretch that were put off: what `_learn` does, of one sequence."""
        stretch = self._stretch
        if stretch is None or not stretch.pending or self._group is None:
            return
        pending, stretch.pending = stretch.pending, []
        mode, costs = self._modes[0], self.seen.costs_of(self._group)
        count = len(pending)
        self.asking.tick(count)
        self.seen.advance(count)
        # A cost's age decides what its surprise means; these pass one by one.
        costs.advance(-count)
        alarm, informed = False, self._informed is not None
        for round, decision, excluded in pending:
            costs.advance()
            slot = round.slots[0]
            alarm |= self._drafts_stood(slot, mode)
            why = self._timing.even(
                costs, round, slot.drafted, slot.verified, excluded, informed=informed
            )
            if why != excluded:
                decision.excluded, decision.cost_sample = why, not why
        self.cutting.tick(count)
        if alarm:
            self._hurry()
            self.asking.content_changed()

    def _learn(self, round: Round, decision: Decision, excluded: str) -> None:
        self.asking.tick()
        self.seen.advance()
        requests = [slot.request for slot in round.slots]
        if not set(requests) <= set(self._requests):
            self.seen.begin()
            self._hurry()
        alarm = False
        for slot, mode in zip(round.slots, self._modes, strict=False):
            alarm |= self._drafts_stood(slot, mode)
        informed = self._informed is not None
        costs = None if self._group is None else self.seen.costs_of(self._group)
        surprises = 0 if costs is None else costs.surprises
        excluded = self._timing.round(self._group, round, excluded, informed=informed)
        if costs is not None and costs.surprises != surprises:
            # What chains were judged by was wrong, or is.
            self._hurry()
            self.cutting.recheck(on=True)
        trial = self.asking.trial
        if costs is not None and trial is not None and round.round_ms > 0.0:
            if not trial.length and not excluded:
                rates, _ = self.seen.rates(self._modes, max(trial.depth, self.selected))
                trial.known_now(costs, rates, self.selected)
            trial.observe(not excluded, round.committed / round.width / round.round_ms)
        decision.excluded, decision.cost_sample = excluded, not excluded
        self.cutting.tick()
        if alarm:
            self._hurry()
            self.asking.content_changed()
        elif requests != self._requests and not self.cutting.reading:
            # Chains by confidence show what drafts are worth in it, and short answers have no round to lose.
            self.asking.answer_begins()
        self._requests = requests

    def _drafts_stood(self, slot: SlotRound, mode: str) -> bool:
        """What one sequence's round says of its drafts; True if its content has changed."""
        alarm = self.seen.learn(slot, mode)
        if slot.drafted:
            self.cutting.note(mode, slot.confidences)
        return alarm

    @property
    def _review_after(self) -> int:
        """Rounds until the next selection."""
        return min(LATER, REVIEW + self._rounds // GROWS)

    def _hurry(self) -> None:
        """Something happened: choose anew in the next round."""
        self._review = 0
        if self._stretch is not None:
            self._stretch.left = 0

    # -- showing and keeping -------------------------------------------------------------------

    def explain(self) -> dict[str, Any]:
        """What it believes, what trials cost so far in rounds, and, while parked, why."""
        self._catch_up()
        out: dict[str, Any] = {
            "selected": self.selected,
            "interval": self.asking.interval,
            "trials": self.asking.trials,
            "trials_lost_rounds": self.asking.lost,
            **self.seen.explain(),
            "cutting": self.cutting.explain(),
        }
        if self._group in self.seen.costs and self._head:
            curve = self.seen.costs[self._group].curve()
            tokens = expected_tokens(self.seen.rates(self._modes, self._head)[0])
            priced = [(d, ms, tokens[d]) for d, ms in curve if d < len(tokens)]
            width = self._group[0]
            out["tokens_per_s"] = {str(d): 1000.0 * width * n / ms for d, ms, n in priced}
            if not self.selected:
                out["parked"] = why_parked(priced)
        return out

    def parameters(self) -> dict[str, Any]:
        return {
            "cost_feedback": self.cost_feedback,
            "prior_costs": list(self.prior_costs),
            "cuts": self.cuts,
        }

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON can hold it."""
        self._catch_up()
        return {
            "policy": self.name,
            "selected": self.selected,
            "rounds": self._rounds,
            **self.asking.state(),
            "cutting": self.cutting.state(),
            **self.seen.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state()` gave. Raises `PolicyError`, and changes nothing, if it is no such
        state."""
        fresh = AdaptiveDepth(
            prior_costs=self.prior_costs, cost_feedback=self.cost_feedback, cuts=self.cuts
        )
        try:
            fresh.seen.restore(state)
            fresh.cutting.restore(state["cutting"], MODES)
            fresh.selected = int(state["selected"])
            fresh._rounds = int(state["rounds"])
            fresh._routes_due = fresh._rounds + ROUTES_EVERY
            fresh.asking.restore(state)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise PolicyError("this is not the state of the policy 'adaptive'") from error
        sane = (
            state.get("policy") == self.name
            and 0 <= fresh.selected <= 64
            and 0 <= fresh._rounds < 1e12
        )
        if not sane:
            raise PolicyError("the stored state of the policy 'adaptive' leaves its range")
        self.__dict__.update(fresh.__dict__)
