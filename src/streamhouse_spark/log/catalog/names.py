"""The warehouse file, databases, and the pointers from names to tables and SQL views.

A table *is* its uuid. A name is a chain of put-if-absent pointers; the last pointer counts. **Commit point** of
creating a name: the pointer. **Commit point** of dropping a table: the drop record in its log. A pointer to nothing is
put after the drop record. A crash between the two needs no repair, because a pointer to a dropped table is void.

A pointer counts only while the table itself has that name. Renaming therefore has one **commit point**, the rename
record in the table's log. The new name's pointer is put before it, and the old name's pointer to nothing after it. A
crash at any point leaves exactly one valid name. Before a process takes a name whose pointer does not count, it aborts
a rename in progress by a record in that table's log (see `log.catalog.name_changes`).

A view has no uuid: it *is* its pointer, which holds the query.

Lake metadata names files by absolute URLs, and a copy of a warehouse has the ids of its original. If a warehouse is
opened at another URL than ``streamhouse.json`` records, its lake is therefore read-only until the warehouse is
relocated. Its log is readable and writable, because it lies below the opened root. If an older ``streamhouse.json`` has
no URL, only the roots that lake tables name are checked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Final

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import (
    RESERVED_DATABASES,
    WAREHOUSE_KEY,
    canonical_root,
    database_key,
    is_same_place,
    is_table_name,
    may_have_external_log,
    name_key,
    parse_name_key,
    parse_table_name,
)
from streamhouse_spark.errors import (
    InvalidNameError,
    ObjectNotFoundError,
    StreamhouseError,
    WarehouseMovedError,
    WarehouseNotFoundError,
)
from streamhouse_spark.log.framing import decode_frame, encode_frame
from streamhouse_spark.storage.base import Storage, object_exists
from streamhouse_spark.storage.prefetch import Prefetch, map_with_store_concurrency
from streamhouse_spark.storage.put_if_absent import Slot, ensure_stored
from streamhouse_spark.storage.sequence_search import CHAIN_AHEAD, find_last_object

logger = logging.getLogger(__name__)

PLACED_VERSION: Final = 2
"""Format of a pointer to a table whose log is in another store: older releases would search it in the warehouse."""
VIEW_VERSION: Final = 3
"""Format of a pointer to a view, which older releases would treat as a pointer to nothing."""
_POINTERS_TO_NAME: Final = 2
"""Pointers that are prefetched before a table is created. They suffice for most names, which are new."""


@dataclass(frozen=True, slots=True)
class WarehouseMetadata:
    id: str
    url: str | None = None
    """The URL at which the warehouse was created, or to which it was last relocated."""

    def to_bytes(self) -> bytes:
        header = {"id": self.id} if self.url is None else {"id": self.id, "url": self.url}
        return encode_frame("warehouse", header)


def read_warehouse_file(storage: Storage, prefetch: Prefetch | None = None) -> WarehouseMetadata | None:
    """Read the file; None if there is no warehouse. Raises `CorruptDataError`, `FormatVersionError`."""
    try:
        data = storage.read(WAREHOUSE_KEY) if prefetch is None else prefetch.read(WAREHOUSE_KEY)
    except ObjectNotFoundError:
        return None
    header = decode_frame("warehouse", data, f"{storage.url}/{WAREHOUSE_KEY}").header
    return WarehouseMetadata(header["id"], header.get("url"))


class WarehouseIdentity:
    """Checks whether the warehouse is opened at its recorded URL, which is read once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._is_known = False

    def require(self, action: str, recorded: str | None = None) -> None:
        """Raise `WarehouseMovedError` for a write to the lake of a moved warehouse.

        ``recorded`` is the root that the lake's own metadata names.
        """
        opened = self._storage.url
        if recorded is not None and not is_same_place(recorded, opened):
            raise warehouse_moved_error(action, recorded, opened)
        if self._is_known:
            return
        identity = read_warehouse_file(self._storage)
        if identity is not None and identity.url is not None and not is_same_place(identity.url, opened):
            raise warehouse_moved_error(action, identity.url, opened)
        self._is_known = True


