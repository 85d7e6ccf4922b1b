"""``python -m benchmarks.running_statements URL`` runs DELETE, UPDATE and MERGE of Spark on the table of
`benchmarks.row_deletion` there, one after the other, until its input ends. Then it prints their number.
"""

from __future__ import annotations

import itertools
import select
import sys
import tempfile
from pathlib import Path

import streamhouse_spark
from benchmarks.spark import session_builder

TABLE = "streamhouse.bench.rows"


def statement(number: int) -> str:
    """Each changes rows that none before it did: one, ten or a hundred, of those that are in the lake."""
    first = number * 100
    match number % 3:
        case 0:
            return f"DELETE FROM {TABLE} WHERE id = {first}"
        case 1:
            return f"UPDATE {TABLE} SET amount = -1 WHERE id BETWEEN {first} AND {first + 9}"
        case _:
            source = f"SELECT id FROM range({first}, {first + 100})"
            matched = f"MERGE INTO {TABLE} t USING ({source}) s ON t.id = s.id WHEN MATCHED"
            return f"{matched} THEN UPDATE SET amount = -2"


def main(url: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        builder = session_builder(Path(scratch)).master("local[1]")
        spark = streamhouse_spark.configure(builder, warehouse=url).getOrCreate()
        numbers = itertools.count()
        for number in itertools.islice(numbers, 6):  # what the JVM compiles first
            spark.sql(statement(number))
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        count = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            spark.sql(statement(next(numbers)))
            count += 1
        sys.stdout.write(f"{count}\n")
        sys.stdout.flush()
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
