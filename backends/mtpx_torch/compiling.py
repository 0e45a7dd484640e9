"""What `--compile` asks for: graphs that are kept, made now, or made beside the decoding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from mtpx_torch import kept
from mtpx_torch.ahead import discard, load, whole
from mtpx_torch.captured import captured
from mtpx_torch.graphs import adopt
from mtpx_torch.maker import Order
from mtpx_torch.making import Making

if TYPE_CHECKING:
    from mtpx.backend import EngineOptions
    from mtpx.packs import Pack
    from mtpx_torch.engine import TorchEngine
    from mtpx_torch.kept import MadeFor

READY = "ready"

NOT_MADE = "not made"


class Compiling:
    """Brings an engine its graphs. `state` says how far that is: "off", "not made", "being made",
    "ready", or why there is none."""

    def __init__(
        self, engine: TorchEngine, pack: Pack, options: EngineOptions, made_for: MadeFor
    ) -> None:
        self._engine, self._pack, self._options, self._made_for = engine, pack, options, made_for
        self._making: Making | None = None
        self.state = NOT_MADE

    def begin(self, lacks: str) -> None:
        """Do what the options ask for. `lacks`: what there is no compiling without, "" if nothing."""
        asked, on_cpu = self._options.compile, self._engine.device.type == "cpu"
        if asked == "off":
            self.state = "off"
            return
        if not on_cpu:
            if asked == "now":
                self._take(captured)
        elif self._ready():
            self._take_kept()
            if self.state != READY and asked != "auto" and not lacks:
                # Whole, and of no use: another system's, or made for another library of torch's.
                for job in self._engine.jobs():
                    discard(job, self._made_for.folder)
                self._make(asked)
        elif asked != "auto":
            self._make(asked, lacks)

    def _make(self, asked: str, lacks: str = "") -> None:
        if lacks:
            self.state = lacks
        elif asked == "now":
            self._make_now()
        else:
            with suppress(OSError):
                self._making = Making(self._order(idly=True))
                self.state = "being made"

    def look(self) -> None:
        """Take what has been made beside the decoding, if it has. Milliseconds; no round's business."""
        if self._making is not None and not self._making.going:
            why = self._making.wait()
            self._making = None
            if why:
                self.state = why
            else:
                self._take_kept()

    def stop(self) -> None:
        if self._making is not None:
            self._making.stop()
            self._making = None

    def _ready(self) -> bool:
        folder = self._made_for.folder
        return folder.is_dir() and all(whole(job, folder) for job in self._engine.jobs())

    def _make_now(self) -> None:
        try:
            making = Making(self._order(idly=False))
        except OSError as error:
            self.state = f"compiled graphs cannot be kept: {error}"
            return
        try:
            why = making.wait(self._options.on_compile)
        finally:
            making.stop()
        if why:
            self.state = why
        else:
            self._take_kept()

    def _take_kept(self) -> None:
        self._take(partial(load, folder=self._made_for.folder))
        kept.used(self._made_for.folder)

    @torch.inference_mode()
    def _take(self, make: Callable[..., Callable[..., object]]) -> None:
        self.state = adopt(self._engine.jobs(), make) or READY

    def _order(self, *, idly: bool) -> Order:
        info = self._engine.info
        alike = replace(
            self._options,
            device=str(self._engine.device),
            context=info.context_limit,
            precision=info.dtype,
            tier=info.tier,
            compile="off",
            on_compile=None,
        )
        folder = kept.begin(self._made_for)
        return Order(self._pack, alike, torch.get_num_threads(), folder, idly)
