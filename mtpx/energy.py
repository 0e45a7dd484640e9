"""Joules, or the honest absence of them.

A sensor tells a running total (joules since some moment), a power (watts now), or both. Over a
window each gives an energy with an error; the one with the smaller error is taken. Published on a GB10:
repeated runs spread 8.2 % by its counter, which moves in coarse steps, and 0.7 % by integrating power.

Sensors come from zeus (`pip install 'mtpx-lm[energy]'`): NVML for Nvidia GPUs, Apple silicon, RAPL. What a
sensor sees is its *rail*; on a GB10 and every other Nvidia device that is the GPU's own, not the
machine's. Where no sensor is found, `find_meter` says why, and everything downstream shows a dash.
"""

from __future__ import annotations

import math
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self

from mtpx.errors import MtpxError

if TYPE_CHECKING:
    from mtpx.backend import EngineInfo

GPU_RAIL = "GPU rail only"
SOC_RAIL = "CPU, GPU, neural engine and memory of the chip"
CPU_RAIL = "CPU packages and their memory"

POLL_S = 0.02
"""Between two looks at a sensor; the fastest known ones have news every 20 to 100 ms."""


class EnergyError(MtpxError):
    """Energy cannot be measured as asked."""


class Sample(NamedTuple):
    """One look: at `t_s` seconds the sensor's counter stood at `counter_j` and its power at `watts`."""

    t_s: float
    counter_j: float | None = None
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of a window of `seconds`, give or take `error_j`, on the `rail` the sensor sees.

    `idle_w`, where it was measured, is what the rail draws when nothing runs.
    """

    joules: float
    error_j: float
    seconds: float
    source: Literal["counter", "power"]
    rail: str
    idle_w: float | None = None

    @property
    def relative_error(self) -> float:
        return self.error_j / self.joules if self.joules > 0.0 else math.inf

    @property
    def above_idle_j(self) -> float | None:
        """What the work added to an idle device; `None` without a baseline, never below 0."""
        return None if self.idle_w is None else max(0.0, self.joules - self.idle_w * self.seconds)


class Sensor(Protocol):
    """A rail's counter and power. `modulus_j` is where the counter wraps to 0, `None` if it never does."""

    rail: str
    modulus_j: float | None

    def counter_j(self) -> float | None: ...

    def watts(self) -> float | None: ...


def counter_increments(
    values: Sequence[float], modulus_j: float | None = None
) -> tuple[list[float], int]:
    """Joules between successive readings of a counter, none of them negative, and how many resets.

    A falling counter has wrapped if it has a modulus and the way over the top is the shorter half of it;
    otherwise it was reset, and what it shows now is the least that was used since.
    """
    found: list[float] = []
    resets = 0
    for before, now in pairwise(values):
        step = now - before
        if step < 0.0:
            over_the_top = step + modulus_j if modulus_j is not None else math.inf
            wrapped = modulus_j is not None and 0.0 <= over_the_top <= modulus_j / 2
            step = over_the_top if wrapped else now
            resets += not wrapped
        found.append(max(0.0, step))
    return found, resets


def counter_energy(
    samples: Sequence[Sample], rail: str, modulus_j: float | None = None
) -> Energy | None:
    """Energy by the counter; `None` with fewer than two readings of it, or if it never moved.

    The error is one of the counter's steps: where a window begins and ends within a step is unknown.
    Polled faster than it moves, a counter's step is its largest increment. A reset may have lost
    another one.
    """
    known = [(s.t_s, s.counter_j) for s in samples if s.counter_j is not None]
    if len(known) < 2:
        return None
    steps, resets = counter_increments([value for _, value in known], modulus_j)
    moved = [step for step in steps if step > 0.0]
    if not moved:
        return None
    seconds = known[-1][0] - known[0][0]
    return Energy(math.fsum(steps), max(moved) * (1 + resets), seconds, "counter", rail)


def power_energy(samples: Sequence[Sample], rail: str) -> Energy | None:
    """Energy by integrating power, trapezoid by trapezoid; `None` with fewer than two readings.

    The error is what the sum could be off by if power had changed right after the one or right before
    the other end of every trapezoid: Σ |ΔW| · Δt / 2.
    """
    known = [(s.t_s, s.watts) for s in samples if s.watts is not None]
    if len(known) < 2:
        return None
    joules = error = 0.0
    for (t0, w0), (t1, w1) in pairwise(known):
        joules += (w0 + w1) / 2 * (t1 - t0)
        error += abs(w1 - w0) / 2 * (t1 - t0)
    seconds = known[-1][0] - known[0][0]
    return Energy(joules, error, seconds, "power", rail) if joules > 0.0 else None


def window_energy(
    samples: Sequence[Sample],
    rail: str,
    *,
    modulus_j: float | None = None,
    idle_w: float | None = None,
) -> Energy | None:
    """Energy of a window by whichever of counter and power is the surer; `None` if neither tells."""
    found = [
        energy
        for energy in (counter_energy(samples, rail, modulus_j), power_energy(samples, rail))
        if energy is not None
    ]
    if not found:
        return None
    return replace(min(found, key=lambda energy: energy.relative_error), idle_w=idle_w)


