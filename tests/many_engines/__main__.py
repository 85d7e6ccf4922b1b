"""Many engines query while rows stream in and are tiered: each answer has to be one exact state of its table.

``make serve-engines MINUTES=10``, or ``python -m many_engines`` in the tests folder. Two servers, a writer of two
tables, a tiering service with rounds of two seconds, and compaction, expiry and maintenance beside. Ends with 1 where
any answer was wrong, any query failed, or any process ended that should not.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from many_engines.engines import KINDS
from many_engines.figures import as_table
from many_engines.freshness import ENGINES, GOAL_MS, freshness
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--engines", nargs="*", metavar="NAME", choices=list(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--without", nargs="*", metavar="NAME", choices=list(KINDS), default=[])
    parser.add_argument("--freshness", action="store_true", help="measure how old the rows are that an engine sees")
    parser.add_argument("--keep", metavar="FOLDER", help="a folder for the warehouse and all logs, which stays")
    asked = parser.parse_args()
    engines = [name for name in asked.engines or CREW if name not in asked.without]
    folder = Path(asked.keep or tempfile.mkdtemp(prefix="streamhouse-engines-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if asked.freshness:
        wanted = [name for name in ENGINES if name in engines]
        measured = freshness(folder, wanted, ROUNDS)
        for one in measured:
            say(str(one))
        shutil.rmtree(folder)
        return 0 if all(one.beyond_ms <= GOAL_MS for one in measured) else 1
    found = run(folder, engines, 60 * asked.minutes, tell=lambda text: say(f"  {text}"))
    say(as_table(found.figures))
    say(f"writes: {found.writes}; tiering rounds: {found.rounds}; beside them: {found.upkeep}")
    for one in found.figures:
        for text in [*one.wrong[:5], *(f"{number} × {text}" for text, number in one.errors.most_common(5))]:
            say(f"  {one.engine}: {text}")
    for text in found.failures:
        say(f"  {text}")
    if found.is_right and not asked.keep:
        shutil.rmtree(folder)
    elif not found.is_right:
        say(f"the warehouse and all logs are in {folder}")
    return 0 if found.is_right else 1


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
