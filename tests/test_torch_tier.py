"""`--tier auto` on torch: the row-invariant tier where it costs a plain round next to nothing; and what
that tier promises of attention, wherever a row stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_makers import make_gguf_pack

from mtpx.backend import EngineOptions
from mtpx.packs import Pack
from mtpx.precision import TIERS
from mtpx_torch import TorchBackend, tier
from mtpx_torch.attention import REACH, SpanAttention, make_spans
from mtpx_torch.compiling import Compiling


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_gguf_pack(tmp_path_factory.mktemp("pack"))


@pytest.fixture
def priced(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What a plain step is found to take in each tier; "asked" counts how often it was measured."""
    found = {"standard": 10.0, "row-invariant": 10.0, "asked": 0.0}

    def measure(*_: object) -> dict[str, float]:
        found["asked"] += 1
        return {name: found[name] for name in TIERS}

    monkeypatch.setattr(tier, "plain_ms", measure)
    monkeypatch.setattr(tier, "invariant_bucket", lambda trunk: trunk.bucket)
    return found


def chosen(pack: Pack, asked: str = "auto", compile: str = "off") -> str:
    options = EngineOptions(precision="int4", tier=asked, threads=1, context=64, compile=compile)
    engine = TorchBackend().load(pack, options)
    try:
        return engine.info.tier
    finally:
        engine.close()


@pytest.mark.parametrize(("ms", "expected"), [(10.3, "row-invariant"), (10.4, "standard")])
def test_auto_takes_the_tier_at_97_per_cent_of_the_speed_and_not_at_less(
    pack: Pack, priced: dict[str, float], ms: float, expected: str
) -> None:
    priced["row-invariant"] = ms
    assert chosen(pack) == expected


def test_what_the_tier_costs_is_measured_once(pack: Pack, priced: dict[str, float]) -> None:
    assert chosen(pack) == "row-invariant"
    priced["row-invariant"] = 20.0
    assert chosen(pack) == "row-invariant"
    assert priced["asked"] == 1


def test_a_tier_that_is_asked_for_is_not_measured(pack: Pack, priced: dict[str, float]) -> None:
    priced["row-invariant"] = 20.0
    assert [chosen(pack, asked) for asked in TIERS] == list(TIERS)
    assert priced["asked"] == 0


def test_a_compiled_plain_step_costs_the_same_in_either_tier(
    pack: Pack, priced: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compiling, "begin", lambda self, lacks: None)
    priced["row-invariant"] = 20.0
    assert chosen(pack, compile="now") == "row-invariant"


def test_without_kernels_that_keep_bits_auto_is_standard(
    pack: Pack, priced: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier, "invariant_bucket", lambda trunk: None)
    assert chosen(pack) == "standard"
    assert priced["asked"] == 0


def test_steps_of_both_tiers_take_turns_and_a_hiccup_changes_no_price(pack: Pack) -> None:
    engine = TorchBackend().load(pack, EngineOptions(precision="int4", threads=1, context=64))
    trunk, ran, now = engine.trunk, [], [0]
    forward = trunk.forward

    def timed(ids: object, at: object, spans: Any, cache: object) -> torch.Tensor:
        # Only the row-invariant tier has a mask for a lone row.
        ran.append("standard" if spans[0].mask is None else "row-invariant")
        now[0] += 50_000_000 if len(ran) == 7 else 5_000_000 if spans[0].mask is None else 6_000_000
        return forward(ids, at, spans, cache)

    trunk.forward = timed
    with torch.inference_mode():
        ms = tier.plain_ms(trunk, trunk.bucket, clock=lambda: now[0])
    engine.close()
    assert ms == {"standard": 5.0, "row-invariant": 6.0}
    assert ran[2:6] == ["row-invariant", "standard", "standard", "row-invariant"]


def test_a_large_model_is_timed_briefly(pack: Pack) -> None:
    engine = TorchBackend().load(pack, EngineOptions(precision="int4", threads=1, context=64))
    trunk, steps = engine.trunk, [0]
    forward = trunk.forward

    def timed(*given: Any) -> torch.Tensor:
        steps[0] += 1
        return forward(*given)

    trunk.forward = timed
    with torch.inference_mode():
        ms = tier.plain_ms(trunk, trunk.bucket, clock=lambda: steps[0] * 600_000_000)
    engine.close()
    assert ms == {"standard": 600.0, "row-invariant": 600.0}
    assert steps[0] == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("first", [REACH - 3, 4 * REACH - 3, 8 * REACH - 3])
def test_a_row_keeps_its_bits_beside_rows_that_read_further(dtype: torch.dtype, first: int) -> None:
    # Kernels sum over 256 keys and over 320 in different orders.
    kv_heads, group, d, count = 3, 3, 64, 6
    made = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=made).to(dtype)

    q, k, v = (numbers(count, h, d) for h in (kv_heads * group, kv_heads, kv_heads))
    before = [numbers(1, kv_heads, first + 2 * REACH, d) for _ in range(2)]

    def attended(sizes: list[int]) -> torch.Tensor:
        keys, values = (cache.clone() for cache in before)
        found, at = [], 0
        for size in sizes:
            here = slice(at, at + size)
            spans = make_spans([(0, first + at, size)], group, keys, fixed=True)
            found.append(SpanAttention(keys, values, spans)(q[here], k[here], v[here]))
            at += size
        return torch.cat(found)

    one_by_one = attended([1] * count)
    for sizes in ([6], [2, 4], [4, 2], [1, 5], [5, 1]):
        assert torch.equal(attended(sizes), one_by_one), sizes
