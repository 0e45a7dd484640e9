"""Backends are found by entry point; what cannot run says why."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from mtpx import backends
from mtpx.backend import Backend, Probe
from mtpx.errors import BackendError


class Good:
    name = "good"

    def probe(self, device: str = "auto") -> Probe:
        return Probe(True, device="a device")

    def load(self, pack: Any, options: Any) -> Any:
        raise NotImplementedError


class Unable(Good):
    def probe(self, device: str = "auto") -> Probe:
        return Probe(False, reason=f"there is no {device}")


class Failing(Good):
    def probe(self, device: str = "auto") -> Probe:
        raise OSError("libthing.so is missing")


class Entry:
    """An entry point that names this object, or fails to load with this exception."""

    def __init__(self, name: str, found: Any) -> None:
        self.name, self.value, self._found = name, f"somewhere:{name}", found

    def load(self) -> Any:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    def installed(**found: Any) -> None:
        entries = [Entry(name, what) for name, what in found.items()]
        monkeypatch.setattr(metadata, "entry_points", lambda group: entries)

    return installed


def test_the_torch_backend_is_installed() -> None:
    backend = backends.get_backend("torch")
    assert isinstance(backend, Backend)
    assert backend.name == "torch"


@pytest.mark.parametrize("found", [Good, Good()], ids=["a class", "an object"])
def test_an_entry_point_names_a_class_or_an_object(install: Any, found: Any) -> None:
    install(mine=found)
    assert isinstance(backends.choose_backend("mine", "auto"), Good)


def test_the_machines_own_backend_comes_first(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(another=Good, mlx=Good, torch=Good)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert backends.backend_names()[0] == "torch"
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert backends.backend_names()[0] == "mlx"


def test_an_unknown_backend_is_told_with_those_there_are(install: Any) -> None:
    install(one=Good, two=Good)
    with pytest.raises(BackendError, match="there is no backend 'three'; installed: one, two"):
        backends.choose_backend("three", "auto")


def test_a_backend_that_was_asked_for_and_cannot_run_says_why(install: Any) -> None:
    install(mine=Unable)
    with pytest.raises(BackendError, match="the backend mine cannot run here: there is no npu"):
        backends.choose_backend("mine", "npu")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (ImportError("no module named thing"), "cannot be imported: ImportError: no module"),
        (OSError("libthing.so is missing"), "cannot be imported: OSError: libthing"),
        (Failing, "cannot look at this machine: OSError: libthing"),
        (object(), "is no backend"),
    ],
)
def test_a_backend_that_fails_in_its_own_way_is_one_sentence(
    install: Any, broken: Any, why: str
) -> None:
    install(mine=broken)
    with pytest.raises(BackendError, match=f"the backend mine cannot run here: .*{why}"):
        backends.choose_backend("mine", "auto")


@pytest.mark.parametrize("broken", [ImportError("gone"), Failing, Unable, object()])
def test_automatic_choice_passes_over_what_cannot_run(install: Any, broken: Any) -> None:
    install(a=broken, b=Good)
    assert isinstance(backends.choose_backend("auto", "cpu"), Good)


def test_when_none_can_run_each_says_why(install: Any) -> None:
    install(a=Unable, b=ImportError("gone"))
    with pytest.raises(BackendError, match=r"a: there is no cpu; b: it cannot be imported.*gone"):
        backends.choose_backend("auto", "cpu")


def test_when_none_is_installed_it_says_what_to_install(install: Any) -> None:
    install()
    with pytest.raises(BackendError, match="no backend is installed: pip install torch"):
        backends.choose_backend("auto", "auto")
