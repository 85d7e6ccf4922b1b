"""Where Java reads a table's log in real-time mode: a local folder, or a folder in a Spark file system.

On S3 the log has a separate file system from the lake's. There, polling for the next record is one GET even if the
record does not exist yet, and failed requests are soon retried by the reader itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.paths import table_prefix
from streamhouse_spark.datasource.catalog.scan.file_systems import (
    REMOTE,
    S3_FILE_SYSTEM,
    S3A,
    FileSystems,
    scheme_of,
)
from streamhouse_spark.datasource.catalog.scan.hadoop_settings import HadoopSetting
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.lifecycle.log_locations import SETTINGS_PREFIX, log_locations_of, log_settings
from streamhouse_spark.storage.base import url_of

MICRO_BATCH_ADVICE: Final = "use a micro-batch trigger, such as trigger(processingTime='1 second')"
_OF_LAKES: Final = "lake."
_LOOKS: Final = {
    "input.stream.type": "classic",  # other types request an object's size first
    "retry.limit": "2",
    "retry.throttle.limit": "2",
}
"""S3A settings for a log. They limit retries, because the reader retries itself and may be told to stop."""


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The folder of a log, and the settings of its file system."""

    folder: str
    """A path, or a URI whose scheme selects the file system with these settings."""
    settings: tuple[HadoopSetting, ...] = ()


def log_folder(table: TableHandle, name: str, schemes: Sequence[str], hadoop_version: str | None) -> LogFolder:
    """Return the folder of a table's log, for a real-time stream of ``name``.

    Raises `InvalidOptionError` if no file system of the session, which has these schemes, reaches it.
    """
    key = table_prefix(table.uuid)
    path = table.storage.local_path(key)
    if path is not None:
        return LogFolder(path)
    places = log_locations_of(table.storage)
    elsewhere = places.place(key) if places is not None else None
    settings = table.settings if elsewhere is None else log_settings(table.settings)
    settings_of_store = {name: value for name, value in settings.items() if not name.startswith(_OF_LAKES)}
    file_systems = _log_file_systems(
        FileSystems.of(elsewhere or table.storage, settings_of_store, schemes, hadoop_version)
    )
    location = url_of(table.storage, key).rstrip("/")
    scheme = scheme_of(location)
    uri = file_systems.uri_of(location) if scheme in REMOTE else None
    if uri is None:
        reason = file_systems.unreadable_reason(location) if scheme in REMOTE else f"none is known for {scheme}"
        raise InvalidOptionError(
            f"a stream of {name} in real-time mode reads the log through a Spark file system, and none reaches "
            f"{location}: {reason}. Correct that, or {MICRO_BATCH_ADVICE}"
        )
    hadoop_settings = [*file_systems.settings_for([location]), *_log_read_settings(location)]
    return LogFolder(
        uri,
        tuple(
            _catalog_setting(setting, table.settings) if elsewhere is not None else setting
            for setting in hadoop_settings
        ),
    )


def store_folder(table: TableHandle) -> LogFolder | None:
    """Return the warehouse's folder on S3, for Java's existence checks of log and lake files. None for another store,
    or if the table's log is in another location.
    """
    key = table_prefix(table.uuid)
    places = log_locations_of(table.storage)
    location = url_of(table.storage, key)
    if scheme_of(location) != S3A or (places is not None and places.place(key) is not None):
        return None
    settings_of_store = {name: value for name, value in table.settings.items() if not name.startswith(_OF_LAKES)}
    file_systems = _log_file_systems(FileSystems.of(table.storage, settings_of_store, [S3A], None))
    uri = file_systems.uri_of(location)
    if uri is None:
        return None
    return LogFolder(uri.removesuffix(key), (*file_systems.settings_for([location]), *_log_read_settings(location)))


def _log_file_systems(file_systems: FileSystems) -> FileSystems:
    return replace(file_systems, own={**file_systems.own, S3A: f"{file_systems.own[S3A]}-log"}, s3_class=S3_FILE_SYSTEM)


def _log_read_settings(location: str) -> list[HadoopSetting]:
    if scheme_of(location) != S3A:
        return []
    bucket = location.partition("://")[2].partition("/")[0]
    return [HadoopSetting(f"fs.s3a.bucket.{bucket}.{key}", value) for key, value in _LOOKS.items()]


def _catalog_setting(setting: HadoopSetting, catalog_settings: Mapping[str, str]) -> HadoopSetting:
    """Return a setting of the log's store under its name in the catalog."""
    own = f"{SETTINGS_PREFIX}{setting.setting}"
    return replace(setting, setting=own) if setting.setting is not None and own in catalog_settings else setting
