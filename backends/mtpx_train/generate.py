"""Answers by the hundred: waves of sequences decoded side by side, their hidden states kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from mtpx_train.trunk import BatchTrunk

TOP = 64
"""Tokens a sampled one is drawn from: what a small model would say beyond them is noise."""

COMPACT = 0.8
"""A wave is narrowed when no more than this share of its rows is still running."""

TICK = 8
"""Steps between two reports."""

LOOP_TOKENS = 24
"""A text whose last tokens are one phrase three times over is cut: loops are easy to draft, and teach
nothing else."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids to answer, at what temperature; `kind` names what it was made from."""

    tokens: list[int]
    temperature: float
    kind: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished sequence: `tokens` (n,) prompt and answer, of which the first `start` are the prompt.

    `hidden` (n, H) the target's states after its final norm; `mass` (n - start,) the log-sum-exp of
    the logits that each answer token was chosen from. `ended`: the model said so itself.
    """

    tokens: torch.Tensor
    start: int
    hidden: torch.Tensor
    mass: torch.Tensor
    kind: str
    greedy: bool
    ended: bool


def decode_lanes(
    trunk: BatchTrunk,
    prompts: Sequence[Prompt],
    longest: int,
    end_ids: frozenset[int],
    seed: int,
    tick: Callable[[int], None] = lambda tokens: None,
) -> list[Answer]:
    """`decode_wave`, shared out among as many threads as torch has on a processor, each with products
    of its own: threads that share every small product wait for each other more than they compute.
    What comes out depends on their number."""
    lanes = min(len(prompts), torch.get_num_threads()) if trunk.device.type == "cpu" else 1
    if lanes == 1:
        return decode_wave(trunk, prompts, longest, end_ids, seed, tick)
    said, lock = [0] * lanes, Lock()

    def decode(lane: int) -> list[Answer]:
        def report(tokens: int) -> None:
            with lock:
                said[lane] = tokens
                tick(sum(said))

        return decode_wave(trunk, prompts[lane::lanes], longest, end_ids, seed + lane, report)

    with ThreadPoolExecutor(lanes, initializer=alone) as pool:
        made = list(pool.map(decode, range(lanes)))
    return [made[i % lanes][i // lanes] for i in range(len(prompts))]


@torch.inference_mode()
def decode_wave(
    trunk: BatchTrunk,
    prompts: Sequence[Prompt],
    longest: int,
    end_ids: frozenset[int],
    seed: int,
    tick: Callable[[int], None] = lambda tokens: None,
) -> list[Answer]:
    """Answer all prompts together, up to `longest` tokens each; `seed` fixes what is drawn. `tick` is
    told now and then how many tokens there are.

    The hidden state of an answer's last token was never computed; its row is zero.
    """
    generator = torch.Generator(device=trunk.device).manual_seed(seed)
    B = len(prompts)
    P = max(len(p.tokens) for p in prompts)
    shared = common([p.tokens for p in prompts])
    pads = torch.tensor([P - len(p.tokens) for p in prompts], device=trunk.device)
    ids = torch.zeros(B, P, dtype=torch.long, device=trunk.device)
    for row, prompt in enumerate(prompts):
        ids[row, P - len(prompt.tokens) + shared :] = torch.tensor(
            prompt.tokens[shared:], device=trunk.device
        )
    cache = trunk.cache(B, P + longest)
    hidden = torch.zeros(
        B, P + longest, trunk.config.hidden, dtype=trunk.dtype, device=trunk.device
    )
    mass = torch.zeros(B, longest, device=trunk.device)
    said = np.zeros((B, longest), dtype=np.int64)
    lengths = np.full(B, longest)
    ended = np.zeros(B, dtype=bool)
    temperature = torch.tensor([p.temperature for p in prompts], device=trunk.device)
    rows = np.arange(B)  # which prompt each row of the narrowed wave is
    going = np.ones(B, dtype=bool)  # of those rows

    if shared:
        # All begin alike (the template, its system prompt): computed once.
        beginning = torch.tensor([prompts[0].tokens[:shared]], device=trunk.device)
        hidden[:, :shared] = trunk.forward(beginning, cache.first(), 0, pads[:1] * 0)[1]
        cache.spread(shared)
    state = trunk.forward(ids[:, shared:], cache, shared, pads, shared)[1]
    hidden[:, shared:P] = state
    state = state[:, -1]
    for step in range(longest):
        logits = trunk.logits(state).float()
        at = torch.from_numpy(rows).to(trunk.device)
        mass[at, step] = logits.logsumexp(dim=-1)
        token = choose(logits, temperature, generator)
        host = token.cpu().numpy()
        said[rows, step] = host
        for i in np.flatnonzero(going):
            row = rows[i]
            ends = int(host[i]) in end_ids
            if ends or (step % 8 == 7 and loops(said[row, : step + 1])):
                going[i], lengths[row], ended[row] = False, step + 1, ends
        if step + 1 == longest or not going.any():
            break
        if step % TICK == 0:
            tick(int(np.minimum(lengths, step + 1).sum()))
        if going.mean() <= COMPACT:
            keep = torch.from_numpy(np.flatnonzero(going)).to(trunk.device)
            cache.keep(keep)
            pads, temperature, token = pads[keep], temperature[keep], token[keep]
            rows, going = rows[going], going[going]
            at = at[keep]
        state = trunk.forward(token[:, None], cache, P + step, pads, shared)[1][:, 0]
        hidden[at, P + step] = state
    answers = []
    for row, prompt in enumerate(prompts):
        first, n = P - len(prompt.tokens) + shared, int(lengths[row])
        states = torch.cat([hidden[row, :shared], hidden[row, first : P + n]])
        states[-1] = 0
        answers.append(
            Answer(
                tokens=torch.tensor([*prompt.tokens, *said[row, :n].tolist()]),
                start=len(prompt.tokens),
                hidden=states.cpu(),
                mass=mass[row, :n].clone().cpu(),
                kind=prompt.kind,
                greedy=prompt.temperature == 0,
                ended=bool(ended[row]),
            )
        )
    return answers


def alone() -> None:
    """Let this thread compute its products by itself."""
    torch.set_num_threads(1)


def common(prompts: Sequence[list[int]]) -> int:
    """How many first tokens all prompts share, their last ones left out."""
    shortest = min(len(p) for p in prompts) - 1
    for n in range(shortest):
        if any(p[n] != prompts[0][n] for p in prompts):
            return n
    return shortest


def choose(
    logits: torch.Tensor, temperature: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """logits (B, V), temperature (B,) → tokens (B,): the largest at 0, else drawn from the top."""
    best = logits.argmax(dim=-1)
    drawn = torch.nonzero(temperature > 0).squeeze(-1)
    if drawn.numel():
        values, ids = logits[drawn].topk(min(TOP, logits.shape[-1]), dim=-1)
        noise = torch.rand(values.shape, generator=generator, device=logits.device)
        gumbel = -torch.log(-torch.log(noise.clamp_min(1e-20)))
        picked = (values / temperature[drawn, None] + gumbel).argmax(dim=-1, keepdim=True)
        best[drawn] = ids.gather(1, picked).squeeze(1)
    return best


def loops(tokens: np.ndarray) -> bool:
    """Whether a text (n,) ends in a phrase said three times over."""
    n = len(tokens)
    for period in range(1, n // 3 + 1):
        span = max(3 * period, LOOP_TOKENS)
        if span > n:
            return False
        tail = tokens[-span:]
        if np.array_equal(tail[period:], tail[:-period]):
            return True
    return False
