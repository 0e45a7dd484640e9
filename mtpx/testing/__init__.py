"""The conformance kit every backend must pass. Needs no test runner; a check is a function.

    from mtpx.testing import CHECKS, Subject, run_kit

    subject = Subject(
        name="mine",
        load=lambda options: MyEngine(weights, options),
        prompts=[tokenize("Once upon a time"), tokenize("def main():")],
        tolerance=1e-3,
    )
    print(run_kit(subject))                      # a table; .ok says whether all passed

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_mine_conforms(check):
        check(subject)                           # AssertionError with a sentence

The engine answers `force`, `drafted`, `logits`, `pairs` and `poison` (`Inspectable`), itself or in
a subclass for tests, or the subject brings hooks in their place.
"""

from mtpx.testing.drive import Finding
from mtpx.testing.kit import CHECKS, Check, CheckResult, KitReport, run_kit
from mtpx.testing.subject import Inspectable, Pairs, Subject

__all__ = [
    "CHECKS",
    "Check",
    "CheckResult",
    "Finding",
    "Inspectable",
    "KitReport",
    "Pairs",
    "Subject",
    "run_kit",
]
