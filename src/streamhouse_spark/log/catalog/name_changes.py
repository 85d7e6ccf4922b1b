"""Changes of names: replaces, renames and undrops tables, and manages SQL views.

**Replacing** (CREATE OR REPLACE TABLE with another schema). The new table is created and filled without a name.
**Commit point:** the record that drops the old table and names its successor. The name always has a table, and never
two tables that accept rows: a process that still uses the old table finds it dropped. A process that resolves the name
before its pointer is updated finds the old table and follows it to the successor. Any process may put the pointer after
the record. The pointer must exist before the old table is undropped or buried.

**Renaming and undropping.** **Commit point:** the record in the table's log, which contains the name. The hazard is a
renamer that puts the pointer of the new name and is suspended. Another process takes the name, because that pointer
does not count yet. If the renamer then commits, the table has a name that points to another table. Before a process
takes such a name, it therefore commits a rename record with the table's current name to that table's log. The renamer's
record is planned only if no rename record was committed since the renamer started.

**Views.** A view is the last pointer of its name. **Commit point** of creating, replacing and dropping a view: that
pointer, which is put only directly after the pointer that was read. **Commit point** of renaming a view: the pointer of
the old name, which frees the name. Before it, the new name gets a pointer with the view. That pointer counts only once
the old name's next pointer was put by the same rename. A process that takes the new name earlier puts the old name's
next pointer, with the unchanged view. The rename can then no longer commit, and starts again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.errors import (
    CommitConflictError,
    CorruptDataError,
    ObjectNotFoundError,
    TableExistsError,
    TableNotFoundError,
)
from streamhouse_spark.log.actions import Action, Drop, Rename, Undrop
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.catalog.names import NamePointer, ViewEntry, ViewRename
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.history import state_at
from streamhouse_spark.log.record import Record, read_record
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage

logger = logging.getLogger(__name__)


RACES_MAX = 20


@dataclass(frozen=True, slots=True)
class ReplacedTable:
    """A table that was replaced by another table."""

    log: CommitLog
    dropped: Record
    """The record that dropped the table. After it, the name denotes the successor."""

    def last_state(self, storage: Storage) -> TableState:
        """Return the table's last state before the drop. Raises the errors of `state_at`."""
        return state_at(self.log, storage, self.dropped.number - 1)


def find_replaced_table(storage: Storage, world: World, path: TablePath, uuid: str) -> ReplacedTable | None:
    """Return the table that ``uuid`` replaced under its name.

    Returns None if it replaced no table, or if that table was undropped or its records were deleted.
    """
    for other in names.iter_pointed_tables(storage, path):
        if other == uuid:
            continue
        log = CommitLog(storage, other, world)
        try:
            if log.refresh().successor == uuid:
                dropped = _drop_of(storage, log)
                return None if dropped is None else ReplacedTable(log, dropped)
        except (TableNotFoundError, ObjectNotFoundError):
            return None
    return None


def _drop_of(storage: Storage, log: CommitLog) -> Record | None:
    """Return the record that dropped a table. Raises `ObjectNotFoundError` if a later record was deleted."""
    for version in range(log.state.version, 0, -1):
        record, _ = read_record(storage, log.table_uuid, version)
        if any(isinstance(action, Drop) for action in record.actions):
            return record
    return None


def follow_replacements(storage: Storage, world: World, log: CommitLog) -> CommitLog:
    """Return the log of the table, or of its last successor, read to the tail.

    Raises the errors of `CommitLog.refresh`.
    """
    state = log.refresh()
    while state.dropped and state.successor is not None:
        log = CommitLog(storage, state.successor, world)
        state = log.refresh()
    return log


def commit_replacement(storage: Storage, world: World, path: TablePath, old: CommitLog, new: CommitLog) -> None:
    """Replace the table with this name by a table without a name. **Commit point:** the drop record of the old table.

    Raises `CommitConflictError` if the old table was dropped, renamed or replaced since it was opened, or if
    maintenance dropped the new table. The name is unchanged then.
    """

    def is_replaceable(state: TableState) -> bool:
        return not state.dropped and state.name == str(path)

    # A new record resets the table's age, so that maintenance does not treat it as abandoned.
    new.commit(lambda state, _time_ms: (Rename(state.name),) if is_replaceable(state) else ())
    if not is_replaceable(new.state):
        raise CommitConflictError(f"the new table for {path} was cleaned up before it replaced the old table; retry")
    old.commit(lambda state, _time_ms: (Drop(new.table_uuid),) if is_replaceable(state) else ())
    if old.state.successor != new.table_uuid:
        raise CommitConflictError(
            f"table {path} was concurrently dropped, renamed or replaced; nothing was changed, retry"
        )
    with log_post_commit_errors(logger, "moving the name", path):
        update_replaced_name(storage, world, old)


