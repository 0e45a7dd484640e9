"""Where a wheel lies, by pip: the user's own mirrors, proxies, find-links and passwords count.

pip plans an installation, reports it, and installs nothing; no code of the project runs, since wheels
alone are considered. The wheel itself is not downloaded for the plan where the index serves its
metadata (PEP 658; pip from 25.3 on, older ones download all the same) or the server serves ranges
(pip's `fast-deps`). Where neither holds, pip fetches the wheel once for nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from mtpx import download
from mtpx.errors import PackError
from mtpx.manifest import PyPISource

# -P: a folder called `pip` where the command was started is not pip.
COMMAND = (sys.executable, "-P", "-m", "pip")

PLAN = (
    "install",
    "--dry-run",
    "--no-deps",
    "--ignore-installed",
    # A source distribution would have to be built, which runs its code.
    "--only-binary=:all:",
    # The wheel is a container here: which Python it is for does not matter.
    "--ignore-requires-python",
    "--disable-pip-version-check",
    "--no-input",
    "--no-color",
    "--quiet",
)

RANGES = "--use-feature=fast-deps"
"""Read a wheel's metadata with range requests. An experiment of pip's: it may not know the word, and
fails on servers that answer no HEAD, so a failure is tried once more without."""


def where(source: PyPISource) -> str:
    """The wheel's URL: http, https, or file for one that a find-links folder holds.

    Raises `PackError` when pip is missing, does not find the wheel, or finds another one.
    """
    with tempfile.TemporaryDirectory(prefix="mtpx-", ignore_cleanup_errors=True) as folder:
        report = Path(folder) / "report.json"
        answer = _ask(source, report, RANGES)
        if answer.returncode and "No matching distribution" not in answer.stderr:
            answer = _ask(source, report)
        if answer.returncode:
            raise PackError(_refusal(source, answer.stderr))
        try:
            plan = report.read_bytes()
        except OSError:
            plan = b""
    return planned(plan, source)


def planned(report: bytes, source: PyPISource) -> str:
    """The wheel's URL in pip's installation report (JSON). Raises `PackError` when it is not the
    wheel that `source` names, or no such report."""
    try:
        (item,) = msgspec.json.decode(report, type=_Report).install
        url = item.download_info.url
        name = unquote(urlsplit(url).path.rpartition("/")[2])
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
        raise PackError(
            f"pip's report on {source.project}=={source.version} cannot be understood; "
            "pip 25.3 or newer is needed, or name an index in MTPX_INDEX_URL"
        ) from None
    if name != source.wheel:
        raise PackError(
            f"pip finds {name!r} for {source.project}=={source.version} where the manifest names "
            f"{source.wheel}; name an index that has it in MTPX_INDEX_URL"
        )
    stated = item.download_info.archive_info.hashes.get("sha256", source.sha256)
    if stated != source.sha256:
        raise PackError(
            f"{download.shown(url)}, which pip finds, is another {source.wheel} (sha256 {stated}, "
            f"expected {source.sha256}); name an index that has it in MTPX_INDEX_URL"
        )
    return url


class _Archive(msgspec.Struct, frozen=True):
    hashes: dict[str, str] = {}


class _Download(msgspec.Struct, frozen=True):
    url: str
    archive_info: _Archive = _Archive()


class _Item(msgspec.Struct, frozen=True):
    download_info: _Download


class _Report(msgspec.Struct, frozen=True):
    install: list[_Item]


def _ask(source: PyPISource, report: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # A file, not standard output: what colours or warns there would end up in the JSON.
    wanted = ("--report", str(report), f"{source.project}=={source.version}")
    try:
        return subprocess.run(
            [*COMMAND, *PLAN, *options, *wanted],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise PackError(f"pip could not be started: {error.strerror or error}; {_NO_PIP}") from None


_NO_PIP = "name an index in MTPX_INDEX_URL to do without pip"


def _refusal(source: PyPISource, said: str) -> str:
    last = _last_line(said) or "it gave no reason"
    if re.search(r"No module named '?pip\b", last):
        return (
            f"pip, which knows where wheels lie, is not installed for {COMMAND[0]}; install it there "
            f"(python -m ensurepip), or {_NO_PIP}"
        )
    what = f"pip does not find {source.project}=={source.version}"
    if "connection broken by" in said:
        return f"{what}: it could not reach a package index; check the network and try again"
    if "confirming the ssl certificate" in said:
        return (
            f"{what}: it does not trust the certificate of a package index; behind an intercepting "
            "proxy, set PIP_CERT and SSL_CERT_FILE to its certificates"
        )
    return f"{what}: {last}; check its settings (pip config list), or {_NO_PIP}"


def _last_line(said: str) -> str | None:
    """The last line of pip's that says what went wrong."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    others = [line for line in lines if not line.startswith(("WARNING:", "DEPRECATION:", "["))]
    last = next(reversed(errors or others), None)
    return last and "".join(filter(str.isprintable, last)).rstrip(".")[:300]
