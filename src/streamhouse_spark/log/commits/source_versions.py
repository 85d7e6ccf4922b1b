"""The lineage of a view: the source versions that a refresh applied. Pure.

A refresh is a transaction of the view's table, and its lineage is the fingerprint of the transaction's batch. Rows and
lineage are therefore committed in one record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import StreamBatch, Transaction

REFRESHES: Final = "streamhouse.materialize"
"""The application id of refreshes."""


@dataclass(frozen=True, slots=True)
class SourceVersion:
    """The version of a source."""

    name: str
    uuid: str
    version: int
    """Number of the last commit that is in the view."""
    attempt: str | None
    """Attempt id of that commit: in a restored table it differs."""
    ends: Mapping[int, int]
    """Bucket → the offset after its last row that is in the view."""
    dropped_rows: int = 0
    """Rows missing from the lake at that version because their partitions were dropped."""
    is_cut: bool = False
    """Whether the view has only the rows below ``ends`` of that version, as between the steps of a refresh."""

    def cut_text(self) -> str | None:
        """Return the end offsets of the view's part of the version, in the form for streams; None if it has
        all of it.
        """
        return json.dumps({str(bucket): end for bucket, end in sorted(self.ends.items())}) if self.is_cut else None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The versions of all sources, and how the view was computed from them."""

    sources: tuple[SourceVersion, ...]
    whole_because: str | None = None
    """The reason why the query was recomputed; None if its changes were applied."""

    def transaction(self, number: int) -> Transaction:
        return Transaction(REFRESHES, number, batch=StreamBatch(self.to_text(), is_each_recorded=True))

    def to_text(self) -> str:
        fields = asdict(self)
        for source in fields["sources"]:
            if not source["is_cut"]:  # an older release must not ignore it
                del source["is_cut"]
        return json.dumps(fields, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Lineage:
        fields = json.loads(text)
        return cls(tuple(map(_source, fields["sources"])), fields["whole_because"])


def _source(fields: Mapping[str, Any]) -> SourceVersion:
    return SourceVersion(**{**fields, "ends": {int(bucket): end for bucket, end in fields["ends"].items()}})


def lineage_of(transaction: Transaction | None) -> Lineage | None:
    """Return the lineage in a record's transaction; None if it is not a refresh."""
    if transaction is None or transaction.app_id != REFRESHES:
        return None
    text = transaction.batch.fingerprint if transaction.batch is not None else None
    return None if text is None else Lineage.from_text(text)
