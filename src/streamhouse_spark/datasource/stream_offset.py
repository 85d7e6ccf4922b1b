"""The position of a streaming read, as Spark keeps it in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamhouse_spark.datasource.bounds import offsets_from_json, offsets_to_json
from streamhouse_spark.errors import CorruptDataError, FormatVersionError, TableNotFoundError

VERSION = 1


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The first offset of each bucket that is still to be read.

    ``initial`` is where the query began, carried by the first offsets only. Spark keeps the end of a first batch that
    did not finish, but not its beginning, and asks for that again after a restart; by then ``latest``, or a time, may
    mean a later offset, and the rows between would be lost.
    """

    table_uuid: str
    offsets: Mapping[int, int]
    initial: Mapping[int, int] | None = None
    truncation: int = 0
    """The commit that had truncated the table last when the position was taken; 0 for none."""

    @property
    def is_initial(self) -> bool:
        return self.initial is not None and dict(self.initial) == dict(self.offsets)

    def begin_of_batch(self, end: StreamOffset) -> StreamOffset:
        """Where the batch that ends at ``end`` begins, when Spark says that it begins here."""
        if self.is_initial and end.initial is not None:
            return StreamOffset(end.table_uuid, end.initial, truncation=end.truncation)
        return self

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"version": VERSION, "table": self.table_uuid, "offsets": offsets_to_json(self.offsets)}
        if self.initial is not None:
            out["initial"] = offsets_to_json(self.initial)
        if self.truncation:
            out["truncation"] = self.truncation
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any], table_name: str, table_uuid: str) -> StreamOffset:
        """Raises `TableNotFoundError` for an offset of another table, `FormatVersionError`, `CorruptDataError`."""
        if data.get("version") != VERSION:
            raise FormatVersionError(
                f"the checkpoint of a stream from {table_name} has offsets of version {data.get('version')!r}, "
                f"expected {VERSION}; it was written by another version of streamhouse-spark",
            )
        try:
            initial = data.get("initial")
            offset = cls(
                data["table"],
                offsets_from_json(data["offsets"]),
                offsets_from_json(initial) if initial is not None else None,
                int(data.get("truncation", 0)),
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
