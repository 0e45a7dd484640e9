"""What the model is asked: templates and lists (`mixture.toml`), drawn from with a seeded generator."""

from __future__ import annotations

import random
import re
from functools import cached_property
from importlib import resources

import msgspec

SLOT = re.compile(r"\{([a-z]+)\}")


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests of one sort; `share` is told against the other kinds'. `uses` names the earlier text
    they need ("passage", "code"), or is ""."""

    name: str
    share: float
    templates: list[str]
    uses: str = ""


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    share: float


class FollowUps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    share: float
    requests: list[str]


class Systems(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    share: float
    texts: list[str]


class Mixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Shares of the answers: `own` questions of the model, `follow_up` turns, `rewriting` of what it
    wrote; the rest is shared out among the kinds. `systems`: prompts put before some requests."""

    own: Share
    follow_up: FollowUps
    rewriting: Share
    kind: list[Kind]
    systems: Systems
    lists: dict[str, list[str]]

    @cached_property
    def fresh(self) -> list[Kind]:
        """Kinds that need no earlier text."""
        return [k for k in self.kind if not k.uses]

    def using(self, what: str) -> list[Kind]:
        return [k for k in self.kind if k.uses == what]

    def fill(self, template: str, rng: random.Random, **given: str) -> str:
        """The template with every slot drawn anew; `given` names are put in as they are."""

        def draw(slot: re.Match[str]) -> str:
            name = slot[1]
            return given[name] if name in given else rng.choice(self.lists[name])

        text = SLOT.sub(draw, template)
        return text[0].upper() + text[1:]

    def system(self, rng: random.Random) -> str | None:
        """A system prompt for one request, or `None` to leave the template's own."""
        if rng.random() >= self.systems.share:
            return None
        return self.fill(rng.choice(self.systems.texts), rng)

    def request(self, rng: random.Random) -> tuple[str, str]:
        """A request that needs no earlier text: (kind, text)."""
        kind = rng.choices(self.fresh, [k.share for k in self.fresh])[0]
        return kind.name, self.fill(rng.choice(kind.templates), rng)

    def rewriting_of(self, text: str, what: str, rng: random.Random) -> tuple[str, str]:
        """A request to do something with `text`, a "passage" or "code": (kind, text)."""
        kind = rng.choice(self.using(what))
        template = rng.choice(kind.templates)
        words = [w for w in re.findall(r"[A-Za-z]+", text) if len(w) > 3] or ["it"]
        given = {what: text, "word": rng.choice(words), "misspelt": misspell(text, rng)}
        return kind.name, self.fill(template, rng, **given)


def read_mixture() -> Mixture:
    """The mixture that ships."""
    text = (resources.files("mtpx_train") / "mixture.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=Mixture)


def misspell(text: str, rng: random.Random, share: float = 0.15) -> str:
    """The text with two neighbouring letters swapped in that share of its longer words."""

    def swap(word: re.Match[str]) -> str:
        letters = word[0]
        if len(letters) < 4 or rng.random() >= share:
            return letters
        at = rng.randrange(1, len(letters) - 2)
        return letters[:at] + letters[at + 1] + letters[at] + letters[at + 2 :]

    return re.sub(r"[A-Za-z]+", swap, text)
