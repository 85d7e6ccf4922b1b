"""``python -m benchmarks.first_query SCRATCH WAREHOUSE SQL``: print the seconds of a new session's first statement."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measure import timed
from benchmarks.runtimes import configured_builder

if __name__ == "__main__":
    scratch, url, sql = sys.argv[1:]
    spark = configured_builder(Path(scratch), url).getOrCreate()
    sys.stdout.write(f"{timed(lambda: spark.sql(sql).collect())}\n")
    spark.stop()
