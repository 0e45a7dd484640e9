"""HTTP for files that are known beforehand: resumed after a cut, bounded by their size.

A file grows as `NAME.part`; only the caller, who knows its digest, makes it anything else. A cut, a
stall or a busy server is retried from where it stopped; whatever ends the process leaves a part that
the next one goes on with.
"""

from __future__ import annotations

import base64
import errno
import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from mtpx.digests import CHUNK, Progress
from mtpx.errors import PackError

TRIES = 4
"""Failures in a row, without a mebibyte gained, before giving up."""

PAUSE_S = 0.5
"""Before the second try; doubled for each further one."""

TIMEOUT_S = 30.0
"""A connection silent for this long is taken as cut."""

PAGE_BYTES = 64 << 20
"""Largest index page read: the biggest projects' pages are a few mebibytes."""

BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP answers that may be different in a moment."""


class Cut(Exception):
    """A failure that trying again may cure. The message says what happened."""


class NotThere(PackError):
    """The server answers, and has no such thing."""


def page(url: str, accept: str) -> tuple[bytes, str, str]:
    """A small document: (body, content type, the URL it came from after redirects).

    Raises `NotThere` on 404 and 410, `PackError` when it cannot be had.
    """
    failures = 0
    while True:
        try:
            with closing(_open(url, {"Accept": accept})) as response:
                body = _read(response, PAGE_BYTES + 1)
                if len(body) > PAGE_BYTES:
                    raise PackError(f"{shown(url)} answers with more than {PAGE_BYTES} bytes")
                return body, response.headers.get_content_type(), response.geturl()
        except Cut as cut:
            failures += 1
            if failures >= TRIES:
                raise PackError(
                    f"{shown(url)} could not be reached: {cut}; check the network and try again"
                ) from None
            _pause(failures)


def resume(url: str, part: Path, size: int, progress: Progress | None = None) -> None:
    """Bring `part` to `size` bytes of what `url` serves, going on from what it holds.

    A server without ranges makes it start over. Raises `NotThere` on 404 and 410, `PackError` when
    the server has something of another size, or stays out of reach (the part is kept), and
    `OSError` when the disk refuses.
    """
    best, failures = length(part), 0
    while (have := length(part)) != size:
        try:
            _receive(url, part, have, size, progress)
            if length(part) < size:
                raise Cut("the connection ended early")
        except Cut as cut:
            gained = length(part) - best
            best += max(gained, 0)
            failures = 0 if gained >= CHUNK else failures + 1
            if failures >= TRIES:
                raise PackError(
                    f"fetching {shown(url)} failed: {cut}; {length(part)} of {size} bytes are kept "
                    f"in {part}, run again to go on from there"
                ) from None
            _pause(failures)


def copy(url: str, part: Path, size: int, progress: Progress | None = None) -> None:
    """Make `part` a copy of the file, `size` bytes long, that a file: URL names.

    Raises `PackError` when that cannot be read or is of another size, `OSError` when the disk
    refuses.
    """
    path = Path(urllib.request.url2pathname(urlsplit(url).path))

    def read() -> bytes:
        try:
            return file.read(CHUNK)
        except OSError as error:
            raise PackError(f"cannot read {path}: {error.strerror or error}") from None

    if not path.is_file():
        raise PackError(f"there is no file {path}")
    if (found := length(path)) != size:
        raise PackError(f"{path} holds {found} bytes where {size} were expected")
    try:
        file = path.open("rb")
    except OSError as error:
        raise PackError(f"cannot read {path}: {error.strerror or error}") from None
    with file, part.open("wb") as out:
        done = 0
        while chunk := read():
            out.write(chunk)
            done += len(chunk)
            if progress:
                progress(min(done, size), size)


def _receive(url: str, part: Path, have: int, size: int, progress: Progress | None) -> None:
    """One connection's worth."""
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with closing(_open(url, headers)) as response:
        start, total = _extent(response, have)
        if total is not None and total != size:
            raise PackError(
                f"{shown(url)} serves {total} bytes ({response.headers.get_content_type()}) where "
                f"{size} were expected; if the network asks for a login, log in, then try again"
            )
        with part.open("ab" if start else "wb") as file:
            done = start
            if progress:
                progress(done, size)
            # One byte more than is wanted shows a server that does not stop where it should.
            while chunk := _read(response, min(CHUNK, size - done + 1)):
                if done + len(chunk) > size:
                    raise PackError(f"{shown(url)} sends more than the {size} bytes expected")
                file.write(chunk)
                file.flush()
                done += len(chunk)
                if progress:
                    progress(done, size)


