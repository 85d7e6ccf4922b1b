"""Parsing of the keys that a caller passes to `Table.delete` and `Table.lookup`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamhouse_spark.errors import SchemaMismatchError, quote

_SCALAR_TYPES: Final = (str, bytes, int, float, Decimal, dt.date, dt.time, np.generic, pa.Scalar)


def parse_keys(keys: Any, names: Sequence[str], table: str) -> Any:
    """Convert keys to rows. A list holds mappings or tuples of key values, and for a single-column key plain values.

    A single key needs no list: a mapping, a value, or for a composite key a tuple. Raises `SchemaMismatchError` if a
    key does not have the columns of the primary key.
    """
    if isinstance(keys, pa.Array | pa.ChunkedArray) and len(names) == 1:
        return pa.table({names[0]: keys})
    if isinstance(keys, _SCALAR_TYPES) or _is_one_row(keys):
        keys = [keys]
    elif isinstance(keys, tuple):
        is_one_key = len(names) > 1 and not any(isinstance(key, Mapping | tuple | list) for key in keys)
        keys = [keys] if is_one_key else list(keys)
    return [_parse_key(key, names, table) for key in keys] if isinstance(keys, list) else keys


def _is_one_row(keys: Any) -> bool:
    """Return whether the keys are a mapping of values, which is one row. A mapping of columns is a frame."""
    return isinstance(keys, Mapping) and not any(
        isinstance(v, list | pa.Array | pa.ChunkedArray) for v in keys.values()
    )


def _parse_key(key: Any, names: Sequence[str], table: str) -> Mapping[str, Any]:
    if isinstance(key, Mapping):
        return key
    values = tuple(key) if isinstance(key, tuple | list) else (key,)
    if len(values) != len(names):
        raise SchemaMismatchError(
            f"a key of {table} is {quote(key)}, expected the values of ({', '.join(names)}), as a tuple in this order "
            "or as a mapping"
        )
    return dict(zip(names, values, strict=True))
