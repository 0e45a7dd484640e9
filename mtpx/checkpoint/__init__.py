"""Weights on disk: GGUF and safetensors, mapped into memory and checked before they are believed."""

from mtpx.checkpoint.checkpoint import Checkpoint, open_checkpoint
from mtpx.checkpoint.config import (
    FactorScaling,
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    TargetConfig,
)
from mtpx.checkpoint.dequantise import dequantise, integers
from mtpx.checkpoint.gguf import read_gguf
from mtpx.checkpoint.headers import Announced, Headers, read_config, read_headers
from mtpx.checkpoint.mapped import check_whole, forget
from mtpx.checkpoint.safetensors import read_safetensors
from mtpx.checkpoint.tensor import BLOCKS, Kind, Tensor, unpermute_rows
from mtpx.checkpoint.tokens import TokenSource, token_source

__all__ = [
    "BLOCKS",
    "Announced",
    "Checkpoint",
    "FactorScaling",
    "Headers",
    "Kind",
    "LinearScaling",
    "Llama3Scaling",
    "RopeScaling",
    "TargetConfig",
    "Tensor",
    "TokenSource",
    "check_whole",
    "dequantise",
    "forget",
    "integers",
    "open_checkpoint",
    "read_config",
    "read_gguf",
    "read_headers",
    "read_safetensors",
    "token_source",
    "unpermute_rows",
]
