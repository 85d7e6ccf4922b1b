"""The warehouse's own file, databases, and the pointers from names to tables.

A table *is* its uuid; a name is a chain of put-if-absent pointers of which the last one counts. **Commit point** of
creating a name: the pointer. Of dropping a table: the drop record in its log; the pointer to nothing follows, and a
pointer that still names a dropped table means nothing, so a crash between the two is no state of its own.

A pointer counts only while the table itself has that name, so renaming has one **commit point**, the rename record in
the table's log. The new name's pointer is put before it, and the old name's pointer to nothing after it; a crash
anywhere leaves one name that works. A process that takes a name whose pointer does not count ends the renaming that may
be under way, by a record in that table's log, before the pointer goes: see `streamhouse_spark.log.lifecycle.renaming`.

A view has no uuid: it *is* its pointer, which holds the query. See `streamhouse_spark.log.lifecycle.sql_views`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.paths import (
    RESERVED_DATABASES,
    WAREHOUSE_KEY,
    database_key,
    is_placed,
    is_table_name,
    name_key,
    parse_name_key,
    parse_table_name,
)
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.errors import (
    InvalidNameError,
    ObjectNotFoundError,
    StreamhouseError,
    WarehouseNotFoundError,
)
from streamhouse_spark.log.commits.framing import decode_frame, encode_frame
from streamhouse_spark.log.commits.sequence_search import CHAIN_AHEAD, find_last_object
from streamhouse_spark.log.lifecycle.stored_view import ViewEntry, ViewRename
from streamhouse_spark.log.lifecycle.warehouse_identity import new_warehouse_file, read_warehouse_file
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import Prefetch, at_once
from streamhouse_spark.storage.put_if_absent import Slot, fill

logger = logging.getLogger(__name__)

PLACED_VERSION: Final = 2
"""The format version of a name that means a table with a log elsewhere: older releases would look for it here."""
VIEW_VERSION: Final = 3
"""The format version of a name that means a view: older releases would take it for a name that means nothing."""
_POINTERS_TO_NAME: Final = 2
"""Pointers that are asked for before a table is created: most names are new."""


@dataclass(frozen=True, slots=True)
class NamePointer:
    """The meaning of a name: table ``uuid``, a ``view``, or nothing. ``number`` is the pointer's number in its chain,
    0 for none.
    """

    number: int
    uuid: str | None
    moved_to: str | None = None
    """The new name of the table or view, if renaming let this one mean nothing."""
    view: ViewEntry | None = None
    renaming: ViewRename | None = None
    """A renaming that may still give a view this name, which means nothing until then."""


@dataclass(frozen=True, slots=True)
class DatabasePointer:
    """The state of a database: there or not. ``number`` is that of its newest file, 0 for none."""

    name: str
    number: int
    exists: bool
    comment: str | None = None


def require_warehouse(storage: Storage, ahead: Prefetch | None = None) -> None:
    """Raise `WarehouseNotFoundError` if there is no warehouse, `FormatVersionError` for a newer one."""
    if read_warehouse_file(storage, ahead) is None:
        raise WarehouseNotFoundError(
            f"{storage.url} holds no streamhouse.json: there is no warehouse; check the path, or make one with "
            "`streamhouse create <database>.<table> …` or Warehouse(path).create_table(…)",
        )


def is_warehouse(storage: Storage) -> bool:
    return read_warehouse_file(storage) is not None


def create_warehouse(
    storage: Storage, world: World, *, around: str | None = None, ahead: Prefetch | None = None
) -> None:
    """Make the location a warehouse unless it is one. A location with foreign files is refused, except for the folder
    ``around``, around which the warehouse is made on purpose.
    """
    if read_warehouse_file(storage, ahead) is not None:
        return
    storage.check_writable()
    foreign = [name for name in storage.list_names("") if name not in (WAREHOUSE_KEY, "lost+found", around)]
    if foreign and not is_warehouse(storage):
        raise WarehouseNotFoundError(
            f"{storage.url} is not empty (it holds {', '.join(foreign[:5])}) and is no warehouse: nothing was written; "
            "choose an empty or new directory",
        )
    fill(storage, WAREHOUSE_KEY, new_warehouse_file(storage, world.ids.new_uuid()).to_bytes())


def create_database(storage: Storage, database: str, world: World, *, comment: str | None = None) -> bool:
    """Make the database exist. Returns False if it did already."""
    while not (pointer := resolve_database(storage, database)).exists:
        if point_database(storage, pointer, world, exists=True, comment=comment):
            return True
    return False


def ready_to_name(storage: Storage, world: World, path: TablePath) -> tuple[DatabasePointer, NamePointer]:
    """Make the warehouse and the database of a name exist; return the database's file and the meaning of the name.

    All three are looked at in the time of one request. Raises as `create_warehouse` and `resolve` do.
    """
    ahead = Prefetch(storage)
    pointers = (name_key(path, number) for number in range(1, 1 + _POINTERS_TO_NAME))
    ahead.expect([WAREHOUSE_KEY, *_first_files(path.database), *pointers])
    create_warehouse(storage, world, ahead=ahead)
    database = resolve_database(storage, path.database, ahead)
    while not database.exists:
        is_won = point_database(storage, database, world, exists=True)
        created = DatabasePointer(database.name, database.number + 1, exists=True)
        database = created if is_won else resolve_database(storage, path.database)
    return database, resolve(storage, path, ahead)


def _first_files(database: str) -> list[str]:
    """Return the keys that are read of a database which was never changed."""
    return [database_key(database, 1), database_key(database, 2)]


def first_database(storage: Storage, database: str) -> DatabasePointer:
    """Check that there is a warehouse and resolve a database, in the time of one request. Raises as these two do."""
    ahead = Prefetch(storage)
    ahead.expect([WAREHOUSE_KEY, *_first_files(database)])
    require_warehouse(storage, ahead)
    return resolve_database(storage, database, ahead)


def keep_database(storage: Storage, world: World, database: DatabasePointer) -> None:
    """Make the database exist again if it was dropped since it was ``database``. One request where it was not."""
    try:
        storage.size_bytes(database_key(database.name, database.number + 1))
    except ObjectNotFoundError:
        return
    create_database(storage, database.name, world)


def resolve_database(storage: Storage, database: str, ahead: Prefetch | None = None) -> DatabasePointer:
    """Return the present state of the database: its last file. Raises `FormatVersionError` for a newer format."""
    if ahead is None:
        ahead = Prefetch(storage)
        ahead.expect(_first_files(database))
    number, data = find_last_object(storage, lambda n: database_key(database, n), ahead)
    if not number:
        return DatabasePointer(database, 0, exists=False)
    header = decode_frame("database", data, f"{storage.url}/{database_key(database, number)}").header
    return DatabasePointer(database, number, exists=bool(header.get("exists", True)), comment=header.get("comment"))


def point_database(
    storage: Storage, previous: DatabasePointer, world: World, *, exists: bool, comment: str | None = None
) -> bool:
    """Give the database this state, if its state still is ``previous``. Returns False if another was faster."""
    header: dict[str, Any] = {"name": previous.name}
    if previous.number or comment is not None:  # the first file says no more than that the database exists
        header |= {"exists": exists, "comment": comment, "attempt": world.ids.new_uuid()}
    key = database_key(previous.name, previous.number + 1)

    def stored() -> dict[str, Any]:
        return decode_frame("database", storage.read(key), f"{storage.url}/{key}").header

    return Slot(storage, key, stored, header.__eq__).take(encode_frame("database", header)).is_won()


def database_exists(storage: Storage, database: str) -> bool:
    """Tell whether the database exists. Raises `FormatVersionError` for a database of a newer format."""
    return resolve_database(storage, database).exists


def list_databases(storage: Storage) -> list[str]:
    """List the existing databases."""
    names = database_folders(storage)
    are_databases = at_once(storage, lambda name: is_listed(storage, name), names)
    return [name for name, is_database in zip(names, are_databases, strict=True) if is_database]


def database_folders(storage: Storage) -> list[str]:
    """List the folders of databases, dropped ones included."""
    return [n for n in storage.list_names("") if n not in RESERVED_DATABASES and n != WAREHOUSE_KEY]


def is_listed(storage: Storage, database: str) -> bool:
    """Tell whether the database exists. One whose file cannot be read counts as existing and is logged: it must not
    hide the others.
    """
    try:
        return database_exists(storage, database)
    except StreamhouseError as error:
        logger.warning("database %s cannot be read: %s", database, error)
        return True


def list_names(storage: Storage, database: str) -> Iterator[tuple[TablePath, NamePointer | None]]:
    """Return the names of a database that mean a table; those whose pointer cannot be read have None, and are
    logged.
    """
    return iter_table_names(storage, list_paths(storage, database))


def iter_table_names(storage: Storage, paths: Sequence[TablePath]) -> Iterator[tuple[TablePath, NamePointer | None]]:
    """Return those of the names that mean a table, as `list_names` does."""
    return (
        (path, pointer)
        for path, pointer in _resolve_names(storage, paths)
        if pointer is None or pointer.uuid is not None
    )


def list_paths(storage: Storage, database: str) -> list[TablePath]:
    """Return the names of a database, whatever they mean, by one listing."""
    return [TablePath(database, name) for name in storage.list_names(f"{database}/") if is_table_name(name)]


def list_views(storage: Storage, database: str) -> Iterator[TablePath]:
    """Return the names of a database that mean a view, sorted."""
    pointers = _resolve_names(storage, list_paths(storage, database))
    return (path for path, pointer in pointers if pointer is not None and pointer.view is not None)


def _resolve_names(storage: Storage, paths: Sequence[TablePath]) -> Iterator[tuple[TablePath, NamePointer | None]]:
    ahead = Prefetch(storage)
    ahead.expect(name_key(path, number) for path in paths for number in range(1, CHAIN_AHEAD + 1))
    for path in paths:
        try:
            yield path, resolve(storage, path, ahead)
        except StreamhouseError as error:
            logger.warning("the name %s cannot be read: %s", path, error)
            yield path, None


def list_pointers(storage: Storage, database: str) -> dict[TablePath, int]:
    """Return the number of each name's newest pointer by one listing: a hint of what to resolve again."""
    numbers: dict[TablePath, int] = {}
    for info in storage.list(f"{database}/"):
        match = parse_name_key(info.key)
        if match is not None:
            path, number = match
            numbers[path] = max(number, numbers.get(path, 0))
    return numbers


