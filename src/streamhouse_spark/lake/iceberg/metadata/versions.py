"""The numbered metadata files of Iceberg tables in a storage: their keys, and the newest one of a table.

`catalog` says which files there are. Nothing here needs Iceberg's library, so that a query that only has to know the
newest snapshot does not load it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamhouse_spark.errors import ObjectNotFoundError, StorageError
from streamhouse_spark.lake.model.marks import LakeMarks
from streamhouse_spark.log.commits.chains import last_reached
from streamhouse_spark.storage.base import Storage

DROPPED: Final = 10**20 - 1


@dataclass(frozen=True, slots=True)
class MetadataVersion:
    """One version of a table's metadata, as it is stored."""

    number: int
    data: bytes
    hint: int | None
    """The version of which the hint said that it is the newest, if the hint was read."""

    def marks(self, key: str) -> LakeMarks:
        """Return the objects by which the next change of the table ``key`` shows."""
        there, absent = version_key(key, self.number), version_key(key, self.number + 1)
        return LakeMarks((there,), (absent, floor_key(key, DROPPED)))


def newest_version(storage: Storage, key: str, *, from_number: int | None = None) -> MetadataVersion | None:
    """Return the newest version of the table ``key``: never an older one, however wrong the hint is; None if there is
    no table.
    """
    hint = version_hint(storage, key) if from_number is None else None
    start = from_number or hint or 1
    while True:
        found = _read_forward(storage, key, start)
        floor = newest_floor(storage, key)
        if floor == DROPPED or (found is None and start == max(floor, 1)):
            return None
        if found is not None and floor <= found[0]:
            return MetadataVersion(*found, hint)
        start = max(floor, 1)


def _read_forward(storage: Storage, key: str, start: int) -> tuple[int, bytes] | None:
    """Return version ``start`` or its newest successor; None if ``start`` is absent.

    Versions are deleted oldest first, so none is missing between two existing ones.
    """

    def read(number: int) -> tuple[int, bytes] | None:
        try:
            return number, storage.read(version_key(key, number))
        except ObjectNotFoundError:
            return None

    found = read(start)
    return None if found is None else last_reached(read, start, found)


def version_hint(storage: Storage, key: str) -> int | None:
    try:
        number = int(storage.read(hint_key(key)))
    except (StorageError, ValueError):
        return None
    return number if number > 0 else None


def newest_floor(storage: Storage, key: str) -> int:
    return max((int(name) for name in storage.list_names(floors_prefix(key)) if name.isdigit()), default=0)


def version_key(key: str, number: int) -> str:
    return f"{key}/metadata/v{number}.metadata.json"


def hint_key(key: str) -> str:
    return f"{key}/metadata/version-hint.text"


def floors_prefix(key: str) -> str:
    return f"{key}/metadata/floors/"


def floor_key(key: str, number: int) -> str:
    return f"{floors_prefix(key)}{number:020d}"
