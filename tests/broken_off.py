"""Ctrl-C at every place of a piece of work: where Python looks for signals, a KeyboardInterrupt is raised.

That is where a function begins, where a call has returned (its result is not bound to a name yet), and where
a loop turns round.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

LOOKS = ("CALL", "JUMP_BACKWARD", "RESUME")

Place = tuple[CodeType, int]
"""A code object and an instruction's offset in it."""


class Watch:
    """Follows what runs in files whose path holds one of `within`. Raises at the `stop`-th place."""

    def __init__(self, within: tuple[str, ...], stop: int | None = None) -> None:
        self._within, self._stop = within, stop
        self.passed: list[Place] = []

    def run(self, work: Callable[[], object]) -> bool:
        """Whether the work was broken off."""
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not any(part in frame.f_code.co_filename for part in self._within):
            return None
        frame.f_trace_opcodes = True
        code, last = frame.f_code, ""

        def local(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal last
            if event == "opcode":
                if last.startswith(LOOKS):
                    self.passed.append((code, frame.f_lasti))
                    if len(self.passed) == self._stop:
                        raise KeyboardInterrupt
                last = dis.opname[code.co_code[frame.f_lasti]]
            return local

        return local


def places(work: Callable[[], object], within: tuple[str, ...]) -> list[int]:
    """Numbers for `Watch(stop=...)`: every place the work passes, once; in the middle of its passes."""
    watch = Watch(within)
    assert not watch.run(work)
    passes: dict[Place, list[int]] = {}
    for number, place in enumerate(watch.passed, 1):
        passes.setdefault(place, []).append(number)
    return sorted(numbers[len(numbers) // 2] for numbers in passes.values())
