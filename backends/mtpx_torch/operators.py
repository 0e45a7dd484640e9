"""Products over weights in oneDNN's own layout, as operators that `torch.compile` takes as they are.

torch has both products, but its compiler treats them as its own patterns, which it knows only with
weights that it packed itself. Under a name of ours it calls them and looks no further.
"""

from __future__ import annotations

import torch

_library = torch.library.Library("mtpx", "DEF")
_library.define("packed_linear(Tensor x, Tensor weight, Tensor? bias, int out) -> Tensor")
_library.define("int8_linear(Tensor x, Tensor weight, Tensor scale, Tensor zero) -> Tensor")

ZERO = 128
"""The code that stands for 0 in uint8 activations. Signed ones would take a path in torch 2.13 that
is 400 times slower."""


def _packed_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: int
) -> torch.Tensor:
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return y


def _int8_linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor
) -> torch.Tensor:
    y: torch.Tensor = torch.ops.onednn.qlinear_pointwise.default(
        x, 1.0, ZERO, weight, scale, zero, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return y


def _packed_shape(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: int
) -> torch.Tensor:
    return x.new_empty(x.shape[0], out)


def _int8_shape(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor
) -> torch.Tensor:
    return x.new_empty(x.shape[0], scale.shape[0], dtype=torch.float32)


_library.impl("packed_linear", _packed_linear, "CompositeExplicitAutograd")
_library.impl("int8_linear", _int8_linear, "CompositeExplicitAutograd")
torch.library.register_fake("mtpx::packed_linear", _packed_shape, lib=_library)
torch.library.register_fake("mtpx::int8_linear", _int8_shape, lib=_library)

packed_linear = torch.ops.mtpx.packed_linear.default
"""x (rows, in), packed weight, bias (out,), out → (rows, out)."""

int8_linear = torch.ops.mtpx.int8_linear.default
"""x (rows, in) uint8 about `ZERO`, packed int8 weight, scale (out,), zero (out,) → (rows, out) float32:
the sums of products times `scale`."""
