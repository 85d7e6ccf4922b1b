"""The file systems by which Spark's own Parquet reader reaches the files of a lake.

A session may reach a bucket with other credentials than the warehouse has, and two warehouses may have different ones
for it, while Hadoop opens one file system a scheme and bucket in a process. So the files of a warehouse on S3 have a
scheme of their own, which names S3A with this warehouse's settings.

Secrets are no part of an answer: it names settings of the catalog, whose values Java adds to what its tasks are given.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

from streamhouse_spark.lake.parquet.access import StorageFiles
from streamhouse_spark.storage.base import Storage

S3A: Final = "s3a"
_S3_SCHEMES: Final = ("s3", S3A)
_FILE_SYSTEM: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_GIVEN_KEYS: Final = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
_SESSION_KEYS: Final = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
_USUAL_CHAIN: Final = (
    f"{_SESSION_KEYS},{_GIVEN_KEYS},software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
)
_BUCKET: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
"""Names of buckets that Hadoop takes for a host; others it refuses."""
_AMAZON: Final = ".amazonaws.com"
_PACKAGES: Final = {S3A: "org.apache.hadoop:hadoop-aws", "abfss": "org.apache.hadoop:hadoop-azure"}
_SETTINGS: Final = {S3A: "s3.", "gs": "gcs.", "abfss": "adls.", "hdfs": "hdfs."}
"""File system → prefix of the warehouse's settings for it. Those of S3 alone are translated."""
_HARMLESS: Final = frozenset({"hdfs.webhdfs.address", "hdfs.connect-timeout", "hdfs.request-timeout"})
"""Settings of a way that Spark's file system does not go."""
_READER_SETTING: Final = "lake.spark-reader"


@dataclass(frozen=True, slots=True)
class HadoopSetting:
    """A setting of a file system, with its value, or with the name of the catalog's setting that has it."""

    key: str
    value: str | None = None
    setting: str | None = None
    is_default: bool = False
    """Whether the session's own, if it has one, comes before."""

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "value": self.value, "setting": self.setting, "is_default": self.is_default}


@dataclass(frozen=True, slots=True, repr=False)
class FileSystems:
    """The file systems of a session, for the files of one warehouse."""

    settings: Mapping[str, str]
    """May hold credentials: never print it."""
    schemes: tuple[str, ...]
    """Schemes that the session has a file system for; without ``file`` Python reads files of the disk too."""
    hadoop_version: str | None
    inside: StorageFiles
    s3_scheme: str
    """A scheme of S3A with these settings: others are another file system, also in the same bucket."""

    @classmethod
    def of(
        cls, storage: Storage, settings: Mapping[str, str], schemes: Sequence[str], hadoop_version: str | None
    ) -> FileSystems:
        ours = {name: value for name, value in settings.items() if name.startswith(_SETTINGS[S3A])}
        digest = hashlib.sha256(json.dumps(ours, sort_keys=True).encode()).hexdigest()
        return cls(settings, tuple(schemes), hadoop_version, StorageFiles(storage), f"{S3A}-{digest[:8]}")

    def uri_of(self, location: str) -> str | None:
        """Return the location as Spark's reader takes it, percent-encoded; None where Python has to read it."""
        scheme = scheme_of(location)
        if scheme == "file":
            return file_uri(location) if "file" in self.schemes else None
        if self._reason(location, scheme) is not None:
            return None
        bucket, key = _bucket_and_key(location)
        return f"{self.s3_scheme if scheme == S3A else scheme}://{bucket}/{quote(key)}"

    def settings_for(self, locations: Sequence[str]) -> list[HadoopSetting]:
        """Return the settings of the file systems by which Spark reads these of the lake's files."""
        remote = [location for location in locations if scheme_of(location) == S3A]
        buckets = sorted({_bucket_and_key(location)[0] for location in remote})
        if not buckets:
            return []
        common = [HadoopSetting(f"fs.{self.s3_scheme}.impl", _FILE_SYSTEM)]
        if "s3.access-key-id" not in self.settings:
            common.append(HadoopSetting("fs.s3a.aws.credentials.provider", _USUAL_CHAIN, is_default=True))
        return [*common, *(one for bucket in buckets for one in s3a_settings(bucket, self.settings))]

    def describe(self, locations: Sequence[str]) -> str:
        """Say, at the end of a scan's line of EXPLAIN, who reads remote lake files; nothing without such files."""
        remote = next((location for location in locations if scheme_of(location) != "file"), None)
        if remote is None:
            return ""
        scheme = scheme_of(remote)
        reason = self._reason(remote, scheme)
        if reason is None:
            return f", lake files by Spark's reader over {scheme}"
        return f", lake files by Python: {reason}"

    def _reason(self, location: str, scheme: str) -> str | None:
        """Return the reason why Spark's reader cannot read a remote file; None if it can."""
        if self.settings.get(_READER_SETTING, "true").lower() == "false":
            return f"{_READER_SETTING}=false"
        if scheme not in _SETTINGS:
            return f"files with the scheme {scheme} are left to it"
        if scheme not in self.schemes:
            return f"Spark has no file system {scheme}; {remedy(scheme, self.hadoop_version)}"
        if not self.inside.holds(location):
            return "the lake lies outside the warehouse, and may have credentials of its own"
        if scheme != S3A and any(name.startswith(_SETTINGS[scheme]) for name in self.settings.keys() - _HARMLESS):
            return f"settings {_SETTINGS[scheme]}* are not known to Spark's file system"
        if scheme == S3A and not _BUCKET.fullmatch(_bucket_and_key(location)[0]):
            return "Hadoop does not take this name of a bucket"
        return None


def s3a_settings(bucket: str, settings: Mapping[str, str]) -> list[HadoopSetting]:
    """Return the settings of S3A for a bucket of a warehouse. They come before those that S3A has for all buckets."""
    prefix = f"fs.s3a.bucket.{bucket}."
    endpoint, region = settings.get("s3.endpoint"), settings.get("s3.region")
    found: list[HadoopSetting] = []
    if endpoint:
        found.append(HadoopSetting(f"{prefix}endpoint", endpoint))
    if region:
        found.append(HadoopSetting(f"{prefix}endpoint.region", region))
    is_virtual = settings.get("s3.force-virtual-addressing", "").lower()
    if endpoint or is_virtual:
        has_hosts = is_virtual == "true" or (not is_virtual and _is_amazon(endpoint or _AMAZON))
        found.append(HadoopSetting(f"{prefix}path.style.access", "false" if has_hosts else "true"))
    if settings.get("s3.access-key-id"):
        has_token = bool(settings.get("s3.session-token"))
        found += [
            HadoopSetting(f"{prefix}aws.credentials.provider", _SESSION_KEYS if has_token else _GIVEN_KEYS),
            HadoopSetting(f"{prefix}access.key", setting="s3.access-key-id"),
            HadoopSetting(f"{prefix}secret.key", setting="s3.secret-access-key"),
        ]
        if has_token:
            found.append(HadoopSetting(f"{prefix}session.token", setting="s3.session-token"))
    return found


def _is_amazon(endpoint: str) -> bool:
    return (urlsplit(endpoint).hostname or endpoint).endswith(_AMAZON)


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


def _bucket_and_key(location: str) -> tuple[str, str]:
    bucket, _, key = location.partition("://")[2].partition("/")
    return bucket, key
