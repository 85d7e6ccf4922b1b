"""SQL views: created, replaced, renamed and dropped by pointers of their names.

A view is the last pointer of its name. **Commit point** of creating, replacing and dropping one: that pointer, which is
put only directly after the one that was read.

Renaming has one **commit point** too: the pointer of the old name, which frees it. Before it, the new name gets a
pointer with the view that counts only once the old name's next pointer is the rename's own. A process that takes the
new name before that puts the old name's next pointer itself, with the unchanged view. The rename can then no longer
commit, and starts again.
"""

from __future__ import annotations

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.errors import CommitConflictError, TableExistsError, TableNotFoundError
from streamhouse_spark.log.lifecycle import names
from streamhouse_spark.log.lifecycle.renaming import free_name
from streamhouse_spark.log.lifecycle.stored_view import ViewEntry, ViewRename
from streamhouse_spark.storage.base import Storage

RACES_MAX = 20


def require_view(storage: Storage, path: TablePath) -> ViewEntry:
    """Return the view that the name points to. Raises `TableNotFoundError` (``VIEW_NOT_FOUND``)."""
    pointer = names.resolve(storage, path)
    if pointer.view is None:
        raise _absent(storage, path, pointer)
    return pointer.view


def create_view(storage: Storage, world: World, path: TablePath, view: ViewEntry, *, replace: bool) -> None:
    """Point the name to the view.

    Raises `TableExistsError` if it points to a table, or without ``replace`` to a view; `CommitConflictError` after too
    many lost races.
    """
    for _ in range(RACES_MAX):
        pointer = names.resolve(storage, path)
        if not (pointer.view is not None and replace) and not free_name(storage, world, path, pointer):
            raise _name_taken_error(storage, path, is_view=names.resolve(storage, path).view is not None)
        if names.point(storage, path, pointer, None, world, view=view):
            return
    raise _conflict("creating", path)


def replace_view(storage: Storage, world: World, path: TablePath, view: ViewEntry) -> None:
    """Point the name of a view to this one. Raises `TableNotFoundError` (``VIEW_NOT_FOUND``), `CommitConflictError`."""
    for _ in range(RACES_MAX):
        pointer = names.resolve(storage, path)
        if pointer.view is None:
            raise _absent(storage, path, pointer)
        if names.point(storage, path, pointer, None, world, view=view):
            return
    raise _conflict("replacing", path)


def drop_view(storage: Storage, world: World, path: TablePath) -> bool:
    """Drop a view. Return False if the name points to no view."""
    for _ in range(RACES_MAX):
        pointer = names.resolve(storage, path)
        if pointer.view is None:
            return False
        if names.point(storage, path, pointer, None, world):
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
        if not names.point(storage, new, target, None, world, view=pointer.view, renaming=renaming):
            continue
        if names.point(storage, old, pointer, None, world, moved_to=new, attempt=renaming.attempt):
            return
    raise _conflict("renaming", old)


def name_is_view_error(path: TablePath, url: str) -> TableNotFoundError:
    """Return the error for a caller that expects a table under the name of a view."""
    return TableNotFoundError(
        f"{path} of {url} is a view, not a table: query it in SQL of Spark from 4.2 on, with the catalog class "
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
        f"view {path} does not exist in {storage.url}{moved}; SHOW VIEWS lists those there",
        condition="VIEW_NOT_FOUND",
    )


def _conflict(doing: str, path: TablePath) -> CommitConflictError:
    return CommitConflictError(f"{doing} the view {path} lost {RACES_MAX} races for its name; try again")