def update_replaced_name(storage: Storage, world: World, log: CommitLog) -> None:
    """Point the name of a replaced table to its successor, if it still points to the table. Does not read the log."""
    state = log.state
    if not state.dropped or state.successor is None:
        return
    database, _, table = state.name.partition(".")
    path = TablePath(database, table)
    pointer = names.resolve(storage, path)
    while pointer.uuid == state.table_uuid:
        names.put_name_pointer(storage, path, pointer, state.successor, world)
        pointer = names.resolve(storage, path)


# -- tables -----------------------------------------------------------------------------------------------------------


def is_named(state: TableState, path: TablePath) -> bool:
    """Return whether a pointer of this name to the table counts: the table must have that name."""
    return not state.dropped and state.name == str(path)


def free_name(storage: Storage, world: World, path: TablePath, pointer: NamePointer) -> bool:
    """Abort renames in progress to this name. Return whether the name then points to no table or view.

    A damaged table retains its name.
    """
    if pointer.renaming is not None:
        return names.abort_view_rename(storage, world, pointer.renaming)
    if pointer.uuid is None:
        return pointer.view is None
    log = CommitLog(storage, pointer.uuid, world)
    try:
        if is_named(log.refresh(), path):
            return False
        if (successor := log.state.successor) is not None and successor != pointer.uuid:
            return free_name(storage, world, path, NamePointer(pointer.number, successor))
        log.commit(lambda state, _: () if state.buried or is_named(state, path) else (Rename(state.name),))
        return not is_named(log.state, path)
    except TableNotFoundError:  # dropped, and its files were deleted
        return True
    except CorruptDataError as error:
        logger.warning("the name %s remains taken, because it points to a damaged table: %s", path, error)
        return False


def rename(storage: Storage, world: World, log: CommitLog, old: TablePath, new: TablePath) -> bool:
    """Rename the table. Return False if another table has the new name.

    Raises `TableNotFoundError` if the table no longer has the old name, `CommitConflictError` after too many lost races
    for the new name. After `StorageError` and `CommitStateUnknownError` the table has one of the two names; a retry is
    safe.
    """
    old_pointer = names.resolve(storage, old)
    renamed = _give_name(storage, world, log, new, Rename(str(new)), lambda state: _require_name(state, old))
    if renamed:
        with log_post_commit_errors(logger, "freeing the name", old):  # its pointer no longer counts
            names.put_name_pointer(storage, old, old_pointer, None, world, moved_to=new)
    return renamed


def undrop(storage: Storage, world: World, log: CommitLog, path: TablePath) -> bool:
    """Restore a dropped table under this name. Return False if another table has the name.

    Raises `TableNotFoundError` if the table is not dropped or its files are being deleted, `CommitConflictError` after
    too many lost races for the name. After `StorageError` and `CommitStateUnknownError` the table is dropped or
    restored; a retry is safe.
    """
    update_replaced_name(storage, world, log)
    return _give_name(storage, world, log, path, Undrop(str(path)), _require_dropped)


def _give_name(
    storage: Storage,
    world: World,
    log: CommitLog,
    new: TablePath,
    action: Action,
    require: Callable[[TableState], None],
) -> bool:
    """Point the name to the table, then commit ``action``: the pointer counts. Return False if the name is taken."""
    for _ in range(RACES_MAX):
        state = log.refresh()
        require(state)
        pointer = names.resolve(storage, new)
        if not free_name(storage, world, new, pointer):
            return False
        if pointer.uuid == state.table_uuid:
            state = log.refresh()  # `free_name` has aborted an earlier attempt with this table
            require(state)
        if not names.put_name_pointer(storage, new, pointer, state.table_uuid, world):
            continue
        if _commit(log, state, action, require):
            return True
    raise CommitConflictError(f"cannot name a table {new}: lost {RACES_MAX} races for the name; retry")


def _require_name(state: TableState, path: TablePath) -> None:
    if not is_named(state, path):
        raise TableNotFoundError(
            f"table {path} was {'dropped' if state.dropped else f'renamed to {state.name}'}; nothing was changed"
        )


def _require_dropped(state: TableState) -> None:
    if not state.dropped:
        raise TableNotFoundError(f"table {state.name} ({state.table_uuid}) is not dropped; nothing was changed")
    if state.buried:
        raise TableNotFoundError(
            f"cannot undrop table {state.name} ({state.table_uuid}): it was dropped longer ago than the grace period, "
            "and its files are being deleted"
        )


