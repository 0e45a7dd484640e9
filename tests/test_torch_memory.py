"""What loading and decoding take of memory, in a process of its own.

Anonymous memory, sampled every few milliseconds: pages of mapped files (the weights' file, torch's own
code as it is first used) are the system's to take back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MEASURE = """
import json, threading
import numpy, torch, tokenizers
from mtpx import packs
from mtpx.backend import EngineOptions
from mtpx.checkpoint import open_checkpoint, read_safetensors
from mtpx.decode import Request, decode
from mtpx.policy import FixedDepth
from mtpx.sampling import Sampling
from mtpx_torch import TorchBackend, engine as _, fastest as _, head as _, invariance as _

def anonymous():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024

seen, over = [], threading.Event()

def watch():
    while not over.wait(0.004):
        seen.append(anonymous())

pack = packs.resolve(packs.EMBEDDED)
open_checkpoint(pack.weights).close()  # the vocabulary's strings are not weights
torch.nn.functional.linear(torch.randn(8, 8), torch.randn(8, 8))
before = anonymous()
threading.Thread(target=watch, daemon=True).start()
engine = TorchBackend().load(pack, EngineOptions(precision=PRECISION, compile="off"))
slot = engine.open(list(range(100, 400)), Sampling(), 0)
while not engine.prefill(slot, 256):
    pass
list(decode(engine, FixedDepth(2), [Request(0, slot, Sampling(), 64)]))
rows = len(slot.tokens)
cache = engine.cache.keys + engine.cache.values
kv = sum(t.nbytes // t.shape[2] * rows for t in cache)
tensors, _ = read_safetensors(pack.head)
table = open_checkpoint(pack.weights).tensors["model.embed_tokens.weight"].nbytes
head = sum(t.nbytes // 2 for t in tensors.values()) * WIDTH  # stored in 16 bit
over.set()
print(json.dumps([max(seen) - before, engine.info.plain_step_bytes + head + table, kv]))
"""


@pytest.mark.model
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    ("precision", "width", "most"),
    [("float32", 4, 1.3), ("bfloat16", 2, 1.5), ("int8", 1, 1.5), ("int4", 1, 1.5)],
)
def test_peak_memory_is_near_that_of_weights_and_kv(
    embedded_weights: Path, precision: str, width: int, most: float
) -> None:
    told = f"PRECISION, WIDTH = {precision!r}, {width}\n"
    done = subprocess.run(
        [sys.executable, "-c", told + MEASURE],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    grown, weights, kv = json.loads(done.stdout)
    assert grown <= most * weights + kv, (
        f"{grown / 1e6:.0f} MB for {weights / 1e6:.0f} MB of weights"
    )
