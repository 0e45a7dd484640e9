"""Joules from recorded series of a sensor, and the sentence where there is no sensor."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpx.backend import EngineInfo
from mtpx.energy import (
    CPU_RAIL,
    GPU_RAIL,
    SOC_RAIL,
    EnergyError,
    Meter,
    NoMeter,
    Sample,
    Window,
    counter_energy,
    counter_increments,
    find_meter,
    power_energy,
    window_energy,
)
from mtpx.simulate import SimulatedEngine

INFO = replace(SimulatedEngine().info, backend="torch")


def on(device: str) -> EngineInfo:
    return replace(INFO, details={"device": device})


def counted(*values: float) -> list[Sample]:
    return [Sample(float(t), counter_j=value) for t, value in enumerate(values)]


def powered(*values: float) -> list[Sample]:
    return [Sample(float(t), watts=value) for t, value in enumerate(values)]


# -- counters --------------------------------------------------------------------------------------


def test_a_counter_that_wraps_goes_on_counting() -> None:
    assert counter_increments([90.0, 98.0, 3.0, 9.0], modulus_j=100.0) == ([8.0, 5.0, 6.0], 0)


def test_a_counter_that_was_reset_counts_what_it_shows_since() -> None:
    assert counter_increments([90.0, 98.0, 3.0, 9.0]) == ([8.0, 3.0, 6.0], 1)


def test_a_fall_too_deep_for_a_wrap_is_a_reset() -> None:
    # From 40 to 5 over a top of 100 would be 65 joules between two looks.
    assert counter_increments([30.0, 40.0, 5.0], modulus_j=100.0) == ([10.0, 5.0], 1)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.floats(1.0, 1e6))
def test_no_increment_is_negative(values: list[float], modulus: float) -> None:
    for found in (counter_increments(values), counter_increments(values, modulus)):
        assert all(step >= 0.0 for step in found[0])


@given(st.lists(st.floats(0.0, 40.0), min_size=1, max_size=30), st.floats(0.0, 99.0))
def test_a_wrapping_counter_adds_up_to_what_was_used(steps: list[float], start: float) -> None:
    shown, total = [start], start
    for step in steps:
        total += step
        shown.append(total % 100.0)
    found, resets = counter_increments(shown, 100.0)
    assert (sum(found), resets) == (pytest.approx(total - start, abs=1e-6), 0)


def test_the_error_of_a_counter_is_one_of_its_steps() -> None:
    # Moves by 5 J every third look.
    energy = counter_energy(counted(0, 0, 0, 5, 5, 5, 10, 10, 10, 15), GPU_RAIL)
    assert energy is not None
    assert (energy.joules, energy.error_j, energy.seconds) == (15.0, 5.0, 9.0)
    assert (energy.source, energy.rail) == ("counter", GPU_RAIL)


def test_a_reset_makes_a_counter_less_sure() -> None:
    whole = counter_energy(counted(90, 95, 100), GPU_RAIL)
    broken = counter_energy(counted(90, 95, 5), GPU_RAIL)
    assert whole is not None
    assert broken is not None
    assert broken.error_j == 2 * whole.error_j


@pytest.mark.parametrize("samples", [[], counted(5.0), counted(5.0, 5.0), powered(1.0, 1.0)])
def test_a_counter_that_did_not_move_tells_nothing(samples: list[Sample]) -> None:
    assert counter_energy(samples, GPU_RAIL) is None


# -- power -----------------------------------------------------------------------------------------


def test_power_is_integrated_by_trapezoids() -> None:
    energy = power_energy([Sample(0, watts=10), Sample(2, watts=20), Sample(3, watts=20)], GPU_RAIL)
    assert energy is not None
    assert (energy.joules, energy.error_j, energy.seconds) == (50.0, 10.0, 3.0)


@given(st.lists(st.floats(0.1, 500.0), min_size=2, max_size=30))
def test_the_integral_lies_between_the_sums_of_both_ends(watts: list[float]) -> None:
    energy = power_energy(powered(*watts), GPU_RAIL)
    assert energy is not None
    for ends in (watts[:-1], watts[1:]):
        assert abs(sum(ends) - energy.joules) <= energy.error_j + 1e-6


def test_power_is_preferred_where_the_counter_is_coarse() -> None:
    samples = [
        Sample(t / 10, counter_j=10.0 * (t // 8), watts=12.0 + 0.1 * (t % 2)) for t in range(25)
    ]
    energy = window_energy(samples, GPU_RAIL)
    assert energy is not None
    assert energy.source == "power"
    assert energy.joules == pytest.approx(12.05 * 2.4, rel=1e-6)


def test_the_counter_is_preferred_where_it_is_fine() -> None:
    samples = [
        Sample(t / 10, counter_j=1.2 * t, watts=30.0 if t % 5 == 0 else 7.0) for t in range(25)
    ]
    energy = window_energy(samples, GPU_RAIL)
    assert energy is not None
    assert (energy.source, energy.joules) == ("counter", pytest.approx(1.2 * 24))


def test_the_idle_baseline_is_taken_off_and_never_below_nothing() -> None:
    energy = window_energy(powered(50.0, 50.0, 50.0), GPU_RAIL, idle_w=20.0)
    assert energy is not None
    assert energy.above_idle_j == 60.0
    assert replace(energy, idle_w=80.0).above_idle_j == 0.0
    assert replace(energy, idle_w=None).above_idle_j is None


# -- windows ---------------------------------------------------------------------------------------


@dataclass
class Recorded:
    """A sensor that plays a series, a look each."""

    series: list[float]
    rail: str = GPU_RAIL
    modulus_j: float | None = None
    looks: int = 0

    def counter_j(self) -> float | None:
        self.looks += 1
        return self.series[min(self.looks, len(self.series)) - 1]

    def watts(self) -> float | None:
        return None


class Broken(Recorded):
    def counter_j(self) -> float | None:
        raise RuntimeError("the driver is gone")


def test_a_short_window_has_a_look_at_both_ends() -> None:
    ticks = iter([1.0, 3.0])
    with Window(Recorded([5.0, 9.0]), clock=lambda: next(ticks), poll_s=3600.0) as window:
        pass
    assert window.energy is not None
    assert (window.energy.joules, window.energy.seconds) == (4.0, 2.0)


def test_a_sensor_that_fails_leaves_no_energy_and_says_why() -> None:
    with Window(Broken([])) as window:
        pass
    assert window.energy is None
    assert window.failed == "the energy sensor failed: RuntimeError: the driver is gone"


def test_a_baseline_of_no_time_is_refused() -> None:
    with pytest.raises(EnergyError, match="takes some seconds"):
        Meter(Recorded([1.0])).settle(0.0)


# -- finding a sensor ------------------------------------------------------------------------------


@dataclass
class Zeus:
    """The three things of zeus that are used, with the names and units of its release 0.16."""

    gpu: Any = None
    soc: Any = None
    cpus: list[Any] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
        module = ModuleType("zeus.device")
        module.get_gpus = lambda: self.gpu  # type: ignore[attr-defined]
        module.get_soc = lambda: self.soc  # type: ignore[attr-defined]
        module.get_cpus = lambda: self  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "zeus", ModuleType("zeus"))
        monkeypatch.setitem(sys.modules, "zeus.device", module)
        monkeypatch.setattr("platform.system", lambda: system)

    def __len__(self) -> int:
        return len(self.cpus)

    def get_total_energy_consumption(self, index: int) -> Any:
        return self.cpus[index]


class Gpu:
    """mJ and mW of GPU 1."""

    def supports_get_total_energy_consumption(self, index: int) -> bool:
        return True

    def get_total_energy_consumption(self, index: int) -> int:
        assert index == 1
        return 7000

    def get_instant_power_usage(self, index: int) -> int:
        assert index == 1
        return 250


def test_a_gpu_is_read_in_joules_and_watts_of_its_own_rail(monkeypatch: pytest.MonkeyPatch) -> None:
    Zeus(gpu=Gpu()).install(monkeypatch, "Linux")
    meter = find_meter(on("cuda:1"))
    assert isinstance(meter, Meter)
    assert (meter.sensor.counter_j(), meter.sensor.watts()) == (7.0, 0.25)
    assert meter.rail == GPU_RAIL == "GPU rail only"


def test_apple_silicon_counts_no_part_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    told = SimpleNamespace(
        cpu_total_mj=1000, performance_cluster_mj=900, gpu_mj=2000, ane_mj=None, dram_mj=500
    )
    soc = SimpleNamespace(get_total_energy_consumption=lambda: told)
    Zeus(soc=soc).install(monkeypatch, "Darwin")
    meter = find_meter(on("mps"))
    assert isinstance(meter, Meter)
    assert (meter.sensor.counter_j(), meter.rail) == (3.5, SOC_RAIL)


def test_packages_and_their_memory_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = [
        SimpleNamespace(cpu_mj=1000.0, dram_mj=200.0),
        SimpleNamespace(cpu_mj=3000.0, dram_mj=None),
    ]
    Zeus(cpus=packages).install(monkeypatch, "Linux")
    meter = find_meter(on("cpu"))
    assert isinstance(meter, Meter)
    assert (meter.sensor.counter_j(), meter.rail) == (4.2, CPU_RAIL)


def test_a_machine_without_a_sensor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    zeus = Zeus()
    zeus.install(monkeypatch, "Linux")

    def none() -> Any:
        raise RuntimeError("RAPL is not there")

    monkeypatch.setattr(sys.modules["zeus.device"], "get_cpus", none)
    found = find_meter(on("cpu"))
    assert found == NoMeter(
        "this machine has no energy meter that zeus can read: RAPL is not there"
    )


def test_a_machine_without_zeus_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus", None)
    monkeypatch.delitem(sys.modules, "zeus.device", raising=False)
    assert find_meter(on("cpu")) == NoMeter("zeus is not installed: pip install 'mtpx-lm[energy]'")


def test_this_machine_gives_a_meter_that_counts_or_a_reason() -> None:
    found = find_meter(on("cpu"))
    if isinstance(found, NoMeter):
        assert found.reason
    else:
        assert (found.sensor.counter_j() or 0.0) > 0.0


def test_a_simulated_machine_uses_no_energy() -> None:
    assert isinstance(find_meter(SimulatedEngine().info), NoMeter)
