"""Opening of a table's lake. Lake libraries are optional; a missing one is noticed when the lake is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from streamhouse_spark.config.table_properties import LakeFormat
from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import MissingExtraError
from streamhouse_spark.lake.base import LakeAdoption, LakeRelocation, LakeTable
from streamhouse_spark.lake.parquet.file_writer import FileSpec
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.types import WriteContext
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage


def open_lake_table(storage: Storage, settings: Mapping[str, str], state: TableState, world: World) -> LakeTable:
    """Return the lake table of a table; reads nothing yet.

    Raises `MissingExtraError` without the lake's library, `LakeMismatchError` for a table that the lake cannot hold.
    """
    properties = state.parsed
    spec = LakeTableSpec.of(state)
    with lake_library(properties.datalake_format, f"table {state.name}"):
        if properties.datalake_format == "paimon":
            from streamhouse_spark.lake.paimon.table import PaimonLake

            return PaimonLake(storage, spec, settings=settings, world=world)
        _require_installed("pyiceberg")  # loading it is slow, so that callers import it when needed
        from streamhouse_spark.lake.iceberg.table import IcebergLake

        return IcebergLake(storage, spec, settings=settings, world=world)


def lake_adoption(storage: Storage, settings: Mapping[str, str], world: World, lake_format: LakeFormat) -> LakeAdoption:
    """Return the adoption of lake tables of a format. Raises `MissingExtraError` without the lake's library."""
    with lake_library(lake_format, "an adopted table"):
        if lake_format == "paimon":
            from streamhouse_spark.lake.paimon.adoption import PaimonAdoption

            return PaimonAdoption(storage, settings, world)
        from streamhouse_spark.lake.iceberg.adoption import IcebergAdoption

        return IcebergAdoption(storage, settings, world)


def lake_relocation(
    storage: Storage, settings: Mapping[str, str], state: TableState, world: World
) -> LakeRelocation | None:
    """Return the relocation of the table's lake table, or None if an external catalog keeps it.

    Raises `MissingExtraError` without the lake's library.
    """
    lake = open_lake_table(storage, settings, state, world)
    return lake.relocation()


def release_lake_table(storage: Storage, settings: Mapping[str, str], state: TableState, world: World) -> None:
    """Release the lake table of a dropped adopted table; its files stay."""
    properties = state.parsed
    lake_adoption(storage, settings, world, properties.datalake_format).release(LakeTableSpec.of(state))


def file_spec_of(context: WriteContext) -> FileSpec:
    """Return the file spec of a task's context, by its format."""
    if context.lake["format"] == "paimon":
        from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec

        return PaimonFileSpec.from_json(context.lake)
    from streamhouse_spark.lake.iceberg.file_spec import IcebergFileSpec

    return IcebergFileSpec.from_json(context.lake)


def _require_installed(library: str) -> None:
    if find_spec(library) is None:
        raise ModuleNotFoundError(f"No module named {library!r}", name=library)


@contextmanager
def lake_library(lake_format: LakeFormat, owner: str) -> Iterator[None]:
    """Wrap imports of a lake's modules. Raises `MissingExtraError` if its library is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("streamhouse_spark"):
            raise  # a module of this package is missing, which no extra installs
        raise MissingExtraError(
            f"{owner} has {'an Iceberg' if lake_format == 'iceberg' else 'a Paimon'} lake, and {error.name} is not "
            f"installed; run: pip install 'streamhouse-spark[{lake_format}]'"
        ) from error
