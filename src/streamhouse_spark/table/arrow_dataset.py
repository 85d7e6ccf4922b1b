"""`ScanDataset`: a scan as a pyarrow dataset, into which engines push columns and filters. pyarrow.dataset is slow to
import, so this module is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from streamhouse_spark.errors import InvalidOptionError


class PushdownRows(Protocol):
    """Rows that are read anew each time."""

    schema: pa.Schema

    @property
    def is_limited(self) -> bool:
        """Whether only so many rows are read, from which filters then select."""

    def read(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]: ...

    def filtered(self, filter: pc.Expression) -> Self: ...


class ScanDataset(ds.Dataset):  # type: ignore[misc]
    """Rows with the columns that they have now."""

    def __init__(self, rows: PushdownRows) -> None:  # the base class has a dataset of Arrow, and this one none
        self._rows = rows

    def __reduce__(self) -> tuple[object, ...]:
        return ScanDataset, (self._rows,)

    def __repr__(self) -> str:
        return f"ScanDataset({self._rows!r})"

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        **_options: Any,
    ) -> ds.Scanner:
        """Return a scanner of these columns of the rows that match the filter, as Arrow compares them."""
        if isinstance(columns, Mapping) or (filter is not None and self._rows.is_limited):
            batches = self._rows.read()
            return ds.Scanner.from_batches(batches, schema=self.schema, columns=columns, filter=filter)
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        return ds.Scanner.from_batches(self._rows.read(schema.names, filter), schema=schema)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[_Fragment]:  # noqa: ARG002 - of whole ones
        yield _Fragment(self)

    def filter(self, expression: pc.Expression) -> ScanDataset:
        return ScanDataset(self._rows.filtered(expression))

    @property
    def partition_expression(self) -> None:
        return None

    def _refuse(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise InvalidOptionError(f"{self!r} is read by scanners; join, sort and cast the rows of to_table() instead")

    join = join_asof = sort_by = replace_schema = _refuse


class _Fragment:
    """All rows, as DataFusion asks for them."""

    def __init__(self, dataset: ScanDataset) -> None:
        self._dataset = dataset

    def scanner(self, schema: pa.Schema | None = None, **arguments: Any) -> ds.Scanner:  # noqa: ARG002 - the dataset's
        return self._dataset.scanner(**arguments)
