"""What a program uses: load a pack, generate, stream.

import mtpx

with mtpx.load("smollm2-135m") as model:
    print(model.generate("Why is the sky blue?"))
    for piece in model.stream("And at sunset?", temperature=0.7):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

import gc
import inspect
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, cast

import msgspec

from mtpx import asked, bare, packs
from mtpx.answer import Generation
from mtpx.backend import Engine, EngineOptions, Slot
from mtpx.backends import choose_backend
from mtpx.checkpoint import token_source
from mtpx.energy import Meter, find_meter
from mtpx.errors import PackError, PolicyError, PromptError, SamplingError, TraceError
from mtpx.generation import Progress, Prompt, Stream
from mtpx.policy import DepthPolicy, FixedDepth
from mtpx.policy.learning import Policies
from mtpx.policy.registry import ADAPTIVE, FIXED, PolicyOptions
from mtpx.reuse import Reused
from mtpx.round import Round
from mtpx.sampling import Sampling
from mtpx.text import ChatTemplate, Tokenizer, load_tokenizer
from mtpx.trace.runs import run_record
from mtpx.trace.writer import TraceWriter

Message = Mapping[str, str]
Depth = int | Literal["off", "auto"] | None

DEFAULT_DEPTH = 1
"""Drafts a round of the policy "fixed", unless the pack or somebody says otherwise: the second row of a
forward is the one that is nearly free on every device seen so far."""

DEFAULT_MAX_TOKENS = 512

SEEDS = 2**64
"""How many seeds there are: a word of the uniforms' counter."""


def load(
    pack: str | Path | None = None,
    *,
    backend: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    precision: str = "auto",
    tier: str = "auto",
    max_width: int = 1,
    compile: str = "auto",
    on_compile: Callable[[int, int, str], None] | None = None,
    extra: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    offline: bool = False,
    policy: str | PolicyOptions | DepthPolicy | None = None,
    warn: Callable[[str], None] | None = None,
) -> Model:
    """Load a pack by name or folder (default: the last one used, else the embedded one).

    `device`: "auto", "cpu", "cuda", "cuda:1", ...; `threads`: host threads; `context`: tokens to make
    room for; `precision`: "auto" (the fastest the pack declares good), "float32", "bfloat16", "int8" or
    "int4"; `tier`: "standard", "row-invariant" (the same bits however many rows run together), or "auto"
    for the second where it costs next to nothing; `compile`: "auto" (the compiled step that is kept from
    before, if one is), "now" (made if none is: minutes, once; `on_compile(done, total, what)` hears of
    it), "background" (made by another process with what time is left, and used from the first answer after
    that), or "off"; `extra`: settings of the backend; `progress(done, total)` in bytes, while weights are
    fetched or checked; `offline` refuses to fetch; `policy` is the one that answers are given with unless
    they name another (see `Model.stream`); `warn` takes a sentence about what is done without (what a
    policy learned before and cannot use, a folder that cannot be written).
    Raises `PackError` and `BackendError`, before anything is fetched where it can, and `PolicyError` for
    a policy that is none.
    """
    name = packs.default_name() if pack is None else pack
    chosen_policy = PolicyOptions(policy) if isinstance(policy, str) else policy
    chosen = choose_backend(backend, device, bare.model_types(packs.find(name)))
    resolved = packs.resolve(name, progress=progress, offline=offline)
    # A folder may be called what is no text; the name goes into JSON and traces.
    said = resolved.name.encode(errors="replace").decode()
    resolved = replace(resolved, name=said)
    source = token_source(resolved.weights)
    _check_family(resolved, source.config.family)
    tokenizer = load_tokenizer(resolved.weights, source)
    end_ids = frozenset((*source.config.end_ids, *tokenizer.end_ids))
    options = EngineOptions(
        device=device,
        threads=threads,
        context=context,
        precision=precision,
        tier=tier,
        max_width=max_width,
        compile=compile,
        on_compile=on_compile,
        extra=dict(extra or {}),
    )
    template = _template(tokenizer)
    engine = chosen.load(resolved, options)
    packs.remember(name)
    return Model(resolved, engine, tokenizer, end_ids, template, warn, chosen_policy)


