"""The file systems by which Spark's own Parquet reader reaches the files of a lake.

A session may reach a bucket with other credentials than the warehouse has, and two warehouses may have different ones
for it, while Hadoop opens one file system a scheme and bucket in a process. So the files of a warehouse on S3, or
with settings on Azure, have a scheme of their own, which names the file system with this warehouse's settings. Google's
connector refuses such schemes: it gets what is no secret, and the session's own settings come before.

Secrets are no part of an answer: it names settings of the catalog, whose values Java adds to what its tasks are given.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource.catalog.scan.hadoop_settings import (
    USUAL_CHAIN,
    HadoopSetting,
    abfs_settings,
    abfs_unsupported_reason,
    gs_settings,
    gs_unsupported_reason,
    is_unencrypted,
    s3a_settings,
    store_settings,
)
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.storage.base import Storage

S3A: Final = "s3a"
_ABFS: Final = "abfss"
_GS: Final = "gs"
_S3_SCHEMES: Final = ("s3", S3A)
S3_FILE_SYSTEM: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_S3_LAKE_FILES: Final = "io.streamhouse.spark.storage.LakeFileSystem"
"""The same, which asks for no size of a file that a plan names."""
_ABFS_FILE_SYSTEM: Final = "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem"
_PLAIN_ABFS_FILE_SYSTEM: Final = "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem"
_GOOGLES_CONNECTOR: Final = "gcs-connector"
"""A word among the session's schemes: its file system of ``gs`` is Google's."""
_BUCKET: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
"""Names of buckets that Hadoop takes for a host; others it refuses."""
_PACKAGES: Final = {S3A: "org.apache.hadoop:hadoop-aws", _ABFS: "org.apache.hadoop:hadoop-azure"}
_SETTINGS: Final = {S3A: "s3.", _GS: "gcs.", _ABFS: "adls.", "hdfs": "hdfs."}
"""File system → prefix of the warehouse's settings for it."""
REMOTE: Final = tuple(_SETTINGS)
"""File systems that are no disk, and whose settings are known."""
_READER_SETTING: Final = "lake.spark-reader"


