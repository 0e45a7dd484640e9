"""Where a wheel lies, by a package index that was named: the simple API (PEP 503, PEP 691)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin, urlsplit

import msgspec

from mtpx import download
from mtpx.errors import PackError
from mtpx.manifest import PyPISource

ACCEPT = (
    "application/vnd.pypi.simple.v1+json, "
    "application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
)


def where(source: PyPISource, index: str) -> str:
    """The wheel's URL, with the index's own user and password if it lies on the same host.

    Raises `PackError` when the index at the URL `index` cannot be read, does not list the wheel, or
    lists another one of that name.
    """
    project = re.sub(r"[-_.]+", "-", source.project).lower()
    page = f"{index.rstrip('/')}/{project}/"
    try:
        for listed in _listing(page):
            if listed.filename == source.wheel:
                stated = listed.hashes.get("sha256", source.sha256)
                if stated != source.sha256:
                    raise PackError(
                        f"{download.shown(page)} lists another {source.wheel} (sha256 {stated}, "
                        f"expected {source.sha256}); use another index (MTPX_INDEX_URL)"
                    )
                return _with_credentials(listed.url, page)
    except download.NotThere:
        pass
    raise PackError(
        f"{download.shown(page)} has no {source.wheel}; use another index (MTPX_INDEX_URL)"
    )


class _Listed(msgspec.Struct):
    filename: str
    url: str
    hashes: dict[str, str] = {}


class _Page(msgspec.Struct):
    files: list[_Listed]


class _Anchors(HTMLParser):
    """The file links of a PEP 503 page, for an index that does not speak JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.hrefs += [value for name, value in attrs if name == "href" and value]


def _listing(page: str) -> Iterator[_Listed]:
    body, kind, base = download.page(page, ACCEPT)
    try:
        if kind.endswith("json"):
            listed = msgspec.json.decode(body, type=_Page).files
        else:
            anchors = _Anchors()
            anchors.feed(body.decode("utf-8", "replace"))
            listed = [_from_link(href) for href in anchors.hrefs]
        for file in listed:
            yield _Listed(file.filename, urljoin(base, file.url), file.hashes)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise PackError(
            f"{download.shown(page)} does not answer as a package index does ({error}); check "
            "MTPX_INDEX_URL or PIP_INDEX_URL"
        ) from None


def _from_link(href: str) -> _Listed:
    url, fragment = urldefrag(href)
    algorithm, _, digest = fragment.partition("=")
    hashes = {"sha256": digest} if algorithm == "sha256" else {}
    return _Listed(urlsplit(url).path.rpartition("/")[2], url, hashes)


def _with_credentials(url: str, page: str) -> str:
    """As pip does."""
    user, at, host = urlsplit(page).netloc.rpartition("@")
    parts = urlsplit(url)
    if at and parts.netloc == host:
        return parts._replace(netloc=f"{user}@{host}").geturl()
    return url
