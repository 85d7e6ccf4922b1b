"""The identity of a warehouse: ``streamhouse.json`` holds its id and the URL that it was written at.

Lake metadata names files by absolute URLs, and a copy of a warehouse has the ids of its original. A warehouse that is
opened at another URL is therefore readable, and its log is writable, because the log lies below the opened root. Its
lake is read-only until the warehouse is relocated. An older file without a URL counts as opened at its URL, unless its
lake tables name another root.
"""

from __future__ import annotations

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.paths import WAREHOUSE_KEY
from streamhouse_spark.core.uris import is_same_place, plain_root
from streamhouse_spark.errors import ObjectNotFoundError, WarehouseMovedError
from streamhouse_spark.log.commits.framing import decode_frame, encode_frame
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import Prefetch


@dataclass(frozen=True, slots=True)
class WarehouseMetadata:
    id: str
    url: str | None = None
    """The URL at which the warehouse was created, or to which it was last relocated."""

    def to_bytes(self) -> bytes:
        header = {"id": self.id} if self.url is None else {"id": self.id, "url": self.url}
        return encode_frame("warehouse", header)


def new_warehouse_file(storage: Storage, warehouse_id: str) -> WarehouseMetadata:
    """Return the file of a new warehouse at the opened root."""
    return WarehouseMetadata(warehouse_id, plain_root(storage.url))


def read_warehouse_file(storage: Storage, ahead: Prefetch | None = None) -> WarehouseMetadata | None:
    """Read the file; None if there is no warehouse. Raises `CorruptDataError`, `FormatVersionError`."""
    try:
        data = storage.read(WAREHOUSE_KEY) if ahead is None else ahead.read(WAREHOUSE_KEY)
    except ObjectNotFoundError:
        return None
    header = decode_frame("warehouse", data, f"{storage.url}/{WAREHOUSE_KEY}").header
    return WarehouseMetadata(header["id"], header.get("url"))


class WarehouseIdentity:
    """Checks whether the warehouse is opened at its recorded URL, which is read once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._is_known = False

    def require(self, doing: str, recorded: str | None = None) -> None:
        """Raise `WarehouseMovedError` for a write to the lake of a moved warehouse.

        ``recorded`` is the root that the lake's own metadata names.
        """
        opened = self._storage.url
        if recorded is not None and not is_same_place(recorded, opened):
            raise warehouse_moved_error(doing, recorded, opened)
        if self._is_known:
            return
        identity = read_warehouse_file(self._storage)
        if identity is not None and identity.url is not None and not is_same_place(identity.url, opened):
            raise warehouse_moved_error(doing, identity.url, opened)
        self._is_known = True


def warehouse_moved_error(doing: str, recorded: str, opened: str) -> WarehouseMovedError:
    return WarehouseMovedError(
        f"{doing}: the warehouse was written at {recorded} and is opened at {opened}, so its lake can be read and not "
        f"be written; if it was moved here, run `streamhouse -w {opened} relocate`; if it is a copy, run "
        f"`streamhouse -w {opened} relocate --copy`, which gives it ids of its own; if both are one directory, seen "
        "from elsewhere (a container), open it by the first"
    )
