"""Renames tables, restores dropped ones under a name, and frees names that another process may be about to give.

**Commit point** of a rename or an undrop: its record in the table's log, which has the name.

The hazard is a renamer that puts the pointer of the new name and sleeps. Another process takes the name, because that
pointer does not count yet. If the renamer then commits, the table has a name that points to another table. A process
that takes such a name therefore first commits a rename record with the table's own name to that table's log. The
renamer's record is planned only if no such record was committed since the renamer started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.errors import CommitConflictError, CorruptDataError, TableNotFoundError
from streamhouse_spark.log.commits.actions import Action, Rename, Undrop
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle import names, replace_table
from streamhouse_spark.log.lifecycle.names import NamePointer
from streamhouse_spark.storage.base import Storage

logger = logging.getLogger(__name__)

RACES_MAX = 20


def is_named(state: TableState, path: TablePath) -> bool:
    """Return whether a pointer of this name to the table counts."""
    return not state.dropped and state.name == str(path)


def free_name(storage: Storage, world: World, path: TablePath, pointer: NamePointer) -> bool:
    """Make sure that the name points to no table or view, and abort renames that would give it.

    Returns False if it does point to one. A damaged table keeps its name.
    """
    if pointer.renaming is not None:
        return names.finish_view_renaming(storage, world, pointer.renaming)
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
        logger.warning("the name %s points to a damaged table and stays taken: %s", path, error)
        return False


def rename(storage: Storage, world: World, log: CommitLog, old: TablePath, new: TablePath) -> bool:
    """Rename the table. Return False if the new name is taken by another table.

    Raises `TableNotFoundError` if the table no longer has the old name, `CommitConflictError` after too many lost races
    for the new one. After `StorageError` and `CommitStateUnknownError` the table has one of the two names; a retry is
    safe.
    """
    old_pointer = names.resolve(storage, old)
    renamed = _give_name(storage, world, log, new, Rename(str(new)), lambda state: _require_name(state, old))
    if renamed:
        with log_post_commit_errors(logger, "freeing the name", old):  # its pointer no longer counts
            names.point(storage, old, old_pointer, None, world, moved_to=new)
    return renamed


def undrop(storage: Storage, world: World, log: CommitLog, path: TablePath) -> bool:
    """Restore a dropped table under this name. Return False if it is taken by another table.

    Raises `TableNotFoundError` if the table is not dropped or its files are being deleted, `CommitConflictError` after
    too many lost races for the name. After `StorageError` and `CommitStateUnknownError` the table is dropped or
    restored; a retry is safe.
    """
    replace_table.update_replaced_name(storage, world, log)
    return _give_name(storage, world, log, path, Undrop(str(path)), _require_dropped)


def _give_name(
    storage: Storage,
    world: World,
    log: CommitLog,
    new: TablePath,
    action: Action,
    require: Callable[[TableState], None],
) -> bool:
    """Point the name to the table and commit the record that makes the pointer count. Return False if the name is
    taken.
    """
    for _ in range(RACES_MAX):
        state = log.refresh()
        require(state)
        pointer = names.resolve(storage, new)
        if not free_name(storage, world, new, pointer):
            return False
        if pointer.uuid == state.table_uuid:
            state = log.refresh()  # `free_name` just aborted an earlier attempt with this table
            require(state)
        if not names.point(storage, new, pointer, state.table_uuid, world):
            continue
        if _commit(log, state, action, require):
            return True
    raise CommitConflictError(f"naming a table {new} lost {RACES_MAX} races for the name; try again")


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
            f"table {state.name} ({state.table_uuid}) was dropped longer ago than the grace period, and its files "
            "are being deleted: it cannot be brought back"
        )


def _commit(log: CommitLog, start: TableState, action: Action, require: Callable[[TableState], None]) -> bool:
    """Commit the action. Return False if the table was renamed, or the new name taken, since ``start``."""
    happened = False

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        nonlocal happened
        happened = state.named == start.named
        if happened:
            require(state)
        return (action,) if happened else ()

    log.commit(plan)
    return happened
