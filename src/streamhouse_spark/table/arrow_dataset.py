"""`ScanDataset`: a scan as a pyarrow dataset, into which engines push columns and filters. pyarrow.dataset is slow to
import, so this module is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.table.scan import FixedColumns, Scan


class ScanDataset(ds.Dataset):  # type: ignore[misc]
    """The rows of a scan, read anew by each scanner. It has the columns that the scan has now."""

    def __init__(self, scan: Scan) -> None:  # the dataset of the base class is none
        self._scan = scan
        self._rows = FixedColumns(scan)

    def __reduce__(self) -> tuple[object, ...]:
        return ScanDataset, (self._scan,)

    def __repr__(self) -> str:
        return f"ScanDataset({self._scan!r})"

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
        scan = self._rows.scan
        if isinstance(columns, Mapping) or (filter is not None and scan.max_rows is not None):
            # of a limited scan, the filter selects from the rows within the limit
            return ds.Scanner.from_batches(
                self._read(scan), schema=self.schema, columns=columns, filter=filter, use_threads=False
            )
        names = self.schema.names if columns is None else columns
        schema = pa.schema([self.schema.field(name) for name in names])
        scan = scan.select(*names) if filter is None else scan.select(*names).filter(filter)
        return ds.Scanner.from_batches(self._read(scan), schema=schema)

    def _read(self, scan: Scan) -> Iterator[pa.RecordBatch]:
        """Read the rows of a scan, which is planned when the first are asked for."""
        yield from self._rows.open(scan)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[_Fragment]:  # noqa: ARG002 - it prunes whole ones
        yield _Fragment(self)

    def filter(self, expression: pc.Expression) -> ScanDataset:
        return ScanDataset(self._scan.filter(expression))

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

    def scanner(self, schema: pa.Schema | None = None, **arguments: Any) -> ds.Scanner:  # noqa: ARG002 - it is the dataset's
        return self._dataset.scanner(**arguments)
