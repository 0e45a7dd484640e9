"""An engine that says what it is told to, token by token, at any depth: for tests of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Library

from mtpx.backend import EngineOptions
from mtpx.generation import Prompt, Stream
from mtpx.policy import FixedDepth
from mtpx.sampling import Array, Sampling
from mtpx.simulate import Language, Regime, SimulatedEngine
from mtpx.simulate.language import mix
from mtpx.text import Tokenizer
from mtpx.text.tokenizer import _byte_characters

END = 256
WORDS = ["The", " sky", " is", " blue"]
PROMPT = [ord(c) for c in "Why?"]

ROUND_MS = 10.0


def tokenizer() -> Tokenizer:
    """A token for each byte (its id is the byte), an end token, and a few words."""
    alphabet = _byte_characters()
    spelled = ["".join(alphabet[b] for b in word.encode()) for word in WORDS]
    vocab = {alphabet[b]: b for b in range(256)} | {"<end>": END}
    vocab |= {word: END + 1 + i for i, word in enumerate(spelled)}
    library = Library(models.BPE(vocab=vocab, merges=[]))
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    return Tokenizer(
        library, bos_id=None, end_ids=[END], adds_bos=False, chat_template=None, special_texts={}
    )


TOKENIZER = tokenizer()


def ids(*parts: str | bytes) -> list[int]:
    """Token ids: a word of `WORDS` is one, anything else one a byte."""
    out = []
    for part in parts:
        if isinstance(part, str) and part in WORDS:
            out.append(END + 1 + WORDS.index(part))
        else:
            out += list(part.encode() if isinstance(part, str) else part)
    return out


@dataclass(frozen=True)
class Script(Language):
    """A target that is sure of the next token: what `says` holds for the text so far, else the end."""

    vocab: int = END + 1 + len(WORDS)
    says: Mapping[int, int] = field(default_factory=dict)

    def logits(self, state: int) -> Array:
        x = 0.01 * super().logits(state)
        x[self.says.get(state, END)] += 100.0
        return x


def script(said: Sequence[int], prompt: Sequence[int] = PROMPT) -> Script:
    says, state = {}, Script().start
    for token in prompt:
        state = mix(state, token)
    for token in said:
        says[state] = token
        state = mix(state, token)
    return Script(says=says)


def engine_for(
    said: Sequence[int],
    *,
    prompt: Sequence[int] = PROMPT,
    acceptance: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    context: int | None = None,
) -> SimulatedEngine:
    """Every round takes `ROUND_MS`, drafting is free, `acceptance` as a regime's."""
    costs = {1: [ROUND_MS] * (len(acceptance) + 1)}
    return SimulatedEngine(
        Regime(acceptance=acceptance, cost_ms=costs, draft_ms=0.0, prefill_ms=1.0),
        language=script(said, prompt),
        options=EngineOptions(context=context),
    )


def stream_of(engine: SimulatedEngine, *, depth: int = 0, **options: Any) -> Stream:
    """The engine's answer to `PROMPT`. `options` are those of `Prompt` and of `Stream`."""
    fields = Prompt.__dataclass_fields__
    prompt = {
        "tokens": list(PROMPT),
        "sampling": Sampling(),
        "seed": 0,
        "budget": 100,
        "depth": depth,
        "end_ids": frozenset([END]),
    } | {name: options.pop(name) for name in list(options) if name in fields}
    policy = options.pop("policy", None) or FixedDepth(depth)
    return Stream(engine, TOKENIZER, policy, Prompt(**prompt), clock=engine.clock, **options)


def log_softmax(x: Array) -> Array:
    shifted = x - x.max()
    out: Array = shifted - np.log(np.exp(shifted).sum())
    return out
