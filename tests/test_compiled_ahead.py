"""Graphs that another process compiles, that are kept, and that a model is loaded with."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from command import Command

import mtpx
from mtpx import packs, paths
from mtpx.api import Model
from mtpx.backend import COMPILE
from mtpx_cli.warm import _spelled
from mtpx_torch import ahead, compiling, kept, tier
from mtpx_torch.captured import captured
from mtpx_torch.graphs import adopt, reason
from mtpx_torch.kept import MadeFor
from mtpx_torch.places import Places
from mtpx_torch.recipe import make_recipe

OPTIONS: dict[str, Any] = {"device": "cpu", "precision": "float32", "threads": 1, "context": 128}
PROMPT = list(range(3, 23))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MTPX_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def made(cache: Path, tiny_pack: Path) -> list[tuple[int, int, str]]:
    """Graphs of the tiny pack are in the cache. → what was heard while they were made."""
    heard: list[tuple[int, int, str]] = []
    with load(tiny_pack, "now", on_compile=lambda *said: heard.append(said)) as model:
        assert model.engine.info.details["compile"] == "ready"
    return heard


@pytest.fixture
def nobody_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nothing was to be compiled")

    monkeypatch.setattr(compiling, "Making", refuse)


def load(pack: Path, compile: str, **changes: Any) -> Model:
    return mtpx.load(pack, backend="torch", compile=compile, **(OPTIONS | changes))


def state(model: Model) -> str:
    return model.engine.info.details["compile"]


def text(model: Model, depth: int | str) -> str:
    answer = model.generate(PROMPT, depth=depth, max_tokens=24, temperature=0.0, ignore_eos=True)
    return answer.text


def libraries(cache: Path) -> list[Path]:
    return sorted(cache.glob("compiled/*/*.so"))


def test_how_far_compiling_is_can_be_heard(made: list[tuple[int, int, str]]) -> None:
    assert made == [
        (0, 2, "compiling the step over several rows"),
        (1, 2, "compiling the head's step over several rows"),
        (2, 2, "compiled"),
    ]


@pytest.mark.parametrize(
    ("seconds", "said"), [(2.4, "2 s"), (164.0, "2 min 44 s"), (179.7, "3 min 0 s")]
)
def test_how_long_it_took_is_said_in_whole_minutes(seconds: float, said: str) -> None:
    assert _spelled(seconds) == said


def test_nothing_is_left_of_making_but_what_was_made(
    cache: Path, made: list[tuple[int, int, str]]
) -> None:
    (folder,) = (cache / "compiled").iterdir()
    names = {path.name for path in folder.iterdir()} - {".lock"}
    of = {f"{name}.{kind}" for name in ("head-n", "step-n") for kind in ("json", "sha256", "so")}
    assert names == {"made-for.json", "complete", *of}


@pytest.mark.usefixtures("made", "nobody_compiles")
@pytest.mark.parametrize("how", ["auto", "now", "background"])
def test_what_is_kept_is_taken_and_not_made_again(tiny_pack: Path, how: str) -> None:
    with load(tiny_pack, how) as model:
        assert state(model) == "ready"
        assert {model.engine.route([rows]).kind for rows in (1, 5)} == {"compiled"}


@pytest.mark.usefixtures("made")
def test_compiled_text_is_the_same_at_every_depth(tiny_pack: Path) -> None:
    with load(tiny_pack, "auto", tier="row-invariant") as model:
        assert state(model) == "ready"
        plain = text(model, "off")
        assert [text(model, depth) for depth in (1, 2, 4)] == [plain] * 3


@pytest.mark.usefixtures("made", "nobody_compiles")
def test_off_decodes_eagerly_whatever_is_kept(tiny_pack: Path) -> None:
    with load(tiny_pack, "off") as model:
        assert (state(model), model.engine.route([1]).kind) == ("off", "eager")


@pytest.mark.usefixtures("nobody_compiles")
def test_auto_makes_nothing_where_nothing_is_kept(tiny_pack: Path, own_folders: Path) -> None:
    with load(tiny_pack, "auto") as model:
        assert (state(model), model.engine.route([1]).kind) == ("not made", "eager")
    assert not paths.cache_dir().joinpath("compiled").exists()


@pytest.mark.usefixtures("made", "nobody_compiles")
@pytest.mark.parametrize("other", [{"threads": 2}, {"context": 64}, {"precision": "bfloat16"}])
def test_what_was_made_for_something_else_is_not_taken(
    tiny_pack: Path, other: dict[str, Any]
) -> None:
    threads = torch.get_num_threads()
    try:
        with load(tiny_pack, "auto", **other) as model:
            assert state(model) == "not made"
    finally:
        torch.set_num_threads(threads)


@pytest.mark.usefixtures("made")
def test_a_torn_library_is_not_loaded_and_is_made_again(tiny_pack: Path, cache: Path) -> None:
    torn = libraries(cache)[0]
    rest = torn.with_suffix(".rest")
    rest.write_bytes(torn.read_bytes()[:5000])
    rest.replace(torn)  # what is mapped already stays as it is
    with load(tiny_pack, "auto") as model:
        assert (state(model), model.engine.route([1]).kind) == ("not made", "eager")
    with load(tiny_pack, "now") as model:
        assert state(model) == "ready"


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("part", [".so", ".json"])
def test_a_library_that_cannot_be_loaded_is_made_again(
    tiny_pack: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    # Elsewhere: a library that this process has loaded is not read again from the same place.
    elsewhere = shutil.copytree(cache, tmp_path / "cache")
    monkeypatch.setenv("MTPX_CACHE_DIR", str(elsewhere))
    useless = libraries(elsewhere)[1]
    rest = useless.with_suffix(".rest")
    rest.write_bytes(b"rubbish")
    rest.replace(useless.with_suffix(part))
    digest = ahead._digest(useless.read_bytes(), useless.with_suffix(".json").read_bytes())
    useless.with_suffix(".sha256").write_text(digest)
    with load(tiny_pack, "auto") as model:
        assert model.engine.route([1]).kind == "eager"
    with load(tiny_pack, "now") as model:
        assert state(model) == "ready"


@pytest.mark.usefixtures("made")
def test_a_head_wired_in_another_way_takes_other_graphs(tiny_pack: Path) -> None:
    pack = packs.resolve(tiny_pack)
    assert pack.contract is not None
    other = replace(pack, contract=msgspec.structs.replace(pack.contract, recycled="before"))
    recipe = make_recipe("float32", torch.device("cpu"))
    here, there = (MadeFor.here(p, recipe, "standard", 4, 128) for p in (pack, other))
    assert here.folder != there.folder


@pytest.mark.usefixtures("nobody_compiles")
def test_a_folder_that_was_only_begun_chooses_no_tier(
    tiny_pack: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    tier_of = tier.tier_of

    def noted(*given: Any, compiling: bool) -> Any:
        asked.append(compiling)
        return tier_of(*given, compiling=compiling)

    monkeypatch.setattr(tier, "tier_of", noted)
    with load(tiny_pack, "auto", tier="row-invariant") as model:
        kept.begin(model.engine.compiling._made_for)  # type: ignore[attr-defined]
    load(tiny_pack, "auto").close()
    assert asked == [False, False]


@pytest.mark.usefixtures("made")
def test_a_graph_that_computes_something_else_is_not_used(
    tiny_pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_right = compiling.load

    def load_wrong(job: Any, folder: Path) -> Any:
        graph = load_right(job, folder)
        return lambda *inputs: graph(*inputs)._replace(logits=graph(*inputs).logits * 1.2)

    monkeypatch.setattr(compiling, "load", load_wrong)
    with load(tiny_pack, "auto") as model:
        assert state(model).endswith("computes something else than the eager one")
        assert model.engine.route([1]).kind == "eager"


def test_a_model_gets_faster_beside_the_talking(
    tiny_pack: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With what time is left on a machine that runs tests, it might never be done.
    order = compiling.Compiling._order
    monkeypatch.setattr(compiling.Compiling, "_order", lambda self, idly: order(self, idly=False))
    with load(tiny_pack, "background") as model:
        engine: Any = model.engine
        assert (state(model), engine.route([1]).kind) == ("being made", "eager")
        before = text(model, 2)
        patience = time.monotonic() + 900
        while engine.compiling._making.going:
            assert time.monotonic() < patience
            time.sleep(0.2)
        assert engine.route([1]).kind == "eager"  # until the next answer
        after = text(model, 2)
        assert (state(model), engine.route([1]).kind) == ("ready", "compiled")
        assert before == after


def test_ctrl_c_keeps_what_is_made_and_leaves_no_process(
    tiny_pack: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    making = compiling.Making

    def noted(order: Any) -> Any:
        made = making(order)
        begun.append(made._process.pid)
        return made

    def interrupt(done: int, total: int, what: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "Making", noted)
    with pytest.raises(KeyboardInterrupt):
        load(tiny_pack, "now", on_compile=interrupt)
    with pytest.raises(ProcessLookupError):
        os.killpg(begun[0], 0)
    (folder,) = kept.compiled_dir().iterdir()
    assert {path.name for path in folder.glob("*.so")} == {"step-n.so"}
    assert not list(folder.glob(".work-*"))


def test_without_a_compiler_decoding_is_eager_and_says_why(
    tiny_pack: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with load(tiny_pack, "now") as model:
        assert "there is no C++ compiler no-such-compiler" in state(model)
        assert text(model, 1)


def test_a_compiler_that_fails_leaves_decoding_eager(
    tiny_pack: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    with load(tiny_pack, "now") as model:
        assert state(model) not in ("ready", "not made", "")
        assert model.engine.route([1]).kind == "eager"


def test_a_cache_that_cannot_be_written_leaves_decoding_eager(
    tiny_pack: Path, own_folders: Path
) -> None:
    paths.cache_dir().write_text("no folder")
    with load(tiny_pack, "now") as model:
        assert state(model).startswith("compiled graphs cannot be kept: ")
    with load(tiny_pack, "background") as model:
        assert model.engine.route([1]).kind == "eager"


@pytest.mark.parametrize("how", COMPILE)
def test_sequences_together_are_decoded_eagerly(
    tiny_pack: Path, own_folders: Path, how: str
) -> None:
    if how == "now":
        with pytest.raises(mtpx.MtpxError, match="one sequence at a time"):
            load(tiny_pack, how, max_width=2)
    else:
        with load(tiny_pack, how, max_width=2) as model:
            assert "compile" not in model.engine.info.details


def test_only_the_folders_used_last_are_kept(
    own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST_FOLDERS", 2)
    some: Any = MadeFor("2", "s", "m", 1, "w", "h", "int4", "int4", "standard", 1, 64)
    folders = [kept.begin(replace_context(some, context)) for context in (64, 128, 256)]
    for age, folder in zip((300, 200, 100), folders, strict=True):
        then = time.time() - age
        os.utime(folder / kept.DESCRIPTION, (then, then))
    kept.used(folders[0])
    assert [folder.exists() for folder in folders] == [True, False, True]


def replace_context(made_for: MadeFor, context: int) -> MadeFor:
    return msgspec.structs.replace(made_for, context=context)


def test_the_way_that_a_gpu_takes_gives_the_same_graphs(tiny_pack: Path, own_folders: Path) -> None:
    with load(tiny_pack, "off", tier="row-invariant") as model:
        engine: Any = model.engine
        plain = text(model, "off")
        with torch.inference_mode():
            assert adopt(engine.jobs(), captured) == ""
        assert engine.route([1]).kind == "compiled"
        assert text(model, "off") == text(model, 2) == plain


class TestPlaces:
    """Where tensors stand in objects."""

    def test_other_tensors_stand_there_for_a_while(self, tiny_pack: Path) -> None:
        with load(tiny_pack, "off") as model:
            engine: Any = model.engine
            places = Places(engine.trunk.blocks, engine.trunk.norm)
            own = places.tensors()
            others = [torch.zeros(1) for _ in own]
            with places.holding(others):
                assert [id(t) for t in places.tensors()] == [id(t) for t in others]
                assert engine.trunk.norm.weight is others[-1]
            assert [id(t) for t in places.tensors()] == [id(t) for t in own]

    def test_they_are_back_after_an_error(self, tiny_pack: Path) -> None:
        with load(tiny_pack, "off") as model:
            engine: Any = model.engine
            places = Places(engine.trunk.norm)
            (own,) = places.tensors()
            with pytest.raises(ArithmeticError), places.holding([torch.zeros(1)]):
                raise ArithmeticError
            assert engine.trunk.norm.weight is own

    def test_every_tensor_that_a_step_reads_is_found(self, tiny_pack: Path) -> None:
        """A tensor that is passed over would be a constant of the graph, and in its library."""
        with load(tiny_pack, "off") as model:
            engine: Any = model.engine
            for job in engine.jobs():
                before = job.function(*job.inputs).logits
                zeros = [t if t.is_mkldnn else torch.zeros_like(t) for t in job.weights.tensors()]
                with job.weights.holding(zeros):
                    after = job.function(*job.inputs).logits
                assert before.abs().max() > 0
                assert after.abs().max() == 0


def test_a_reason_is_one_line() -> None:
    assert reason(ValueError("a\nb")) == "ValueError: a"
    assert "install g++" in reason(RuntimeError("No working C++ compiler found in (None, 'g++')"))


class TestWarm:
    """`mtpx warm`."""

    ARGS = ("--precision", "float32", "--threads", "1", "--context", "128")

    def test_it_says_what_was_made_and_what_that_is_worth(
        self,
        mtpx: Command,
        tiny_pack: Path,
        cache: Path,
        made: object,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("MTPX_CACHE_DIR", str(cache))
        done = mtpx("warm", str(tiny_pack), *self.ARGS, "--quiet")
        assert (done.status, done.err) == (0, "")
        first, second = done.out.splitlines()
        assert first.startswith("tiny is compiled for ")
        assert "tok/s eager" in second
        assert second.endswith(" ×")

    @pytest.mark.usefixtures("made", "nobody_compiles")
    def test_it_is_for_what_the_settings_say(
        self, mtpx: Command, tiny_pack: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MTPX_CACHE_DIR", str(cache))
        for name, value in (("PRECISION", "float32"), ("THREADS", "1"), ("CONTEXT", "128")):
            monkeypatch.setenv(f"MTPX_{name}", value)
        assert mtpx("warm", str(tiny_pack), "--quiet").status == 0

    def test_without_a_compiler_it_says_so(
        self, mtpx: Command, tiny_pack: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CXX", "no-such-compiler")
        complaint = mtpx("warm", str(tiny_pack), *self.ARGS).complaint
        assert complaint.startswith("tiny cannot be compiled ahead here: ")
        assert "no-such-compiler" in complaint

    def test_other_ways_of_compiling_are_not_its_business(
        self, mtpx: Command, tiny_pack: Path
    ) -> None:
        done = mtpx("warm", str(tiny_pack), "--compile", "off")
        assert done.status == 2
        assert "leave --compile away" in done.err