def warehouse_moved_error(action: str, recorded: str, opened: str) -> WarehouseMovedError:
    return WarehouseMovedError(
        f"{action}: the warehouse was written at {recorded} and is opened at {opened}, so its lake can be read but not "
        f"written; if it was moved here, run `streamhouse -w {opened} relocate`; if it is a copy, run "
        f"`streamhouse -w {opened} relocate --copy`, which gives it new ids; if both URLs are one directory, for "
        "example in a container, open it by the first URL"
    )


@dataclass(frozen=True, slots=True)
class ViewEntry:
    """A named query, as Spark describes it."""

    text: str
    """The query text. Names in it are resolved in ``catalog`` and ``namespace``."""
    schema: str
    """The columns as the JSON of a ``StructType``."""
    catalog: str | None = None
    namespace: tuple[str, ...] = ()
    query_columns: tuple[str, ...] = ()
    """The column names of the query itself; empty if the view uses them unchanged."""
    schema_mode: str | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    """The SQL settings that the query was created with."""
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> ViewEntry:
        return cls(
            header["text"],
            header["schema"],
            header["catalog"],
            tuple(header["namespace"]),
            tuple(header["query_columns"]),
            header["schema_mode"],
            header["configs"],
            header["properties"],
        )


@dataclass(frozen=True, slots=True)
class ViewRename:
    """The rename of a view: it commits with pointer ``number`` of ``old``, if that has this ``attempt``."""

    old: str
    number: int
    attempt: str


@dataclass(frozen=True, slots=True)
class NamePointer:
    """The last pointer of a name: to a table ``uuid``, a ``view``, or nothing. ``number`` is 0 without a pointer."""

    number: int
    uuid: str | None
    moved_to: str | None = None
    """The new name of the table or view, if a rename freed this name."""
    view: ViewEntry | None = None
    renaming: ViewRename | None = None
    """A rename in progress that may give this name to a view. The name points to nothing until then."""


@dataclass(frozen=True, slots=True)
class DatabasePointer:
    """The latest pointer file of a database: whether the database exists. ``number`` is 0 without a file."""

    name: str
    number: int
    exists: bool
    comment: str | None = None


def require_warehouse(storage: Storage, prefetch: Prefetch | None = None) -> None:
    """Raise `WarehouseNotFoundError` if there is no warehouse, `FormatVersionError` for a newer one."""
    if read_warehouse_file(storage, prefetch) is None:
        raise WarehouseNotFoundError(
            f"{storage.url} holds no streamhouse.json, so it is not a warehouse; check the path, or create one with "
            "`streamhouse create <database>.<table> …` or Warehouse(path).create_table(…)",
        )


def create_warehouse(
    storage: Storage, world: World, *, around: str | None = None, prefetch: Prefetch | None = None
) -> None:
    """Create a warehouse at the location unless it is one. Rejects a location with other files.

    Only a folder named ``around`` is allowed.
    """
    if read_warehouse_file(storage, prefetch) is not None:
        return
    storage.check_writable()
    foreign = [name for name in storage.list_names("") if name not in (WAREHOUSE_KEY, "lost+found", around)]
    if foreign and read_warehouse_file(storage) is None:
        raise WarehouseNotFoundError(
            f"cannot create a warehouse at {storage.url}: found {', '.join(foreign[:5])}, expected an empty location; "
            "nothing was written, choose an empty or new directory",
        )
    ensure_stored(
        storage, WAREHOUSE_KEY, WarehouseMetadata(world.ids.new_uuid(), canonical_root(storage.url)).to_bytes()
    )


