"""What the head is calibrated on, and what a plan is checked on: two sets of the same kinds of text.

None of it is in a bench's suites: a policy must not have learned from what it is judged by.
"""

from __future__ import annotations

CALIBRATION = (
    "What is the difference between weather and climate?",
    "How do I remove a coffee stain from a wool jumper?",
    "Explain to a child why the moon seems to follow our car.",
    "Give me three reasons to learn a musical instrument as an adult.",
    "Describe how bread dough rises.",
    "What should I look at before I rent a flat?",
    "Write a Python function that converts Roman numerals to integers, with a docstring.",
    "Write a Python class for a bank account with deposit, withdraw and balance.",
    "Write an SQL query that finds the average salary of each department.",
    "Write a shell script that backs up a folder into a dated archive.",
    "Write the opening paragraph of a story about a train that never stops.",
    "Describe a market square early in the morning.",
    "Write a polite letter to a landlord about a broken heater.",
    "List the planets of the solar system with one fact about each, as a numbered list.",
    "Give a JSON object for a book with title, author, year and three keywords.",
    "Rewrite this sentence in the past tense: The cats sleep on the roof and wait for the rain to stop.",
)

CHECK = (
    "Why do leaves change their colour in autumn?",
    "How can I keep basil alive on a windowsill?",
    "Explain what an echo is to somebody who has never heard one.",
    "Write a Python function that counts the vowels in a sentence, with a docstring.",
    "Write a Python class for a shopping list with add, remove and total.",
    "Write the opening paragraph of a story about a library under the sea.",
    "List the seven days of the week with one thing to do on each, as a numbered list.",
    "Rewrite this sentence in the past tense: The baker opens the shop and greets the first guests.",
)

FILLER = (
    "The river leaves the hills in the north and crosses the plain in wide bends. In spring it carries "
    "meltwater and covers the meadows; in late summer children wade through it. Along its banks stand "
    "willows, and behind the willows lie gardens in which people grow beans, onions and pale roses. A ferry "
    "takes carts across where the road ends. The ferryman knows everyone by name and tells each of them "
    "what the water did during the night. On market days he crosses forty times, and in the evening he "
    "counts the coins by the light of a lamp, puts half of them into a tin and hides it under a board. "
)
"""Prose that contexts are filled with. What a round costs does not depend on what the text says."""
