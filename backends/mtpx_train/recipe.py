"""What a training is asked for, and the folder it works in."""

from __future__ import annotations

import hashlib
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from mtpx.digests import write_atomically
from mtpx.errors import TrainingError

ANSWER_LENGTH = 120
"""Tokens an answer is taken to have before any was made, its prompt the same: for the disk forecast.
(SmolLM2's have 80 and 70.)"""

HEADROOM = 1.2
"""The disk forecast is raised by this much: running out in the second hour costs more."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A training, told so that it can be done again.

    `tokens` of answers to generate, each at most `longest`; `epochs` over them; `draft_vocab` entries;
    `rate` the peak learning rate; `batch` answer tokens a step; `wave` sequences generated together.
    `minutes`, if given, bounds the whole: what is generated and seen then depends on the machine.
    """

    tokens: int = 1_000_000
    epochs: float = 5.0
    draft_vocab: int = 8192
    rate: float = 2e-3
    seed: int = 1
    minutes: float | None = None
    longest: int = 224
    wave: int = 128
    batch: int = 4096


ANSWERING = ("seed", "longest", "wave")
"""Fields the answers depend on: the same ones serve any training that differs in others only."""


class Workplace:
    """A folder with everything a training has done so far: `answers/`, `fit/` and what they are of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers = folder / "answers"
        self.fit = folder / "fit"

    def claim(self, recipe: Recipe, weights_digest: str, dtype: str) -> None:
        """Take the folder for this recipe, new or as it was left.

        Raises `TrainingError` when what it holds was made by another pack or recipe.
        """
        fields = msgspec.structs.asdict(recipe)
        mixture = (resources.files("mtpx_train") / "mixture.toml").read_bytes()
        of_answers = {
            "weights": weights_digest,
            "precision": dtype,
            "mixture": hashlib.sha256(mixture).hexdigest(),
            **{name: fields[name] for name in ANSWERING},
        }
        self._hold(self.answers / "made-by.json", of_answers, "answers")
        self._hold(self.fit / "made-by.json", of_answers | fields, "a training")

    def _hold(self, path: Path, asked: dict[str, Any], what: str) -> None:
        try:
            if not path.exists():
                write_atomically(path, msgspec.json.encode(asked))
                return
            held: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except OSError as error:
            raise TrainingError(
                f"cannot use {self.folder} to work in: {error.strerror or error}; give another --work"
            ) from None
        except msgspec.MsgspecError as error:
            raise TrainingError(
                f"{path} is damaged ({error}); delete {path.parent} or give another --work"
            ) from None
        other = [name for name, value in asked.items() if held.get(name) != value]
        if other:
            name = other[0]
            raise TrainingError(
                f"{self.folder} holds {what} of another {'pack' if name == 'weights' else 'recipe'} "
                f"({name} is {short(held.get(name))} there, {short(asked[name])} here); give another "
                f"--work, ask for the same, or delete {path.parent}"
            )

    def require_room(self, recipe: Recipe, hidden: int, parameters: int) -> int:
        """Bytes the training will take beyond what is there. Raises `TrainingError` when the disk has
        less free."""
        needed = disk_need(recipe, hidden, parameters)
        there = sum(f.stat().st_size for f in self.folder.rglob("*") if f.is_file())
        missing = max(0, needed - there)
        free = shutil.disk_usage(self.folder).free
        if missing > free:
            raise TrainingError(
                f"training needs about {gigabytes(missing)} in {self.folder} and {gigabytes(free)} are "
                "free there; give another --work, or ask for fewer --tokens"
            )
        return missing


def disk_need(recipe: Recipe, hidden: int, parameters: int) -> int:
    """Bytes: hidden states in bfloat16 and ids of answers and prompts, two checkpoints in float32 with
    the optimizer's moments."""
    rows = 2 * max(recipe.tokens, ANSWER_LENGTH * recipe.wave)
    return int(HEADROOM * (rows * (2 * hidden + 8) + 2 * 12 * parameters))


def gigabytes(number: float) -> str:
    return f"{number / 1e9:.1f} GB"


def short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 16 else text[:12] + "…"
