"""`ScanDataset`: a scan as a pyarrow dataset, to which engines push down columns and filters.

Importing ``pyarrow.dataset`` is slow, so this module is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from streamhouse_spark.errors import InvalidOptionError


class PushdownSource(Protocol):
    """Rows whose latest state is read each time."""

    schema: pa.Schema

    @property
    def is_limited(self) -> bool:
        """Whether the number of rows is limited, so that filters must be applied after the read."""

    def read(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]: ...

    def filtered(self, filter: pc.Expression) -> Self: ...


class ScanDataset(ds.Dataset):  # type: ignore[misc]
    """Rows whose columns stay as they are now."""

    def __init__(self, rows: PushdownSource) -> None:  # without the base class's, which requires a dataset of Arrow
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
        """Return a scanner of these columns of the rows that match the filter. Values compare as in Arrow."""
        if isinstance(columns, Mapping) or (filter is not None and self._rows.is_limited):
            batches = self._rows.read()
            return ds.Scanner.from_batches(batches, schema=self.schema, columns=columns, filter=filter)
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        return ds.Scanner.from_batches(self._rows.read(schema.names, filter), schema=schema)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[_Fragment]:  # noqa: ARG002 - the scanner filters
        yield _Fragment(self)

    def filter(self, expression: pc.Expression) -> ScanDataset:
        return ScanDataset(self._rows.filtered(expression))

    @property
    def partition_expression(self) -> None:
        return None

    def _refuse(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise InvalidOptionError(f"{self!r} does not support this; join, sort or cast the rows of to_table() instead")

    join = join_asof = sort_by = replace_schema = _refuse


class _Fragment:
    """All rows as one fragment, which DataFusion requests."""

    def __init__(self, dataset: ScanDataset) -> None:
        self._dataset = dataset

    def scanner(self, schema: pa.Schema | None = None, **arguments: Any) -> ds.Scanner:  # noqa: ARG002 - it is the dataset's
        return self._dataset.scanner(**arguments)
