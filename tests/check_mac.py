"""Everything a Mac can tell that no other machine can, in one zip: `make check-mac`.

    python tests/check_mac.py [--out check-mac.zip] [--minutes 25] [--quick]

Runs the conformance kit and the parity tests on Metal, the bench with its verdict, plain decoding
against mlx-lm's own loop, and what a round costs the host; a report bundle goes with them. A step that
fails is part of the answer, so the others still run; what Ctrl-C leaves is in the zip, too. On another
machine the same steps run on MLX's CPU build. A Mac does all of it in the time there is; a slower machine
does as much of the timed steps as fits, and the summary says how much. `--quick` runs a little of each.

Nothing personal goes into the zip: settings and traces are not the person's own, the traces hold no
text, and the names of the user, the machine and its folders are replaced in everything that is written.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mac_work
import msgspec
from impersonal import ROOT, impersonal
from mac_work import Pace, Work, choose, pace_of
from run_step import INTERRUPTED, TIMED_OUT, run_step

MTPX = [sys.executable, "-m", "mtpx_cli"]
PACK = "smollm2-135m"
"""The embedded pack: the one used last may have a name that is nobody's business."""

FINISHES = (0,)
VERDICTS = (0, 1, 3)
"""`mtpx bench --null-control` ends with 3 on a machine that is not quiet: an answer, not a failure."""

PLAIN, DRAFTED = "plain.json", "drafted.json"

LIMIT_S = 1800.0
"""The longest a step may take whose work is always the same."""

PATIENCE, LEAST_LIMIT_S = 3.0, 600.0
"""A sized step is broken off at this many times its estimate, and not before so many seconds."""


@dataclass(frozen=True)
class Step:
    """A command, what it finds out, the file its output goes to, the exit statuses that are answers.

    A step with `works` does the first of them that fits into `share` of the time that is left, in
    shares of the steps still to come."""

    title: str
    file: str
    command: list[str]
    answers: tuple[int, ...] = FINISHES
    works: Sequence[Work] = ()
    share: float = 0.0