@dataclass(frozen=True, slots=True)
class TraceTo:
    """Where a run's records go: a file, and whether text and token ids go with them."""

    path: Path
    text: bool = False
    command: str = ""
    warn: Callable[[str], None] | None = None


class Model:
    """A pack loaded on a device. One answer at a time; `close()` releases the weights. `meter` measures
    energy, or says why there is no measuring it."""

    def __init__(
        self,
        pack: packs.Pack,
        engine: Engine,
        tokenizer: Tokenizer,
        end_ids: frozenset[int],
        template: ChatTemplate | None,
        warn: Callable[[str], None] | None = None,
        policy: PolicyOptions | DepthPolicy | None = None,
    ) -> None:
        self.pack, self.engine, self.tokenizer = pack, engine, tokenizer
        self.end_ids, self.template = end_ids, template
        costs = pack.manifest.prior_costs if pack.manifest else []
        self._last: weakref.ref[Stream] | None = None
        self.policy = policy
        self.meter = find_meter(engine.info)
        self._policies = Policies(engine.info, costs, warn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.close()

    @property
    def thinks(self) -> bool:
        """Whether the chat template knows how to switch thinking on and off."""
        return self.template is not None and "enable_thinking" in self.template.source

    def encode(
        self, content: str | Sequence[Message], *, thinking: bool | None = None
    ) -> list[int]:
        """Token ids of a conversation, by the model's chat template, ready for its answer; or of
        text as it is. `thinking` switches thinking on or off where the template `thinks`. Raises
        `PromptError` for an empty one, and for messages without a template."""
        if isinstance(content, str):
            tokens = self.tokenizer.encode(content)
        elif self.template is None:
            raise PromptError(
                f"{self.pack.name} has no chat template: give it text to continue (run --raw; "
                'lines {"prompt": ...} in a file for bench --prompt-file)'
            )
        else:
            names = {} if thinking is None else {"enable_thinking": thinking}
            tokens = self.tokenizer.encode(self.template.render(content, **names))
        if not tokens or content == "":
            raise PromptError("the prompt is empty: give some text")
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens, special ones left out."""
        return self.tokenizer.decode(tokens)

    def generate(
        self, prompt: str | Sequence[Message] | Sequence[int], **options: Any
    ) -> Generation:
        """The whole answer. Takes what `stream` takes."""
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.result

    def stream(
        self,
        prompt: str | Sequence[Message] | Sequence[int],
        *,
        system: str | None = None,
        raw: bool = False,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        sampling: Sampling | None = None,
        seed: int | None = None,
        depth: Depth = None,
        policy: str | PolicyOptions | DepthPolicy | None = None,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        trace: TraceTo | Path | str | None = None,
        on_prefill: Progress | None = None,
        on_round: Callable[[Round], None] | None = None,
        session: int = 0,
        reuse: object | None = None,
        on_reuse: Callable[[Reused], None] | None = None,
        before_close: Callable[[Slot], None] | None = None,
        **parameters: float | int | None,
    ) -> Stream:
        """An answer as pieces of text; figures in the stream's `result` at its end.

        `prompt`: a question (put into the chat template, after `system`), a list of messages, with
        `raw` text to continue, or token ids as `encode` makes them. `sampling` replaces the pack's
        defaults; `parameters` set single fields of it (temperature, top_p, logprobs, ...). `seed`: 0 to
        2^64 - 1; `None` draws one where it matters. `depth`: a number of drafts for every round, "off" for
        a plain run, "auto" (the default) leaves it to `policy`: a name ("adaptive", the model's own
        unless `load` was told another; "measured", "ollama", "module:Class"; "fixed" is the pack's
        recommended depth), `PolicyOptions`, or a policy of one's own. A named one learns from answer to
        answer and keeps what it learned. Depths chosen by measured times differ from run to run, and a
        text sampled at a temperature above 0 with them; so with a `seed`, and nothing said of depth or
        policy, such a text is decoded at the pack's recommended depth. A pack without a head decodes
        plain, whichever policy was asked for.
        `stop`: text to end before, one or several. `trace`: a file for the run's trace. `session`,
        `reuse`, `on_reuse` and `before_close`: see `Stream`; `mtpx.session` is what uses them.

        Raises `MtpxError` for whatever cannot be done as asked; nothing was computed then.
        """
        max_tokens = asked.whole(max_tokens, "max-tokens")
        if max_tokens < 1:
            raise PromptError(f"max-tokens must be at least 1, got {max_tokens}")
        stops = asked.texts(stop, "stop")
        if "" in stops:
            raise PromptError("a stop string must not be empty: every text contains it")
        chosen = self._sampling(sampling, parameters)
        seeded = seed is not None and not chosen.greedy
        if seed is None:
            seed = 0 if chosen.greedy else secrets.randbits(48)
        else:
            seed = asked.whole(seed, "seed", SamplingError)
            if not 0 <= seed < SEEDS:
                raise SamplingError(f"seed must be from 0 to {SEEDS - 1}, got {seed}")
        chooser, drafts, why_plain = self._chooser(depth, policy, chosen, seeded=seeded)
        using = self._policies.use(chooser) if isinstance(chooser, PolicyOptions) else chooser
        tokens = self._tokens(prompt, system, raw)
        room = self.engine.info.context_limit - len(tokens)
        if room < 1:
            raise PromptError(
                f"the prompt has {len(tokens)} tokens, {1 - room} more than fit in the context of "
                f"{self.engine.info.context_limit} with room for an answer"
            )
        request = Prompt(
            tokens=tokens,
            sampling=chosen,
            seed=seed,
            budget=min(max_tokens, room),
            depth=drafts,
            end_ids=self.end_ids,
            stop=stops,
            ignore_eos=ignore_eos,
            why_plain=why_plain,
        )
        to = TraceTo(Path(trace)) if isinstance(trace, str | Path) else trace
        if to is not None and not isinstance(to, TraceTo):
            raise TraceError(f"trace must be a file or a TraceTo, got {type(to).__name__}")
        writer = None
        if to is not None:
            writer = TraceWriter(to.path, warn=to.warn)
            writer.write(run_record(self.engine.info, using, command=to.command, meter=self.meter))
        if self._last is not None and self._last() is not None:
            # Whoever broke out of a loop has dropped its answer, but a generator and its frame hold
            # each other until they are collected; an answer somebody still holds stays open.
            gc.collect()
        stream = Stream(
            self.engine,
            self.tokenizer,
            using,
            request,
            trace=writer,
            trace_text=to is not None and to.text,
            on_prefill=on_prefill,
            on_round=on_round,
            session=session,
            reuse=reuse,
            on_reuse=on_reuse,
            before_close=before_close,
            meter=self.meter if isinstance(self.meter, Meter) else None,
            on_end=partial(self._policies.save, chooser)
            if isinstance(chooser, PolicyOptions)
            else None,
        )
        self._last = weakref.ref(stream)
        return stream

    def _tokens(
        self, prompt: str | Sequence[Message] | Sequence[int], system: str | None, raw: bool
    ) -> list[int]:
        if system is not None:
            asked.texts(system, "system")
        if asked.kind_of_prompt(prompt) == "tokens":
            if system is not None or raw:
                raise PromptError("token ids are the whole prompt: nothing can go before them")
            tokens = [int(token) for token in cast("Sequence[int]", prompt)]
            vocab = self.engine.info.vocab_size
            for token in tokens:
                if not 0 <= token < vocab:
                    raise PromptError(f"token ids are from 0 to {vocab - 1}, got {token}")
            return tokens
        return self.encode(_content(cast("str | Sequence[Message]", prompt), system, raw))

    def _sampling(
        self, sampling: Sampling | None, parameters: Mapping[str, float | int | None]
    ) -> Sampling:
        manifest = self.pack.manifest
        base = sampling if sampling is not None else manifest.sampling if manifest else Sampling()
        fields = set(Sampling.__struct_fields__)
        asked.refuse_unknown(parameters.keys(), _OPTIONS, fields)
        given = {name: value for name, value in parameters.items() if value is not None}
        try:
            chosen = msgspec.convert(msgspec.structs.asdict(base) | given, Sampling)
        except msgspec.ValidationError as error:
            raise SamplingError(f"a sampling parameter cannot be used: {error}") from None
        if chosen.logprobs is not None and chosen.logprobs > self.engine.info.vocab_size:
            raise SamplingError(
                f"logprobs asks for {chosen.logprobs} rivals of a vocabulary of "
                f"{self.engine.info.vocab_size}"
            )
        return chosen

    def _chooser(
        self,
        depth: Depth,
        policy: str | PolicyOptions | DepthPolicy | None,
        sampling: Sampling,
        *,
        seeded: bool,
    ) -> tuple[PolicyOptions | DepthPolicy, int | Literal["auto"], str]:
        """What chooses the depth, the depth if it is one for good, and why speculation does not run, if
        it does not."""
        limit, number = self.engine.info.head_depth_limit, _checked_depth(depth)
        if number:
            if isinstance(policy, PolicyOptions | DepthPolicy) or policy not in (None, FIXED):
                name = policy if isinstance(policy, str) else policy.name
                raise PolicyError(
                    f"depth {number} is a fixed depth, and the policy {name!r} was asked for, too: "
                    "leave one of the two out"
                )
            if limit == 0:
                raise PolicyError(
                    f"{self.pack.name} has no MTP head, so nothing can be drafted; use depth off"
                )
            if number > limit:
                raise PolicyError(
                    f"depth {number} is beyond this head's limit of {limit} drafts a round"
                )
        chooser = PolicyOptions(policy) if isinstance(policy, str) else policy or self.policy
        if chooser is None:
            # Depths that follow the clock are never twice the same, and neither is a sampled text: who
            # gives a seed wants it again.
            chooser = PolicyOptions(FIXED if seeded and depth is None else ADAPTIVE)
        if number is None and isinstance(chooser, PolicyOptions) and chooser.name == FIXED:
            told = self._default_depth() if chooser.depth is None else chooser.depth
            number = min(told, limit)
        if number == 0 or limit == 0:
            why = "switched off" if limit else "the pack has no MTP head"
            return FixedDepth(0), 0, why
        parked = "log-probabilities were asked for" if sampling.logprobs is not None else ""
        if number is None:
            return chooser, "auto", parked
        return FixedDepth(number), number, parked

    def _default_depth(self) -> int:
        """What the pack recommends."""
        manifest = self.pack.manifest
        return DEFAULT_DEPTH if manifest is None or manifest.depth is None else manifest.depth


_OPTIONS = [
    name
    for name, parameter in inspect.signature(Model.stream).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
]
"""What an answer can be asked for beside the fields of the sampling."""


def _checked_depth(depth: Depth) -> int | None:
    """The depth as a number, "off" being 0; `None`: the policy chooses."""
    if depth is None or depth == "auto":
        return None
    if depth == "off":
        return 0
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
        raise PolicyError(f"depth must be a number of drafts, off or auto, got {depth!r}")
    return depth


def _check_family(pack: packs.Pack, family: str) -> None:
    """Raises `PackError` where the manifest promises another architecture than the weights have."""
    promised = pack.manifest.family if pack.manifest else family
    if promised != family:
        raise PackError(
            f"pack.toml of {pack.name} says its model is of the family {promised!r}, and {pack.weights} "
            f"holds one of the family {family!r}; correct one of the two"
        )


def _template(tokenizer: Tokenizer) -> ChatTemplate | None:
    source = tokenizer.chat_template
    return None if source is None else ChatTemplate(source, tokenizer.special_texts)


def _content(prompt: str | Sequence[Message], system: str | None, raw: bool) -> str | list[Message]:
    if raw:
        if not isinstance(prompt, str):
            raise PromptError("a raw prompt is text, not a list of messages")
        if system is not None:
            raise PromptError(
                "a raw prompt is text as it is: there is no place for a system prompt"
            )
        return prompt
    if isinstance(prompt, str):
        if not prompt.strip():
            raise PromptError("the prompt is empty: give some text")
        prompt = [{"role": "user", "content": prompt}]
    before: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*before, *prompt]