def create_database(storage: Storage, database: str, world: World, *, comment: str | None = None) -> bool:
    """Create the database. Return False if it exists."""
    while not (pointer := resolve_database(storage, database)).exists:
        if put_database_pointer(storage, pointer, world, exists=True, comment=comment):
            return True
    return False


def prepare_name(storage: Storage, world: World, path: TablePath) -> tuple[DatabasePointer, NamePointer]:
    """Create the warehouse and the database of a name if needed. Return the pointers of the database and the name.

    Warehouse, database and name are read in the time of one request. Raises the errors of `create_warehouse` and
    `resolve`.
    """
    prefetch = Prefetch(storage)
    pointers = (name_key(path, number) for number in range(1, 1 + _POINTERS_TO_NAME))
    prefetch.expect([WAREHOUSE_KEY, *_first_files(path.database), *pointers])
    create_warehouse(storage, world, prefetch=prefetch)
    database = resolve_database(storage, path.database, prefetch)
    while not database.exists:
        is_won = put_database_pointer(storage, database, world, exists=True)
        created = DatabasePointer(database.name, database.number + 1, exists=True)
        database = created if is_won else resolve_database(storage, path.database)
    return database, resolve(storage, path, prefetch)


def _first_files(database: str) -> list[str]:
    """Return the keys that are read for a database that was never changed."""
    return [database_key(database, 1), database_key(database, 2)]


def resolve_database_in_one_request(storage: Storage, database: str) -> DatabasePointer:
    """Resolve a database in the time of one request. Raises the errors of `require_warehouse`, `resolve_database`."""
    prefetch = Prefetch(storage)
    prefetch.expect([WAREHOUSE_KEY, *_first_files(database)])
    require_warehouse(storage, prefetch)
    return resolve_database(storage, database, prefetch)


def ensure_database(storage: Storage, world: World, database: DatabasePointer) -> None:
    """Recreate the database if it was dropped since ``database`` was read. Otherwise sends one request."""
    if object_exists(storage, database_key(database.name, database.number + 1)):
        create_database(storage, database.name, world)


def resolve_database(storage: Storage, database: str, prefetch: Prefetch | None = None) -> DatabasePointer:
    """Return the last pointer of the database. Raises `FormatVersionError` for a newer format."""
    if prefetch is None:
        prefetch = Prefetch(storage)
        prefetch.expect(_first_files(database))
    number, data = find_last_object(storage, lambda n: database_key(database, n), prefetch)
    if not number:
        return DatabasePointer(database, 0, exists=False)
    header = decode_frame("database", data, f"{storage.url}/{database_key(database, number)}").header
    return DatabasePointer(database, number, exists=bool(header.get("exists", True)), comment=header.get("comment"))


def put_database_pointer(
    storage: Storage, previous: DatabasePointer, world: World, *, exists: bool, comment: str | None = None
) -> bool:
    """Put the next pointer of the database after ``previous``. Return False if another process won the race."""
    header: dict[str, Any] = {"name": previous.name}
    if previous.number or comment is not None:  # the first file may have no fields: it creates the database
        header |= {"exists": exists, "comment": comment, "attempt": world.ids.new_uuid()}
    key = database_key(previous.name, previous.number + 1)

    def stored() -> dict[str, Any]:
        return decode_frame("database", storage.read(key), f"{storage.url}/{key}").header

    return Slot(storage, key, stored, header.__eq__).take(encode_frame("database", header)).won()


def database_exists(storage: Storage, database: str) -> bool:
    """Return whether the database exists. Raises `FormatVersionError` for a database of a newer format."""
    return resolve_database(storage, database).exists


def list_databases(storage: Storage) -> list[str]:
    """Return the names of existing databases."""
    names = list_database_folders(storage)
    are_databases = map_with_store_concurrency(storage, lambda name: is_listed(storage, name), names)
    return [name for name, is_database in zip(names, are_databases, strict=True) if is_database]


def list_database_folders(storage: Storage) -> list[str]:
    """Return the folders of databases, including dropped ones."""
    return [n for n in storage.list_names("") if n not in RESERVED_DATABASES and n != WAREHOUSE_KEY]


