"""Fixtures that more than one test file uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from package_index import index, running

__all__ = ["embedded_weights", "index", "running"]


@pytest.fixture(scope="session")
def embedded_weights() -> Path:
    """The embedded model's GGUF file, fetched once (93 MB). For tests marked `model`."""
    from mtpx import packs

    return packs.resolve(packs.EMBEDDED).weights