def resolve(storage: Storage, path: TablePath, ahead: Prefetch | None = None) -> NamePointer:
    """Return the present meaning of the name: the last pointer of its chain. Raises `CorruptDataError` if that is
    damaged.
    """
    number, data = find_last_object(storage, lambda n: name_key(path, n), ahead)
    if not number:
        return NamePointer(0, None)
    header = _decode_pointer(storage, path, number, data)
    if "view" in header:
        return _view_pointer(storage, number, header)
    return NamePointer(number, header["uuid"], header.get("moved_to"))


def _view_pointer(storage: Storage, number: int, header: dict[str, Any]) -> NamePointer:
    """Return the meaning of a pointer with a view: while it is being renamed to this name, nothing."""
    view = ViewEntry.from_header(header["view"])
    if "renaming" not in header:
        return NamePointer(number, None, view=view)
    renaming = ViewRename(**header["renaming"])
    moved = _has_moved(storage, renaming)
    if moved is None:
        return NamePointer(number, None, renaming=renaming)
    return NamePointer(number, None, view=view if moved else None)


def _has_moved(storage: Storage, renaming: ViewRename) -> bool | None:
    """Tell whether the view was renamed; None while it still may be."""
    old = parse_table_name(renaming.old).path
    try:
        return bool(_read_pointer(storage, old, renaming.number)["attempt"] == renaming.attempt)
    except ObjectNotFoundError:
        return None