def _commit(log: CommitLog, start: TableState, action: Action, require: Callable[[TableState], None]) -> bool:
    """Commit the action. Return False if the table was renamed, or the new name taken, since ``start``."""
    is_unchanged = False

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        nonlocal is_unchanged
        is_unchanged = state.named == start.named
        if is_unchanged:
            require(state)
        return (action,) if is_unchanged else ()

    log.commit(plan)
    return is_unchanged


# -- views ------------------------------------------------------------------------------------------------------------


def require_view(storage: Storage, path: TablePath) -> ViewEntry:
    """Return the view that the name points to. Raises `TableNotFoundError` (``VIEW_NOT_FOUND``)."""
    pointer = names.resolve(storage, path)
    if pointer.view is None:
        raise _absent(storage, path, pointer)
    return pointer.view


def create_view(storage: Storage, world: World, path: TablePath, view: ViewEntry, *, replace: bool) -> None:
    """Create a view with this name.

    Raises `TableExistsError` if the name belongs to a table or, without ``replace``, to a view. Raises
    `CommitConflictError` after too many lost races.
    """
    for _ in range(RACES_MAX):
        pointer = names.resolve(storage, path)
        if not (pointer.view is not None and replace) and not free_name(storage, world, path, pointer):
            raise _name_taken_error(storage, path, is_view=names.resolve(storage, path).view is not None)
        if names.put_name_pointer(storage, path, pointer, None, world, view=view):
            return
    raise _conflict("creating", path)


def replace_view(storage: Storage, world: World, path: TablePath, view: ViewEntry) -> None:
    """Replace the view of the name. Raises `TableNotFoundError` (``VIEW_NOT_FOUND``), `CommitConflictError`."""
    for _ in range(RACES_MAX):
        pointer = names.resolve(storage, path)
        if pointer.view is None:
            raise _absent(storage, path, pointer)
        if names.put_name_pointer(storage, path, pointer, None, world, view=view):
            return
    raise _conflict("replacing", path)


def drop_view(storage: Storage, world: World, path: TablePath) -> bool:
    """Drop a view. Return False if the name points to no view."""
    for _ in range(RACES_MAX):
        pointer = names.resolve(storage, path)
        if pointer.view is None:
            return False
        if names.put_name_pointer(storage, path, pointer, None, world):
            return True
    raise _conflict("dropping", path)


def rename_view(storage: Storage, world: World, old: TablePath, new: TablePath) -> None:
    """Rename a view.

    Raises `TableNotFoundError` (``VIEW_NOT_FOUND``), `TableExistsError` if the new name is taken,
    `CommitConflictError`.
    """
    for _ in range(RACES_MAX):
        pointer, target = names.resolve(storage, old), names.resolve(storage, new)
        if pointer.view is None:
            raise _absent(storage, old, pointer)
        if old == new or not free_name(storage, world, new, target):
            raise _name_taken_error(storage, new, is_view=target.view is not None)
        renaming = ViewRename(str(old), pointer.number + 1, world.ids.new_uuid())
        if not names.put_name_pointer(storage, new, target, None, world, view=pointer.view, renaming=renaming):
            continue
        if names.put_name_pointer(storage, old, pointer, None, world, moved_to=new, attempt=renaming.attempt):
            return
    raise _conflict("renaming", old)


def name_is_view_error(path: TablePath, url: str) -> TableNotFoundError:
    """Return the error for a caller that expects a table under the name of a view."""
    return TableNotFoundError(
        f"{path} of {url} is a view, not a table; query it in SQL of Spark 4.2 or later, with the catalog class "
        "io.streamhouse.spark.StreamhouseViewCatalog, which sh.configure chooses; drop it with DROP VIEW",
        condition="NAME_IS_VIEW",
    )


def _name_taken_error(storage: Storage, path: TablePath, *, is_view: bool) -> TableExistsError:
    kind = "view" if is_view else "table"
    return TableExistsError(
        f"{kind} {path} exists in {storage.url}; drop it first, or choose another name for the view",
        condition="VIEW_EXISTS" if is_view else "TABLE_EXISTS",
    )


def _absent(storage: Storage, path: TablePath, pointer: names.NamePointer) -> TableNotFoundError:
    moved = f"; it was renamed to {pointer.moved_to}" if pointer.moved_to is not None else ""
    return TableNotFoundError(
        f"view {path} does not exist in {storage.url}{moved}; SHOW VIEWS lists the existing views",
        condition="VIEW_NOT_FOUND",
    )


def _conflict(operation: str, path: TablePath) -> CommitConflictError:
    return CommitConflictError(f"{operation} the view {path} lost {RACES_MAX} races for its name; retry")