@dataclass
class Report:
    """What came of the steps: by file a line each and (what it wrote, seconds); the titles of those that
    failed; whether Ctrl-C ended it."""

    lines: dict[str, str] = field(default_factory=dict)
    said: dict[str, tuple[str, float]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    interrupted: bool = False

    def pace(self) -> Pace | None:
        """The machine's pace, once both short answers are there."""
        found = []
        for file in (PLAIN, DRAFTED):
            text, took = self.said.get(file, ("", 0.0))
            try:
                found.append((msgspec.json.decode(text.strip(), type=dict[str, Any]), took))
            except msgspec.MsgspecError:
                return None
        return pace_of(*found[0], *found[1])


def steps(folder: Path, *, quick: bool) -> list[Step]:
    """What is run; traces and pages are written into `folder`."""
    tests = ["sample", "load"]
    if not quick:
        tests += ["state", "recurrent", "conformance", "qwen", "mimo", "trained_hybrid", "embedded"]
    files = [str(ROOT / "tests" / f"test_mlx_{name}.py") for name in tests]
    chosen = ["-k", "uniform or folder_without_config"] if quick else []
    trace = str(folder / "bench.jsonl")
    page = str(folder / "report.html")
    mlx = ["--backend", "mlx", "-q"]
    answer = [*MTPX, "run", "Why is the sky blue?", "--pack", PACK, *mlx, "--json"]
    answer += ["--max-tokens", "32", "--ignore-eos", "--temperature", "0"]
    bench = [*MTPX, "bench", PACK, *mlx]
    report = [*MTPX, "trace", "report", trace, "--json", "--html", page, "-q"]
    script = [sys.executable, str(ROOT / "tests")]
    return [
        Step("what this machine is", "doctor.json", [*MTPX, "doctor", PACK, "--json", *mlx[:2]]),
        Step("a plain answer", PLAIN, [*answer, "--depth", "off"]),
        Step("the same, 2 drafts a round", DRAFTED, [*answer, "--depth", "2"]),
        Step(
            "the conformance kit",
            "kit.txt",
            [sys.executable, "-m", "pytest", "-q", *files, *chosen],
        ),
        Step(
            "what a round costs the host",
            "graph.txt",
            [script[0], f"{script[1]}/mlx_graph.py"]
            + (["--layers", "4", "--rounds", "2"] if quick else []),
        ),
        Step(
            "is the machine quiet enough to measure",
            "quiet.txt",
            [*bench, "--null-control"],
            VERDICTS,
            mac_work.NULL_CONTROLS,
            share=0.2,
        ),
        Step(
            "does MTP pay",
            "bench.txt",
            [*bench, "--plain-baseline", "--trace", trace],
            works=mac_work.BENCHES,
            share=0.7,
        ),
        Step("the bench's report", "report.json", report),
        Step(
            "plain decoding against mlx-lm's own",
            "speed.txt",
            [script[0], f"{script[1]}/mlx_speed.py"],
            works=mac_work.SPEEDS,
            share=0.1,
        ),
    ]


def environment(own: Path) -> dict[str, str]:
    """What the steps run under: nobody's settings and nobody's past, which are in the folder `own`."""
    kept = ("MTPX_CACHE_DIR", "MTPX_INDEX_URL")
    found = {k: v for k, v in os.environ.items() if not k.startswith("MTPX_") or k in kept}
    own_folders = {"MTPX_STATE_DIR": str(own / "state"), "MTPX_CONFIG_DIR": str(own / "config")}
    return found | own_folders | {"TQDM_DISABLE": "1"}  # bars are not what is asked for


def check(
    out: Path,
    chosen: Sequence[Step],
    folder: Path,
    seconds: float,
    *,
    limit_s: float = LIMIT_S,
    env: Mapping[str, str] | None = None,
) -> Report:
    """Run the steps, in about `seconds` as far as they can be sized, and write the zip, with whatever
    was left in `folder` in it. A step whose work is always the same is broken off after `limit_s`."""
    report, end = Report(), time.monotonic() + seconds
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
        try:
            for number, step in enumerate(chosen):
                print(f"[{number + 1}/{len(chosen)}] {step.title} ...", flush=True)
                shares = sum(later.share for later in chosen[number:])
                room = (end - time.monotonic()) * step.share / shares if step.works else 0.0
                bundle.writestr(step.file, impersonal(_take(step, report, room, limit_s, env)))
                if report.interrupted:
                    break
        except KeyboardInterrupt:
            report.interrupted = True
        for path in sorted(folder.iterdir()):
            bundle.writestr(path.name, impersonal(path.read_text(errors="replace")))
        told = [report.lines.get(s.file, f"{s.file}: {s.title}: not run") for s in chosen]
        pace = report.pace()
        told.append(
            f"pace: {pace}" if pace else "pace: not known, so the least of every timed step"
        )
        bundle.writestr("summary.txt", impersonal("\n".join(told) + "\n"))
    return report


def _take(
    step: Step, report: Report, room: float, limit_s: float, env: Mapping[str, str] | None
) -> str:
    """Run a step, as much of it as fits into `room` seconds; what it wrote."""
    pace, title, command = report.pace(), step.title, step.command
    if step.works:
        work = choose(step.works, pace, room)
        title = f"{title} ({work.words}; all of it is {step.works[0].words})"
        command = [*command, *work.arguments]
        if pace is not None:
            limit_s = max(LEAST_LIMIT_S, PATIENCE * work.seconds(pace))
            print(f"      {work.words}, about {work.seconds(pace) / 60:.0f} min", flush=True)
    start = time.monotonic()
    status, text = run_step(command, limit_s, env, str(ROOT))
    took = time.monotonic() - start
    report.said[step.file] = text, took
    if status == INTERRUPTED:
        word, report.interrupted = "interrupted", True
    elif status in step.answers:
        word = "done"
    else:
        why = "broken off" if status == TIMED_OUT else f"FAILED with status {status}"
        word = f"{why}, see {step.file}"
        report.failed.append(step.title)
    print(f"      {word} after {took:.0f} s", flush=True)
    report.lines[step.file] = f"{step.file}: {title}: {word} after {took:.0f} s"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("check-mac.zip"))
    parser.add_argument("--minutes", type=float, default=25.0, help="about what all of it may take")
    parser.add_argument("--quick", action="store_true", help="a little of everything")
    asked = parser.parse_args()
    # A shell starts background jobs with SIGINT ignored, which the steps would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as own:
        env = environment(Path(own))
        if subprocess.run([*MTPX, "pack", "pull", PACK], cwd=ROOT, env=env).returncode:
            print("without the model there is nothing to measure, so there is no zip")
            return 2
        chosen = steps(Path(folder), quick=asked.quick)
        seconds = 0.0 if asked.quick else asked.minutes * 60
        report = check(asked.out, chosen, Path(folder), seconds, env=env)
    if report.interrupted:
        print(f"interrupted; {asked.out} holds what there is")
        return INTERRUPTED
    failed = f"; not as it should be: {', '.join(report.failed)}" if report.failed else ""
    print(f"{asked.out} holds it all{failed}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
