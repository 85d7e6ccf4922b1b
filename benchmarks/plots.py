"""``python -m benchmarks.plots``: draw the kept results and write the pages that show them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from benchmarks.results import FOLDER, Machine, Results, Row, kept

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- headlines -->", "<!-- end of headlines -->"
HEADLINES = [
    ("local", "append of 1,000 rows", "bare write"),
    ("local", "append of 1,000 rows", "deltalake"),
    ("local", "append of 1,000 rows", "pyiceberg"),
    ("local", "bulk append", "bare IPC"),
    ("servers", "batches of 1,000 rows, 4 writers, many under way", "Kafka 4.3.1, page cache"),
    ("servers", "batches of 1,000 rows, 4 writers, many under way", "Kafka 4.3.1, flush"),
    ("servers", "batches of 1,000 rows, 4 writers, many under way", "Fluss"),
    ("local", "another process sees an append, fsync", "bare file"),
    ("realtime", "from append to foreach, 1 bucket, 10 rows/s", "micro-batches"),
    ("spark", "SQL, lake: Q6", "Iceberg"),
    ("spark", "SQL, union, 5% hot: Q6", "Iceberg"),
    ("remote-lake", "lake on MinIO, 25 ms away: Q6", "Iceberg's runtime, S3FileIO"),
    ("spark", "SQL, first query of a session", "Iceberg"),
    ("spark", "streaming micro-batch of 1,000 rows", "Delta"),
    ("spark", "streaming micro-batch of 1,000 rows", "Iceberg"),
    ("local", "tiering one bucket", "pyarrow"),
    ("local", "lake.to_arrow", "pyarrow"),
    ("keyed-upserts", "upsert 10,000 rows, 80 % updates", "deltalake"),
    ("keyed-upserts", "upsert 10,000 rows, 80 % updates", "pypaimon"),
    ("statements", "SQL, MERGE of 10,000 rows without a primary key", "Delta"),
    ("statements", "SQL, MERGE of 10,000 rows without a primary key", "Iceberg"),
    ("workers", "lookups, one row at a time (lookup_one)", "DuckDB"),
    ("servers", "lookups, one by one", "Fluss"),
    ("views", "sums, 0.1 % of 10 M rows changed", "the whole query"),
    ("latency", "25 ms away: append of 1,000 rows", "delta-rs"),
    ("latency", "25 ms away: open and read 300 small commits", "delta-rs"),
]
"""The rows of README.md: the kept result, the name of its row, the beginning of the peer's name."""
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
        remarks = "; ".join(text for text in (row.verdict.strip("-"), row.note) if text)
        lines.append(f"| {_measured(row)} | {row.goal or ''} | {remarks} | {row.peer_name} |")
    return "\n".join(lines)


def described(machine: Machine) -> str:
    packages = ", ".join(f"{name} {found}" for name, found in machine.packages.items())
    return (
        f"{machine.cores} cores of {machine.processor}, {machine.memory_gib:g} GiB, {machine.kernel}, Python "
        f"{machine.python}; {packages}. A sync of a small file took {machine.fsync_ms:g} ms; the load was "
        f"{machine.load_before:g} before the run and {machine.load_after:g} at its end."
    )


def results_page(kept_results: dict[str, Results]) -> str:
    """Return results/README.md: every kept result with its machine, picture and table."""
    sections = [
        f"## {name}\n\nOf {results.day}, commit {results.commit}. {described(results.machine)}\n\n"
        f"![{name}]({name}.svg)\n\n{table(results)}"
        for name, results in kept_results.items()
    ]
    head = "# Results\n\nMade by `make bench-plots`. [benchmarks/README.md](../README.md) has the method."
    return "\n\n".join([head, *sections]) + "\n"


def with_headlines(readme: str, kept_results: dict[str, Results]) -> str:
    """Return the README with the headlines between their two marks."""
    lines = ["| | ours | peer | ratio | peer | turns |", "| --- | --- | --- | --- | --- | --- |"]
    for name, title, peer in HEADLINES:
        row = next(r for r in kept_results[name].rows if r.name == title and r.peer_name.startswith(peer))
        lines.append(f"| {_measured(row)} | {row.peer_name} | {row.pairs} |")
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not pattern.search(readme):
        raise ValueError(f"README.md does not have {BEGIN} and {END}")
    return pattern.sub(lambda _: "\n".join([BEGIN, "", *lines, "", END]), readme)


def all_kept(folder: Path = FOLDER) -> dict[str, Results]:
    return {path.stem: kept(path) for path in sorted(folder.glob("*.json"))}


def main() -> None:
    kept_results = all_kept()
    for name, results in kept_results.items():
        (FOLDER / f"{name}.svg").write_text(picture(name, results), "utf-8")
    (FOLDER / "README.md").write_text(results_page(kept_results), "utf-8")
    README.write_text(with_headlines(README.read_text("utf-8"), kept_results), "utf-8")


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


def _measured(row: Row) -> str:
    """Return the first cells of a row: its name, both figures and their ratio."""
    return f"{row.name} | {_figure(row.ours)} | {_figure(row.peer)} {row.unit} | {_figure(row.ratio)}×"


def _figure(value: float) -> str:
    """Return three digits of a figure, without an exponent."""
    return f"{float(f'{value:.3g}'):,.12g}"


def _short(text: str, characters: int = 82) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


if __name__ == "__main__":
    main()
