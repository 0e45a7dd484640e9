"""The torch backend computes what transformers computes on the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch_makers import make_pack

from mtpx.backend import EngineOptions
from mtpx.packs import Pack
from mtpx.sampling import Sampling
from mtpx_torch import TorchBackend
from mtpx_torch.inspect import InspectableEngine

MODELS: dict[str, dict[str, Any]] = {
    "llama, tied": {"family": "llama", "tie_word_embeddings": True},
    "llama, untied, biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "llama, as many kv heads": {"family": "llama", "num_key_value_heads": 4},
    "llama, one kv head": {"family": "llama", "num_key_value_heads": 1},
    "llama, wide heads": {"family": "llama", "head_dim": 16},
    "llama, linear rope": {
        "family": "llama",
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    },
    "llama, llama3 rope": {
        "family": "llama",
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 10000.0,
        },
    },
    "mistral": {"family": "mistral", "sliding_window": None},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3", "head_dim": 16},
}


def engine_of(pack: Pack, **options: Any) -> InspectableEngine:
    product = options.pop("product", "auto")
    return InspectableEngine.of(
        TorchBackend().load(pack, EngineOptions(extra={"product": product}, **options))
    )


def next_logits(engine: InspectableEngine, tokens: list[int], chunk: int = 7) -> np.ndarray:
    slot = engine.open(tokens, Sampling(), 0, head=False)
    while not engine.prefill(slot, chunk):
        pass
    logits = engine.logits(slot)
    slot.close()
    return logits


def relative_gap(mine: np.ndarray, reference: np.ndarray) -> float:
    return float(np.abs(mine - reference).max() / np.abs(reference).max())


@pytest.mark.parametrize("product", ["auto", "rows"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, product: str, tmp_path: Path) -> None:
    pack = make_pack(tmp_path, head=False, **MODELS[name])
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    engine = engine_of(pack, product=product)
    rng = np.random.default_rng(3)
    for length in (1, 2, 17, 150):
        tokens = [int(t) for t in rng.integers(0, 48, length)]
        with torch.no_grad():
            expected = reference(torch.tensor([tokens])).logits[0, -1].double().numpy()
        assert relative_gap(next_logits(engine, tokens), expected) < 1e-4


PROMPTS = [
    "Why is the sky blue?",
    "List five uses for a brick.",
    "Write a Python function that reverses a list.",
    "What is 17 plus 25?",
    "Tell me a very short story about a fox.",
    "Translate 'good morning' into French.",
    "Explain recursion to a child.",
    "What does HTTP 404 mean?",
    "Give me a recipe for pancakes.",
    "Who wrote Hamlet?",
    "Summarise the water cycle in two sentences.",
    "Write a haiku about rain.",
    "Compare cats and dogs.",
    "What is the capital of Peru?",
    "Write a SQL query that counts rows in a table named users.",
    "Name three noble gases.",
    "How do I boil an egg?",
    "Describe the colour red to someone who cannot see.",
    "def fibonacci(n):",
    '{"name": "Ada", "age":',
]


@pytest.mark.model
def test_the_embedded_model_is_the_one_transformers_loads(embedded_weights: Path) -> None:
    """Logits to 1e-4 relative, and the same greedy text on 20 prompts. transformers reads the same
    GGUF file its own way (gguf-py's dequantisation, its own tokenizer conversion unused)."""
    import mtpx
    from mtpx import packs

    reference = transformers.AutoModelForCausalLM.from_pretrained(
        embedded_weights.parent, gguf_file=embedded_weights.name, dtype=torch.float32
    ).eval()
    with mtpx.load(packs.EMBEDDED, precision="float32") as model:
        engine = InspectableEngine.of(model.engine)  # type: ignore[arg-type]
        for prompt in PROMPTS:
            tokens = model.encode([{"role": "user", "content": prompt}])
            with torch.no_grad():
                expected = reference(torch.tensor([tokens])).logits[0, -1].double().numpy()
                text = reference.generate(
                    torch.tensor([tokens]),
                    attention_mask=torch.ones(1, len(tokens)),
                    max_new_tokens=20,
                    do_sample=False,
                    temperature=None,
                    top_p=None,
                    eos_token_id=sorted(model.end_ids),
                    pad_token_id=0,
                )[0, len(tokens) :].tolist()
            assert relative_gap(next_logits(engine, tokens, 64), expected) < 1e-4
            answer = model.generate(prompt, max_tokens=20, temperature=0.0, depth=2)
            assert answer.token_ids == text, prompt
