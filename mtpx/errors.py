"""The one exception family of mtpx.

A message is a sentence for the person at the keyboard: what is wrong, what was found, what to do.
The command line prints it as one line and exits with status 2; anything else that escapes is a bug.
"""

import re

_LONGEST_WORD = 300
"""Characters. A path may be that long; a name of megabytes, out of a damaged file, would bury the
sentence it stands in."""


class MtpxError(Exception):
    """Something the person at the keyboard can act on.

    Told on one line: names out of damaged files may hold line breaks and escape sequences.
    """

    def __str__(self) -> str:
        return shortened("".join(c if c.isprintable() else " " for c in super().__str__()))


def shortened(sentence: str) -> str:
    """`sentence` with the middle of words left out that nobody would read to their end."""
    return re.sub(
        rf"\S{{{_LONGEST_WORD + 1},}}",
        lambda found: f"{found[0][:120]}…{found[0][-40:]} ({len(found[0]):,} characters)",
        sentence,
    )


class PackError(MtpxError):
    """A pack, its files or its manifest cannot be used as they are."""


class BackendError(MtpxError):
    """A backend or device cannot run here, or cannot run this pack."""


class SamplingError(MtpxError):
    """A sampling parameter is outside its range."""


class PromptError(MtpxError):
    """A prompt cannot be decoded: empty, not text, or longer than the context."""


class PolicyError(MtpxError):
    """A depth policy raised or answered with something that is not a depth."""


class NonFiniteLogits(MtpxError):
    """The target or its head produced NaN or infinite logits."""


class SettingsError(MtpxError):
    """A setting in the settings file or the environment cannot be used."""


class SessionError(MtpxError):
    """A conversation that is kept under a name cannot be opened, read or written."""


class TraceError(MtpxError):
    """A trace cannot be written, or what was read is not a trace."""


class BenchError(MtpxError):
    """A bench cannot be run or judged as asked."""


class TrainingError(MtpxError):
    """A head cannot be trained as asked, or its training went wrong."""
