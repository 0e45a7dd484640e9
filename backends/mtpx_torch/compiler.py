"""Whether the compiled route's tools are here, by looking for them: nothing is compiled, or imported."""

from __future__ import annotations

import importlib.util
import shutil
import sys

from mtpx.config import Environment


def lacking(device: str) -> str:
    """What torch's compiler lacks on "cpu" or "cuda", in a sentence; "" where it lacks nothing.

    For a CPU it calls g++, on a Mac clang++, or what CXX names; for CUDA Triton, which calls a C
    compiler: CC, gcc or clang.
    """
    env = Environment.from_environ()
    if device == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "no compiled route: Triton is not installed (pip install triton)"
        if not any(map(shutil.which, filter(None, (env.cc, "gcc", "clang")))):
            return "no compiled route: Triton finds no C compiler (install gcc or clang)"
        return ""
    name = env.cxx or ("clang++" if sys.platform == "darwin" else "g++")
    # A compiler may be named with options of its own behind it.
    if shutil.which(name.split()[0]) is None:
        return (
            f"no compiled route: there is no C++ compiler {name} (install it, or name one in CXX)"
        )
    return ""
