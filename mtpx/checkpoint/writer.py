"""Writing the safetensors container.

Format: https://github.com/huggingface/safetensors#format. The library writes its frameworks' arrays;
raw bytes of any kind are written here, tensor after tensor, without a copy of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO

from mtpx.checkpoint.tensor import Tensor


def write_safetensors(
    file: IO[bytes], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write these tensors, by name, in this order. Raises `OSError`."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": tensor.kind,
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the first tensor is aligned
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        file.write(tensor.data.data)
