"""One answer: prefill, the round loop, text as it becomes final, and what is to be said of it.

`Stream` is an iterator of pieces of text. Whatever ends it (the end of the answer, Ctrl-C, an error,
the consumer walking away), the slot is closed, the trace ends with a record, and `result` holds what
was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal, Self

from mtpx.answer import Generation, Logprob, Position
from mtpx.backend import Clock, Engine, Slot
from mtpx.decode import Request, Stop, decode
from mtpx.energy import Meter, Window
from mtpx.errors import MtpxError, PolicyError
from mtpx.policy import DepthPolicy
from mtpx.reuse import Reused
from mtpx.round import Round
from mtpx.sampling import Sampling
from mtpx.text import Detokenizer, Tokenizer
from mtpx.trace.ends import end_record, token_digest
from mtpx.trace.schema import BeliefRecord, EndRecord, Record, RequestRecord
from mtpx.trace.writer import TraceWriter

PREFILL_CHUNK = 256
"""Prompt tokens computed between two looks at Ctrl-C and at the progress line."""

BELIEF_EVERY = 64
"""Rounds between two records of what the policy believes."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as it goes in. `depth` 0 is a plain run, "auto" leaves it to the policy; `budget` the
    most tokens delivered; `stop` strings are not empty; `ignore_eos` goes on after one of `end_ids`;
    `why_plain` is the reason speculation does not run, if it does not."""

    tokens: list[int]
    sampling: Sampling
    seed: int
    budget: int
    depth: int | Literal["auto"]
    end_ids: frozenset[int]
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    why_plain: str = ""
    request: int = 0

    @property
    def head(self) -> bool:
        """Whether the head runs along, be it only to stay level."""
        return self.depth != 0


class Stream:
    """Iterate for the text; `result` is there once the iteration has ended, however it ended.

    `on_prefill(done, total)` in tokens; `on_round` sees every round; `trace` takes the records, with
    the texts of prompt and answer if `trace_text`, and is closed at the end. `session` and `reuse` go
    to `Engine.open`, `on_reuse` is told what that came to; `before_close` is called with the slot at the
    end, unless an error was that (what it holds may be kept for another answer), `on_end` last of all;
    `meter` measures the energy of the rounds. Raises what the engine, the policy and the callbacks
    raise; Ctrl-C passes through. Rounds that were delivered are kept in `result` then; the one being
    computed is not.
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
        session: int = 0,
        reuse: object | None = None,
        on_reuse: Callable[[Reused], None] | None = None,
        before_close: Callable[[Slot], None] | None = None,
        on_end: Callable[[], None] | None = None,
        meter: Meter | None = None,
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        self._engine, self._tokenizer, self._policy = engine, tokenizer, policy
        self._prompt = prompt
        self._trace, self._trace_text = trace, trace_text
        self._on_prefill, self._on_round = on_prefill, on_round
        self._session, self._reuse, self._before_close = session, reuse, before_close
        self._on_reuse, self._on_end = on_reuse, on_end
        self._meter = meter
        self._window: Window | None = None
        self._shared = bool(session) or reuse is not None
        self._reused: Reused | None = None
        self._clock = clock
        self._detokenizer = Detokenizer(tokenizer, prompt.stop)
        self._slot: Slot | None = None
        self._request: Request | None = None
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._opened: int = clock()
        self._prefill_ms: float | None = None
        self._arrivals: list[tuple[int, int]] = []
        self._reached: list[int] = []
        self._accepted: list[int] = []
        self._verified = 0
        self._parked = ""
        self._believed = -1
        self._stop: Stop | None = None
        self._error = ""
        self._pieces = self._run()

    @property
    def result(self) -> Generation:
        """The answer as a whole, and its figures. Raises `RuntimeError` before its end."""
        if self._stop is None:
            raise RuntimeError("the answer is not finished: iterate to its end, or close it")
        return self._generation(self._stop)

    @property
    def policy(self) -> str:
        """Name of the policy that chooses the depth."""
        return self._policy.name

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop here. `result` then holds what was made. Closing twice is harmless."""
        self._pieces.close()
        if self._stop is None:  # a generator that was never asked for a piece runs no `finally`
            self._end("interrupt")
            self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> Generator[str, None, None]:
        try:
            yield from self._answer()
        except (KeyboardInterrupt, GeneratorExit):
            self._end("interrupt")
            raise
        except BaseException as failed:
            known = isinstance(failed, MtpxError)
            self._end("error", str(failed) if known else f"{type(failed).__name__}: {failed}")
            raise
        finally:
            self._leave()

    def _answer(self) -> Generator[str, None, None]:
        request = self._prefilled()
        detokenizer = self._detokenizer
        for round in decode(self._engine, self._policy, [request], clock=self._clock):
            fresh = request.delivered[len(self._tokens) :]
            self._tokens += fresh
            self._arrivals.append((self._clock(), len(self._tokens)))
            self._learn(round)
            piece = detokenizer.push(fresh)
            if detokenizer.stopped:
                request.stop = "stop"
            if request.stop is not None:
                piece += detokenizer.finish()
                self._stop = "stop" if detokenizer.stopped else self._named(request.stop)
            if piece:
                self._text.append(piece)
                yield piece
        if self._stop is None:  # a budget of nothing
            self._end("length")

    def _prefilled(self) -> Request:
        prompt, total = self._prompt, len(self._prompt.tokens)
        self._opened = self._clock()
        slot = self._slot = self._engine.open(
            prompt.tokens,
            prompt.sampling,
            prompt.seed,
            request=prompt.request,
            end_ids=frozenset() if prompt.ignore_eos else prompt.end_ids,
            head=prompt.head,
            session=self._session,
            reuse=self._reuse,
        )
        self._reuse = None  # adopted by now: what it holds need not be kept beside the slot's own
        done = slot.reused.tokens
        while not self._engine.prefill(slot, PREFILL_CHUNK):
            done = min(done + PREFILL_CHUNK, total)
            if self._on_prefill is not None:
                self._on_prefill(done, total)
        if self._on_prefill is not None:
            self._on_prefill(total, total)
        self._prefill_ms = (self._clock() - self._opened) / 1e6
        if self._shared:
            self._reused = slot.reused
            if self._on_reuse is not None:
                self._on_reuse(self._reused)
        self._emit(self._request_record())
        if self._meter is not None:
            self._window = self._meter.window()
            self._window.__enter__()
        self._request = Request(
            prompt.request,
            slot,
            prompt.sampling,
            prompt.budget,
            parked=prompt.why_plain if prompt.head else "",
        )
        return self._request

    def _named(self, stop: Stop) -> Stop:
        """A budget that the context's end had cut is not the one that was asked for."""
        held = len(self._prompt.tokens) + self._prompt.budget
        full = stop == "length" and held >= self._engine.info.context_limit
        return "context" if full else stop

    def _learn(self, round: Round) -> None:
        """What a round adds to the figures, the trace and whoever watches."""
        if self._window is not None and (watts := self._window.watts) is not None:
            round.energy_j = watts * round.round_ms / 1e3
        for slot in round.slots:
            self._verified += slot.verified
            for j in range(slot.judged):
                if j == len(self._reached):
                    self._reached.append(0)
                    self._accepted.append(0)
                self._reached[j] += 1
                self._accepted[j] += j < slot.accepted
        self._emit(round)
        if self._trace is not None and len(self._arrivals) % BELIEF_EVERY == 0:
            self._believe()
        if self._on_round is not None:
            self._on_round(round)

    def _believe(self) -> None:
        """Record what the policy believes, once a round. Raises `PolicyError`."""
        index = len(self._arrivals) - 1
        if index <= self._believed:
            return
        self._believed = index
        name = self._policy.name
        try:
            belief = self._policy.explain()
            self._parked = str(belief.get("parked", ""))
            if belief:
                self._emit(BeliefRecord(round=index, policy=name, belief=belief))
        except Exception as error:
            raise PolicyError(
                f"policy {name!r} cannot explain itself: {type(error).__name__}: {error}"
            ) from error

    def _emit(self, record: Record) -> None:
        if self._trace is not None:
            self._trace.write(record)

    def _end(self, stop: Stop, error: str = "") -> None:
        """Note what cut the answer short, unless it was complete by then, and keep what it holds."""
        if self._stop is None or error:
            self._stop, self._error = stop, error
            self._text.append(self._detokenizer.finish())

    def _leave(self) -> None:
        """The trace's last records; then everything is let go of, whatever went wrong before."""
        if self._window is not None:
            self._window.__exit__(None, None, None)
        with ExitStack() as last:
            if self._on_end is not None:
                last.callback(self._on_end)
            if self._trace is not None:
                last.callback(self._trace.close)
            if self._slot is not None:
                last.callback(self._slot.close)
                if self._before_close is not None and not self._error:
                    last.callback(self._before_close, self._slot)
            if self._prefill_ms is None:
                self._emit(self._request_record())
            with suppress(PolicyError):  # the answer is whole, and so is its end record
                self._believe()
            self._emit(self._end_record())

    def _request_record(self) -> RequestRecord:
        prompt = self._prompt
        text = None
        if self._trace_text:
            text = self._tokenizer.decode(prompt.tokens, skip_special=False)
        reused = self._reused or Reused()
        return RequestRecord(
            id=prompt.request,
            mode="mtp" if prompt.head else "plain",
            prompt_tokens=len(prompt.tokens),
            prompt_sha256=token_digest(prompt.tokens),
            max_tokens=prompt.budget,
            sampling=prompt.sampling,
            seed=prompt.seed,
            prefill_ms=self._prefill_ms,
            session=self._session,
            reused_tokens=reused.tokens,
            reuse=reused.why,
            carry=reused.carry,
            carry_ms=reused.ms,
            parked=prompt.why_plain,
            depth=None if prompt.depth == "auto" else prompt.depth,
            ignore_eos=prompt.ignore_eos,
            text=text,
        )

    def _end_record(self) -> EndRecord:
        end = end_record(
            self._prompt.request,
            self._tokens,
            self._arrivals,
            stop=self._stop or "error",
            error=self._error,
            ignored_ends=self._prompt.end_ids if self._prompt.ignore_eos else frozenset(),
        )
        if self._arrivals:
            end.ttft_ms = (self._arrivals[0][0] - self._opened) / 1e6
        if self._window is not None and self._window.energy is not None:
            end.energy_j = self._window.energy.joules
        if self._trace_text:
            end.text = "".join(self._text)
        return end

    def _generation(self, stop: Stop) -> Generation:
        prompt, info, end = self._prompt, self._engine.info, self._end_record()
        kept = self._detokenizer.kept if stop == "stop" else len(self._tokens)
        return Generation(
            text="".join(self._text),
            tokens=kept,
            token_ids=self._tokens[:kept],
            prompt_tokens=len(prompt.tokens),
            tok_s=end.rate,
            prefill_ms=self._prefill_ms,
            ttft_ms=end.ttft_ms,
            rounds=len(self._arrivals),
            accepted_per_position=[
                Position(n, a, a / n if n else None)
                for n, a in zip(self._reached, self._accepted, strict=True)
            ],
            stop=stop,
            depth=prompt.depth,
            speculation=self._speculation(),
            pack=info.pack,
            backend=info.backend,
            device=info.device,
            seed=prompt.seed,
            sampling=prompt.sampling,
            policy=self._policy.name,
            mean_depth=self._verified / len(self._arrivals) if self._arrivals else None,
            energy_j=end.energy_j,
            looped=bool(end.looped),
            logprobs=self._logprobs(kept) if prompt.sampling.logprobs is not None else None,
            reused=self._reused,
        )

    def _speculation(self) -> str:
        """ "on", or why nothing was drafted."""
        if self._prompt.why_plain:
            return self._prompt.why_plain
        if self._parked and not self._verified:
            return f"parked by the policy {self._policy.name!r}, {self._parked}"
        return "on"

    def _logprobs(self, count: int) -> list[Logprob]:
        say = self._tokenizer.token_text
        found = self._request.logprobs[:count] if self._request is not None else []
        return [
            Logprob(p.token, say(p.token), p.logprob, [(t, say(t), v) for t, v in p.top])
            for p in found
        ]
