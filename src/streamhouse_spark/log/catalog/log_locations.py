"""Logs in another store than their warehouse: the property ``table.log.location``.

The log of such a table, all of ``tables/<uuid>/``, has the same keys under another root. In the warehouse,
``tables/<uuid>/location.json`` names that root. The form of the uuid shows whether that file exists, so that opening
other tables sends no request. Under the other root, ``tables/<uuid>/owner.json`` names the warehouse and its URL. Only
that warehouse may write the log. A copy of the warehouse names the same root and would otherwise write to the
original's logs.

Both objects are put before the table's first record. Like the tombstone, they remain when the table's files are
deleted. Pointers to such a table have a format version that older releases reject.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from streamhouse_spark.config.table_properties import LOG_LOCATION
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import (
    OWNER_NAME,
    WAREHOUSE_KEY,
    canonical_root,
    is_in_log,
    is_same_place,
    is_within,
    log_location_key,
    log_owner_key,
    make_external_log_uuid,
    parse_external_log_uuid,
)
from streamhouse_spark.errors import CorruptDataError, InvalidOptionError, ObjectNotFoundError, WarehouseMovedError
from streamhouse_spark.log.catalog.names import read_warehouse_file
from streamhouse_spark.log.framing import decode_frame, encode_frame
from streamhouse_spark.storage.base import Storage, object_exists, read_or_none
from streamhouse_spark.storage.factory import open_storage
from streamhouse_spark.storage.prefetch import SupportsBatchReads
from streamhouse_spark.storage.put_if_absent import Slot
from streamhouse_spark.storage.routing import RoutingStorage, make_routing_storage

SETTINGS_PREFIX: Final = "log."
"""Prefix of settings for the stores of logs: ``log.s3.endpoint``."""
_FAMILIES: Final = ("s3.", "gcs.", "adls.", "hdfs.", "storage.")

Opener = Callable[[str], Storage]


def log_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the stores of logs. Raises `InvalidOptionError` for a setting of an unknown kind of store.

    By default they are the warehouse's settings. If a kind of store has settings with the prefix ``log.``, only these
    apply to it, so that credentials of one store are not sent to another store.
    """
    own = {name.removeprefix(SETTINGS_PREFIX): v for name, v in settings.items() if name.startswith(SETTINGS_PREFIX)}
    for name in own:
        if not name.startswith(_FAMILIES):
            raise InvalidOptionError(
                f"unknown setting {SETTINGS_PREFIX}{name}: settings under {SETTINGS_PREFIX} must start with "
                f"{', '.join(_FAMILIES)}"
            )
    replaced = tuple(family for family in _FAMILIES if any(name.startswith(family) for name in own))
    shared = {name: v for name, v in settings.items() if not name.startswith((SETTINGS_PREFIX, *replaced))}
    return shared | own


@dataclass(frozen=True, slots=True)
class _Owner:
    """The warehouse that a log belongs to."""

    warehouse_id: str
    url: str
    """The URL of the warehouse."""
    table_uuid: str

    def to_bytes(self) -> bytes:
        return encode_frame("owner", {"warehouse": self.warehouse_id, "url": self.url, "table": self.table_uuid})


def _read_owner(storage: Storage, table_uuid: str) -> _Owner:
    """Read the owner of a log. Raises `ObjectNotFoundError`, `CorruptDataError`, `FormatVersionError`."""
    key = log_owner_key(table_uuid)
    header = decode_frame("owner", storage.read(key), f"{storage.url}/{key}").header
    return _Owner(header["warehouse"], header["url"], header["table"])


@dataclass(slots=True)
class _LogLocation:
    storage: Storage
    warehouse_id: str
    is_ours: bool = False
    """Whether the owner was read and is this warehouse at this URL."""


