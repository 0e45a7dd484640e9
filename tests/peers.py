"""mtpx against other decoders on the same weights: plain and with the head, greedy, interleaved.

    python tests/peers.py [--pack NAME] [--tokens 64] [--prompts 8] [--depth auto] [--threads N]
        [--precision NAME] [--compile] [--without transformers]

Against transformers' `generate` in float32 and, if llama-cpp-python is installed, llama.cpp on the same
GGUF; and, where --precision names another one, against mtpx's own plain decode in its fastest. Every
prompt is decoded twice by each, in one order and then in the other; all get the same prompt tokens, and
none stops at the end of the text. A rate runs from the first token to the last. Ratios are geometric
means over prompts with Student's t interval at 95 %.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import mtpx
from mtpx import packs
from mtpx.api import Model
from mtpx.bench.design import gather
from mtpx.bench.intervals import t_interval

Arm = Callable[[list[int], int], float]
"""(prompt ids, tokens to decode) → tokens a second from the first to the last."""

TRANSFORMERS, LLAMA = "transformers, float32", "llama.cpp"

PLAIN, HEAD, FASTEST = "mtpx plain", "mtpx with head", "mtpx plain, fastest"


def ours(model: Model, depth: int | str) -> Arm:
    def run(ids: list[int], tokens: int) -> float:
        answer = model.generate(
            ids, max_tokens=tokens, temperature=0.0, depth=depth, ignore_eos=True
        )
        assert answer.tok_s is not None
        return answer.tok_s

    return run


def transformers(weights: Path) -> Arm:
    gguf = {"gguf_file": weights.name} if weights.is_file() else {}
    folder = weights.parent if weights.is_file() else weights
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **gguf)
    model.generation_config.eos_token_id = None

    def run(ids: list[int], tokens: int) -> float:
        stamps = Stamps()
        given = torch.tensor([ids])
        model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=tokens,
            do_sample=False,
            streamer=stamps,
        )
        # The prompt is the first thing a streamer is given.
        return rate(stamps.at[1:], tokens)

    return run


class Stamps:
    """When transformers had each token."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.at.append(time.perf_counter())

    def end(self) -> None:
        pass


def llama(weights: Path, threads: int) -> Arm:
    from llama_cpp import Llama

    model = Llama(str(weights), n_ctx=2048, n_threads=threads, verbose=False)

    def run(ids: list[int], tokens: int) -> float:
        stamps = []
        for _ in model.generate(ids, temp=0.0, repeat_penalty=1.0):
            stamps.append(time.perf_counter())
            if len(stamps) == tokens:
                break
        return rate(stamps, tokens)

    return run


def rate(stamps: Sequence[float], tokens: int) -> float:
    if len(stamps) != tokens:
        raise SystemExit(f"a peer decoded {len(stamps)} tokens of {tokens}: nothing to compare")
    return (tokens - 1) / (stamps[-1] - stamps[0])


def compare(
    arms: dict[str, Arm], prompts: Iterable[list[int]], tokens: int
) -> dict[str, list[float]]:
    """Each arm's rate, one number a prompt: the harmonic mean of its two runs."""
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for number, ids in enumerate(prompts):
        order = list(arms) if number % 2 == 0 else list(arms)[::-1]
        seconds = dict.fromkeys(arms, 0.0)
        for name in [*order, *order[::-1]]:
            seconds[name] += 1 / arms[name](ids, tokens)
        for name, spent in seconds.items():
            rates[name].append(2 / spent)
        said = ", ".join(f"{name} {found[-1]:.1f}" for name, found in rates.items())
        print(f"prompt {number + 1}: {said} tok/s", flush=True)
    return rates


def ratio(above: Sequence[float], below: Sequence[float]) -> str:
    logs = [math.log(a / b) for a, b in zip(above, below, strict=True)]
    middle, low, high = (math.exp(x) for x in t_interval(logs, 0.95))
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def gguf_of(weights: Path) -> Path:
    """The one GGUF file that the weights are, or the folder they are."""
    inside = sorted(weights.glob("*.gguf")) if weights.is_dir() else []
    return inside[0] if len(inside) == 1 else weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pack", default=packs.EMBEDDED)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--depth", default="auto", help="of mtpx with the head: auto or a number")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--compile", action="store_true", help="mtpx on its compiled route")
    parser.add_argument(
        "--without", action="append", default=[], choices=["transformers", "llama.cpp"]
    )
    asked = parser.parse_args()
    if asked.tokens < 2 or asked.prompts < 2:
        parser.error("a rate takes 2 tokens at least, an interval 2 prompts")
    depth = int(asked.depth) if asked.depth.isdecimal() else asked.depth

    def load(precision: str) -> Model:
        how = "now" if asked.compile else "off"
        return mtpx.load(asked.pack, threads=asked.threads, precision=precision, compile=how)

    with ExitStack() as stack:
        model = stack.enter_context(load(asked.precision))
        weights = gguf_of(model.pack.weights)
        arms = {PLAIN: ours(model, "off"), HEAD: ours(model, depth)}
        if asked.precision != "auto":
            fastest = stack.enter_context(load("auto"))
            if fastest.engine.info.dtype != model.engine.info.dtype:
                arms[FASTEST] = ours(fastest, "off")
        arms |= peers(weights, asked.threads, asked.without)
        prompts = [model.encode(p.content) for p in gather((), (), asked.prompts)]
        for arm in arms.values():
            arm(prompts[0], 8)
        rates = compare(arms, prompts, asked.tokens)
        info = model.engine.info
        route = model.engine.route([1]).kind
    print(
        f"\n{info.pack} on {info.device}, {asked.threads} threads, mtpx in {info.dtype}, {info.tier}, "
        f"{route}"
    )
    for below in (PLAIN, FASTEST, TRANSFORMERS, LLAMA):
        for name in (PLAIN, HEAD):
            if below in rates and name != below:
                print(f"{name} / {below}: {ratio(rates[name], rates[below])}")


def peers(weights: Path, threads: int, without: Sequence[str]) -> dict[str, Arm]:
    """Those that are wanted and here; what is not here is said."""
    found: dict[str, Arm] = {}
    if "transformers" not in without:
        found[TRANSFORMERS] = transformers(weights)
    if "llama.cpp" in without:
        return found
    if importlib.util.find_spec("llama_cpp") is None:
        print(
            "llama.cpp is left out: llama-cpp-python is not installed (pip install "
            "llama-cpp-python builds it, in about 6 minutes on 2 cores)"
        )
    elif weights.suffix != ".gguf":
        print("llama.cpp is left out: it reads GGUF, and the pack's weights are none")
    else:
        found[LLAMA] = llama(weights, threads)
    return found


if __name__ == "__main__":
    main()
