"""The torch backend: Llama-family targets with their MTP head, on a CPU or a CUDA device."""

from mtpx_torch.backend import TorchBackend

__all__ = ["TorchBackend"]
