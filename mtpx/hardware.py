"""What this machine is called."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path


def cpu_name() -> str:
    """The processor's name as its maker writes it, or the architecture where nobody says."""
    if platform.system() == "Darwin":
        try:
            found = subprocess.run(
                ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"],
                capture_output=True,
                text=True,
                timeout=5,
                check=True,
            )
            return found.stdout.strip() or platform.machine()
        except (OSError, subprocess.SubprocessError):
            return platform.machine()
    said = _cpuinfo("model name")
    return said or platform.processor() or platform.machine() or "unknown processor"


def cpu_flags() -> str:
    """What the processor can do, where the system says so: code for it may not run where this differs."""
    return _cpuinfo("flags", "Features")


def _cpuinfo(*keys: str) -> str:
    """The first of these that Linux says something of; "" where it says nothing."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in keys and value.strip():
                return value.strip()
    except OSError:
        pass
    return ""
