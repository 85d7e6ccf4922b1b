"""Conversion between Spark's partition transforms and a table's partition fields, buckets and bucket key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamhouse_spark.config.properties import BUCKET_COUNT_MAX
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import join_names
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.log.commits.state import TableState


@dataclass(frozen=True, slots=True)
class Partitioning:
    """``PARTITIONED BY (dt, days(ts), bucket(4, id))``: partition columns and transforms, and the properties of the
    bucket transform.
    """

    fields: tuple[str, ...] = ()
    """Partition fields, as `parse_field` takes them."""
    properties: Mapping[str, str] | None = None


def parse_partitioning(transforms: Sequence[Mapping[str, Any]]) -> Partitioning:
    """Parse transforms. Raises `InvalidOptionError`, with a remedy, for an unsupported transform."""
    fields: list[str] = []
    properties: dict[str, str] = {}
    for transform in transforms:
        kind = str(transform["transform"])
        if kind == "identity":
            fields.append(_column_name(transform))
        elif kind == "bucket" and not properties:
            if not transform["columns"] or len(transform["arguments"]) != 1:
                raise InvalidOptionError(
                    f"PARTITIONED BY {_format_transform(transform)}: expected a number and a column, as in "
                    "bucket(4, id)"
                )
            _check_count(transform)
            properties = {
                "bucket.num": str(transform["arguments"][0]),
                "bucket.key": join_names([_column_name(transform, i) for i in range(len(transform["columns"]))]),
            }
        elif kind == "bucket":
            raise InvalidOptionError(
                f"PARTITIONED BY {_format_transform(transform)}: a table has one bucket key; leave one out"
            )
        elif kind == "cluster_by":
            raise InvalidOptionError(
                f"CLUSTER BY {_format_transform(transform).removeprefix(kind)}: rows are gathered by buckets; write "
                "PARTITIONED BY (bucket(4, id)), or set bucket.num and bucket.key"
            )
        elif len(transform["columns"]) == 1:
            arguments = [*map(str, transform.get("arguments") or ()), join_names([_column_name(transform)])]
            fields.append(f"{kind}({', '.join(arguments)})")
        else:
            raise InvalidOptionError(
                f"PARTITIONED BY {_format_transform(transform)}: found {len(transform['columns'])} columns, expected "
                "one, as in days(ts) or truncate(4, name)"
            )
    return Partitioning(tuple(fields), properties or None)


def _check_count(transform: Mapping[str, Any]) -> None:
    count = transform["arguments"][0]
    if not str(count).lstrip("-").isdecimal() or not 1 <= int(count) <= BUCKET_COUNT_MAX:
        raise InvalidOptionError(
            f"PARTITIONED BY {_format_transform(transform)}: found {count} buckets, expected 1 to {BUCKET_COUNT_MAX}"
        )


def _column_name(transform: Mapping[str, Any], place: int = 0) -> str:
    path = transform["columns"][place]
    if len(path) != 1:
        raise InvalidOptionError(
            f"PARTITIONED BY {_format_transform(transform)}: a field inside a struct cannot partition; make it a column"
        )
    return str(path[0])


def _format_transform(transform: Mapping[str, Any]) -> str:
    columns = [".".join(str(part) for part in path) for path in transform.get("columns") or ()]
    inside = ", ".join([*map(str, transform.get("arguments") or ()), *columns])
    return f"{transform['transform']}({inside})"


def format_partitioning(state: TableState) -> list[dict[str, Any]]:
    """Return the partitioning of a state in the form that `parse_partitioning` takes."""
    transforms: list[dict[str, Any]] = [
        {
            "transform": field.transform,
            "columns": [[field.column]],
            "arguments": [field.width] if field.width else [],
        }
        for field in state.parsed.partition_fields
    ]
    key = state.parsed.bucket_key
    if key:
        columns = [[name] for name in key]
        transforms.append({"transform": "bucket", "columns": columns, "arguments": [state.num_buckets]})
    return transforms
