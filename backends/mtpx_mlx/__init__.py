"""The MLX backend: mlx-lm's own models with their MTP head, on Metal or MLX's CPU build."""

from mtpx_mlx.backend import MlxBackend

__all__ = ["MlxBackend"]