class LogLocationResolver:
    """Resolves keys of logs in other stores, for `RoutingStorage`. Each location is read once. Thread-safe."""

    def __init__(self, home: Storage, settings: Mapping[str, str], world: World, opener: Opener | None = None) -> None:
        self._home = home
        self._settings = dict(settings)
        self._world = world
        self._opener = opener
        self._locations: dict[str, _LogLocation] = {}
        self._stores: dict[str, Storage] = {}

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the settings, which may hold credentials, but no resolved locations."""
        return LogLocationResolver, (self._home, self._settings, World(), self._opener)

    def place(self, key: str) -> Storage | None:
        place = self._place_of(key)
        return place.storage if place is not None else None

    def writable_place(self, key: str) -> Storage | None:
        """Return the store for writes. Raises the errors of `require_owned`."""
        place = self._place_of(key)
        if place is None:
            return None
        if not place.is_ours:
            self.require_owned(parse_external_log_uuid(key) or "")
        return place.storage

    def look_up(self, keys: Sequence[str]) -> None:
        uuids = dict.fromkeys(
            uuid for key in keys if (uuid := parse_external_log_uuid(key)) and uuid not in self._locations
        )
        if len(uuids) > 1 and isinstance(self._home, SupportsBatchReads):
            for uuid, data in zip(uuids, self._home.read_many([log_location_key(u) for u in uuids]), strict=True):
                if data is not None:
                    self._keep(uuid, data)

    def is_hidden(self, key: str) -> bool:
        return key.endswith(f"/{OWNER_NAME}")

    def open(self, url: str) -> Storage:
        """Return the store at a location. Raises the errors of `open_storage`."""
        if url not in self._stores:
            opened = self._opener(url) if self._opener else open_storage(url, log_settings(self._settings), self._world)
            self._stores.setdefault(url, opened)
        return self._stores[url]

    def require_fit(self, text: str) -> Storage:
        """Return the store at the location for a new table's log, after a test of its put-if-absent.

        Raises `InvalidOptionError`, or `StorageError` for a store that is unreachable or unsuitable.
        """
        try:
            store = self.open(text)
        except InvalidOptionError as error:
            raise InvalidOptionError(f"{LOG_LOCATION}: {error}") from error
        home, url = self._home.url, store.url
        if is_within(url, home) or is_within(home, url):
            raise _unusable_location_error(
                url, f"overlaps the warehouse {home}", "choose a location outside the warehouse"
            )
        if is_in_log(url):
            raise _unusable_location_error(
                url, "is in the log of a table", "choose the folder above tables/, which tables may share"
            )
        for name, value in self._settings.items():
            if name.startswith("lake.") and name.endswith(".warehouse") and (is_within(url, value) or url == value):
                raise _unusable_location_error(
                    url, f"is in the lake's location, {name}", "choose a location outside the lake"
                )
        if object_exists(store, WAREHOUSE_KEY):
            raise _unusable_location_error(
                url, "is a warehouse, whose maintenance would delete the log", "choose another location"
            )
        store.check_writable()
        return store

    def begin(self, uuid: str, text: str) -> None:
        """Place the log of a new table at a location. Raises `StorageError` if the outcome is unknown."""
        store = self.open(text)
        file = read_warehouse_file(self._home)
        if file is None:
            raise CorruptDataError(f"{self._home.url} no longer holds {WAREHOUSE_KEY}; was the warehouse deleted?")
        header = {"table": uuid, "warehouse": file.id, "url": canonical_root(store.url)}
        where = f"{self._home.url}/{log_location_key(uuid)}"

        def stored() -> dict[str, str]:
            return decode_frame("location", self._home.read(log_location_key(uuid)), where).header

        Slot(self._home, log_location_key(uuid), stored, header.__eq__).take(encode_frame("location", header)).won()
        owner = _Owner(file.id, canonical_root(self._home.url), uuid)
        slot = Slot(store, log_owner_key(uuid), lambda: _read_owner(store, uuid), owner.__eq__)
        if not slot.take(owner.to_bytes()).won():
            raise _foreign_location_error(store, uuid)
        self._locations[uuid] = _LogLocation(store, file.id, is_ours=True)

    def require_owned(self, uuid: str) -> None:
        """Require that the log belongs to this warehouse, at this URL.

        Raises `WarehouseMovedError`, `CorruptDataError`.
        """
        place = self._place(uuid)
        if place is None:
            return
        owner = self._owner(place, uuid)
        if not is_same_place(owner.url, self._home.url):
            raise WarehouseMovedError(
                f"the log of table {uuid} at {place.storage.url} belongs to the warehouse at {owner.url}, which is "
                f"opened at {self._home.url}: it can be read but not written; if it was moved here, run "
                f"`streamhouse -w {self._home.url} relocate`; if it is a copy, run "
                f"`streamhouse -w {self._home.url} relocate --copy`, which copies the log into the warehouse"
            )
        place.is_ours = True

    def take_over(self, uuid: str) -> None:
        """Record the current URL of the moved warehouse as the log's owner."""
        place = self._place(uuid)
        if place is not None and not is_same_place((owner := self._owner(place, uuid)).url, self._home.url):
            moved = _Owner(owner.warehouse_id, canonical_root(self._home.url), uuid)
            place.storage.put(log_owner_key(uuid), moved.to_bytes())

    def stores(self) -> list[Storage]:
        """Return the opened stores of logs."""
        return list(self._stores.values())

    def _owner(self, place: _LogLocation, uuid: str) -> _Owner:
        try:
            owner = _read_owner(place.storage, uuid)
        except ObjectNotFoundError as error:
            raise CorruptDataError(
                f"{place.storage.url}/{log_owner_key(uuid)} is missing: the log of table {uuid} was deleted or moved "
                f"by hand; restore {place.storage.url}"
            ) from error
        if (owner.warehouse_id, owner.table_uuid) != (place.warehouse_id, uuid):
            raise _foreign_location_error(place.storage, uuid)
        return owner

    def _place_of(self, key: str) -> _LogLocation | None:
        uuid = parse_external_log_uuid(key)
        return self._place(uuid) if uuid is not None else None

    def _place(self, uuid: str) -> _LogLocation | None:
        if uuid not in self._locations:
            data = read_or_none(self._home, log_location_key(uuid))
            if data is None:
                return None
            self._keep(uuid, data)
        return self._locations[uuid]

    def _keep(self, uuid: str, data: bytes) -> None:
        header = decode_frame("location", data, f"{self._home.url}/{log_location_key(uuid)}").header
        if header["table"] != uuid:
            raise CorruptDataError(f"{self._home.url}/{log_location_key(uuid)} is of another table; restore this file")
        self._locations.setdefault(uuid, _LogLocation(self.open(header["url"]), header["warehouse"]))


