"""One answer: prefill, the round loop, text as it becomes final, and what is to be said of it.

`Stream` is an iterator of pieces of text. Whatever ends it (the end of the answer, Ctrl-C, an error,
the consumer walking away) it closes the slot, writes the trace's end record and leaves `result`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import msgspec
import numpy as np

from mtpx.backend import Clock, Engine
from mtpx.decode import Request, Stop, decode
from mtpx.policy import DepthPolicy
from mtpx.round import Round
from mtpx.sampling import Sampling
from mtpx.text import Detokenizer, Tokenizer
from mtpx.trace.looping import looping
from mtpx.trace.schema import BeliefRecord, EndRecord, Record, RequestRecord
from mtpx.trace.writer import TraceWriter

PREFILL_CHUNK = 256
"""Prompt tokens computed between two looks at Ctrl-C and at the progress line."""

BELIEF_EVERY = 64
"""Rounds between two records of what the policy believes."""

Progress = Callable[[int, int], None]


class Position(msgspec.Struct, frozen=True):
    """Acceptance at one draft position: `reached` drafts were judged there (all before them stood),
    `accepted` of them stood; `rate` is accepted / reached."""

    reached: int
    accepted: int
    rate: float | None


class Logprob(msgspec.Struct, frozen=True):
    """A delivered token, its log-probability under the target's raw distribution, its rivals."""

    token: int
    text: str
    logprob: float
    top: list[tuple[int, str, float]]


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer and its figures. Also the JSON of `mtpx run --json`, key by key.

    - `text`; `tokens` delivered, an end-of-sequence token included; `token_ids` of them.
    - `prompt_tokens`, the chat template's included.
    - `tok_s`: tokens after the first round's, over the time from the first round's arrival to the
      last one's; absent under two rounds. `prefill_ms`; `ttft_ms`: opening to first token.
    - `rounds`: target forwards. `accepted_per_position`: see `Position`; empty without drafts.
    - `stop`: "end", "length", "context", "stop", "interrupt" or "error".
    - `depth` asked for; `speculation`: "on", or why it did not run.
    - `pack`, `backend`, `device`, `seed`, `sampling`.
    - `looped`: the text repeats itself. `logprobs` where asked for.
    """

    text: str
    tokens: int
    token_ids: list[int]
    prompt_tokens: int
    tok_s: float | None
    prefill_ms: float | None
    ttft_ms: float | None
    rounds: int
    accepted_per_position: list[Position]
    stop: Stop
    depth: int
    speculation: str
    pack: str
    backend: str
    device: str
    seed: int
    sampling: Sampling
    looped: bool = False
    logprobs: list[Logprob] | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as it goes in. `depth` 0 is a plain run; `budget` the most tokens delivered;
    `why_plain` the reason speculation does not run, if it does not."""

    tokens: list[int]
    sampling: Sampling
    seed: int
    budget: int
    depth: int
    end_ids: frozenset[int]
    stop: Sequence[str] = ()
    why_plain: str = ""
    request: int = 0
    text: str | None = None


@dataclass(slots=True)
class _Clocked:
    """When things happened, ns."""

    opened: int
    prefilled: int | None = None
    arrivals: list[tuple[int, int]] = field(default_factory=list)

    def ms(self, until: int | None) -> float | None:
        return None if until is None else (until - self.opened) / 1e6

    @property
    def first(self) -> int | None:
        return self.arrivals[0][0] if self.arrivals else None

    @property
    def decode_s(self) -> float | None:
        if len(self.arrivals) < 2:
            return None
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / 1e9