def is_listed(storage: Storage, database: str) -> bool:
    """Return whether the database exists. Logs an unreadable database and returns True, so that listings continue."""
    try:
        return database_exists(storage, database)
    except StreamhouseError as error:
        logger.warning("database %s cannot be read: %s", database, error)
        return True


def iter_table_names(storage: Storage, paths: Sequence[TablePath]) -> Iterator[tuple[TablePath, NamePointer | None]]:
    """Yield the names that point to a table, with None for an unreadable pointer, which is logged."""
    return (
        (path, pointer)
        for path, pointer in _resolve_names(storage, paths)
        if pointer is None or pointer.uuid is not None
    )


def list_paths(storage: Storage, database: str) -> list[TablePath]:
    """Return all names in a database, also those of views and of dropped tables, with one listing."""
    return [TablePath(database, name) for name in storage.list_names(f"{database}/") if is_table_name(name)]


def list_views(storage: Storage, database: str) -> Iterator[TablePath]:
    """Yield the names of a database that point to a view, sorted."""
    pointers = _resolve_names(storage, list_paths(storage, database))
    return (path for path, pointer in pointers if pointer is not None and pointer.view is not None)


def _resolve_names(storage: Storage, paths: Sequence[TablePath]) -> Iterator[tuple[TablePath, NamePointer | None]]:
    prefetch = Prefetch(storage)
    prefetch.expect(name_key(path, number) for path in paths for number in range(1, CHAIN_AHEAD + 1))
    for path in paths:
        try:
            yield path, resolve(storage, path, prefetch)
        except StreamhouseError as error:
            logger.warning("the name %s cannot be read: %s", path, error)
            yield path, None


def list_pointers(storage: Storage, database: str) -> dict[TablePath, int]:
    """Return the number of each name's last pointer, with one listing: a hint that shows which names changed."""
    numbers: dict[TablePath, int] = {}
    for info in storage.list(f"{database}/"):
        match = parse_name_key(info.key)
        if match is not None:
            path, number = match
            numbers[path] = max(number, numbers.get(path, 0))
    return numbers


def resolve(storage: Storage, path: TablePath, prefetch: Prefetch | None = None) -> NamePointer:
    """Return the last pointer of the name. Raises `CorruptDataError` if the pointer is damaged."""
    number, data = find_last_object(storage, lambda n: name_key(path, n), prefetch)
    if not number:
        return NamePointer(0, None)
    header = _decode_pointer(storage, path, number, data)
    if "view" in header:
        return _view_pointer(storage, number, header)
    return NamePointer(number, header["uuid"], header.get("moved_to"))


def _view_pointer(storage: Storage, number: int, header: dict[str, Any]) -> NamePointer:
    """Return a pointer to a view. While the view is being renamed to this name, it points to nothing."""
    view = ViewEntry.from_header(header["view"])
    if "renaming" not in header:
        return NamePointer(number, None, view=view)
    renaming = ViewRename(**header["renaming"])
    moved = _has_moved(storage, renaming)
    if moved is None:
        return NamePointer(number, None, renaming=renaming)
    return NamePointer(number, None, view=view if moved else None)


def _has_moved(storage: Storage, renaming: ViewRename) -> bool | None:
    """Return whether the view was renamed; None while the rename is in progress."""
    old = parse_table_name(renaming.old).path
    try:
        return bool(_read_pointer(storage, old, renaming.number)["attempt"] == renaming.attempt)
    except ObjectNotFoundError:
        return None


def abort_view_rename(storage: Storage, world: World, renaming: ViewRename) -> bool:
    """Abort a rename of a view by putting a pointer of its old name. Return False if the view was already renamed."""
    old = parse_table_name(renaming.old).path
    current = resolve(storage, old)
    if current.number < renaming.number:
        put_name_pointer(storage, old, current, None, world, view=current.view)
    return _has_moved(storage, renaming) is False


