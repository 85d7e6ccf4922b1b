"""Hadoop file systems by which Spark's own Parquet reader accesses lake files.

A session may access a bucket with other credentials than the warehouse, and two warehouses may use different ones, but
Hadoop opens one file system per scheme and bucket in a process. Warehouses on S3, or with settings on Azure, therefore
use a scheme of their own, which selects a file system with the warehouse's settings. Google's connector rejects such
schemes: it gets the non-secret settings, and the session's own take precedence.

Answers contain no secrets. They name catalog settings, whose values Java adds to the settings of its tasks.
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
"""The same, without a size request for files that a plan names."""
_ABFS_FILE_SYSTEM: Final = "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem"
_PLAIN_ABFS_FILE_SYSTEM: Final = "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem"
_GOOGLES_CONNECTOR: Final = "gcs-connector"
"""Marker among the session's schemes: its ``gs`` file system is Google's connector."""
_BUCKET: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
"""Bucket names that Hadoop accepts as a host."""
_PACKAGES: Final = {S3A: "org.apache.hadoop:hadoop-aws", _ABFS: "org.apache.hadoop:hadoop-azure"}
_SETTINGS: Final = {S3A: "s3.", _GS: "gcs.", _ABFS: "adls.", "hdfs": "hdfs."}
"""File system → prefix of the warehouse's settings for it."""
REMOTE: Final = tuple(_SETTINGS)
"""Remote file systems with known settings."""
_READER_SETTING: Final = "lake.spark-reader"


@dataclass(frozen=True, slots=True, repr=False)
class FileSystems:
    """The session's file systems, for the files of one warehouse."""

    settings: Mapping[str, str]
    """May contain credentials: never print it."""
    schemes: tuple[str, ...]
    """Schemes for which the session has a file system. Without ``file``, Python reads local files too."""
    hadoop_version: str | None
    warehouse_files: StorageFiles
    own: Mapping[str, str]
    """File system → its scheme for these settings. Another scheme is another file system, even for the same bucket."""
    s3_class: str = _S3_LAKE_FILES
    """Class of the S3 file system."""

    @classmethod
    def of(
        cls, storage: Storage, settings: Mapping[str, str], schemes: Sequence[str], hadoop_version: str | None
    ) -> FileSystems:
        own = {S3A: f"{S3A}-{_digest(store_settings(_SETTINGS[S3A], settings))}"}
        if ours := store_settings(_SETTINGS[_ABFS], settings):
            own[_ABFS] = f"{'abfs' if is_unencrypted(ours) else _ABFS}-{_digest(ours)}"
        return cls(settings, tuple(schemes), hadoop_version, StorageFiles(storage), own)

    def uri_of(self, location: str) -> str | None:
        """Return the percent-encoded URI for Spark's reader, or None if Python must read the file."""
        scheme = scheme_of(location)
        if scheme == "file":
            return file_uri(location) if "file" in self.schemes else None
        if self.unreadable_reason(location) is not None:
            return None
        bucket, key = _bucket_and_key(location)
        return f"{self.own.get(scheme, scheme)}://{bucket}/{quote(key)}"

    def settings_for(self, locations: Sequence[str]) -> list[HadoopSetting]:
        """Return the settings of the file systems by which Spark reads these lake files."""
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
        """Describe for EXPLAIN how remote lake files are read; empty without remote files."""
        remote = next((location for location in locations if scheme_of(location) != "file"), None)
        if remote is None:
            return ""
        scheme = scheme_of(remote)
        reason = self.unreadable_reason(remote)
        if reason is None:
            return f", lake files by Spark's reader over {scheme}"
        return f", lake files by Python: {reason}"

    def unreadable_reason(self, location: str) -> str | None:
        """Return why Spark cannot read a remote file of the warehouse, or None if it can."""
        scheme = scheme_of(location)
        if self.settings.get(_READER_SETTING, "true").lower() == "false":
            return f"{_READER_SETTING}=false"
        if scheme not in _SETTINGS:
            return f"files with the scheme {scheme} are left to it"
        if scheme not in self.schemes:
            return f"Spark has no file system {scheme}; {file_system_remedy(scheme, self.hadoop_version)}"
        if not self.warehouse_files.holds(location):
            return "the lake lies outside the warehouse, and may have credentials of its own"
        return self._unsupported_reason(scheme, _bucket_and_key(location)[0])

    def _unsupported_reason(self, scheme: str, bucket: str) -> str | None:
        """Return why a file system does not support the warehouse's settings for a bucket, or None if it does."""
        ours = store_settings(_SETTINGS[scheme], self.settings)
        if scheme == _ABFS:
            return abfs_unsupported_reason(_host_of(bucket), ours)
        if scheme == _GS:
            return gs_unsupported_reason(ours, is_googles=_GOOGLES_CONNECTOR in self.schemes)
        if scheme == S3A:
            return None if _BUCKET.fullmatch(bucket) else "Hadoop does not take this name of a bucket"
        return f"settings {_SETTINGS[scheme]}* are not known to Spark's file system" if ours else None


def file_system_remedy(scheme: str, hadoop_version: str | None) -> str:
    """Return how a session gets a file system, for this Spark's version of Hadoop."""
    package = _PACKAGES.get(scheme)
    if package is None:
        return f"add Hadoop's file system for {scheme} to the session's jars"
    return f"add --packages {package}:{hadoop_version or '<the version of Spark’s Hadoop>'}"


def scheme_of(location: str) -> str:
    """Return the scheme of Spark's file system for a location: `file` for a path, and one scheme for all S3 schemes."""
    if location.startswith("file:") or "://" not in location:
        return "file"
    scheme = location.partition("://")[0].lower()
    return S3A if scheme in _S3_SCHEMES else scheme


def file_uri(location: str) -> str | None:
    """Return the URI of a local path, or None if the path is not absolute."""
    path = location.removeprefix("file://") if location.startswith("file://") else location.removeprefix("file:")
    return f"file://{quote(path)}" if path.startswith("/") else None


def _digest(settings: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def _host_of(bucket: str) -> str:
    """Return the host of an Azure account; locations prefix it with a container."""
    return bucket.rpartition("@")[2]


def _bucket_and_key(location: str) -> tuple[str, str]:
    bucket, _, key = location.partition("://")[2].partition("/")
    return bucket, key
