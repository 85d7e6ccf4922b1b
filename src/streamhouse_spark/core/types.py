"""Frozen value types that all layers share."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidNameError, InvalidOptionError, quote

CONSUMER_EPOCHS: Final = "streamhouse.consumer."
"""Prefix of the application ids under which a log records the epochs of the followers that hold a consumer."""
IDENTITY_NUMBERS: Final = "streamhouse.identity."
"""Prefix of the application ids that record allocated identity numbers."""
PUBLICATIONS: Final = "streamhouse.branch."
"""Prefix of the application ids that record publications of branches."""
REQUESTS: Final = "streamhouse.request."
"""Prefix of the application ids of requests with an idempotency key, followed by the digest of the key."""
ROLLBACKS: Final = "streamhouse.rollback."
"""Prefix of the application ids of rollbacks, whose versions are those of the restored states."""
_RESERVED: Final = {
    CONSUMER_EPOCHS: "record which process holds a consumer",
    IDENTITY_NUMBERS: "record allocated identity numbers",
    PUBLICATIONS: "record publications of branches",
    REQUESTS: "belong to requests with an Idempotency-Key",
    ROLLBACKS: "record rollbacks",
}

_DIGEST: Final = re.compile("[0-9a-f]{32}")


class NotAnOffsetRangeError(InvalidOptionError, ValueError):
    """Two numbers are not an offset range. File readers treat this `ValueError` as corruption."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets ``start <= offset < end`` of one bucket."""

    start: int
    end: int

    def __post_init__(self) -> None:
        try:
            if 0 <= self.start <= self.end:
                return
        except (TypeError, ValueError, ArithmeticError):
            pass
        raise NotAnOffsetRangeError(
            f"not an offset range: [{quote(self.start)}, {quote(self.end)}), expected whole numbers 0 <= start <= end",
            condition="INVALID_OPTION",
        )

    def __len__(self) -> int:
        return self.end - self.start

    def __bool__(self) -> bool:
        return self.end > self.start

    def intersect(self, other: OffsetRange) -> OffsetRange:
        """Return the intersection, which may be empty."""
        start = max(self.start, other.start)
        return OffsetRange(start, max(start, min(self.end, other.end)))

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


class BucketOffsets(Mapping[int, OffsetRange]):
    """Bucket → half-open `OffsetRange`, such as the offsets of the rows of an append.

    Buckets without rows are absent. `num_rows` is the total number of rows.
    """

    __slots__ = ("_ranges",)

    def __init__(self, ranges: Mapping[int, OffsetRange]) -> None:
        unchecked: object = ranges
        if not isinstance(unchecked, Mapping) or not all(isinstance(r, OffsetRange) for r in unchecked.values()):
            raise InvalidOptionError(f"offsets are {quote(ranges)}, expected a mapping bucket → OffsetRange")
        try:
            self._ranges = dict(sorted(ranges.items()))
        except TypeError:
            raise InvalidOptionError(f"offsets are {quote(ranges)}, expected bucket numbers as keys") from None

    def __getitem__(self, bucket: int) -> OffsetRange:
        return self._ranges[bucket]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    @property
    def num_rows(self) -> int:
        return sum(len(r) for r in self._ranges.values())

    def __repr__(self) -> str:
        inner = ", ".join(f"{b}: {r}" for b, r in self._ranges.items())
        return f"BucketOffsets({{{inner}}})"


BRANCH_PREFIX: Final = "branch_"
"""Prefix of the branch's name after ``$`` in a path such as ``sales.orders$branch_audit``."""


