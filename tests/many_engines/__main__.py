"""Many engines query while rows stream in and are tiered: each answer has to be one exact state of its table.

``make serve-engines MINUTES=10``, ``make serve-engines-s3 MINUTES=3`` with Trino and Flink over a lake on S3, or
``python -m many_engines`` in the tests folder. Two servers, a writer of two tables, a tiering service with rounds of
two seconds, and compaction, expiry and maintenance beside. Ends with 1 where any answer was wrong, any query failed, or
any process ended that should not.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from many_engines.figures import as_table
from many_engines.freshness import ENGINES, freshness
from many_engines.kinds import KINDS
from many_engines.place import place_on_s3
from many_engines.run import run

ROUNDS = 20
"""Appends and queries of each engine, where freshness is measured."""
CREW = [
    "DuckDB",
    "DuckDB, transactions",
    "DuckDB, the lake's folder",
    "pyiceberg",
    "pyiceberg",
    "polars",
    "Daft",
    "ClickHouse",
    "Spark, Iceberg's runtime",
    "Arrow Flight",
    "HTTP",
]
CREW_ON_S3 = ["Trino", "Trino", "Trino, joins", "Flink", "DuckDB", "pyiceberg", "Arrow Flight"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--engines", nargs="*", metavar="NAME", choices=list(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--without", nargs="*", metavar="NAME", choices=list(KINDS), default=[])
    parser.add_argument("--on-s3", action="store_true", help="the warehouse is in MinIO, which Trino and Flink need")
    parser.add_argument("--freshness", action="store_true", help="measure how old the rows are that an engine sees")
    parser.add_argument("--keep", metavar="FOLDER", help="a folder for the warehouse and all logs, which stays")
    asked = parser.parse_args()
    crew = [name for name in CREW_ON_S3 if asked.on_s3] or CREW
    engines = [name for name in asked.engines or crew if name not in asked.without]
    for name in engines:
        if KINDS[name].server and not asked.on_s3:
            parser.error(f"{name} takes no lake on a local disk: add --on-s3")
        if asked.on_s3 and not KINDS[name].reads_s3:
            parser.error(f"{name} is not set up here for a lake on S3")
    folder = Path(asked.keep or tempfile.mkdtemp(prefix="streamhouse-engines-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with place_on_s3(folder) if asked.on_s3 else nullcontext():
        is_right = measured(folder, engines) if asked.freshness else checked(folder, engines, 60 * asked.minutes)
    if is_right and not asked.keep:
        shutil.rmtree(folder)
    elif not is_right:
        say(f"the warehouse and all logs are in {folder}")
    return 0 if is_right else 1


def measured(folder: Path, engines: list[str]) -> bool:
    """Measure how old rows are; returns whether all engines meet the goal."""
    found = freshness(folder, [name for name in ENGINES if name in engines], ROUNDS)
    for one in found:
        say(str(one))
    return all(one.is_met for one in found)


def checked(folder: Path, engines: list[str], seconds: float) -> bool:
    """Let the engines query; returns whether every answer was right."""
    found = run(folder, engines, seconds, tell=lambda text: say(f"  {text}"))
    say(as_table(found.figures))
    say(f"writes: {found.writes}; tiering rounds: {found.rounds}; beside them: {found.upkeep}")
    for one in found.figures:
        for text in [*one.wrong[:5], *(f"{number} × {text}" for text, number in one.errors.most_common(5))]:
            say(f"  {one.engine}: {text}")
    for text in found.failures:
        say(f"  {text}")
    return found.is_right


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
