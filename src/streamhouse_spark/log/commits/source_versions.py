"""The lineage of a view: the versions of its sources that a refresh brought it to. Pure.

A refresh is a transaction of the view's table, and its lineage is the fingerprint of the transaction's batch. So rows
and lineage are one record, and both are there or neither.
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
    """Number of the newest commit that is in the view."""
    attempt: str | None
    """Attempt of that commit: a table that was restored has another one at its number."""
    ends: Mapping[int, int]
    """Bucket → the offset behind its last row that is in the view."""
    dropped_rows: int = 0
    """Rows that the lake lacked then because their partitions were dropped."""
    is_cut: bool = False
    """Whether the view has of that version only the rows below ``ends``, as amid the steps of a refresh."""

    def cut_text(self) -> str | None:
        """Return the offsets that end the view's part of the version, as streams take them; None where it has all."""
        return json.dumps({str(bucket): end for bucket, end in sorted(self.ends.items())}) if self.is_cut else None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The versions of all sources, and how the view came to them."""

    sources: tuple[SourceVersion, ...]
    whole_because: str | None = None
    """The reason for which the query was computed anew; None where its changes were."""

    def transaction(self, number: int) -> Transaction:
        return Transaction(REFRESHES, number, batch=StreamBatch(self.to_text(), is_each_recorded=True))

    def to_text(self) -> str:
        fields = asdict(self)
        for source in fields["sources"]:
            if not source["is_cut"]:  # a release that does not know of it must not pass over it
                del source["is_cut"]
        return json.dumps(fields, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Lineage:
        fields = json.loads(text)
        return cls(tuple(map(_source, fields["sources"])), fields["whole_because"])


def _source(fields: Mapping[str, Any]) -> SourceVersion:
    return SourceVersion(**{**fields, "ends": {int(bucket): end for bucket, end in fields["ends"].items()}})


def lineage_of(transaction: Transaction | None) -> Lineage | None:
    """Return the lineage that a record's transaction has; None for one that is no refresh."""
    if transaction is None or transaction.app_id != REFRESHES:
        return None
    text = transaction.batch.fingerprint if transaction.batch is not None else None
    return None if text is None else Lineage.from_text(text)
