"""The branches and clones of a table. The table's state has a tag for each, which retains its base version.

A branch has a separate log, whose `BranchMetadata` names its table. The branch exists while the table has its tag. One
record of the table can therefore publish and end the branch.

A clone has a separate log before its tag is created, and reads no files of the table before the tag exists. A clone
that never gets a name is dropped and buried like any table without a name. Its tag is dropped once the clone's
tombstone exists. The tombstone is permanent, so neither a clock nor a listing decides.
"""

from __future__ import annotations

from typing import Final

from streamhouse_spark.config.table_properties import BRANCH
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import PUBLICATIONS
from streamhouse_spark.errors import TableNotFoundError
from streamhouse_spark.log.actions import DropTag
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.commit_validation import unsupported_on_branch_error
from streamhouse_spark.log.low_watermark import DROPPED_WATERMARK, find_latest_watermark
from streamhouse_spark.log.state import TableState, TaggedVersion
from streamhouse_spark.log.transactions import TransactionEntry
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import map_with_store_concurrency

BRANCH_TAG: Final = "branch:"
"""Prefix of a branch's tag, followed by the branch's name, a colon and its uuid. Users' tags have no colon."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a table."""

    name: str
    uuid: str
    base: TaggedVersion
    """The version that the branch started from."""

    @property
    def tag(self) -> str:
        return branch_tag(self.name, self.uuid)


def branch_tag(name: str, uuid: str) -> str:
    return f"{BRANCH_TAG}{name}:{uuid}"


def publication_id(name: str, uuid: str) -> str:
    """Return the application id of the publication of a branch."""
    return f"{PUBLICATIONS}{name}.{uuid}"


def find_branches(state: TableState) -> list[Branch]:
    """Return the branches of a table, sorted by name."""
    branches = []
    for tag, version in sorted(state.tags.items()):
        if tag.startswith(BRANCH_TAG):
            name, _, uuid = tag.removeprefix(BRANCH_TAG).partition(":")
            branches.append(Branch(name, uuid, version))
    return branches


def find_branch(state: TableState, name: str) -> Branch | None:
    """Return a branch by its name; None for an unknown one."""
    return next((branch for branch in find_branches(state) if branch.name == name), None)


def require_branch(state: TableState, name: str) -> Branch:
    """Return a branch by its name. Raises `TableNotFoundError`; its text says if the branch was published."""
    if (branch := find_branch(state, name)) is not None:
        return branch
    if (entry := find_publication(state, name)) is not None:
        finding = f"it was published by commit {entry.commit}"
    else:
        finding = f"its branches are: {', '.join(branch.name for branch in find_branches(state)) or 'none'}"
    raise TableNotFoundError(f"{state.name} has no branch {name!r}; {finding}")


def find_publication(state: TableState, name: str) -> TransactionEntry | None:
    """Return the publication of the last branch of this name; None if it was not published."""
    return next((state.transactions[app_id] for app_id in list_publications(state, name)), None)


def list_publications(state: TableState, name: str) -> tuple[str, ...]:
    """Return the application ids of publications of branches of this name; at most one is retained."""
    prefix = publication_id(name, "")
    return tuple(app_id for app_id in state.transactions if app_id.startswith(prefix))


def require_no_branch(state: TableState, action: str) -> None:
    """Raise `InvalidOptionError` for a branch that is given to an operation of tables."""
    if BRANCH in state.properties:
        raise unsupported_on_branch_error(state.name, action)


CLONE: Final = "clone:"
"""Prefix of a clone's tag, followed by the clone's uuid. Users' tags have no colon."""


def list_clones(state: TableState) -> list[str]:
    """Return the uuids of the clones of a table, including deleted clones whose tag was not dropped yet."""
    return sorted(name.removeprefix(CLONE) for name in state.tags if name.startswith(CLONE))


def base_version_of_clone(state: TableState, uuid: str) -> TaggedVersion:
    """Return the version that a clone started from. Raises `KeyError` for an unknown clone."""
    return state.tags[f"{CLONE}{uuid}"]


def list_live_clones(storage: Storage, state: TableState) -> list[str]:
    """Return the uuids of the clones without a tombstone, which may still read files of this table."""
    uuids = list_clones(state)
    buried = map_with_store_concurrency(storage, lambda uuid: _is_buried(storage, uuid), uuids)
    return [uuid for uuid, is_buried in zip(uuids, buried, strict=True) if not is_buried]


def forget_deleted_clones(log: CommitLog, storage: Storage, state: TableState, *, dry_run: bool = False) -> list[str]:
    """Drop the tags of buried clones and branches, and return the tags. **Commit point:** one record."""
    uuids_by_tag = {f"{CLONE}{uuid}": uuid for uuid in list_clones(state)}
    uuids_by_tag |= {branch.tag: branch.uuid for branch in find_branches(state)}
    buried = map_with_store_concurrency(storage, lambda uuid: _is_buried(storage, uuid), list(uuids_by_tag.values()))
    dropped = [name for name, is_buried in zip(uuids_by_tag, buried, strict=True) if is_buried]
    if dropped and not dry_run:
        log.commit(
            lambda current, _: (DropTag(names),) if (names := tuple(n for n in dropped if n in current.tags)) else ()
        )
    return dropped


def _is_buried(storage: Storage, uuid: str) -> bool:
    _, watermark = find_latest_watermark(storage, uuid)
    return watermark is not None and watermark.number >= DROPPED_WATERMARK
