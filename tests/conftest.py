"""Fixtures that more than one test file uses."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import mtpx
from hypothesis import HealthCheck, settings
from package_index import index, running

# From the M5 on, Metal multiplies float32 in products of several rows with 11 bits of it unless told
# otherwise, before the first of them: a reference to 1e-3 would be missed.
os.environ["MLX_ENABLE_TF32"] = "0"

# How long an example takes is the machine's business.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

__all__ = ["copied", "embedded_weights", "index", "mtpx", "own_folders", "running", "tiny_pack"]


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that: tests that press
    Ctrl-C must not depend on how the suite was started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _nobodys_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What policies learn in tests is not the person's who runs them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MTPX_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def embedded_weights() -> Path:
    """The embedded model's GGUF file, fetched once (93 MB). For tests marked `model`."""
    from mtpx import packs

    return packs.resolve(packs.EMBEDDED).weights


@pytest.fixture(scope="session")
def tiny_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack's folder that the torch backend runs in milliseconds. Tests that damage it copy it."""
    from tiny_pack import make_tiny_pack

    return make_tiny_pack(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def copied(tiny_pack: Path, tmp_path: Path) -> Path:
    """The tiny pack again, to be damaged."""
    return shutil.copytree(tiny_pack, tmp_path / "copy")


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache, state and settings of this test alone, under the folder given."""
    for name in ("CACHE", "STATE", "CONFIG"):
        monkeypatch.setenv(f"MTPX_{name}_DIR", str(tmp_path / name.lower()))
    return tmp_path
