"""Manifests: every field checked, and whatever the bytes are, a Manifest or a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mtpx.errors import PackError
from mtpx.manifest import Manifest, parse, read
from mtpx.sampling import Sampling

SHA = "a" * 64
GOOD = f"""\
schema = 1
name = "mine"
description = "a pack of mine"
license = "MIT"
family = "llama"
context = 128
quantisation = "none"
depth = 2
prior_costs = [1.0, 1.2]

[[sources]]
kind = "hub"
repo = "someone/model"
revision = "main"

[[sources]]
kind = "pypi"
project = "some-model"
version = "1.0"
wheel = "some_model-1.0-py3-none-any.whl"
sha256 = "{SHA}"
size = 1000

[[sources]]
kind = "local"

[[files]]
name = "weights.gguf"
path = "some_model/weights.gguf"
sha256 = "{SHA}"
size = 2000

[head]
file = "head.safetensors"
sha256 = "{SHA}"

[head.contract]
family = "llama-mtp"

[sampling]
temperature = 0.5

[evidence]
anything = {{ goes = [1, "two"] }}
"""


def test_a_manifest_holds_what_it_says() -> None:
    manifest = parse(GOOD.encode())
    assert manifest.name == "mine"
    assert [type(source).__name__ for source in manifest.sources] == [
        "HubSource",
        "PyPISource",
        "LocalSource",
    ]
    assert manifest.files[0].member == "some_model/weights.gguf"
    assert manifest.size == 2000
    assert manifest.sampling == Sampling(temperature=0.5)
    assert manifest.depth == 2
    assert manifest.prior_costs == [1.0, 1.2]
    assert manifest.evidence == {"anything": {"goes": [1, "two"]}}
    assert manifest.head
    assert manifest.head.contract.family == "llama-mtp"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema = 1", "schema = 2", "a newer one is needed"),
        ("schema = 1", "schema = true", "needs `schema = 1`"),
        ("schema = 1", "", "needs `schema = 1`"),
        ("schema = 1", "schema = 1\nfrob = 3", "'frob'"),
        ('kind = "hub"', 'kind = "hub"\nfrob = 3', "frob"),
        ('kind = "hub"', 'kind = "torrent"', "torrent"),
        ('file = "head', 'frob = 3\nfile = "head', "frob"),
        ('family = "llama-mtp"', 'family = "llama-mtp"\nfrob = 3', "frob"),
        ("temperature", "temprature", "temprature"),
        ("temperature = 0.5", "temperature = -1", "temperature must be"),
        ("temperature = 0.5", "temperature = nan", "temperature must be"),
        ('name = "mine"', 'name = "../mine"', "name '../mine' cannot be used"),
        ('name = "mine"', 'name = "Mine"', "name 'Mine' cannot be used"),
        ('name = "mine"', 'name = "a..b"', "cannot be used"),
        ('name = "mine"', "name = 7", "name"),
        ("context = 128", "context = 0", "context"),
        ("context = 128", "", "context"),
        ('license = "MIT"', 'license = " "', "license"),
        ('description = "a', 'description = "\\u001b[31ma', "description"),
        (
            "depth = 2",
            "depth = -1",
            "`depth` must be a number of drafts a round, 0 to 64, found -1",
        ),
        (
            "depth = 2",
            "depth = 65",
            "`depth` must be a number of drafts a round, 0 to 64, found 65",
        ),
        ("depth = 2", "depth = true", "depth"),
        ("depth = 2", "depth = 9", "recommends 9 drafts a round, but its head drafts 8 at most"),
        ("[1.0, 1.2]", "[1.0, 0.0]", "prior_costs"),
        ("[1.0, 1.2]", "[1.0, inf]", "prior_costs"),
        ("size = 2000", "size = 0", "size of weights.gguf"),
        ("size = 1000", "size = -1", "size of some_model-1.0"),
        (SHA, "A" * 64, "64 hexadecimal digits"),
        (SHA, "a" * 63, "64 hexadecimal digits"),
        ('"weights.gguf"', '"weights.bin"', "a pack holds no code"),
        ('"weights.gguf"', '"weights.pt"', "a pack holds no code"),
        ('"weights.gguf"', '".gguf"', "plain file name"),
        ('"weights.gguf"', '"a/weights.gguf"', "plain file name"),
        ('"weights.gguf"', '"../weights.gguf"', "must stay inside"),
        ('"weights.gguf"', '"c:weights.gguf"', "must stay inside"),
        ('"weights.gguf"', '"..\\\\weights.gguf"', "must stay inside"),
        ('"weights.gguf"', '"weights.json"', "needs exactly one .gguf file"),
        ('"some_model/weights.gguf"', '"/etc/passwd"', "must stay inside"),
        ('"some_model/weights.gguf"', '"a/../../b"', "must stay inside"),
        ('"head.safetensors"', '"/head.safetensors"', "must stay inside"),
        ('"head.safetensors"', '"x/../../head.safetensors"', "must stay inside"),
        ('"head.safetensors"', '"head.pkl"', "a pack holds no code"),
        ('kind = "local"', 'kind = "local"\nfolder = "../.."', "must stay inside"),
        ('kind = "local"', 'kind = "local"\nfolder = "/tmp"', "must stay inside"),
        ('"some_model-1.0-', '"../some_model-1.0-', "must stay inside"),
        ('project = "some-model"', 'project = "../some"', "project on a package index"),
        ('version = "1.0"', 'version = "latest"', "not a version"),
        ('version = "1.0"', 'version = "1.0"\nurl = "file:///etc/passwd"', "https://"),
        ('repo = "someone/model"', 'repo = "model"', "owner/name"),
        ('repo = "someone/model"', 'repo = "../.."', "owner/name"),
    ],
)
def test_a_field_that_cannot_be_is_refused_and_named(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(PackError, match=re.escape(said)) as error:
        parse(GOOD.replace(old, new, 1).encode(), "here/pack.toml")
    assert str(error.value).startswith("here/pack.toml: ")


def without_head(text: str) -> str:
    return text[: text.index("[head]")]


def test_a_pack_without_a_head_recommends_plain_decoding_at_most() -> None:
    text = without_head(GOOD)
    assert parse(text.replace("depth = 2", "depth = 0").encode()).depth == 0
    with pytest.raises(PackError, match="recommends 2 drafts a round, but it has no head"):
        parse(text.encode())


def test_a_pack_need_not_recommend_a_depth() -> None:
    assert parse(GOOD.replace("depth = 2", "").encode()).depth is None


@pytest.mark.parametrize("depth", [0, 3])
def test_a_depth_up_to_the_heads_own_limit_may_be_recommended(depth: int) -> None:
    text = GOOD.replace("depth = 2", f"depth = {depth}")
    limited = text.replace('family = "llama-mtp"', 'family = "llama-mtp"\ndraft_depth_limit = 3')
    assert parse(limited.encode()).depth == depth


def test_two_files_of_one_name_are_refused_whatever_their_case() -> None:
    twice = f'[[files]]\nname = "Weights.gguf"\nsha256 = "{SHA}"\nsize = 1\n\n[head]'
    with pytest.raises(PackError, match="names a file twice"):
        parse(GOOD.replace("[head]", twice, 1).encode())


def test_a_manifest_without_sources_is_refused() -> None:
    text = re.sub(r"\[\[sources\]\]\n(.+\n)+", "", GOOD)
    with pytest.raises(PackError, match="`sources` is empty"):
        parse(text.replace("context", "sources = []\ncontext", 1).encode())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "needs `schema = 1`"),
        (b"\xff", "not UTF-8"),
        (b"= 1", "not TOML"),
        (b"schema = 1\n# " + b"x" * (1 << 20), "at most 1048576 bytes"),
        (b"a=" + b"[" * 100_000, "not TOML"),
    ],
)
def test_what_is_no_manifest_is_said(data: bytes, said: str) -> None:
    with pytest.raises(PackError, match=re.escape(said)):
        parse(data)


def test_a_manifest_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="cannot read"):
        read(tmp_path)


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """The good manifest with stretches overwritten, removed or doubled, or a value exchanged."""
    text = GOOD
    values = st.sampled_from(
        ["0", "-1", "1e400", "nan", "true", "[]", "{}", '""', '"../x"', "1979-05-27", "[[1], 2]"]
    )
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            lines = text.split("\n")
            i = draw(st.integers(0, len(lines) - 1))
            key, equals, _ = lines[i].partition("=")
            lines[i] = (
                f"{key}= {draw(values)}" if equals else draw(st.sampled_from(["", lines[-2]]))
            )
            text = "\n".join(lines)
        else:
            i = draw(st.integers(0, len(text)))
            j = draw(st.integers(i, min(len(text), i + 20)))
            text = text[:i] + draw(st.text(max_size=8)) + text[j:]
    return text.encode("utf-8", "surrogatepass")


@given(st.one_of(mutations(), st.binary(max_size=200)))
@example(GOOD.encode())
def test_any_bytes_are_a_manifest_or_a_sentence(data: bytes) -> None:
    try:
        manifest = parse(data)
    except PackError:
        return
    assert isinstance(manifest, Manifest)
    for path in (*(f.name for f in manifest.files), *(f.member for f in manifest.files)):
        assert not Path(path).is_absolute()
        assert ".." not in Path(path).parts
