"""What a round's time teaches: of its depth, of drafts, of readings, of a change of shape."""

from __future__ import annotations

from mtpx.policy.cost import MeasuredCosts, usable_ms
from mtpx.policy.cutting import Cutting
from mtpx.policy.drafting import beside_ms
from mtpx.policy.experience import Experience, Group
from mtpx.round import Round


class Timing:
    """Feeds the costs of `experience` and `cutting`; `feedback` False prices depths by configuration."""

    def __init__(self, experience: Experience, cutting: Cutting, *, feedback: bool) -> None:
        self._experience, self._cutting, self._feedback = experience, cutting, feedback

    def round(self, group: Group | None, round: Round, excluded: str, *, informed: bool) -> str:
        """ "" for a sample of its depth, or why it is none: `excluded` by the gate, or by what is known of costs.

        `informed`: confidences decided in it. `group` is `None` where nothing might be drafted."""
        if group is None:
            self._note_drafts(round, beside_ms(round), informed)
            return excluded or "cap"
        drafting = [slot for slot in round.slots if slot.drafted]
        depths = {slot.verified for slot in drafting} or {0}
        ragged = len(depths) > 1 or any(slot.drafted != round.depth for slot in drafting)
        if not excluded and round.depth and (ragged or len(drafting) != group[1]):
            excluded = "ragged"
        verified = max(depths)
        self._cutting.last = verified
        costs = self._experience.costs_of(group)
        return self.even(costs, round, round.depth, verified, excluded, informed=informed)

    def even(
        self,
        costs: MeasuredCosts,
        round: Round,
        made: int,
        verified: int,
        excluded: str,
        *,
        informed: bool,
    ) -> str:
        """As `round`, where every sequence that drafts made and verified as many."""
        beside = beside_ms(round)
        self._note_drafts(round, beside, informed)
        if excluded == "transition" and (
            verified == made
            or (round.width == 1 and beside is not None and self._cutting.drafts.apart)
        ):
            self._changed(costs, round, beside, verified)
        if not self._feedback:
            return "fixed"
        if excluded:
            return excluded
        cutting, drafts = self._cutting, self._cutting.drafts
        ms: float | None = round.round_ms
        if informed and drafts.apart and beside is not None:
            # The forward that it was, and so many drafts as it would be without reading.
            ms = round.round_ms - beside + drafts.table(verified)[verified]
            if not usable_ms(ms):
                return "clock"
        elif verified != made:
            ms = cutting.cut(round.round_ms, made, verified, costs.cost(verified))
        elif informed and made:
            expected = costs.cost(made)
            error = expected * costs.deviation(made) if expected else 0.0
            ms = cutting.full(round.round_ms, made, expected, error)
        if verified == made:
            costs.take_route(made, round.route.kind)
        if ms is None:
            return "reading"
        return "" if costs.sample(verified, ms) else "stall"

    def _note_drafts(self, round: Round, beside: float | None, informed: bool) -> None:
        stepwise = informed and self._cutting.stepwise
        reads = 0 if not informed else round.depth if stepwise else 1
        self._cutting.drafts.note(round.depth, beside, reads, stepwise=stepwise, asked=round.ask_ms)

    def _changed(
        self, costs: MeasuredCosts, round: Round, beside: float | None, verified: int
    ) -> None:
        """A round whose shape was another than the one before; `verified` drafts are all that it made, unless the
        forward's time is known by itself."""
        whole = costs.cost(verified)
        drafts = self._cutting.drafts
        ms = rest = round.round_ms
        if drafts.apart and beside is not None:
            unread = drafts.table(verified)[verified]
            rest = ms - beside
            ms = rest + unread
        costs.bound(verified, ms)
        if whole is None:
            return
        expected = whole - (ms - rest)
        if rest > 0.0 and expected > 0.0:
            drafts.note_transition(rest, expected, costs.deviation(verified))
            if drafts.changes_known and round.width == 1:
                costs.changed(verified, ms - rest + rest / (1.0 + drafts.transition))
