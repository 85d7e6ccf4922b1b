"""The file system of a path, from ``/proc/mounts``."""

from __future__ import annotations

import os
import re
from pathlib import Path

from streamhouse_spark.core.lazy_dataclass import dataclass

MOUNTS = "/proc/mounts"
_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    type: str
    """The operating system's type name: ``ext4``, ``nfs4``, ``overlay``, …"""
    point: str


def mount_of(path: str, mounts: str = MOUNTS) -> Mount | None:
    """Return the file system that ``path`` lies on, or would; None if the operating system has no ``/proc/mounts``."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = os.path.realpath(path)
    best: Mount | None = None
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = _OCTAL_ESCAPE.sub(lambda m: chr(int(m[1], 8)), fields[1])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best.point)):  # later mounts hide earlier ones
            best = Mount(fields[2], point)
    return best
