"""Everything a Mac can tell that no other machine can, in one zip: `make check-mac`.

    python tests/check_mac.py [--out check-mac.zip] [--quick]

Runs the conformance kit and the parity tests on Metal, the bench with its verdict, plain decoding
against mlx-lm's own loop, and what a round costs the host; a report bundle goes with them. A step that
fails is part of the answer, so the others still run. On another machine the same steps run on MLX's
CPU build (slowly); `--quick` runs a little of each.

Nothing personal goes into the zip: the traces hold no text, and the names of the user, the home folder
and the machine are replaced in everything that is written.
"""

from __future__ import annotations

import argparse
import getpass
import platform
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MTPX = [sys.executable, "-m", "mtpx_cli"]

FINISHES = (0,)
VERDICTS = (0, 1, 3)
"""`mtpx bench --null-control` ends with 3 on a machine that is not quiet: an answer, not a failure."""


@dataclass(frozen=True)
class Step:
    """A command, what it finds out, the file its output goes to, the exit statuses that are answers."""

    title: str
    file: str
    command: list[str]
    answers: tuple[int, ...] = FINISHES


def steps(folder: Path, *, quick: bool) -> list[Step]:
    """What is run; traces and pages are written into `folder`."""
    tests = ["sample", "load"] if quick else ["sample", "load", "state", "conformance", "embedded"]
    files = [str(ROOT / "tests" / f"test_mlx_{name}.py") for name in tests]
    chosen = ["-k", "uniform or folder_without_config"] if quick else []
    few = ["--prompts", "4", "--repeats", "1", "--max-tokens", "16"] if quick else []
    trace = str(folder / "bench.jsonl")
    run = [sys.executable]
    bench = [*MTPX, "bench", "smollm2-135m", "--backend", "mlx", "-q"]
    depths = "1" if quick else "1,2,auto"
    return [
        # Of the embedded pack: the one used last may have a name that is nobody's business.
        Step("what this machine is", "doctor.json", [*MTPX, "doctor", "smollm2-135m", "--json"]),
        Step("the conformance kit", "kit.txt", [*run, "-m", "pytest", "-q", *files, *chosen]),
        Step(
            "is the machine quiet enough to measure",
            "quiet.txt",
            [*bench, "--null-control", *few],
            VERDICTS,
        ),
        Step(
            "does MTP pay",
            "bench.txt",
            [*bench, "--plain-baseline", "--depths", depths, "--trace", trace, *few],
        ),
        Step(
            "the bench's report",
            "report.json",
            [
                *MTPX,
                "trace",
                "report",
                trace,
                "--json",
                "--html",
                str(folder / "report.html"),
                "-q",
            ],
        ),
        Step(
            "plain decoding against mlx-lm's own",
            "speed.txt",
            [*run, str(ROOT / "tests" / "mlx_speed.py")]
            + (["--tokens", "4", "--blocks", "1"] if quick else []),
        ),
        Step(
            "what a round costs the host",
            "graph.txt",
            [*run, str(ROOT / "tests" / "mlx_graph.py")]
            + (["--layers", "4", "--rounds", "2"] if quick else []),
        ),
    ]


def impersonal(text: str) -> str:
    """The text without the names of the user, the home folder and the machine."""
    named = [(str(ROOT), "mtpx"), (str(Path.home()), "~")]
    names = [(getpass.getuser(), "user"), *((name, "machine") for name in host_names())]
    for name, instead in named:
        if len(name) > 1:
            text = text.replace(name, instead)
    for name, instead in names:
        # A short or everyday name also stands inside other words.
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", instead, text)
    return text


def host_names() -> list[str]:
    whole = platform.node()
    return [name for name in dict.fromkeys([whole, whole.partition(".")[0]]) if name]


def run(step: Step, timeout: float) -> tuple[int, str]:
    """(exit status, what it wrote); 124 when it ran past `timeout` seconds."""
    try:
        done = subprocess.run(
            step.command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
        return 124, said.decode(errors="replace") if isinstance(said, bytes) else said
    return done.returncode, done.stdout


def check(out: Path, chosen: Sequence[Step], folder: Path, timeout: float) -> list[str]:
    """Run the steps and write the zip; returns the titles of those that failed."""
    failed, lines = [], []
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
        for number, step in enumerate(chosen, 1):
            print(f"[{number}/{len(chosen)}] {step.title} ...", flush=True)
            start = time.monotonic()
            status, text = run(step, timeout)
            good = status in step.answers
            bundle.writestr(step.file, impersonal(text))
            word = "done" if good else f"FAILED with status {status}, see {step.file}"
            lines.append(f"{step.file}: {step.title}: {word}")
            print(f"      {word} after {time.monotonic() - start:.0f} s", flush=True)
            if not good:
                failed.append(step.title)
        for path in sorted(folder.iterdir()):
            bundle.writestr(path.name, impersonal(path.read_text(errors="replace")))
        bundle.writestr("summary.txt", "\n".join(lines) + "\n")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("check-mac.zip"))
    parser.add_argument("--quick", action="store_true", help="a little of everything")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds a step may take")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        failed = check(asked.out, steps(place, quick=asked.quick), place, asked.timeout)
    print(f"{asked.out} holds it all" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
