"""Every precision of the torch backend, on a small model in 4-bit blocks: it decodes as the contract
says, and a row keeps its bits whatever runs beside it, on either route."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_makers import make_gguf_pack

from mtpx.backend import EngineOptions
from mtpx.errors import NonFiniteLogits
from mtpx.packs import Pack
from mtpx.precision import TIERS
from mtpx.testing import Check, Subject
from mtpx.testing.bits import rows_keep_their_bits
from mtpx.testing.greedy import (
    every_accepted_count_leaves_a_plain_state,
    every_depth_gives_the_plain_text,
    ragged_batches_give_each_slot_what_it_gets_alone,
)
from mtpx.testing.rules import damaged_logits_raise, rewinding_restores_the_state
from mtpx_torch import TorchBackend
from mtpx_torch.ahead import exported
from mtpx_torch.inspect import InspectableEngine
from mtpx_torch.int8 import split
from mtpx_torch.recipe import reasons

CPU = torch.device("cpu")
ABLE = [name for name, why in reasons(CPU, ["Q4_1"]).items() if not why]
PROMPTS = [[1, 2, 3, 4, 5], [7, 3, 9, 11, 2, 2, 5, 8], [4, *range(16), *range(16)] * 2]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_gguf_pack(tmp_path_factory.mktemp("pack"))


def load(pack: Pack, precision: str, compile: str = "off", **options: object) -> InspectableEngine:
    asked = EngineOptions(
        precision=precision,
        context=256,
        threads=1,
        compile=compile,
        **options,  # type: ignore[arg-type]
    )
    return InspectableEngine.of(TorchBackend().load(pack, asked))


def subject(pack: Pack, precision: str, compile: str = "off", **changes: object) -> Subject:
    def make(options: EngineOptions) -> InspectableEngine:
        return load(
            pack,
            precision,
            compile,
            tier="row-invariant",
            max_width=options.max_width,
            pipeline=options.pipeline,
        )

    # A prompt's rows run through other attention shapes than a round's, and bfloat16 shows it.
    near = 0.1 if precision in ("bfloat16", "int4") else 1e-3
    return Subject(precision, make, PROMPTS, tolerance=near, tokens=16, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ABLE)
@pytest.mark.parametrize(
    "check",
    [
        every_accepted_count_leaves_a_plain_state,
        ragged_batches_give_each_slot_what_it_gets_alone,
        damaged_logits_raise,
        rewinding_restores_the_state,
    ],
    ids=lambda check: check.__name__,
)
def test_a_precision_conforms(pack: Pack, precision: str, check: Check) -> None:
    assert check(subject(pack, precision)).compared > 0


@pytest.mark.parametrize("precision", ABLE)
def test_text_is_the_plain_text_without_a_tie(pack: Pack, precision: str) -> None:
    found = every_depth_gives_the_plain_text(subject(pack, precision, depth=6))
    assert found.ties == 0
    assert found.compared > 0


@pytest.mark.parametrize("precision", ABLE)
def test_a_row_keeps_its_bits_whatever_runs_beside_it(pack: Pack, precision: str) -> None:
    assert rows_keep_their_bits(subject(pack, precision, depth=6)).compared >= 200


@pytest.mark.parametrize("precision", ABLE)
def test_the_compiled_route_keeps_bits(pack: Pack, precision: str, own_folders: Path) -> None:
    engine = load(pack, precision, "now", tier="row-invariant")
    try:
        assert engine.info.details["compile"] == "ready"
        assert engine.route([1]).kind == engine.route([5]).kind == "compiled"
        shared = Subject(precision, lambda _: _Kept(engine), PROMPTS, tokens=16, depth=6)
        assert rows_keep_their_bits(shared).compared >= 200
        assert every_depth_gives_the_plain_text(shared).ties == 0
    finally:
        engine.close()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("precision", ABLE)
def test_every_step_can_be_traced_for_any_number_of_rows(
    pack: Pack, precision: str, tier: str
) -> None:
    engine = load(pack, precision, tier=tier)
    with torch.no_grad():
        traced = {job.name: exported(job) for job in engine.jobs()}
    engine.close()
    several = {name for name in traced if name.endswith("-n")}
    assert several == {"step-n", "head-n"}
    # The number of rows and the reach of the attention.
    assert {len(traced[name].range_constraints) for name in several} == {2}


class _Kept(InspectableEngine):
    """The same engine for several checks, each of which closes what it was given."""

    def __init__(self, engine: InspectableEngine) -> None:
        self.__dict__ = engine.__dict__

    def close(self) -> None:
        for slot in list(self._open):
            slot.close()


@pytest.mark.skipif("int8" not in ABLE, reason="this torch has no 8-bit product")
def test_a_row_that_is_not_finite_is_told_in_8_bit(pack: Pack) -> None:
    engine = load(pack, "int8")
    slot = engine.open([1, 2, 3], sampling=_greedy(), seed=0)
    while not engine.prefill(slot, 64):
        pass
    engine.poison(slot)
    with pytest.raises(NonFiniteLogits):
        engine.plain([slot])
    engine.close()


def _greedy() -> object:
    from mtpx.sampling import Sampling

    return Sampling()


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40),
    st.floats(2**-20, 2**20, width=32),
)
def test_two_8_bit_parts_hold_a_row_to_15_bits(numbers: list[float], scale: float) -> None:
    x = torch.tensor([numbers], dtype=torch.float32) * scale
    codes, step = split(x)
    high, low = codes.double() - 128
    got = (high + low / 254) * step.double()
    assert (got - x.double()).abs().max() <= 0.51 / 254 * step.double() + 1e-25
    assert codes.min() >= 1
