"""A stream by any trigger, whose rows are noted in files: in real-time mode Spark takes few sinks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find the modules of tests
WAIT_S = 120
"""Far longer than a row takes on a slow machine."""


class Noted:
    """Notes each row that a query gives, as its text, in a file of its task."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, partition: int, epoch: int) -> bool:
        self.file = Path(f"{self.folder}/{partition}-{epoch}-{os.getpid()}").open("a", buffering=1)  # noqa: SIM115
        return True

    def process(self, row: Any) -> None:
        self.file.write(repr(tuple(row)) + "\n")

    def close(self, error: Exception | None) -> None:
        self.file.close()


class Stream:
    """A query of a DataFrame with one checkpoint, by any trigger, and the rows that it gave since it was asked last."""

    def __init__(self, spark: Any, make: Callable[[], Any], folder: Path, batch: str = "5 seconds") -> None:
        self.spark, self.make, self.folder, self.batch, self.number = spark, make, folder, batch, 0

    def start(self, **trigger: Any) -> Any:
        self.number += 1
        self.out.mkdir(parents=True)
        writer = self.make().writeStream.foreach(Noted(str(self.out))).outputMode("update")
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        if trigger:
            return writer.trigger(**trigger).start()
        java = self.spark._jvm.org.apache.spark.sql.streaming.Trigger
        writer._jwrite = writer._jwrite.trigger(java.RealTime(self.batch))
        return writer.start()

    @property
    def out(self) -> Path:
        return self.folder / f"out-{self.number}"

    def rows(self) -> list[str]:
        return sorted(line for path in self.out.iterdir() for line in path.read_text().splitlines())

    def wait_for(self, query: Any, count: int) -> list[str]:
        end = time.monotonic() + WAIT_S
        while len(set(found := self.rows())) < count and query.exception() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert query.exception() is None
        return found

    def micro_batches(self) -> list[str]:
        self.start(availableNow=True).awaitTermination()
        return self.rows()

    def stored(self) -> int:
        """The number of positions that Spark stored."""
        folder = self.folder / "checkpoint" / "commits"
        return len([path for path in folder.iterdir() if path.name.isdigit()]) if folder.exists() else 0
