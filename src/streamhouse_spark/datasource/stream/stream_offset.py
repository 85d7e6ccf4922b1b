"""The position of a streaming read, as stored in Spark's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource.read.offset_resolution import offsets_from_json, offsets_to_json
from streamhouse_spark.errors import CorruptDataError, FormatVersionError, TableNotFoundError
from streamhouse_spark.log.commits.history_epochs import HistoryPoint

VERSION = 1
ROWS_VERSION = 2
"""Version of an offset with a `BootstrapPosition`, which older versions of this package would ignore."""


@dataclass(frozen=True, slots=True)
class BootstrapPosition:
    """Progress through the initial rows of a stream, in files.

    The rows are those of the key snapshots at one commit. Their files are immutable and read in a fixed order, see
    `streamhouse_spark.datasource.stream.bootstrap`.
    """

    commit: int
    num_files: int
    num_read: int = 0

    @property
    def is_read(self) -> bool:
        return self.num_read == self.num_files

    def read_to(self, num_read: int) -> BootstrapPosition:
        return replace(self, num_read=num_read)

    def to_json(self) -> dict[str, int]:
        return {"commit": self.commit, "files": self.num_files, "read": self.num_read}

    @classmethod
    def from_json(cls, data: Mapping[str, int]) -> BootstrapPosition:
        """Parse the result of `to_json`. Raises `KeyError`, `TypeError` or `ValueError` for any other value."""
        rows = cls(int(data["commit"]), int(data["files"]), int(data["read"]))
        if not 0 <= rows.num_read <= rows.num_files:
            raise ValueError(f"{rows.num_read} of {rows.num_files} files are read")
        return rows


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset to read in each bucket.

    ``initial`` holds the offsets at which the query started; only the first offsets carry it. After a restart Spark
    knows the end of an unfinished first batch but not its start, and resolves the start again. By then ``latest`` or a
    timestamp may mean a later offset, and the rows in between would be lost.
    """

    table_uuid: str
    offsets: Mapping[int, int]
    initial: Mapping[int, int] | None = None
    truncation: int = 0
    """The last commit that had truncated the table at this position; 0 for none."""
    rows: BootstrapPosition | None = None
    """Initial rows, which are read before ``offsets``. None if there are none or an earlier batch finished them.

    The first offsets of a stream carry them to the end, like ``initial``.
    """
    history: HistoryPoint | None = None
    """The latest commit record with rows at this position; None in older checkpoints."""
    start_history: HistoryPoint | None = None
    """The ``history`` at the start of a stream that reports deletions; carried like ``initial``."""

    @property
    def is_initial(self) -> bool:
        """Whether no rows were read yet."""
        has_progress = (self.rows is not None and self.rows.num_read > 0) or self.start_history not in (
            None,
            self.history,
        )
        return self.initial is not None and dict(self.initial) == dict(self.offsets) and not has_progress

    def begin_of_batch(self, end: StreamOffset) -> StreamOffset:
        """Return the start of the batch that ends at ``end``, given that Spark starts it here."""
        if self.is_initial and end.initial is not None:
            rows = end.rows.read_to(0) if end.rows is not None else None
            history = end.start_history or end.history
            return StreamOffset(end.table_uuid, end.initial, truncation=end.truncation, rows=rows, history=history)
        return self

    def files_before(self, end: StreamOffset) -> range:
        """Return the indices of the files of ``rows`` that a batch from here to ``end`` reads."""
        if self.rows is None or self.rows.is_read or self.truncation != end.truncation:
            return range(0)
        # PySpark 4.1 may have stored the end before the log was trimmed, without rows. Its batch then has all of them.
        return range(self.rows.num_read, end.rows.num_read if end.rows is not None else self.rows.num_files)

    def to_json(self) -> dict[str, Any]:
        version = VERSION if self.rows is None else ROWS_VERSION
        out: dict[str, Any] = {"version": version, "table": self.table_uuid, "offsets": offsets_to_json(self.offsets)}
        if self.initial is not None:
            out["initial"] = offsets_to_json(self.initial)
        if self.truncation:
            out["truncation"] = self.truncation
        if self.rows is not None:
            out["rows"] = self.rows.to_json()
        if self.history is not None:
            out["history"] = list(self.history)
        if self.start_history is not None:
            out["begun"] = list(self.start_history)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any], table_name: str, table_uuid: str) -> StreamOffset:
        """Parse an offset. Raises `TableNotFoundError` for an offset of another table, `FormatVersionError`,
        `CorruptDataError`.
        """
        version = data.get("version")
        if version not in (VERSION, ROWS_VERSION):
            raise FormatVersionError(
                f"the checkpoint of a stream from {table_name} has offsets of version {version!r}, "
                f"expected {VERSION} or {ROWS_VERSION}: another version of streamhouse-spark wrote it; upgrade, or "
                "start it with a new checkpointLocation",
            )
        try:
            initial = data.get("initial")
            offset = cls(
                data["table"],
                offsets_from_json(data["offsets"]),
                offsets_from_json(initial) if initial is not None else None,
                int(data.get("truncation", 0)),
                BootstrapPosition.from_json(data["rows"]) if version == ROWS_VERSION else None,
                HistoryPoint.from_json(data["history"]) if "history" in data else None,
                HistoryPoint.from_json(data["begun"]) if "begun" in data else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptDataError(
                f"the checkpoint of a stream from {table_name} has an offset that cannot be read ({error}); restore "
                "the checkpoint, or start with a new one",
            ) from error
        if offset.table_uuid != table_uuid:
            raise TableNotFoundError(
                f"the stream reads table {table_name} of uuid {offset.table_uuid}, which was dropped; the name now "
                f"means {table_uuid}: start the query with a new checkpointLocation to read that one",
            )
        return offset