def finish_view_renaming(storage: Storage, world: World, renaming: ViewRename) -> bool:
    """Make sure that a view is not renamed any more, by a pointer of its old name. Returns False if it was renamed."""
    old = parse_table_name(renaming.old).path
    current = resolve(storage, old)
    if current.number < renaming.number:
        point(storage, old, current, None, world, view=current.view)
    return _has_moved(storage, renaming) is False


def first_look(storage: Storage, path: TablePath) -> NamePointer:
    """Check that there is a warehouse and resolve a name, in the time of one request. Raises as these two do."""
    ahead = Prefetch(storage)
    ahead.expect([WAREHOUSE_KEY, *(name_key(path, number) for number in range(1, CHAIN_AHEAD + 1))])
    require_warehouse(storage, ahead)
    return resolve(storage, path, ahead)


def damaged_pointer_placeholder(storage: Storage, path: TablePath) -> NamePointer:
    """Return a stand-in for a last pointer that cannot be read, for callers that let the name mean nothing from there
    on.
    """
    return NamePointer(find_last_object(storage, lambda n: name_key(path, n))[0], None)


def other_table(storage: Storage, path: TablePath, uuid: str) -> str | None:
    """Return the table besides ``uuid`` that the name meant last; None if it never meant another.

    Pointers are never deleted. They are read from the last one back, to the first one of another table: behind that
    only this table's own renamings lie.
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
    """Return the tables that the name means and meant, the newest first, back to where it meant none."""
    number, data = find_last_object(storage, lambda n: name_key(path, n))
    while number:
        uuid: str | None = _decode_pointer(storage, path, number, data)["uuid"]
        if uuid is None:
            return
        yield uuid
        number -= 1
        data = storage.read(name_key(path, number)) if number else b""


def point(
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
    """Let the name mean ``uuid``, the ``view`` or nothing from now on, if it still means ``previous``. Returns False
    if another was faster. With a ``renaming`` it means the view once that has happened.
    """
    number = previous.number + 1
    attempt = attempt or world.ids.new_uuid()
    header: dict[str, Any] = {"name": str(path), "uuid": uuid, "attempt": attempt}
    if moved_to is not None:
        header["moved_to"] = str(moved_to)
    if view is not None:
        header["view"] = view.to_header()
    if renaming is not None:
        header["renaming"] = renaming.to_header()
    slot = Slot(
        storage,
        name_key(path, number),
        lambda: _read_pointer(storage, path, number),
        lambda stored: bool(stored["attempt"] == attempt),
    )
    placed = PLACED_VERSION if uuid is not None and is_placed(uuid) else None
    version = VIEW_VERSION if view is not None else placed
    return slot.take(encode_frame("name", header, version=version)).is_won()


def _read_pointer(storage: Storage, path: TablePath, number: int) -> dict[str, Any]:
    """Raises `ObjectNotFoundError`."""
    return _decode_pointer(storage, path, number, storage.read(name_key(path, number)))


def _decode_pointer(storage: Storage, path: TablePath, number: int, data: bytes) -> dict[str, Any]:
    where = f"{storage.url}/{name_key(path, number)}"
    header = decode_frame("name", data, where, newest=VIEW_VERSION).header
    if header["name"] != str(path):
        raise InvalidNameError(f"{where} is the pointer of {header['name']}; a folder was renamed by hand")
    return header