class Window:
    """Looks at a sensor from entry to exit of a `with`; `energy` is there afterwards.

    Looks come from a thread of their own, at entry and at exit also from the caller's, so that a short
    window has two. A sensor that fails in between leaves `energy` absent and `failed` says why.
    """

    def __init__(
        self,
        sensor: Sensor,
        idle_w: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
    ) -> None:
        self._sensor, self._idle_w = sensor, idle_w
        self._clock, self._poll_s = clock, poll_s
        self._samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._watts: float | None = None
        self._moved: Sample | None = None
        self.failed = ""
        self.energy: Energy | None = None

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._look()
        if not self.failed:
            self.energy = window_energy(
                self._samples,
                self._sensor.rail,
                modulus_j=self._sensor.modulus_j,
                idle_w=self._idle_w,
            )

    @property
    def watts(self) -> float | None:
        """Power now: the sensor's last word or, where it only counts, what it counted between the last
        two times that it moved. `None` while neither is known."""
        return None if self.failed else self._watts

    def _watch(self) -> None:
        while not self._over.wait(self._poll_s):
            self._look()

    def _look(self) -> None:
        if self.failed:
            return
        try:
            counter, watts = self._sensor.counter_j(), self._sensor.watts()
        except Exception as error:
            self.failed = f"the energy sensor failed: {type(error).__name__}: {error}"
            return
        now = Sample(self._clock(), counter, watts)
        self._samples.append(now)
        if watts is not None:
            self._watts = watts
        elif counter is not None:
            before = self._moved
            if before is None or before.counter_j is None or counter < before.counter_j:
                self._moved = now
            elif counter > before.counter_j and now.t_s > before.t_s:
                self._watts = (counter - before.counter_j) / (now.t_s - before.t_s)
                self._moved = now


@dataclass(slots=True)
class Meter:
    """A sensor that answered, and what it reads when nothing runs, once `settle` has looked. `clock`
    in seconds."""

    sensor: Sensor
    idle_w: float | None = None
    clock: Callable[[], float] = time.monotonic

    @property
    def rail(self) -> str:
        return self.sensor.rail

    def window(self) -> Window:
        """A window to measure in: `with meter.window() as w: ...`, then `w.energy`."""
        return Window(self.sensor, self.idle_w, clock=self.clock)

    def settle(self, seconds: float = 1.0) -> float | None:
        """Measure the idle baseline in watts while nothing runs; `None` if the sensor does not tell."""
        if not 0.0 < seconds < 3600.0:
            raise EnergyError(f"an idle baseline takes some seconds, got {seconds:g}")
        with self.window() as window:
            time.sleep(seconds)
        energy = window.energy
        self.idle_w = energy.joules / energy.seconds if energy and energy.seconds > 0.0 else None
        return self.idle_w


@dataclass(frozen=True, slots=True)
class NoMeter:
    """There are no joules here; `reason` is the sentence why."""

    reason: str


class GpuSensor:
    """An Nvidia GPU by NVML. The counter is in mJ, power in mW."""

    rail = GPU_RAIL
    modulus_j: float | None = None

    def __init__(self, gpus: Any, index: int) -> None:
        self._gpus, self._index = gpus, index
        self._counts = bool(gpus.supports_get_total_energy_consumption(index))
        self._powers = True
        try:
            gpus.get_instant_power_usage(index)
        except Exception:
            self._powers = False
        if not self._counts and not self._powers:
            raise EnergyError("the GPU tells neither its energy nor its power")

    def counter_j(self) -> float | None:
        if not self._counts:
            return None
        return float(self._gpus.get_total_energy_consumption(self._index)) / 1e3

    def watts(self) -> float | None:
        if not self._powers:
            return None
        return float(self._gpus.get_instant_power_usage(self._index)) / 1e3


class SocSensor:
    """Apple silicon: the parts that add up without counting one twice, in mJ."""

    rail = SOC_RAIL
    modulus_j: float | None = None
    _PARTS = ("cpu_total_mj", "gpu_mj", "ane_mj", "dram_mj")

    def __init__(self, soc: Any) -> None:
        self._soc = soc
        if self.counter_j() is None:
            raise EnergyError("the chip tells the energy of none of its parts")

    def counter_j(self) -> float | None:
        found = self._soc.get_total_energy_consumption()
        parts = [getattr(found, name, None) for name in self._PARTS]
        known = [float(part) for part in parts if part is not None]
        return math.fsum(known) / 1e3 if known else None

    def watts(self) -> float | None:
        return None


class CpuSensor:
    """RAPL: all packages and, where told, their memory, in mJ. zeus follows the wraps itself."""

    rail = CPU_RAIL
    modulus_j: float | None = None

    def __init__(self, cpus: Any) -> None:
        self._cpus = cpus
        if not len(cpus):
            raise EnergyError("no CPU package tells its energy")
        self.counter_j()

    def counter_j(self) -> float | None:
        total = 0.0
        for index in range(len(self._cpus)):
            found = self._cpus.get_total_energy_consumption(index)
            total += float(found.cpu_mj) + float(found.dram_mj or 0.0)
        return total / 1e3

    def watts(self) -> float | None:
        return None


def find_meter(info: EngineInfo) -> Meter | NoMeter:
    """The meter of the device this engine runs on, or the sentence why there is none. Never raises."""
    device = info.details.get("device", "")
    if info.backend == "simulated":
        return NoMeter("a simulated machine uses no energy")
    try:
        zeus = import_module("zeus.device")
    except ImportError:
        return NoMeter("zeus is not installed: pip install 'mtpx-lm[energy]'")
    except Exception as error:
        return NoMeter(f"zeus cannot be used: {type(error).__name__}: {error}")
    try:
        return Meter(_sensor(zeus, device))
    except EnergyError as error:
        return NoMeter(str(error))
    except Exception as error:
        what = " ".join(str(error).split()) or type(error).__name__
        return NoMeter(f"this machine has no energy meter that zeus can read: {what}")


def _sensor(zeus: Any, device: str) -> Sensor:
    kind, _, index = device.partition(":")
    if kind == "cuda":
        return GpuSensor(zeus.get_gpus(), int(index or 0))
    if platform.system() == "Darwin":
        return SocSensor(zeus.get_soc())
    return CpuSensor(zeus.get_cpus())
