"""Tags and branches of an Iceberg table that must not change between planning a commit and making it."""

from __future__ import annotations

from typing import Literal, cast

from pydantic import Field
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, TableRequirement, ValidatableTableRequirement


class AssertRefs(ValidatableTableRequirement):
    """The requirement that the table has exactly these tags and branches. Iceberg's own requirements do not cover new
    ones.
    """

    type: Literal["assert-refs"] = Field(default="assert-refs")
    refs: dict[str, int]
    """Name → snapshot."""

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        refs = _refs(base_metadata) if base_metadata is not None else {}
        if refs != self.refs:
            names = sorted(name for name in {*refs, *self.refs} if refs.get(name) != self.refs.get(name))
            raise CommitFailedException(f"Requirement failed: tags or branches {', '.join(names)} have changed")


def require_unchanged_refs(catalog: Catalog, planned: TableMetadata) -> tuple[TableRequirement, ...]:
    """Return the requirements that every tag and branch is unchanged, and there are no others.

    A REST catalog checks requirements itself, and knows none of the latter: there a tag that is made between planning
    and commit is not seen, unless it has the name of an existing one.
    """
    refs_before = {MAIN_BRANCH: None, **_refs(planned)}
    each = tuple(AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": i}) for name, i in refs_before.items())
    return (
        each if isinstance(catalog, RestCatalog) else (*each, cast("TableRequirement", AssertRefs(refs=_refs(planned))))
    )


def _refs(metadata: TableMetadata) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in metadata.refs.items()}
