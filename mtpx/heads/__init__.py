"""MTP heads as declared data.

Every family does the same mathematics with different wiring, and a wrong wire is silent: the text
stays right, acceptance drops. So a head's wiring is a `HeadContract`, its tensor names and shapes
are checked against the trunk before anything is loaded, and a family nobody has wired is refused
with what is known about it.
"""

from __future__ import annotations

from mtpx.heads.blocks import Shape, experts_layout
from mtpx.heads.contract import FAR_DEPTH, RECYCLED_DEPTH_LIMIT, HeadContract, Role
from mtpx.heads.declare import declared
from mtpx.heads.families import FAMILIES, Family, require_wired, runs_on
from mtpx.heads.norms import stored_offset
from mtpx.heads.recognise import (
    Recognised,
    announced_layers,
    family_of,
    family_of_gguf,
    looks_like_a_head,
    recognise,
)
from mtpx.heads.stored import logical_shapes
from mtpx.heads.tensors import check_draft_vocab, check_tensors, expected_tensors
from mtpx.heads.trunk import Experts, TrunkSizes, sizes_from_config, text_config

__all__ = [
    "FAMILIES",
    "FAR_DEPTH",
    "RECYCLED_DEPTH_LIMIT",
    "Experts",
    "Family",
    "HeadContract",
    "Recognised",
    "Role",
    "Shape",
    "TrunkSizes",
    "announced_layers",
    "check_draft_vocab",
    "check_tensors",
    "declared",
    "expected_tensors",
    "experts_layout",
    "family_of",
    "family_of_gguf",
    "logical_shapes",
    "looks_like_a_head",
    "recognise",
    "require_wired",
    "runs_on",
    "sizes_from_config",
    "stored_offset",
    "text_config",
]
