"""Which lake a table has. The lake libraries are optional: they are imported here, when a lake is opened."""

from __future__ import annotations

from collections.abc import Mapping

from streamhouse_spark.clock import World
from streamhouse_spark.errors import MissingExtraError
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.log.state import TableState
from streamhouse_spark.model import TablePath
from streamhouse_spark.paths import parse_table_name
from streamhouse_spark.properties import parse_properties
from streamhouse_spark.storage import Storage


def open_lake_table(storage: Storage, settings: Mapping[str, str], state: TableState, world: World) -> LakeTable:
    """The lake side of a table; nothing is read yet.

    Raises `MissingExtraError` without the lake's library, `LakeMismatchError` for a table that the lake cannot hold.
    """
    try:
        from streamhouse_spark.lake.iceberg import IcebergLake, LakeTableSpec
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("streamhouse_spark"):
            raise  # a module of our own is missing: no extra brings it
        raise MissingExtraError(
            f"table {state.name} has an Iceberg lake, and {error.name} is not installed; "
            "run: pip install 'streamhouse-spark[iceberg]'"
        ) from error
    properties = parse_properties(state.properties, state.schema, state.partition_by)
    spec = LakeTableSpec(
        table_uuid=state.table_uuid,
        path=_path(state.name),
        location=state.lake_location,
        schema=state.schema,
        partition_by=state.partition_by,
        bucket_key=properties.bucket_key,
        num_buckets=state.num_buckets,
        primary_key=tuple(state.schema.column(name).name for name in state.primary_key),
    )
    return IcebergLake(storage, spec, settings=settings, world=world)


def _path(name: str) -> TablePath:
    return parse_table_name(name).path