@dataclass(frozen=True, slots=True, repr=False)
class FileSystems:
    """The file systems of a session, for the files of one warehouse."""

    settings: Mapping[str, str]
    """May hold credentials: never print it."""
    schemes: tuple[str, ...]
    """Schemes that the session has a file system for; without ``file`` Python reads files of the disk too."""
    hadoop_version: str | None
    warehouse_files: StorageFiles
    own: Mapping[str, str]
    """File system → a scheme of it with these settings: others are another file system, also in the same bucket."""
    s3_class: str = _S3_LAKE_FILES
    """The class of the file system of S3."""

    @classmethod
    def of(
        cls, storage: Storage, settings: Mapping[str, str], schemes: Sequence[str], hadoop_version: str | None
    ) -> FileSystems:
        own = {S3A: f"{S3A}-{_digest(store_settings(_SETTINGS[S3A], settings))}"}
        if ours := store_settings(_SETTINGS[_ABFS], settings):
            own[_ABFS] = f"{'abfs' if is_unencrypted(ours) else _ABFS}-{_digest(ours)}"
        return cls(settings, tuple(schemes), hadoop_version, StorageFiles(storage), own)

    def uri_of(self, location: str) -> str | None:
        """Return the location as Spark's reader takes it, percent-encoded; None where Python has to read it."""
        scheme = scheme_of(location)
        if scheme == "file":
            return file_uri(location) if "file" in self.schemes else None
        if self.unreadable_reason(location) is not None:
            return None
        bucket, key = _bucket_and_key(location)
        return f"{self.own.get(scheme, scheme)}://{bucket}/{quote(key)}"

    def settings_for(self, locations: Sequence[str]) -> list[HadoopSetting]:
        """Return the settings of the file systems by which Spark reads these of the lake's files."""
        remote = {(scheme_of(at), _bucket_and_key(at)[0]) for at in locations if scheme_of(at) in _SETTINGS}
        reached = (place for place in sorted(remote) if self._unsupported_reason(*place) is None)
        settings = [setting for scheme, bucket in reached for setting in self._settings_for(scheme, bucket)]
        return list({setting.key: setting for setting in settings}.values())

    def _settings_for(self, scheme: str, bucket: str) -> list[HadoopSetting]:
        ours = store_settings(_SETTINGS[scheme], self.settings)
        if scheme == S3A:
            common = [HadoopSetting(f"fs.{self.own[S3A]}.impl", self.s3_class)]
            if "s3.access-key-id" not in self.settings:
                common.append(HadoopSetting("fs.s3a.aws.credentials.provider", USUAL_CHAIN, is_default=True))
            return [*common, *s3a_settings(bucket, ours)]
        if scheme == _ABFS and ours:
            kind = _PLAIN_ABFS_FILE_SYSTEM if is_unencrypted(ours) else _ABFS_FILE_SYSTEM
            return [HadoopSetting(f"fs.{self.own[_ABFS]}.impl", kind), *abfs_settings(_host_of(bucket), ours)]
        return gs_settings(ours) if scheme == _GS else []

    def describe(self, locations: Sequence[str]) -> str:
        """Say, at the end of a scan's line of EXPLAIN, who reads remote lake files; nothing without such files."""
        remote = next((location for location in locations if scheme_of(location) != "file"), None)
        if remote is None:
            return ""
        scheme = scheme_of(remote)
        reason = self.unreadable_reason(remote)
        if reason is None:
            return f", lake files by Spark's reader over {scheme}"
        return f", lake files by Python: {reason}"

    def unreadable_reason(self, location: str) -> str | None:
        """Return the reason why Spark cannot read a remote file of the warehouse; None if it can."""
        scheme = scheme_of(location)
        if self.settings.get(_READER_SETTING, "true").lower() == "false":
            return f"{_READER_SETTING}=false"
        if scheme not in _SETTINGS:
            return f"files with the scheme {scheme} are left to it"
        if scheme not in self.schemes:
            return f"Spark has no file system {scheme}; {remedy(scheme, self.hadoop_version)}"
        if not self.warehouse_files.holds(location):
            return "the lake lies outside the warehouse, and may have credentials of its own"
        return self._unsupported_reason(scheme, _bucket_and_key(location)[0])

    def _unsupported_reason(self, scheme: str, bucket: str) -> str | None:
        """Return the reason why a file system cannot have the warehouse's settings for a bucket; None if it can."""
        ours = store_settings(_SETTINGS[scheme], self.settings)
        if scheme == _ABFS:
            return abfs_unsupported_reason(_host_of(bucket), ours)
        if scheme == _GS:
            return gs_unsupported_reason(ours, is_googles=_GOOGLES_CONNECTOR in self.schemes)
        if scheme == S3A:
            return None if _BUCKET.fullmatch(bucket) else "Hadoop does not take this name of a bucket"
        return f"settings {_SETTINGS[scheme]}* are not known to Spark's file system" if ours else None


def remedy(scheme: str, hadoop_version: str | None) -> str:
    """Say how a session gets a file system, for the Hadoop that this Spark has."""
    package = _PACKAGES.get(scheme)
    if package is None:
        return f"add Hadoop's file system for {scheme} to the session's jars"
    return f"add --packages {package}:{hadoop_version or '<the version of Spark’s Hadoop>'}"


def scheme_of(location: str) -> str:
    """Return the scheme of Spark's file system for a location: `file` for a path, and one name for S3's."""
    if location.startswith("file:") or "://" not in location:
        return "file"
    scheme = location.partition("://")[0].lower()
    return S3A if scheme in _S3_SCHEMES else scheme


def file_uri(location: str) -> str | None:
    """Return a path of the disk as a URI; None for a path that is not absolute."""
    path = location.removeprefix("file://") if location.startswith("file://") else location.removeprefix("file:")
    return f"file://{quote(path)}" if path.startswith("/") else None


def _digest(settings: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def _host_of(bucket: str) -> str:
    """Return the host of an account of Azure; its locations name a container before it."""
    return bucket.rpartition("@")[2]


def _bucket_and_key(location: str) -> tuple[str, str]:
    bucket, _, key = location.partition("://")[2].partition("/")
    return bucket, key
