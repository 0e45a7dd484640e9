"""Milliseconds of device work without a synchronisation of our own."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Started when made. `stop()` marks the end; `ms()` is read after the round's one
    synchronisation, when events on a CUDA stream are past anyway."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        if self._cuda:
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self._events[0].record()
        else:
            self._start = time.perf_counter_ns()

    def stop(self) -> None:
        if self._cuda:
            self._events[1].record()
        else:
            self._end = time.perf_counter_ns()

    def host_ms(self) -> float | None:
        """ms until now, where the device's work is the host's; `None` where it runs beside it."""
        return None if self._cuda else (time.perf_counter_ns() - self._start) / 1e6

    def ms(self) -> float:
        if self._cuda:
            return float(self._events[0].elapsed_time(self._events[1]))
        return (self._end - self._start) / 1e6
