"""Display of the demo: a live board on a terminal or else plain lines, and commands to try at the end."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.demo.flights import TABLE
from streamhouse_spark.demo.proofs import Observations, Proof, QueryResult
from streamhouse_spark.errors import count_of
from streamhouse_spark.table.table import Table

_LINE_EVERY_MS: Final = 5_000
_PIPE_COLUMNS: Final = 200


@dataclass(frozen=True, slots=True)
class Board:
    """The current state of the demo."""

    simulated_day: str
    """The day in 2013 of the last released flight."""
    released_share: float
    """Share of the released flights, 0 to 1."""
    micro_batches: int
    observed: Observations

    @property
    def rows(self) -> int:
        return sum(line.log_end for line in self.observed.buckets)

    @property
    def lag(self) -> int:
        return sum(line.lag for line in self.observed.buckets)


class TextView:
    """Prints the demo's steps as lines, and its state as a live board if the console is a terminal, else as lines."""

    def __init__(self, clock: Clock, console: Console | None = None) -> None:
        width = None if sys.stdout.isatty() else _PIPE_COLUMNS
        self.console = console or Console(file=sys.stdout, width=width, highlight=False)
        self._clock = clock

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def show_proof(self, proof: Proof) -> None:
        mark = Text("✓ ", style="bold green") if proof.holds else Text("✗ ", style="bold red")
        detail = Text(f"  ({proof.detail})", style="dim" if proof.holds else "red")
        self.console.print(mark + Text(proof.claim) + detail, soft_wrap=True)

    @contextmanager
    def streaming(self) -> Iterator[Callable[[Board], None]]:
        """Yield a function that shows the state of the demo while flights stream in."""
        if self.console.is_terminal:
            with Live(console=self.console, refresh_per_second=4) as live:
                yield lambda board: live.update(draw_board(board))
            return
        next_ms = 0

        def print_line(board: Board) -> None:
            nonlocal next_ms
            now_ms = self._clock.boot_ms()
            if now_ms >= next_ms:
                next_ms = now_ms + _LINE_EVERY_MS
                self.say(format_line(board))

        yield print_line


def format_line(board: Board) -> str:
    return (
        f"{board.simulated_day}  log {board.rows:>7,} rows  lag {board.lag:>7,}  "
        f"air.flights {format_answer(board.observed.union)}  air.flights$lake {format_answer(board.observed.lake)}  "
        f"{count_of(board.micro_batches, 'micro-batch')}, {count_of(board.observed.lake_snapshots, 'lake snapshot')}"
    )


def format_answer(result: QueryResult | None) -> str:
    return "…" if result is None else f"{count_of(result.rows, 'row')} in {result.duration_ms} ms"


def draw_board(board: Board) -> Group:
    """Render the board for a terminal."""
    buckets = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("bucket", "log end", "tiered to the lake", "lag"):
        buckets.add_column(name, justify="right")
    for line in board.observed.buckets:
        buckets.add_row(str(line.bucket), f"{line.log_end:,}", f"{line.lake_offset:,}", f"{line.lag:,}")
    buckets.add_section()
    buckets.add_row("all", f"{board.rows:,}", f"{board.rows - board.lag:,}", f"{board.lag:,}", style="bold")
    queries = RichTable(box=None, show_header=False, pad_edge=False)
    for name, result in (("air.flights", board.observed.union), ("air.flights$lake", board.observed.lake)):
        queries.add_row(Text(name, style="bold"), Text(format_answer(result), style="cyan"))
    head = Text.assemble(
        ("flights up to ", ""), (board.simulated_day, "bold"),
        f"  {board.released_share:.0%} released, {count_of(board.micro_batches, 'micro-batch')} written, ",
        f"{count_of(board.observed.lake_snapshots, 'lake snapshot')}, {count_of(board.observed.queries, 'query')}",
    )  # fmt: skip
    return Group(head, buckets, queries)


def locations(table: Table) -> dict[str, str]:
    """Return name → location of the warehouse and the table's files."""
    root = table.storage.url
    return {
        "warehouse": root,
        "hot log": f"{root}/tables/{table.uuid}/segments (Arrow files)",
        "commit log": f"{root}/tables/{table.uuid}/commits",
        "lake": f"{root}/{table.state.lake_location} (an Iceberg table: Parquet data, metadata)",
    }


def suggestions(table: Table) -> list[tuple[str, str]]:
    """Return the purpose and the text of five commands that can be run unchanged."""
    streamhouse, python = own_commands()
    root = table.storage.url
    at = f"{streamhouse} -w {shlex.quote(root)}"
    lake = f"{root}/{table.state.lake_location}"
    read_lake = (
        "import sys; from pyiceberg.table import StaticTable; "
        "hint = open(sys.argv[1] + '/metadata/version-hint.text').read().strip(); "
        "table = StaticTable.from_metadata(f'{sys.argv[1]}/metadata/v{hint}.metadata.json'); "
        "print(table.scan(selected_fields=('carrier', 'dest', 'dep_delay'), limit=5).to_arrow().to_pandas())"
    )
    row = '{"carrier": "ZZ", "flight": 1, "tailnum": "N00001", "origin": "JFK", "time_hour": "2014-01-01T05:00:00Z"}'
    delayed = "origin = 'JFK' AND dep_delay > 600"
    return [
        ("show the table, its buckets and their lag", f"{at} describe {TABLE}"),
        (
            "find the longest delays in the lake",
            f"{at} head '{TABLE}$lake' --where \"{delayed}\" --columns time_hour,carrier,dest,dep_delay",
        ),
        (
            "write a row, which is in the log immediately and in the lake after tiering",
            f"echo '{row}' | {at} append {TABLE} - --format json && {at} ls && {at} tier --once && {at} ls",
        ),
        ("verify all files of log and lake", f"{at} verify {TABLE}"),
        ("read the lake without streamhouse-spark", f'{python} -c "{read_lake}" {shlex.quote(lake)}'),
    ]


def own_commands() -> tuple[str, str]:
    """Return the shell words of the command line and of Python: names if they are on the PATH, else paths."""
    here = Path(sys.executable).parent / "streamhouse"
    on_path = shutil.which("streamhouse")
    if on_path is not None and Path(on_path).parent == here.parent:
        return "streamhouse", "python"
    return shlex.quote(str(_relative_path(here))), shlex.quote(str(_relative_path(Path(sys.executable))))


def _relative_path(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
