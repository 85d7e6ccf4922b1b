"""A report of failed tiering and maintenance rounds, for people.

The report is one small object next to the table's log, which the last failing process overwrites. No decision depends
on it: it may be absent, late, damaged, or without a concurrent entry. Only the log shows which rows are in the lake, so
a reader compares both (`TieringFailure.is_resolved`). Failures, and the first success after them, are recorded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.option_parsing import without_secrets
from streamhouse_spark.core.warehouse_layout import tiering_failures_key
from streamhouse_spark.errors import ObjectNotFoundError, StorageError, StreamhouseError
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage

FAILURES_MAX: Final = 5
TEXT_CHARS_MAX: Final = 400
UNTRIED_MS: Final = 60 * 60_000
"""Services retry after at most five minutes. If the last failure is older than this, no service is running."""
_UNITS: Final = {86_400: "days", 3_600: "h", 60: "min"}
Work = Literal["tiering", "maintenance"]
_TEXTS: Final = ("work", "error", "text", "host")
_COUNTS: Final = ("rows", "times", "first_ms", "last_ms", "duration_ms")


@dataclass(frozen=True, slots=True)
class TieringFailure:
    """One failure, and the consecutive failures of the same kind before it."""

    work: Work
    error: str
    """The class of the error."""
    text: str
    """The first line of the error text; empty for errors of other packages, which may contain secrets."""
    host: str
    rows: int
    """Number of rows that were not tiered."""
    times: int
    """Number of consecutive failures of this kind."""
    first_ms: int
    """Store time of the first of these failures."""
    last_ms: int
    duration_ms: int
    """Duration of the last failed round."""
    mended_ms: int | None = None
    """Store time at which the same work succeeded; None if that was not reported."""

    def is_resolved(self, state: TableState) -> bool:
        """Return whether the report or the table's state shows a success after the failure."""
        if self.mended_ms is not None or self.work == "maintenance":
            return self.mended_ms is not None
        lake = state.lake
        waits = any(log.end > state.lake_offset(bucket) for bucket, log in state.buckets.items())
        return (lake is not None and lake.time_ms > self.last_ms) or not (waits or state.lake_is_outdated)

    def describe(self, state: TableState, now_ms: int) -> str:
        """Return one line with the host, the number of failures and their age."""
        often = f"{self.times:,} times in {_format_span(self.last_ms - self.first_ms)}, " if self.times > 1 else ""
        ago_ms = now_ms - self.last_ms
        text = self.text or f"{self.error}, whose text is in the log of that process"
        if self.is_resolved(state):
            since = "; it succeeded later"
        else:
            since = "; no service has retried since" if ago_ms > UNTRIED_MS else ""
        return f"failed {often}last {_format_span(ago_ms)} ago on {self.host}: {text}{since}"

    def to_json(self, state: TableState) -> dict[str, Any]:
        """Return the failure for programs; ``over`` is the result of `is_resolved`."""
        return {name: getattr(self, name) for name in (*_TEXTS, *_COUNTS)} | {"over": self.is_resolved(state)}


def _format_span(duration_ms: int) -> str:
    seconds = max(0, duration_ms) // 1000
    for size, unit in ((172_800, 86_400), (7_200, 3_600), (120, 60)):
        if seconds >= size:
            return f"{seconds // unit:,} {_UNITS[unit]}"
    return f"{seconds} s"


def describe_failure(
    work: Work, error: BaseException, *, host: str, rows: int, now_ms: int, duration_ms: int
) -> TieringFailure:
    """Return the report of a failure at ``now_ms``, without credentials."""
    line = str(error).strip().partition("\n")[0] if isinstance(error, StreamhouseError) else ""
    text = without_secrets(line)[:TEXT_CHARS_MAX]
    return TieringFailure(work, type(error).__name__, text, host, rows, 1, now_ms, now_ms, duration_ms)


def record_failure(storage: Storage, table_uuid: str, failure: TieringFailure) -> None:
    """Add a failure to the report, or count it with the last failure of its kind. Raises `StorageError`."""
    failures = read_failures(storage, table_uuid)
    newest = failures[0] if failures else None
    if newest is not None and newest.mended_ms is None and _error_kind(newest) == _error_kind(failure):
        failure = replace(failure, times=newest.times + 1, first_ms=newest.first_ms)
        failures = failures[1:]
    _put(storage, table_uuid, [failure, *failures])


def record_success(storage: Storage, table_uuid: str, work: Work, now_ms: int) -> None:
    """Mark failures of ``work`` as over. Puts nothing if no failure is reported. Raises `StorageError`."""
    failures = read_failures(storage, table_uuid)
    updated = [replace(f, mended_ms=now_ms) if f.work == work and f.mended_ms is None else f for f in failures]
    if updated != list(failures):
        _put(storage, table_uuid, updated)


def read_failures(storage: Storage, table_uuid: str) -> tuple[TieringFailure, ...]:
    """Return the reported failures, the latest first. Empty for an absent or damaged report. Raises `StorageError`."""
    try:
        document = json.loads(storage.read(tiering_failures_key(table_uuid)))
        return tuple(_parse_failure(entry) for entry in document["failures"][:FAILURES_MAX])
    except (ObjectNotFoundError, ValueError, KeyError, TypeError):
        return ()


def list_failures(storage: Storage, table_uuid: str) -> tuple[TieringFailure, ...]:
    """Return the reported failures for display; empty if the store fails."""
    try:
        return read_failures(storage, table_uuid)
    except StorageError:
        return ()


def _error_kind(failure: TieringFailure) -> tuple[str, ...]:
    return failure.work, failure.error, failure.text, failure.host


def _put(storage: Storage, table_uuid: str, failures: Sequence[TieringFailure]) -> None:
    fields = [{name: getattr(failure, name) for name in (*_TEXTS, *_COUNTS, "mended_ms")} for failure in failures]
    body = json.dumps({"failures": fields[:FAILURES_MAX]}, ensure_ascii=False)
    storage.put(tiering_failures_key(table_uuid), body.encode())


def _parse_failure(entry: Any) -> TieringFailure:
    """Parse an entry of the report. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
    texts = {name: str(entry[name])[:TEXT_CHARS_MAX] for name in _TEXTS}
    if texts["work"] not in get_args(Work):
        raise ValueError(texts["work"])
    mended_ms = entry.get("mended_ms")
    counts = {name: int(entry[name]) for name in _COUNTS}
    return TieringFailure(**texts, **counts, mended_ms=None if mended_ms is None else int(mended_ms))  # type: ignore[arg-type]
