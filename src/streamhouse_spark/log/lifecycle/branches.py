"""The branches that a table's state names. Pure.

A branch has a log of its own, with metadata (`BranchMark`) that names its table. It exists while the table's log names
it, by a tag of its base version. The files of that version are therefore retained, and one record of the table both
publishes the branch and ends it.
"""

from __future__ import annotations

from typing import Final

from streamhouse_spark.config.branch_metadata import BRANCH
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import PUBLICATIONS
from streamhouse_spark.errors import TableNotFoundError
from streamhouse_spark.log.commits.idempotency import unsupported_on_branch_error
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.commits.tags import TaggedVersion
from streamhouse_spark.log.commits.transactions import TransactionEntry

BRANCH_TAG: Final = "branch:"
"""Prefix of a branch's tag, followed by the branch's name, a colon and its uuid. Users' tags have no colon."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch that the log of its table names."""

    name: str
    uuid: str
    base: TaggedVersion
    """The version that the branch started from."""

    @property
    def tag(self) -> str:
        return branch_tag(self.name, self.uuid)


def branch_tag(name: str, uuid: str) -> str:
    """Return the name of the tag of a branch."""
    return f"{BRANCH_TAG}{name}:{uuid}"


def publication_id(name: str, uuid: str) -> str:
    """Return the application id of the publication of a branch."""
    return f"{PUBLICATIONS}{name}.{uuid}"


def find_branches(state: TableState) -> list[Branch]:
    """Return the branches that a table names, sorted by name."""
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
    """Return a branch by its name. Raises `TableNotFoundError`, which mentions a publication."""
    if (branch := find_branch(state, name)) is not None:
        return branch
    if (entry := find_publication(state, name)) is not None:
        finding = f"it was published by commit {entry.commit}"
    else:
        finding = f"its branches are: {', '.join(branch.name for branch in find_branches(state)) or 'none'}"
    raise TableNotFoundError(f"{state.name} has no branch {name!r}; {finding}")


def find_publication(state: TableState, name: str) -> TransactionEntry | None:
    """Return the publication of the last branch of this name; None if none is recorded."""
    return next((state.transactions[app_id] for app_id in list_publications(state, name)), None)


def list_publications(state: TableState, name: str) -> tuple[str, ...]:
    """Return the application ids of publications of branches of this name. At most one, because creating a branch
    forgets the others.
    """
    prefix = publication_id(name, "")
    return tuple(app_id for app_id in state.transactions if app_id.startswith(prefix))


def require_no_branch(state: TableState, doing: str) -> None:
    """Raise `InvalidOptionError` for a branch, for an operation that only a table supports."""
    if BRANCH in state.properties:
        raise unsupported_on_branch_error(state.name, doing)
