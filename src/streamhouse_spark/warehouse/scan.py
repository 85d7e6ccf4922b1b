"""`scan`: read a table in one line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from streamhouse_spark.core.argument_validation import validate_arguments
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.table.scan import Scan
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from streamhouse_spark.expressions.filters import FilterLike


@partial(validate_arguments, names=["name"])
def scan(
    location: str | os.PathLike[str],
    name: str,
    *,
    settings: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    filter: FilterLike | None = None,
    version: int | str | None = None,
    timestamp_ms: int | None = None,
    limit: int | None = None,
    partitions: Mapping[str, Any] | None = None,
) -> Scan:
    """Return a lazy scan of a table, branch or view of the warehouse at ``location``.

    * ``name``: as for `Warehouse.view`.
    * ``settings``: as for `Warehouse`.
    * All others: as for `Table.scan`. ``version`` and ``timestamp_ms`` also read an older ``$lake``.

    Raises the errors of these methods, and `InvalidOptionError` for arguments that a view does not have.

    >>> sh.scan(warehouse.url, "shop.orders", filter="amount > 5", columns=["id"]).to_arrow().to_pylist()
    [{'id': 1}]
    """
    view = Warehouse(location, settings).view(name)
    if isinstance(view, Table):
        return view.scan(
            columns=columns,
            filter=filter,
            version=version,
            timestamp_ms=timestamp_ms,
            limit=limit,
            partitions=partitions,
        )
    if partitions is not None:
        raise InvalidOptionError(f"{name} is a view without partitions; select its rows with filter=")
    if version is None and timestamp_ms is None:
        return view.scan(columns=columns, filter=filter, limit=limit)
    from streamhouse_spark.table.lake import LakeView  # loads the readers of both lake formats

    if not isinstance(view, LakeView):
        raise InvalidOptionError(
            f"{name} is a view without versions; only a table and its $lake can be read at an older version"
        )
    return view.scan(columns=columns, filter=filter, version=version, timestamp_ms=timestamp_ms, limit=limit)
