"""The end of the demo: file locations and commands to try."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.demo.flights import TABLE
from streamhouse_spark.table.table import Table


@dataclass(frozen=True, slots=True)
class Suggestion:
    purpose: str
    command: str


def locations(table: Table) -> dict[str, str]:
    """Return the locations by name."""
    root = table.storage.url
    return {
        "warehouse": root,
        "hot log": f"{root}/tables/{table.uuid}/segments (Arrow files)",
        "commit log": f"{root}/tables/{table.uuid}/commits",
        "lake": f"{root}/{table.state.lake_location} (an Iceberg table: Parquet data, metadata)",
    }


def suggestions(table: Table) -> list[Suggestion]:
    """Return five commands to try, each of which runs unchanged."""
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
        Suggestion("see the table, its buckets and their lag", f"{at} describe {TABLE}"),
        Suggestion(
            "look for the worst delays in the lake",
            f"{at} head '{TABLE}$lake' --where \"{delayed}\" --columns time_hour,carrier,dest,dep_delay",
        ),
        Suggestion(
            "write a row: the log has it at once, the lake after tiering",
            f"echo '{row}' | {at} append {TABLE} - --format json && {at} ls && {at} tier --once && {at} ls",
        ),
        Suggestion("check every byte of log and lake", f"{at} verify {TABLE}"),
        Suggestion("read the lake without streamhouse-spark", f'{python} -c "{read_lake}" {shlex.quote(lake)}'),
    ]


def own_commands() -> tuple[str, str]:
    """Return the command line and Python as shell words: by name if on the PATH, else by path."""
    here = Path(sys.executable).parent / "streamhouse"
    on_path = shutil.which("streamhouse")
    if on_path is not None and Path(on_path).parent == here.parent:
        return "streamhouse", "python"
    return shlex.quote(str(_relative_path(here))), shlex.quote(str(_relative_path(Path(sys.executable))))


def _relative_path(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
