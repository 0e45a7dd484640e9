"""Trains an MTP head for a model of the Llama kind, from the model's own answers."""

from __future__ import annotations

from mtpx_train.recipe import Recipe
from mtpx_train.training import Outcome, train

__all__ = ["Outcome", "Recipe", "train"]
