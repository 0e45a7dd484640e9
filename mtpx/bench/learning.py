"""What a learning policy knows before the first block of a bench: prompts outside the suites.

A policy that starts from nothing in every run is judged on learning (`--cold` does that); one that is set
back before every run makes the same trials in each. A person's policy goes on learning from answer to
answer, and so does this one: it learns here, and then from block to block. Both its runs of a
block begin with what was known before the block, so that none is judged on a text it has seen.
"""

from __future__ import annotations

PROMPTS: tuple[str, ...] = (
    "Explain how a canal lock lifts a boat, step by step.",
    "Write a Python function that groups a list of words by their first letter.",
    "Tell the story of a clockmaker whose clocks all run a minute slow.",
    "List ten facts about the moon as a JSON array of strings.",
    "Correct the grammar of this and repeat it: The childs was playing in they garden since morning, "
    "and none of them have saw the rain what was coming over the hills.",
    "Write a shell script that counts the lines of every .log file in a folder.",
    "What should somebody who has never grown vegetables plant first, and why?",
    "Write a table in Markdown with the planets, their diameters and their number of moons.",
)
"""Prose, code, structure and rewriting in turn: a policy is not to learn one kind only."""
