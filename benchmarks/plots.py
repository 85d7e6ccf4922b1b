"""``python -m benchmarks.plots``: draw the kept results, a picture each, and write their tables into README.md."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from benchmarks.results import FOLDER, Machine, Results, Row, kept

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- kept results -->", "<!-- end of kept results -->"
ROW_PX, LEFT_PX, WIDTH_PX, RIGHT_PX, TOP_PX = 24, 520, 420, 110, 56
BETTER, WORSE, GOAL, INK, FAINT = "#2f7d5b", "#c0643a", "#1f2933", "#1f2933", "#d5dbe1"
FONT = "font-family='system-ui, sans-serif'"


def picture(name: str, results: Results) -> str:
    """Return an SVG: a bar for each figure, on a logarithmic scale of how many times as fast as the peer it is."""
    rows = results.rows
    low, high = _decades(rows)
    height = TOP_PX + ROW_PX * len(rows) + 24
    size = f"width='{LEFT_PX + WIDTH_PX + RIGHT_PX}' height='{height}'"
    title = f"{escape(name)}: times as fast as the peer, or as small"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT} font-size='12' role='img' aria-label='{escape(name)}'>",
        "<rect width='100%' height='100%' fill='#ffffff'/>",
        f"<text x='12' y='22' font-size='15' font-weight='600' fill='{INK}'>{title}</text>",
        f"<text x='12' y='40' fill='#52606d'>{escape(_described(results))}</text>",
    ]
    for decade in range(low, high + 1):
        x = _x(10.0**decade, low, high)
        parts.append(f"<line x1='{x:.1f}' y1='{TOP_PX}' x2='{x:.1f}' y2='{height - 20}' stroke='{FAINT}'/>")
        parts.append(f"<text x='{x:.1f}' y='{height - 6}' text-anchor='middle' fill='#52606d'>{10.0**decade:g}×</text>")
    for number, row in enumerate(rows):
        parts += _bar(row, TOP_PX + ROW_PX * number, low, high)
    return "\n".join([*parts, "</svg>\n"])


def table(results: Results) -> str:
    """Return the figures as Markdown."""
    lines = ["| | ours | peer | ratio | goal | | peer |", "|---|---|---|---|---|---|---|"]
    for row in results.rows:
        found = "; ".join(said for said in (row.verdict.strip("-"), row.note) if said)
        lines.append(
            f"| {row.name} | {row.ours:.3g} | {row.peer:.3g} {row.unit} | {row.ratio:.3g}× | {row.goal or ''} | "
            f"{found} | {row.peer_name} |"
        )
    return "\n".join(lines)


def described(machine: Machine) -> str:
    packages = ", ".join(f"{name} {found}" for name, found in machine.packages.items())
    return (
        f"{machine.cores} cores of {machine.processor}, {machine.memory_gib:g} GiB, {machine.kernel}, Python "
        f"{machine.python}; {packages}. A sync of a small file took {machine.fsync_ms:g} ms; the load was "
        f"{machine.load_before:g} before the run and {machine.load_after:g} at its end."
    )


def with_results(readme: str, found: dict[str, Results]) -> str:
    """Return the README with the kept results between its two marks."""
    sections = [
        f"### {name}\n\nOf {results.day}, commit {results.commit}. {described(results.machine)}\n\n"
        f"![{name}](results/{name}.svg)\n\n{table(results)}"
        for name, results in found.items()
    ]
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not pattern.search(readme):
        raise ValueError(f"README.md lacks {BEGIN} and {END}")
    text = "\n\n".join([BEGIN, *sections, END])
    return pattern.sub(lambda _: text, readme)


def all_kept(folder: Path = FOLDER) -> dict[str, Results]:
    return {path.stem: kept(path) for path in sorted(folder.glob("*.json"))}


def main() -> None:
    found = all_kept()
    for name, results in found.items():
        (FOLDER / f"{name}.svg").write_text(picture(name, results), "utf-8")
    README.write_text(with_results(README.read_text("utf-8"), found), "utf-8")


def _described(results: Results) -> str:
    machine = results.machine
    load = f"load {machine.load_before:g} to {machine.load_after:g}"
    return f"{results.day}, {machine.cores} cores, {load}; a line is the goal"


def _decades(rows: tuple[Row, ...]) -> tuple[int, int]:
    values = [row.advantage for row in rows if row.advantage > 0]
    low = min(-1, math.floor(math.log10(min(values, default=1))))
    return low, max(1, math.ceil(math.log10(max(values, default=1))))


def _x(value: float, low: int, high: int) -> float:
    share = (math.log10(value) - low) / (high - low)
    return LEFT_PX + WIDTH_PX * min(1.0, max(0.0, share))


def _bar(row: Row, top: int, low: int, high: int) -> Iterator[str]:
    middle = top + ROW_PX / 2
    one, end = _x(1.0, low, high), _x(row.advantage, low, high)
    colour = BETTER if row.advantage >= 1 else WORSE
    label = f"{row.name}, beside {row.peer_name}"
    yield (
        f"<text x='{LEFT_PX - 10}' y='{middle + 4:.1f}' text-anchor='end' fill='{INK}'>{escape(_short(label))}"
        f"<title>{escape(label)}</title></text>"
    )
    yield (
        f"<rect x='{min(one, end):.1f}' y='{top + 5}' width='{max(1.0, abs(end - one)):.1f}' height='{ROW_PX - 10}' "
        f"fill='{colour}'/>"
    )
    goal = goal_of(row)
    if goal is not None:
        x = _x(goal, low, high)
        ends = f"x1='{x:.1f}' y1='{top + 2}' x2='{x:.1f}' y2='{top + ROW_PX - 2}'"
        yield f"<line {ends} stroke='{GOAL}' stroke-width='2'/>"
    yield f"<text x='{max(one, end) + 6:.1f}' y='{middle + 4:.1f}' fill='{INK}'>{row.advantage:.3g}×</text>"


def goal_of(row: Row) -> float | None:
    """Return the goal as an advantage; None without one, and for a goal on our figure alone."""
    found = re.fullmatch(r"[≤≥] ([\d.e+-]+)x", row.goal or "")
    if found is None:
        return None
    bound = float(found[1])
    return bound if row.is_rate else 1 / bound


def _short(text: str, characters: int = 82) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


if __name__ == "__main__":
    main()
