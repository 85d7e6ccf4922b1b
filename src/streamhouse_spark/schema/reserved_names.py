"""Reserved column names: those of metadata columns that some reader or result adds to a table's columns. Pure.

Names compare case-insensitively, as in SQL and the lakes. They are rejected when a column gets its name: at creation,
adoption, column addition and renaming. An older table with such a column remains readable, but results with two columns
of the same name are rejected (`require_distinct_names`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streamhouse_spark.errors import SchemaMismatchError

FOUND: Final = "_found"
"""The last column of a `lookup`."""
INTERNAL: Final = "__streamhouse_"
"""Prefix of columns passed between tasks."""

_OURS: Final = frozenset(
    {
        "__bucket",
        "__offset",
        "__timestamp",
        "_bucket",
        "_change_type",
        "_commit_timestamp",
        "_commit_version",
        "_log_offset",
        FOUND,
    },
)
_ICEBERG: Final = frozenset(
    {
        "_change_ordinal",
        "_commit_snapshot_id",
        "_deleted",
        "_file",
        "_last_updated_sequence_number",
        "_partition",
        "_pos",
        "_row_id",
        "_spec_id",
    },
)
"""Metadata columns of Iceberg readers, which cannot read a table with such a column."""
_PAIMON: Final = frozenset({"_level", "_row_id", "_sequence_number", "_value_kind"})
_PAIMON_PREFIX: Final = "_key_"
_PAIMON_ALONE: Final = frozenset({"rowkind"})
"""Names reserved by Paimon only; a table with an Iceberg lake may use them."""
_BESIDE_PARTITIONS: Final = frozenset({"hot_rows", "lake_files", "lake_rows", "lake_size_bytes"})
"""Count columns of ``$partitions``, next to the partition columns."""

RESERVED_NAMES: Final = _OURS | _ICEBERG | _PAIMON
RESERVED_PREFIXES: Final = (INTERNAL, _PAIMON_PREFIX)


def require_free_name(name: str) -> None:
    """Raise `SchemaMismatchError` if a column cannot have this name."""
    folded = name.casefold()
    if folded in _OURS or folded.startswith(INTERNAL):
        whose = "a metadata column of this package"
    elif folded in _ICEBERG:
        whose = "a column that readers of Iceberg add"
    elif folded in _PAIMON or folded.startswith(_PAIMON_PREFIX):
        whose = "a column of Paimon's own"
    else:
        return
    raise SchemaMismatchError(f"the column name '{name}' is reserved for {whose}; rename the column")


def require_free_partition_name(name: str) -> None:
    """Raise `SchemaMismatchError` if a partition column cannot have this name."""
    if name.casefold() in _BESIDE_PARTITIONS:
        raise SchemaMismatchError(
            f"the column name '{name}' is reserved for a column of $partitions; rename the column, or partition by "
            "others"
        )


def is_of_paimon(name: str) -> bool:
    """Return whether Paimon files have a column with this name."""
    folded = name.casefold()
    return folded in _PAIMON | _PAIMON_ALONE or folded.startswith(_PAIMON_PREFIX)


def require_distinct_names(names: Iterable[str], added: Iterable[str], source: str, advice: str = "") -> None:
    """Raise `SchemaMismatchError` if an older table has a column whose name was reserved later.

    ``source`` adds the columns ``added`` to those of the table; ``advice`` is the remedy.
    """
    folded = {name.casefold() for name in added}
    for name in names:
        if name.casefold() in folded:
            raise SchemaMismatchError(
                f"{source} has a column '{name}' of its own, and so has the table; rename the table's column{advice}"
            )
