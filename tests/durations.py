"""Recorded seconds of every test, and what they decide: the items of `make test`, the shards of the rest, CI's choice.

``durations.tsv`` has a row for each file: the seconds and the number of its fast items without a mark, then of those
with one. Below it each item that takes long, or is marked ``always``, has a row with its seconds and its mark. Seconds
are those of the reference machine (two slow cores, three workers); a recording on another machine is scaled by the
items that both have.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
STORE = Path(__file__).with_name("durations.tsv")
SHORT_ITEM_SECONDS = 0.2
"""`make test` runs the items that are recorded below this. The others have a row of their own."""
SHORT_RUN_SECONDS_MAX = 850
"""Sum of the recorded seconds of `make test`: five minutes on the reference machine."""
NEW_ITEM_SECONDS = 0.1
MARKS = ("long", "always", "spark")
"""Markers that decide whether `make test` runs an item; the first counts. It runs ``always``, and not the others."""


@dataclass(slots=True)
class FileDurations:
    """The recorded items of one file: those with a row as (seconds, mark), the others by number and sum."""

    items: dict[str, tuple[float, str]] = field(default_factory=dict)
    fast_seconds: float = 0.0
    num_fast: int = 0
    marked_seconds: float = 0.0
    num_marked: int = 0

    @property
    def seconds(self) -> float:
        return self.fast_seconds + self.marked_seconds + sum(seconds for seconds, _ in self.items.values())

    @property
    def num_items(self) -> int:
        return self.num_fast + self.num_marked + len(self.items)

    def add(self, item: str, seconds: float, mark: str) -> None:
        if mark == "always" or seconds >= SHORT_ITEM_SECONDS:
            self.items[item] = (seconds, mark)
        elif mark in MARKS:
            self.marked_seconds += seconds
            self.num_marked += 1
        else:
            self.fast_seconds += seconds
            self.num_fast += 1

    def seconds_of(self, item: str) -> float:
        """Return the recorded seconds of an item, or of the mean item without a row if it has none."""
        if item in self.items:
            return self.items[item][0]
        return self.fast_seconds / self.num_fast if self.num_fast else NEW_ITEM_SECONDS

    def short_run_seconds(self) -> float:
        return self.fast_seconds + sum(s for s, mark in self.items.values() if is_short(s, mark))

    def has_short_items(self) -> bool:
        return self.num_fast > 0 or any(is_short(seconds, mark) for seconds, mark in self.items.values())


def is_short(seconds: float, mark: str) -> bool:
    """Return whether `make test` runs an item with these recorded ``seconds`` and this mark of `MARKS`, if any."""
    return mark == "always" or (mark not in MARKS and seconds < SHORT_ITEM_SECONDS)


def file_of(item: str) -> str:
    return item.partition("::")[0]


@dataclass(frozen=True, slots=True)
class Durations:
    """Recorded seconds by file. Paths and items are named as pytest prints them."""

    files: dict[str, FileDurations]

    @classmethod
    def parse(cls, text: str) -> Durations:
        files: dict[str, FileDurations] = {}
        name = ""
        for line in text.splitlines():
            if line.startswith("::"):
                item, seconds, mark = line.rsplit("\t", 2)
                files[name].items[name + item] = (float(seconds), mark)
            elif not line.startswith("#"):
                name, fast, num_fast, marked, num_marked = line.split("\t")
                files[name] = FileDurations({}, float(fast), int(num_fast), float(marked), int(num_marked))
        return cls(files)

    def text(self) -> str:
        files = self.files.values()
        lines = [
            "# Made by `make test-durations`; tests/durations.py says what the rows mean.",
            f"# {len(files)} files, {sum(file.num_items for file in files)} items",
            f"# {sum(file.seconds for file in files):.0f} seconds, of `make test` {self.short_run_seconds():.0f}",
        ]
        for name, file in sorted(self.files.items()):
            sums = f"{file.fast_seconds:.1f}\t{file.num_fast}\t{file.marked_seconds:.1f}\t{file.num_marked}"
            lines.append(f"{name}\t{sums}")
            rows = sorted(file.items.items())
            lines += [f"{item.removeprefix(name)}\t{seconds:.1f}\t{mark}" for item, (seconds, mark) in rows]
        return "\n".join(lines) + "\n"

    def short_run_seconds(self) -> float:
        return sum(file.short_run_seconds() for file in self.files.values())

    def seconds_of(self, item: str) -> float:
        file = self.files.get(file_of(item))
        return file.seconds_of(item) if file else NEW_ITEM_SECONDS

    def may_have_short_items(self, path: str) -> bool:
        """Return whether `make test` has to collect a file; it need not if all its items are recorded as not short."""
        return path not in self.files or self.files[path].has_short_items()

    def shards(self, paths: Iterable[str], num_shards: int) -> list[list[str]]:
        """Distribute test files over shards: the longest file first, each to the shard with the least seconds.

        A file stays whole, because its items share fixtures. (pytest-split divides items, and would need a committed
        row for each of some 17,000.)
        """
        shards: list[list[str]] = [[] for _ in range(num_shards)]
        sums = [0.0] * num_shards
        for path in sorted(paths, key=lambda path: (-self._seconds_of_file(path), path)):
            least = sums.index(min(sums))
            shards[least].append(path)
            sums[least] += self._seconds_of_file(path)
        return shards

    def within(self, paths: Iterable[str], seconds: float) -> list[str]:
        """Return the first of ``paths`` whose items outside `make test` take at most ``seconds`` together.

        A file that does not fit is passed over, and smaller ones after it are taken.
        """
        chosen = []
        for path in paths:
            needed = self.rest_seconds(path)
            if 0 < needed <= seconds:
                chosen.append(path)
                seconds -= needed
        return chosen

    def rest_seconds(self, path: str) -> float:
        file = self.files.get(path, FileDurations())
        return file.seconds - file.short_run_seconds()

    def _seconds_of_file(self, path: str) -> float:
        return self.files[path].seconds if path in self.files else NEW_ITEM_SECONDS


def merge_recording(stored: Durations, recorded: Mapping[str, tuple[float, str]]) -> Durations:
    """Return ``stored`` with each file of a run replaced by what was recorded: seconds and mark by item.

    The recording is scaled to the stored units by the median of the items with a row in both: few of them became
    faster or slower since.
    """
    rows = ((item, stored.files.get(file_of(item), FileDurations()).items.get(item)) for item in recorded)
    scale = median([row[0] / recorded[item][0] for item, row in rows if row and recorded[item][0]] or [1.0])
    files: dict[str, FileDurations] = {}
    for item, (seconds, mark) in recorded.items():
        files.setdefault(file_of(item), FileDurations()).add(item, seconds * scale, mark)
    kept = {name: file for name, file in stored.files.items() if (ROOT / name).exists()}
    return Durations({**kept, **files})


def most_relevant_first(paths: Sequence[str], changed: Sequence[str], turn: int) -> list[str]:
    """Order test files for CI: those that changed, those of changed modules, and all others in rotation by ``turn``.

    A test file belongs to a changed module if it imports it or lies in the folder that mirrors the module's.
    """
    modules = [Path(name).with_suffix("") for name in changed if name.startswith("src/") and name.endswith(".py")]
    names = {".".join(module.parts[1:]) for module in modules}
    folders = {Path("tests/unit", *module.parts[2:-1]).as_posix() for module in modules}
    imports = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b") if names else None

    def rank(path: str) -> int:
        if path in changed:
            return 0
        if Path(path).parent.as_posix() in folders:
            return 1
        return 1 if imports and imports.search((ROOT / path).read_text("utf-8")) else 2

    start = turn % max(len(paths), 1)
    return sorted([*paths[start:], *paths[:start]], key=rank)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def changed_files() -> list[str]:
    """Return the paths changed since the merge base with origin/main, or in the last day's commits if that is HEAD."""
    head = git("rev-parse", "HEAD")
    try:
        base = git("merge-base", "HEAD", "origin/main")
    except subprocess.CalledProcessError:
        base = head
    if base == head:
        day_ago = int(git("show", "--no-patch", "--format=%ct", "HEAD")) - 86_400
        base = git("rev-list", "-1", f"--before={day_ago}", "HEAD") or git("hash-object", "-t", "tree", "/dev/null")
    return git("diff", "--name-only", base, "HEAD").splitlines()


def files_of_ci(durations: Durations, seconds: float) -> list[str]:
    """Return the test files that CI runs beyond `make test`, whose items there take at most ``seconds`` together."""
    paths = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    ordered = most_relevant_first(paths, changed_files(), turn=int(git("rev-list", "--count", "HEAD")) * 50)
    return durations.within(ordered, seconds)