def make_log_routing_storage(storage: Storage, settings: Mapping[str, str], world: World) -> RoutingStorage:
    """Return a warehouse's store that routes each table's log to its location, unless ``storage`` does so already."""
    if isinstance(storage, RoutingStorage):
        return storage
    log_settings(settings)  # rejects an unknown name before such a table is opened
    return make_routing_storage(storage, LogLocationResolver(storage, settings, world))


def log_locations_of(storage: Storage) -> LogLocationResolver | None:
    """Return the resolver of a warehouse's store; None for a plain store."""
    places = storage.places if isinstance(storage, RoutingStorage) else None
    return places if isinstance(places, LogLocationResolver) else None


def require_log_location(storage: Storage, properties: Mapping[str, str]) -> None:
    """Validate the property for a new table's log, if it is set. Raises the errors of
    `LogLocationResolver.require_fit`.

    Writes only the objects of the put-if-absent test.
    """
    text = properties.get(LOG_LOCATION)
    if text is not None:
        _require_resolver(storage).require_fit(text.strip())


def create_table_uuid(storage: Storage, world: World, properties: Mapping[str, str]) -> str:
    """Return a uuid for a new table, after placing its log at the location in the properties.

    A crash after this leaves two small orphan objects.
    """
    uuid, text = world.ids.new_uuid(), properties.get(LOG_LOCATION)
    if text is not None:
        uuid = make_external_log_uuid(uuid)
        _require_resolver(storage).begin(uuid, text.strip())
    return uuid


def _require_resolver(storage: Storage) -> LogLocationResolver:
    places = log_locations_of(storage)
    if places is None:
        raise InvalidOptionError(
            f"{LOG_LOCATION} is not supported by a store that was opened without a warehouse ({storage.url}); use a "
            "Warehouse"
        )
    return places


def _unusable_location_error(url: str, why: str, remedy: str) -> InvalidOptionError:
    return InvalidOptionError(f"{LOG_LOCATION} {url} {why}; {remedy}; nothing was written")


def _foreign_location_error(storage: Storage, uuid: str) -> CorruptDataError:
    return CorruptDataError(
        f"the log at {storage.url} belongs to another warehouse or table, as {log_owner_key(uuid)} shows; restore the "
        "location.json of this warehouse"
    )