def resolve_in_one_request(storage: Storage, path: TablePath) -> NamePointer:
    """Resolve a name in the time of one request. Raises the errors of `require_warehouse` and `resolve`."""
    prefetch = Prefetch(storage)
    prefetch.expect([WAREHOUSE_KEY, *(name_key(path, number) for number in range(1, CHAIN_AHEAD + 1))])
    require_warehouse(storage, prefetch)
    return resolve(storage, path, prefetch)


def damaged_pointer_placeholder(storage: Storage, path: TablePath) -> NamePointer:
    """Return a placeholder for an unreadable last pointer, for callers that overwrite it."""
    return NamePointer(find_last_object(storage, lambda n: name_key(path, n))[0], None)


def find_other_table(storage: Storage, path: TablePath, uuid: str) -> str | None:
    """Return the last table other than ``uuid`` that the name pointed to; None if there was none.

    Pointers are never deleted. They are read backwards up to the first pointer to another table.
    """
    number, data = find_last_object(storage, lambda n: name_key(path, n))
    pointer = _decode_pointer(storage, path, number, data) if number else None
    while pointer is not None:
        pointer_uuid: str | None = pointer["uuid"]
        if pointer_uuid not in (None, uuid):
            return pointer_uuid
        number -= 1
        try:
            pointer = _read_pointer(storage, path, number) if number else None
        except ObjectNotFoundError:
            return None
    return None


def iter_pointed_tables(storage: Storage, path: TablePath) -> Iterator[str]:
    """Yield the tables that the name points to or pointed to, the latest first, back to a pointer to nothing."""
    number, data = find_last_object(storage, lambda n: name_key(path, n))
    while number:
        uuid: str | None = _decode_pointer(storage, path, number, data)["uuid"]
        if uuid is None:
            return
        yield uuid
        number -= 1
        data = storage.read(name_key(path, number)) if number else b""


def put_name_pointer(
    storage: Storage,
    path: TablePath,
    previous: NamePointer,
    uuid: str | None,
    world: World,
    *,
    moved_to: TablePath | None = None,
    view: ViewEntry | None = None,
    renaming: ViewRename | None = None,
    attempt: str | None = None,
) -> bool:
    """Put the next pointer of the name after ``previous``: to ``uuid``, to the ``view`` or to nothing.

    Returns False if another process won the race. With a ``renaming`` the name points to the view once the rename has
    committed.
    """
    number = previous.number + 1
    attempt = attempt or world.ids.new_uuid()
    header: dict[str, Any] = {"name": str(path), "uuid": uuid, "attempt": attempt}
    if moved_to is not None:
        header["moved_to"] = str(moved_to)
    if view is not None:
        header["view"] = asdict(view)
    if renaming is not None:
        header["renaming"] = asdict(renaming)
    slot = Slot(
        storage,
        name_key(path, number),
        lambda: _read_pointer(storage, path, number),
        lambda stored: bool(stored["attempt"] == attempt),
    )
    placed = PLACED_VERSION if uuid is not None and may_have_external_log(uuid) else None
    version = VIEW_VERSION if view is not None else placed
    return slot.take(encode_frame("name", header, version=version)).won()


def _read_pointer(storage: Storage, path: TablePath, number: int) -> dict[str, Any]:
    """Read a pointer. Raises `ObjectNotFoundError`."""
    return _decode_pointer(storage, path, number, storage.read(name_key(path, number)))


def _decode_pointer(storage: Storage, path: TablePath, number: int, data: bytes) -> dict[str, Any]:
    where = f"{storage.url}/{name_key(path, number)}"
    header = decode_frame("name", data, where, newest=VIEW_VERSION).header
    if header["name"] != str(path):
        raise InvalidNameError(f"{where} is a pointer of {header['name']}: a folder was renamed by hand")
    return header
