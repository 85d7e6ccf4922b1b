"""Opens the lake of a table. The libraries of the formats are optional, and checked when a lake is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from streamhouse_spark.config.table_properties import LakeFormat
from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import MissingExtraError
from streamhouse_spark.lake.base import LakeAdoption, LakeTable
from streamhouse_spark.lake.parquet.file_writer import FileSpec
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.types import WriteContext
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage


def open_lake_table(storage: Storage, settings: Mapping[str, str], state: TableState, world: World) -> LakeTable:
    """Return the lake table of a table, without reading it.

    Raises `MissingExtraError` without the library of the format, and `LakeMismatchError` for a table that the format
    cannot represent.
    """
    properties = state.parsed
    spec = LakeTableSpec.of(state)
    with require_lake_library(properties.datalake_format, f"table {state.name}"):
        if properties.datalake_format == "paimon":
            from streamhouse_spark.lake.paimon.table import PaimonLake

            return PaimonLake(storage, spec, settings=settings, world=world)
        if find_spec("pyiceberg") is None:  # importing it is slow, so only its users import it
            raise ModuleNotFoundError("No module named 'pyiceberg'", name="pyiceberg")
        from streamhouse_spark.lake.iceberg.table import IcebergLake

        return IcebergLake(storage, spec, settings=settings, world=world)


def open_lake_adoption(
    storage: Storage, settings: Mapping[str, str], world: World, lake_format: LakeFormat
) -> LakeAdoption:
    """Return the adoption of lake tables of a format. Raises `MissingExtraError` without the library of the format."""
    with require_lake_library(lake_format, "an adopted table"):
        if lake_format == "paimon":
            from streamhouse_spark.lake.paimon.adoption import PaimonAdoption

            return PaimonAdoption(storage, settings, world)
        from streamhouse_spark.lake.iceberg.adoption import IcebergAdoption

        return IcebergAdoption(storage, settings, world)


def release_lake_table(storage: Storage, settings: Mapping[str, str], state: TableState, world: World) -> None:
    """Release the lake table of a dropped adopted table. Its files remain."""
    properties = state.parsed
    open_lake_adoption(storage, settings, world, properties.datalake_format).release(LakeTableSpec.of(state))


def file_spec_of(context: WriteContext) -> FileSpec:
    """Return the file spec in the context of a task."""
    if context.lake["format"] == "paimon":
        from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec

        return PaimonFileSpec.from_json(context.lake)
    from streamhouse_spark.lake.iceberg.file_spec import IcebergFileSpec

    return IcebergFileSpec.from_json(context.lake)


@contextmanager
def require_lake_library(lake_format: LakeFormat, owner: str) -> Iterator[None]:
    """Run imports of a format's modules. Raises `MissingExtraError` if the library of the format is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("streamhouse_spark"):
            raise  # a module of this package is missing, which no extra installs
        raise MissingExtraError(
            f"{owner} needs {'an Iceberg' if lake_format == 'iceberg' else 'a Paimon'} lake, but {error.name} is not "
            f"installed; run: pip install 'streamhouse-spark[{lake_format}]'"
        ) from error
