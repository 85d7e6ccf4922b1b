"""Reserved names of columns: those that stand beside a table's columns somewhere. Pure.

Without regard to case, as SQL and the lakes compare them. They are refused where a column gets its name: creation,
adoption, new columns, renaming. An older table with such a column stays readable; results that would have two columns
of the name are refused (`require_unlike`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streamhouse_spark.errors import SchemaMismatchError

FOUND: Final = "_found"
"""The last column of a `lookup`."""
INTERNAL: Final = "__streamhouse_"
"""Prefix of columns that tasks hand to each other."""

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
"""Columns that Iceberg's readers add to each table: they cannot read a table with such a column."""
_PAIMON: Final = frozenset({"_level", "_row_id", "_sequence_number", "_value_kind"})
_PAIMON_PREFIX: Final = "_key_"
_PAIMON_ALONE: Final = frozenset({"rowkind"})
"""Names of Paimon's that a table with an Iceberg lake may well have."""
_BESIDE_PARTITIONS: Final = frozenset({"hot_rows", "lake_files", "lake_rows", "lake_size_bytes"})
"""Counts of ``$partitions``, beside the partition columns."""

RESERVED_NAMES: Final = _OURS | _ICEBERG | _PAIMON
RESERVED_PREFIXES: Final = (INTERNAL, _PAIMON_PREFIX)


def require_free_name(name: str) -> None:
    """Raise `SchemaMismatchError` for a name that a column cannot get."""
    folded = name.casefold()
    if folded in _OURS or folded.startswith(INTERNAL):
        whose = "what this package puts beside a table's columns"
    elif folded in _ICEBERG:
        whose = "a column that readers of Iceberg add"
    elif folded in _PAIMON or folded.startswith(_PAIMON_PREFIX):
        whose = "a column of Paimon's own"
    else:
        return
    raise SchemaMismatchError(f"the column name '{name}' is reserved for {whose}; rename the column")


def require_free_partition_name(name: str) -> None:
    """Raise `SchemaMismatchError` for the name of a column that a table cannot be partitioned by."""
    if name.casefold() in _BESIDE_PARTITIONS:
        raise SchemaMismatchError(
            f"the column name '{name}' is reserved for what $partitions says of each partition; rename the column, or "
            "partition by others"
        )


def is_of_paimon(name: str) -> bool:
    """Tell whether Paimon has a column of this name in its files."""
    folded = name.casefold()
    return folded in _PAIMON | _PAIMON_ALONE or folded.startswith(_PAIMON_PREFIX)


def require_unlike(names: Iterable[str], added: Iterable[str], source: str, advice: str = "") -> None:
    """Raise `SchemaMismatchError` if an older table has a column whose name was reserved later.

    ``source`` adds columns of the names ``added`` to those of the table; ``advice`` is the remedy.
    """
    folded = {name.casefold() for name in added}
    for name in names:
        if name.casefold() in folded:
            raise SchemaMismatchError(
                f"{source} has a column '{name}' of its own, and the table has one too; rename the table's column"
                f"{advice}"
            )
