"""The adaptive policy of a loaded model: restored when it is first used, kept after every answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from mtpx.backend import EngineInfo
from mtpx.errors import PolicyError
from mtpx.policy import store
from mtpx.policy.adaptive import AdaptiveDepth


class Learning:
    """One `AdaptiveDepth` a model. What cannot be read or written is said once, through `warn`, and
    done without: not remembering is no reason not to answer."""

    def __init__(
        self,
        info: EngineInfo,
        prior_costs: Sequence[float] = (),
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._info, self._prior_costs, self._warn = info, prior_costs, warn

    @cached_property
    def policy(self) -> AdaptiveDepth:
        """The policy, with what was learned before on this very engine."""
        policy = AdaptiveDepth(prior_costs=self._prior_costs)
        self._say(store.load(policy, self._info))
        return policy

    def save(self) -> None:
        """Keep what the policy knows by now."""
        try:
            store.save(self.policy, self._info)
        except PolicyError as error:
            self._say(str(error))
            self._warn = None

    def _say(self, sentence: str) -> None:
        if sentence and self._warn is not None:
            self._warn(sentence)
