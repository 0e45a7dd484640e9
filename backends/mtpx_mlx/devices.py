"""Where MLX runs: the GPU (Metal), or the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtpx.errors import BackendError

if TYPE_CHECKING:
    import mlx.core as mx


def choose_device(asked: str) -> mx.Device:
    """ "auto", "gpu" (also "metal") or "cpu". Raises `BackendError` for what is not here."""
    import mlx.core as mx

    if asked == "auto":
        return mx.default_device()
    if asked == "cpu":
        return mx.Device(mx.cpu)
    if asked not in ("gpu", "metal"):
        raise BackendError(f"the mlx backend runs on gpu (metal) or cpu, not on {asked}")
    if not mx.is_available(mx.gpu):
        raise BackendError("there is no GPU that this MLX can use; it runs on the cpu here")
    return mx.Device(mx.gpu)


def device_name(device: mx.Device) -> str:
    """The device in words."""
    import mlx.core as mx

    from mtpx.hardware import cpu_name

    if device.type == mx.DeviceType.gpu:
        return str(mx.device_info(device).get("device_name", "GPU"))
    return cpu_name()


def wire_memory() -> None:
    """Let Metal keep the weights resident, up to what the system recommends, as mlx-lm does.

    Process-wide, and not taken back on close: another engine may rely on it.
    """
    import mlx.core as mx

    if mx.metal.is_available():
        limit = mx.device_info().get("max_recommended_working_set_size")
        if isinstance(limit, int):
            mx.set_wired_limit(limit)
