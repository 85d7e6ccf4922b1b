"""``python -m benchmarks``: run benchmarks by name, all by default, and print a line for each figure."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from benchmarks.appends import bulk_append, flat_appends, small_appends
from benchmarks.catalog import catalog_join, catalog_read
from benchmarks.deleted_rows import deleted_rows
from benchmarks.event_loops import event_loops
from benchmarks.freshness import freshness
from benchmarks.keyed import changelogs, restoring, upserts
from benchmarks.keyed_reading import keyed_reading
from benchmarks.keyed_spark import keyed_spark
from benchmarks.keyed_tiering import keyed_tiering
from benchmarks.lake import lake_read, tiering, tiering_buckets
from benchmarks.latency import latency
from benchmarks.lookups import lookups
from benchmarks.measure import Bench, Figure
from benchmarks.opening import opening
from benchmarks.producers import producer
from benchmarks.reach import reach
from benchmarks.reading import hot_projection
from benchmarks.realtime import realtime
from benchmarks.realtime_store import realtime_store
from benchmarks.remote_lake import remote_lake
from benchmarks.results import keep, this_machine
from benchmarks.row_deletion import appends_beside_deletes, row_deletion
from benchmarks.runtimes import iceberg_first_query, iceberg_queries, sinks
from benchmarks.scans import scans
from benchmarks.segments import segments_compression
from benchmarks.server_realtime import server_realtime
from benchmarks.servers import server_appends, server_bulk, server_keyed, server_start
from benchmarks.serving import serving
from benchmarks.spark import spark_read, spark_sink
from benchmarks.starts import starts
from benchmarks.statements import row_statements
from benchmarks.stream_pruning import stream_pruning
from benchmarks.views import views
from benchmarks.writers import many_producers, many_upserters, many_writers

BENCHMARKS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "bulk-append": bulk_append,
    "small-appends": small_appends,
    "flat-appends": flat_appends,
    "many-writers": many_writers,
    "many-producers": many_producers,
    "many-upserters": many_upserters,
    "producer": producer,
    "freshness": freshness,
    "event-loops": event_loops,
    "hot-projection": hot_projection,
    "scans": scans,
    "segments-compression": segments_compression,
    "opening": opening,
    "starts": starts,
    "reach": reach,
    "tiering": tiering,
    "tiering-buckets": tiering_buckets,
    "keyed-reading": keyed_reading,
    "keyed-tiering": keyed_tiering,
    "keyed-spark": keyed_spark,
    "lake-read": lake_read,
    "spark-read": spark_read,
    "spark-sink": spark_sink,
    "realtime": realtime,
    "catalog-read": catalog_read,
    "catalog-join": catalog_join,
    "keyed-upserts": upserts,
    "keyed-changelogs": changelogs,
    "keyed-restoring": restoring,
    "lookups": lookups,
    "serving": serving,
    "views": views,
    "row-deletion": row_deletion,
    "appends-beside-deletes": appends_beside_deletes,
    "deleted-rows": deleted_rows,
}
RUNTIMES: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "iceberg-queries": iceberg_queries,
    "iceberg-first-query": iceberg_first_query,
    "sinks": sinks,
    "row-statements": row_statements,
    "remote-lake": remote_lake,
}
"""Those that need PySpark 4.1 and fetch other formats' runtimes: `make bench-spark` names them, and the last one, which
starts MinIO too, `make bench-remote`."""
STREAMS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "stream-pruning": stream_pruning,
    "realtime-store": realtime_store,
}
"""Those whose Spark fetches a file system, and that need PySpark 4.2: `make bench-remote` names them."""
SERVERS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "server-appends": server_appends,
    "server-bulk": server_bulk,
    "server-keyed": server_keyed,
    "server-start": server_start,
    "server-realtime": server_realtime,
}
"""Those that start Kafka and Fluss, which Maven fetches: `make bench-servers` names them."""
STORES: dict[str, Callable[[Bench], Iterator[Figure]]] = {"latency": latency}
"""Those that start MinIO, which Go fetches, and need PySpark 4.1: `make bench-latency` names them."""
ALL = BENCHMARKS | RUNTIMES | STREAMS | SERVERS | STORES
ARTIFACTS = Path(__file__).parent.parent / "artifacts" / "benchmarks"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(sorted(ALL)))
@click.option("--quick", is_flag=True, help="A tenth of the data and few rounds: shows that it runs, not how fast.")
@click.option(
    "--output", type=click.Choice(["text", "json", "markdown"]), default="text", help="json: one object a line."
)
@click.option(
    "--keep", "kept_as", metavar="NAME", help="Keep the figures and the machine: benchmarks/results/NAME.json."
)
@click.option("--scratch", type=click.Path(path_type=Path), help="Where to write; the disk that is measured.")
def main(names: tuple[str, ...], *, quick: bool, output: str, kept_as: str | None, scratch: Path | None) -> None:
    """Measure streamhouse-spark beside its peers, in turns, on the same data.

    NAMES are benchmarks; without any, all run but those that fetch the runtimes of Iceberg and Delta
    (iceberg-queries, iceberg-first-query, sinks), which need PySpark 4.1, and those that fetch and start Kafka and
    Fluss (server-appends, server-bulk, server-keyed, server-start, server-realtime) or MinIO (latency).
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends, and files are removed
    base = scratch or ARTIFACTS
    base.mkdir(parents=True, exist_ok=True)
    if output in HEADS:
        click.echo(HEADS[output])
    # Deleted at the end: while ext4 remembers thousands of deleted inodes, creating a file costs half a millisecond.
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=base))
    figures: list[Figure] = []
    load_before = os.getloadavg()[0]
    try:
        for name in names or BENCHMARKS:
            (directory / name).mkdir()
            for figure in ALL[name](Bench(directory / name, ARTIFACTS / "data", quick)):
                figures.append(figure)
                click.echo(LINES[output](figure))
                sys.stdout.flush()
        if kept_as is not None:
            click.echo(f"kept in {keep(kept_as, figures, this_machine(directory, load_before))}", err=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _line(figure: Figure) -> str:
    return (
        f"{figure.name:44} {figure.ours:9.3g} {figure.peer:9.3g} {figure.unit:8} {figure.ratio:6.3g}x  "
        f"{figure.goal or '-'!s:8} {figure.verdict:7} {figure.peer_name}" + (f"; {figure.note}" if figure.note else "")
    )


def _markdown(figure: Figure) -> str:
    numbers = f"{figure.ours:.3g} | {figure.peer:.3g} {figure.unit} | {figure.ratio:.3g}×"
    verdict = f"{figure.goal or '-'!s} | {figure.verdict}"
    return f"| {figure.name} | {numbers} | {verdict} | {figure.peer_name} | {figure.note} |"


HEADS = {
    "text": f"{'':44} {'ours':>9} {'peer':>9} {'':8} {'ratio':>7}  {'goal':8} {'':7} peer",
    "markdown": "| | ours | peer | ratio | goal | | peer | |\n|---|---|---|---|---|---|---|---|",
}
LINES: dict[str, Callable[[Figure], str]] = {
    "text": _line,
    "json": lambda figure: json.dumps(figure.to_json()),
    "markdown": _markdown,
}

if __name__ == "__main__":
    main()