class Stream:
    """Iterate for the text; `result` is there once the iteration has ended, however it ended.

    `on_prefill(done, total)` in tokens; `on_round` sees every round; `trace` takes the
    records and is closed at the end. Raises what the engine raises; Ctrl-C passes through after `result` is made.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        policy: DepthPolicy,
        prompt: Prompt,
        *,
        trace: TraceWriter | None = None,
        trace_text: bool = False,
        on_prefill: Progress | None = None,
        on_round: Callable[[Round], None] | None = None,
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        self._engine, self._tokenizer, self._policy = engine, tokenizer, policy
        self._prompt = prompt
        self._trace, self._trace_text = trace, trace_text
        self._on_prefill, self._on_round = on_prefill, on_round
        self._clock = clock
        self._text: list[str] = []
        self._rounds = 0
        self._reached: list[int] = []
        self._accepted: list[int] = []
        self._result: Generation | None = None
        self._pieces = self._run()

    @property
    def result(self) -> Generation:
        """The answer so far as a whole; complete once the iteration has ended."""
        if self._result is None:
            raise RuntimeError("the answer is not finished: iterate to its end, or close it")
        return self._result

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop here. `result` then holds what was made (stop "interrupt"), if anything began."""
        self._pieces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> Generator[str, None, None]:
        prompt = self._prompt
        times = _Clocked(self._clock())
        slot = self._engine.open(
            prompt.tokens,
            prompt.sampling,
            prompt.seed,
            request=prompt.request,
            end_ids=prompt.end_ids,
            head=prompt.depth > 0,
        )
        parked = prompt.why_plain if prompt.depth > 0 else ""
        request = Request(prompt.request, slot, prompt.sampling, prompt.budget, parked)
        detokenizer = Detokenizer(self._tokenizer, prompt.stop)
        stop: Stop = "error"
        error = ""
        try:
            chunks = 0
            while not self._engine.prefill(slot, PREFILL_CHUNK):
                chunks += 1
                if self._on_prefill is not None:
                    self._on_prefill(chunks * PREFILL_CHUNK, len(prompt.tokens))
            times.prefilled = self._clock()
            self._emit(self._request_record(times))
            for round in decode(self._engine, self._policy, [request], clock=self._clock):
                fresh = request.delivered[len(request.delivered) - round.committed :]
                times.arrivals.append((self._clock(), round.committed))
                self._count(round)
                piece = detokenizer.push(fresh)
                if detokenizer.stopped:
                    request.stop = "stop"
                if piece:
                    self._text.append(piece)
                    yield piece
            rest = detokenizer.finish()
            stop = request.stop or "length"
            if rest:
                self._text.append(rest)
                yield rest
        except (KeyboardInterrupt, GeneratorExit):
            stop = "interrupt"
            self._text.append(detokenizer.finish())
            raise
        except Exception as failed:
            error = str(failed)
            raise
        finally:
            if times.prefilled is None:
                self._emit(self._request_record(times))
            self._finish(request, times, stop, error)
            slot.close()
            if self._trace is not None:
                self._trace.close()

    def _count(self, round: Round) -> None:
        self._rounds += 1
        for slot in round.slots:
            for j in range(slot.judged):
                if j == len(self._reached):
                    self._reached.append(0)
                    self._accepted.append(0)
                self._reached[j] += 1
                self._accepted[j] += j < slot.accepted
        self._emit(round)
        if self._rounds % BELIEF_EVERY == 0:
            self._believe(round.index)
        if self._on_round is not None:
            self._on_round(round)

    def _believe(self, index: int) -> None:
        belief = self._policy.explain()
        if belief:
            self._emit(BeliefRecord(round=index, policy=self._policy.name, belief=belief))

    def _emit(self, record: Record) -> None:
        if self._trace is not None:
            self._trace.write(record)

    def _request_record(self, times: _Clocked) -> RequestRecord:
        prompt = self._prompt
        return RequestRecord(
            id=prompt.request,
            mode="mtp" if prompt.depth > 0 else "plain",
            prompt_tokens=len(prompt.tokens),
            prompt_sha256=token_digest(prompt.tokens),
            max_tokens=prompt.budget,
            sampling=prompt.sampling,
            seed=prompt.seed,
            prefill_ms=times.ms(times.prefilled),
            parked=prompt.why_plain,
            depth=prompt.depth,
            text=prompt.text if self._trace_text else None,
        )

    def _finish(self, request: Request, times: _Clocked, stop: Stop, error: str) -> None:
        prompt, ids = self._prompt, list(request.delivered)
        if (
            stop == "length"
            and len(prompt.tokens) + prompt.budget >= self._engine.info.context_limit
        ):
            stop = "context"
        text = "".join(self._text)
        first = times.arrivals[0][1] if times.arrivals else 0
        seconds = times.decode_s
        info = self._engine.info
        if self._rounds:
            self._believe(self._rounds - 1)
        self._emit(
            EndRecord(
                request=prompt.request,
                tokens=len(ids),
                first_tokens=first,
                stop=stop,
                decode_s=seconds,
                ttft_ms=times.ms(times.first),
                sha256=token_digest(ids),
                looped=looping(ids),
                error=error,
                text=text if self._trace_text else None,
            )
        )
        self._result = Generation(
            text=text,
            tokens=len(ids),
            token_ids=ids,
            prompt_tokens=len(prompt.tokens),
            tok_s=(len(ids) - first) / seconds if seconds else None,
            prefill_ms=times.ms(times.prefilled),
            ttft_ms=times.ms(times.first),
            rounds=self._rounds,
            accepted_per_position=[
                Position(n, a, a / n if n else None)
                for n, a in zip(self._reached, self._accepted, strict=True)
            ],
            stop=stop,
            depth=prompt.depth,
            speculation=prompt.why_plain or "on",
            pack=info.pack,
            backend=info.backend,
            device=info.device,
            seed=prompt.seed,
            sampling=prompt.sampling,
            looped=looping(ids),
            logprobs=self._logprobs(request) if prompt.sampling.logprobs is not None else None,
        )

    def _logprobs(self, request: Request) -> list[Logprob]:
        say = self._tokenizer.token_text
        return [
            Logprob(p.token, say(p.token), p.logprob, [(t, say(t), v) for t, v in p.top])
            for p in request.logprobs
        ]


def token_digest(tokens: Sequence[int]) -> str:
    """SHA-256 of token ids as little-endian 64-bit integers: equal texts, equal digests."""
    return hashlib.sha256(np.asarray(tokens, dtype="<i8").tobytes()).hexdigest()
