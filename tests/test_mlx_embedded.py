"""The embedded model with its head: MLX against torch, both in float32, and against mlx-lm itself."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest
from test_torch_reference import PROMPTS

import mtpx
from mtpx import packs
from mtpx.api import Model
from mtpx.decode import Request, decode
from mtpx.policy import FixedDepth
from mtpx.sampling import Sampling
from mtpx_mlx.inspect import InspectableEngine as OnMlx
from mtpx_torch.inspect import InspectableEngine as OnTorch

pytestmark = pytest.mark.model

TOKENS = 8
DEPTH = 2


@pytest.fixture(scope="module")
def mlx_model() -> Iterator[Model]:
    with mtpx.load(packs.EMBEDDED, backend="mlx", extra={"dtype": "float32"}) as model:
        yield model


@pytest.fixture(scope="module")
def torch_model() -> Iterator[Model]:
    with mtpx.load(
        packs.EMBEDDED, backend="torch", device="cpu", precision="float32", context=1024
    ) as model:
        yield model


@pytest.fixture(scope="module")
def prompts(torch_model: Model) -> list[list[int]]:
    """20 different prompts, as they are: MLX's CPU build is slow, and a chat template is long."""
    return [torch_model.encode(text) for text in PROMPTS]


def engine(model: Model) -> OnMlx | OnTorch:
    made = model.engine
    kind = OnMlx if made.info.backend == "mlx" else OnTorch
    return kind.of(made)  # type: ignore[arg-type]


def answer(model: Model, prompt: list[int]) -> tuple[list[int], list[int], np.ndarray]:
    """(greedy text at depth 2, accepted drafts of every round, next logits of the prompt)."""
    on = engine(model)
    slot = on.open(prompt, Sampling(), 0)
    while not on.prefill(slot, 512):
        pass
    logits = np.asarray(on.logits(slot))
    request = Request(0, slot, Sampling(), budget=TOKENS)
    accepted = [r.slots[0].accepted for r in decode(on, FixedDepth(DEPTH), [request])]
    slot.close()
    return request.delivered, accepted, logits


def test_mlx_and_torch_give_the_same_logits_text_and_acceptance(
    mlx_model: Model, torch_model: Model, prompts: list[list[int]]
) -> None:
    assert len({tuple(prompt) for prompt in prompts}) == 20
    for prompt in prompts:
        text, accepted, logits = answer(mlx_model, prompt)
        same_text, same_accepted, reference = answer(torch_model, prompt)
        gap = np.abs(logits - reference).max() / np.abs(reference).max()
        assert gap < 1e-3
        assert text == same_text
        assert accepted == same_accepted


def test_the_gguf_weights_stay_packed_on_mlx(mlx_model: Model) -> None:
    info = mlx_model.engine.info
    assert (info.dtype, info.quantisation) == ("int4", "Q4_1")
    # 20 bytes for 32 weights in the file; the scale and offset of a block in float32 make it 24.
    assert info.plain_step_bytes < 135e6 * 24 / 32 * 1.15


def test_plain_text_is_that_of_mlx_lms_own_loop(mlx_model: Model, prompts: list[list[int]]) -> None:
    from mlx_lm.generate import generate_step

    on = engine(mlx_model)
    assert isinstance(on, OnMlx)
    for prompt in prompts[:4]:
        steps = generate_step(mx.array(prompt), on.target.model, max_tokens=TOKENS)
        expected = [token for token, _ in steps]
        slot = on.open(prompt, Sampling(), 0, head=False)
        while not on.prefill(slot, 512):
            pass
        got = [token for _ in range(TOKENS) for token in on.plain([slot])[0].committed]
        slot.close()
        assert got == expected
