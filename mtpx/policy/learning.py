"""The policies of a loaded model: made when first used, with what they learned before, kept after every
answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mtpx.backend import EngineInfo
from mtpx.errors import PolicyError
from mtpx.policy import DepthPolicy, store
from mtpx.policy.registry import PolicyOptions, make_policy


class Policies:
    """One policy for every way one was asked for. What cannot be read or written is said once, through
    `warn`, and done without: not remembering is no reason not to answer."""

    def __init__(
        self,
        info: EngineInfo,
        prior_costs: Sequence[float] = (),
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._info, self._prior_costs, self._warn = info, prior_costs, warn
        self._made: dict[PolicyOptions, DepthPolicy] = {}
        self._keeps = True

    def use(self, options: PolicyOptions) -> DepthPolicy:
        """The policy that is set up so, with what it learned before on this very engine. Raises
        `PolicyError` as `make_policy` does."""
        policy = self._made.get(options)
        if policy is None:
            policy = make_policy(
                options, info=self._info, prior_costs=self._prior_costs, warn=self._say
            )
            self._made[options] = policy
            if policy.state():
                self._say(store.load(policy, self._info, name=options.key))
        return policy

    def save(self, options: PolicyOptions) -> None:
        """Keep what that policy knows by now, if it learns at all."""
        policy = self._made[options]
        if not self._keeps or not policy.state():
            return
        try:
            store.save(policy, self._info, name=options.key)
        except PolicyError as error:
            self._say(str(error))
            self._keeps = False

    def _say(self, sentence: str) -> None:
        if sentence and self._warn is not None:
            self._warn(sentence)
