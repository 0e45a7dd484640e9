"""Text in and out: tokenizers, chat templates, incremental detokenising.

Imports nothing heavy; the tokenizers and jinja2 libraries load when they are first used.
"""

from mtpx.text.stream import Detokenizer
from mtpx.text.template import ChatTemplate
from mtpx.text.tokenizer import Tokenizer, load_tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "Tokenizer", "load_tokenizer"]
