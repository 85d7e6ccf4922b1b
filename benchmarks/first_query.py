"""``python -m benchmarks.first_query SCRATCH WAREHOUSE SQL [--without-ours]``: print the seconds of a session's first
statement.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measure import timed
from benchmarks.runtimes import configured_builder, peers_builder

if __name__ == "__main__":
    scratch, url, sql, *without_ours = sys.argv[1:]
    builder = peers_builder if without_ours else configured_builder
    spark = builder(Path(scratch), url).getOrCreate()
    sys.stdout.write(f"{timed(lambda: spark.sql(sql).collect())}\n")
    spark.stop()
