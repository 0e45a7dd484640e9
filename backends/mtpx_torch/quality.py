"""What a precision does to a model's text: perplexity and greedy agreement, beside float32.

    python -m mtpx_torch.quality smollm2-135m LICENSE

prints a table for the `[evidence.precision]` of a pack's manifest. A precision belongs into the
manifest's `precisions` when its perplexity lies within 2 % of float32's.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from mtpx import packs
from mtpx.backend import EngineOptions
from mtpx.checkpoint import open_checkpoint
from mtpx.errors import MtpxError, PromptError
from mtpx.precision import PRECISIONS, Precision
from mtpx.sampling import Sampling
from mtpx.text import load_tokenizer
from mtpx_torch.backend import TorchBackend
from mtpx_torch.engine import TorchEngine

WINDOW = 512
"""Tokens read with nothing before them but one another; a text is cut into windows of so many."""

ROWS = 128
"""Rows whose logits are there at a time."""


@dataclass(frozen=True, slots=True)
class Quality:
    """`loss`: mean negative log-probability of the text's own next tokens; `choices` (tokens,) what a
    greedy reader would have said in their place."""

    loss: float
    choices: torch.Tensor

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)

    def agreement(self, other: Quality) -> float:
        """Share of places where both would have said the same."""
        return float((self.choices == other.choices).float().mean())


@torch.inference_mode()
def read(engine: TorchEngine, tokens: Sequence[int], window: int = WINDOW) -> Quality:
    """The text as this engine reads it, window by window. Raises `PromptError` for less than two
    tokens."""
    losses, choices = [], []
    for start in range(0, len(tokens) - 1, window):
        piece = list(tokens[start : start + window + 1])
        for logits, targets in _read(engine, piece):
            losses.append(F.cross_entropy(logits, targets, reduction="none"))
            choices.append(logits.argmax(dim=-1))
    if not losses:
        raise PromptError("the text is too short: at least two tokens are needed")
    return Quality(float(torch.cat(losses).double().mean()), torch.cat(choices).cpu())


def _read(engine: TorchEngine, tokens: list[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits (rows, V) in float32 and the token after each row (rows,)."""
    slot = engine.open(tokens, Sampling(), 0, head=False)
    try:
        for lo in range(0, len(tokens) - 1, ROWS):
            ids = tokens[lo : min(lo + ROWS, len(tokens) - 1)]
            residual = engine.forwards.rows([(slot, ids, lo)])[: len(ids)]
            after = torch.tensor(tokens[lo + 1 : lo + 1 + len(ids)], device=residual.device)
            yield engine.trunk.output(engine.trunk.norm(residual)).float(), after
    finally:
        slot.close()


def measure(pack: packs.Pack, text: str, device: str = "auto") -> dict[Precision, Quality]:
    """Every precision that can be had here, float32 first."""
    with open_checkpoint(pack.weights) as checkpoint:
        tokens = load_tokenizer(pack.weights, checkpoint).encode(text)
    found: dict[Precision, Quality] = {}
    for precision in PRECISIONS:
        options = EngineOptions(
            device=device,
            precision=precision,
            tier="standard",
            context=WINDOW + 2,
            compile="off",
        )
        try:
            engine = TorchBackend().load(pack, options)
        except MtpxError as error:
            if precision == "float32":
                raise
            print(error, file=sys.stderr)
            continue
        print(f"reading {len(tokens)} tokens in {precision}", file=sys.stderr)
        found[precision] = read(engine, tokens)
        engine.close()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mtpx_torch.quality",
        description="Perplexity and greedy agreement of every precision, as TOML for pack.toml.",
    )
    parser.add_argument("pack", help="a pack's name, or its folder")
    parser.add_argument("text", type=Path, nargs="+", help="files of text, read as one")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    try:
        text = "\n".join(path.read_text() for path in given.text)
        found = measure(packs.resolve(given.pack), text, given.device)
    except (OSError, UnicodeDecodeError, MtpxError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    exact = found["float32"]
    print("[evidence.precision]")
    print(f'text_sha256 = "{hashlib.sha256(text.encode()).hexdigest()}"')
    print(f"tokens = {len(exact.choices)}")
    for precision, quality in found.items():
        print(
            f"{precision} = {{ perplexity = {quality.perplexity:.3f}, "
            f"agreement = {quality.agreement(exact):.3f} }}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
