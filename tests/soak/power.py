"""Power loss: a file system of its own that is shut down while processes write, and mounted again.

Linux, root and ``mkfs.ext4``. The shutdown drops what was not forced to disk, log included, as a power cut does.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import shutil
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from kills.rounds import PROPERTIES, Figures, await_progress, check, journal, size_of
from kills.workers import NAME, SCHEMA, run
from streamhouse_spark import Warehouse

_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
_WITHOUT_FLUSHING = 2
IMAGE_MB = 512


class PowerTestUnavailableError(Exception):
    """This machine cannot do it; the text says why."""


@dataclass
class Disk:
    """An ext4 file system in a file."""

    directory: Path
    mounted: bool = field(default=False, init=False)

    @property
    def root(self) -> Path:
        return self.directory / "disk"

    @property
    def image(self) -> Path:
        return self.directory / "disk.img"

    def make(self) -> None:
        if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
            raise PowerTestUnavailableError("power loss needs root and mkfs.ext4 (package e2fsprogs)")
        self.root.mkdir()
        with self.image.open("wb") as file:
            file.truncate(IMAGE_MB << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self.image)], check=True)
        self.mount()

    def mount(self) -> None:
        done = subprocess.run(
            ["mount", "-o", "loop", str(self.image), str(self.root)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise PowerTestUnavailableError(f"loop devices cannot be mounted here: {done.stderr.strip()}")
        self.mounted = True

    def cut_power(self) -> None:
        fd = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSHING))
        finally:
            os.close(fd)

    def unmount(self) -> None:
        for _ in range(50):
            if subprocess.run(["umount", str(self.root)], capture_output=True, check=False).returncode == 0:
                self.mounted = False
                return
            time.sleep(0.05)
        raise PowerTestUnavailableError(f"{self.root} is busy")


def power_cycles(directory: Path, cycles: int, seed: int) -> Figures:
    """Raises `AssertionError` where acknowledged rows were lost, or rows doubled, torn or misplaced."""
    chance = random.Random(seed)
    disk = Disk(directory)
    disk.make()
    figures = Figures()
    location = str(disk.root / "warehouse")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kills.workers", "pyiceberg.table"])
    try:
        Warehouse(location).create_table(NAME, SCHEMA, buckets=2, properties=PROPERTIES)
        for cycle in range(cycles):
            roles = [("writer", 1), ("writer", 2), *([("tierer", 1)] if cycle % 3 == 0 else [])]
            running = []
            sizes = {}
            for role, number in roles:
                path = journal(directory, role, number)
                sizes[role, number] = size_of(path)
                running.append(context.Process(target=run, args=(role, location, str(path), number), daemon=True))
                running[-1].start()
            await_progress(directory, sizes)
            time.sleep(chance.uniform(0, 0.3))
            disk.cut_power()
            for process in running:
                process.kill()
                process.join()
                process.close()
            disk.unmount()
            disk.mount()
            figures.kills += 1
            if cycle % 10 == 9 or cycle == cycles - 1:
                check(location, directory, figures)
    finally:
        if disk.mounted:
            disk.unmount()
    return figures