def _extent(response: Any, have: int) -> tuple[int, int | None]:
    """(where the answer starts in the file, the file's size if the server says it)."""
    if response.status == http.client.PARTIAL_CONTENT:
        found = re.fullmatch(
            r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip()
        )
        if not found or int(found[1]) != have:
            raise Cut("the server answered with another range than the one asked for")
        return have, None if found[2] == "*" else int(found[2])
    stated = response.headers.get("Content-Length", "")
    return 0, int(stated) if stated.isdecimal() else None


def _open(url: str, headers: dict[str, str]) -> Any:
    """The response to a GET. Raises `Cut` where trying again makes sense, else `PackError`."""
    bare, auth = _credentials(url)
    if urlsplit(bare).scheme not in ("http", "https"):
        raise PackError(f"{shown(url)} is not an http or https address")
    try:
        request = urllib.request.Request(bare, headers={"User-Agent": "mtpx", **headers})
        if auth:
            # Unredirected: a redirect to another host must not carry the password along.
            request.add_unredirected_header("Authorization", auth)
        return urllib.request.urlopen(request, timeout=TIMEOUT_S, context=_tls())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in BUSY:
            raise Cut(f"it answers {error.code} {error.reason}") from None
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and "Range" in headers:
            del headers["Range"]
            return _open(url, headers)
        kind = NotThere if error.code in (404, 410) else PackError
        raise kind(f"{shown(url)} answers {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise PackError(
                f"the certificate of {shown(url)} is not trusted ({error.reason.verify_message}); "
                "behind an intercepting proxy, set SSL_CERT_FILE to its certificates"
            ) from None
        raise Cut(_reason(error.reason)) from None
    except (ValueError, http.client.InvalidURL) as error:
        raise PackError(f"{shown(url)} cannot be asked for: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        raise Cut(_reason(error)) from None


def _read(response: Any, most: int) -> bytes:
    try:
        data: bytes = response.read(most)
    except (OSError, http.client.HTTPException) as error:
        raise Cut(_reason(error)) from None
    return data


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer for {TIMEOUT_S:g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _tls() -> ssl.SSLContext:
    """The system's certificates (SSL_CERT_FILE and SSL_CERT_DIR are honoured), and certifi's where
    the system names no file of them: python.org's Python for macOS comes without."""
    context = ssl.create_default_context()
    if ssl.get_default_verify_paths().cafile is None:
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def _credentials(url: str) -> tuple[str, str]:
    """The URL without `user:password@`, and the Authorization header they make ("" without)."""
    try:
        parts = urlsplit(url)
        user, password = parts.username, parts.password
    except ValueError as error:
        raise PackError(f"an address cannot be read: {error}") from None
    if user is None:
        return url, ""
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return bare, "Basic " + base64.b64encode(pair).decode()


def shown(url: str) -> str:
    """The URL as it may be printed: without password, query and fragment."""
    bare = re.sub(r"(?<=//)[^/]*@", "", url)
    return re.split(r"[?#]", bare, maxsplit=1)[0]


def length(path: Path) -> int:
    """Bytes in the file, 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _pause(failures: int) -> None:
    time.sleep(PAUSE_S * 2 ** max(failures - 1, 0))
