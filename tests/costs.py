"""What being watched costs, measured on a real pack: `python tests/costs.py trace`.

`trace`: decoding with a trace of every round against decoding without; `live`: a chat's live line on a
terminal against a silent one; `first`: seconds from starting `mtpx run` to its first token.

The first two run in blocks off-on-on-off or on-off-off-on and print the ratio of the rates with its
95 % interval; and, sharper on a busy machine, the share of the time that was spent in the code in
question. The machine should be left alone meanwhile.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mtpx.api import Model, load
from mtpx.bench.intervals import t_interval
from mtpx.bench.suites import suite
from mtpx.bench.timed import settled_heap
from mtpx.generation import Stream
from mtpx.trace.writer import TraceWriter
from mtpx_cli.live import Status, Writer

Arm = Callable[[Model, str, int], float]


class Meter:
    """Seconds spent inside the methods it watches."""

    def __init__(self) -> None:
        self.s = self.of = 0.0

    @contextmanager
    def watching(self, owner: type, *names: str) -> Iterator[None]:
        kept = {name: getattr(owner, name) for name in names}
        for name, method in kept.items():
            setattr(owner, name, self._timed(method))
        try:
            yield
        finally:
            for name, method in kept.items():
                setattr(owner, name, method)

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **options)
            finally:
                self.s += time.perf_counter() - began

        return timed


def answered(model: Model, prompt: str, tokens: int, **options: Any) -> Stream:
    return model.stream(
        prompt, max_tokens=tokens, ignore_eos=True, temperature=0.0, seed=0, **options
    )


def rate(stream: Stream) -> float:
    for _ in stream:
        pass
    assert stream.result.tok_s is not None
    return stream.result.tok_s


def without_trace(model: Model, prompt: str, tokens: int) -> float:
    return rate(answered(model, prompt, tokens))


def with_trace(model: Model, prompt: str, tokens: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return rate(answered(model, prompt, tokens, trace=Path(folder) / "t.jsonl"))


def chatted(model: Model, prompt: str, tokens: int, *, live: bool) -> float:
    """An answer as `mtpx chat` shows it, on whatever stdout is."""
    status = Status(model.engine.info.context_limit)
    writer = Writer(flowing=True, styled=True, live=live)
    stream = answered(model, prompt, tokens, on_round=status.see)
    for piece in stream:
        writer.text(piece)
        writer.status(status.line)
    writer.finish()
    assert stream.result.tok_s is not None
    return stream.result.tok_s


@contextmanager
def on_a_terminal() -> Iterator[None]:
    """stdout is a pseudo-terminal whose other end another process reads."""
    ours, theirs = os.openpty()
    with subprocess.Popen(
        ["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ):
        os.close(ours)
        kept, sys.stdout = sys.stdout, io.TextIOWrapper(io.FileIO(theirs, "w"))
        try:
            yield
        finally:
            terminal, sys.stdout = sys.stdout, kept
            terminal.close()


def ratios(model: Model, off: Arm, on: Arm, blocks: int, tokens: int, meter: Meter) -> list[float]:
    """log(rate on / rate off) of each block."""
    prompts = [p.messages[0].content for p in suite("chat")]
    off(model, prompts[0], tokens)
    on(model, prompts[0], tokens)
    meter.s = meter.of = 0.0
    logs = []
    for block in range(blocks):
        prompt = prompts[block % len(prompts)]
        found: dict[bool, list[float]] = {False: [], True: []}
        for is_on in (True, False, False, True) if block % 2 else (False, True, True, False):
            began = time.perf_counter()
            found[is_on].append((on if is_on else off)(model, prompt, tokens))
            meter.of += is_on * (time.perf_counter() - began)
        logs.append(sum(math.log(b / a) for a, b in zip(*found.values(), strict=True)) / 2)
        print(f"block {block + 1} of {blocks}", file=sys.stderr)
    return logs


def say(name: str, logs: list[float], meter: Meter) -> None:
    mean, low, high = (math.exp(x) for x in t_interval(logs, 0.95))
    print(
        f"{name}: {mean:.4f} × the speed without (95 % {low:.4f} to {high:.4f}, {len(logs)} blocks); "
        f"{100 * meter.s / meter.of:.2f} % of the time was spent in it"
    )


def first_tokens(pack: str, runs: int) -> None:
    """Seconds from the start of the process to the first byte of the answer."""
    took = []
    for _ in range(runs):
        command = [sys.executable, "-m", "mtpx_cli", "run", "Hello", "--pack", pack, "--quiet"]
        began = time.perf_counter()
        with subprocess.Popen([*command, "--max-tokens", "8"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            took.append(time.perf_counter() - began)
    print(
        f"first token after {statistics.median(took):.2f} s "
        f"(median of {runs}, {min(took):.2f} to {max(took):.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["trace", "live", "first"], nargs="+")
    parser.add_argument("--pack", default="smollm2-135m")
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96, help="a run")
    asked = parser.parse_args()
    if "first" in asked.what:
        first_tokens(asked.pack, 5)
    if asked.what == ["first"]:
        return
    with load(asked.pack) as model, settled_heap():
        if "trace" in asked.what:
            meter = Meter()
            with meter.watching(TraceWriter, "write"):
                logs = ratios(model, without_trace, with_trace, asked.blocks, asked.tokens, meter)
            say("trace", logs, meter)
        if "live" in asked.what:
            meter = Meter()

            def silent(model: Model, prompt: str, tokens: int) -> float:
                return chatted(model, prompt, tokens, live=False)

            def live(model: Model, prompt: str, tokens: int) -> float:
                with meter.watching(Writer, "status"), meter.watching(Status, "see"):
                    return chatted(model, prompt, tokens, live=True)

            with on_a_terminal():
                logs = ratios(model, silent, live, asked.blocks, asked.tokens, meter)
            say("live line", logs, meter)


if __name__ == "__main__":
    main()