@dataclass(frozen=True, slots=True, order=True)
class TablePath:
    """``<database>.<table>``, both in lower case, because names are case-insensitive."""

    database: str
    table: str
    """The table's name; for a branch ``<table>$branch_<name>``."""

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def branch(self) -> str | None:
        """The name of the branch; None for a table."""
        return self.table.partition(f"${BRANCH_PREFIX}")[2] or None

    @property
    def base(self) -> TablePath:
        """The path of the table, or of the branch's table."""
        return self if self.branch is None else TablePath(self.database, self.table.partition("$")[0])

    def of_branch(self, name: str) -> TablePath:
        """Return the path of a branch of the table."""
        return TablePath(self.database, f"{self.table}${BRANCH_PREFIX}{name}")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table path with an optional read-only suffix: ``sales.orders$lake$snapshots`` has suffix ``lake$snapshots``.

    A branch has a separate path, and may also have a suffix.
    """

    path: TablePath
    suffix: str | None = None

    def __str__(self) -> str:
        return f"{self.path}${self.suffix}" if self.suffix else str(self.path)

    def require_table(self, action: str) -> TablePath:
        """Return the path of a table. Rejects suffixes and branches."""
        if (path := self.require_rows(action)).branch is not None:
            raise InvalidNameError(
                f"cannot {action} {self}: a branch supports only reads and writes of rows; use {path.base}, or "
                "fast_forward and drop_branch for the branch itself"
            )
        return path

    def require_rows(self, action: str) -> TablePath:
        """Return the path of a writable table or branch. Rejects suffixes, which are read-only."""
        if self.suffix is not None:
            raise InvalidNameError(
                f"cannot {action} {self}: names with a $ suffix are read-only; use {self.path} instead"
            )
        return self.path


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """Metadata of a streaming query's batch. The version of the batch's transaction is the batch number."""

    fingerprint: str | None = None
    """Fingerprint of the offsets that are planned in the query's checkpoint; None if the checkpoint is unreadable."""
    is_each_recorded: bool = False
    """Whether the query also stores empty batches, so that a missing number means missing rows."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The durable identity of a write: ``version`` of ``app_id`` is stored at most once.

    ``app_id`` identifies a writer across restarts: the id of a streaming query, or the option ``txnAppId``. ``version``
    increases: the batch number, or ``txnVersion``. ``owner`` is the query of the application id, if any. A write with
    another owner of the ``app_id`` fails.

    With ``batch``, the version is the batch number of a streaming query. Only the last stored version may be repeated;
    a smaller version is an error. Without ``batch``, as with an explicit ``txnVersion``, smaller versions are skipped.
    """

    app_id: str
    version: int
    owner: str | None = None
    batch: StreamBatch | None = None
    follows: int | None = None
    """The stored version that this version must follow, -1 for an unknown ``app_id``; None for any smaller version.

    Each commit attempt checks it. It is not stored.
    """

    @classmethod
    def of_request(cls, key: str, fingerprint: str) -> Transaction:
        """Return the identity of a request: the digest of its idempotency key, and its fingerprint.

        Both are 16 bytes in hexadecimal. A second request with the key and another fingerprint is an error.
        """
        return cls(REQUESTS + key, 0, batch=StreamBatch(fingerprint))

    @property
    def request_key(self) -> str | None:
        """The digest of the idempotency key; None for a transaction of a writer that counts its versions."""
        if not self.app_id.startswith(REQUESTS):
            return None
        key, fingerprint = self.app_id.removeprefix(REQUESTS), self.batch.fingerprint if self.batch else None
        return key if _DIGEST.fullmatch(key) and _DIGEST.fullmatch(fingerprint or "") else None

    def __post_init__(self) -> None:
        """Raise `InvalidOptionError` for a transaction that a record cannot store or compare."""
        for text in (self.app_id, self.owner):
            if not _is_identity(text) and not (text is None and self.app_id is not None):
                raise InvalidOptionError(
                    f"transaction of {quote(self.app_id)} with owner {quote(self.owner)}: expected non-empty texts"
                )
        if not _is_int64(self.version):
            raise InvalidOptionError(
                f"transaction of {quote(self.app_id)}: version {quote(self.version)}, expected a whole number"
            )
        if self.follows is not None and not _is_int64(self.follows):
            raise InvalidOptionError(
                f"transaction of {quote(self.app_id)}: follows {quote(self.follows)}, expected a whole number or None"
            )


def check_transaction(value: object) -> None:
    """Raise `InvalidOptionError` for a value that is not a transaction, and for a reserved application id."""
    if not isinstance(value, Transaction | None):
        raise InvalidOptionError(f"transaction is {quote(value)}, expected a Transaction(app_id, version) or None")
    if value is not None and value.request_key is None:
        check_app_id(value.app_id)


def check_app_id(app_id: str) -> None:
    """Raise `InvalidOptionError` for a reserved application id."""
    for prefix, purpose in _RESERVED.items():
        if app_id.startswith(prefix):
            raise InvalidOptionError(
                f"transaction of {app_id!r}: application ids with the prefix {prefix} are reserved, because they "
                f"{purpose}; choose another id"
            )


def is_reserved(app_id: str) -> bool:
    """Return whether the application id is for the package's own use, and belongs to no writer."""
    return app_id.startswith(tuple(_RESERVED))


def is_text_list(value: object) -> bool:
    """Return whether the value is a list of names. A single name is not a list."""
    return isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(n, str) for n in value)


def _is_identity(text: object) -> bool:
    return isinstance(text, str) and bool(text) and is_unicode(text)


def _is_int64(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def is_unicode(text: str) -> bool:
    """Return whether the text can be stored. Python's texts may contain lone surrogates, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
