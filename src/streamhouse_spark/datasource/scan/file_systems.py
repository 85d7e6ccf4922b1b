"""Hadoop file systems with which Spark's Parquet reader reads lake files, and Java reads the log.

The session and each warehouse may use different credentials for a bucket, but Hadoop opens only one file system per
scheme and bucket in a process. Warehouses on S3, or with settings on Azure, therefore use a separate scheme, which
selects a file system with the warehouse's settings. Google's connector rejects unknown schemes. It gets the non-secret
settings of the warehouse, and the session's settings take precedence.

On S3 the log has a separate file system from the lake's. With it, polling for the next record is one GET even if the
record does not exist yet. The reader retries failed requests itself.

Replies contain no secrets. They name catalog settings, and Java adds the values to the settings of its tasks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, urlsplit

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import table_prefix
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.log.catalog.log_locations import SETTINGS_PREFIX, log_locations_of, log_settings
from streamhouse_spark.storage.base import Storage, url_of
from streamhouse_spark.table_handle import TableHandle

S3A: Final = "s3a"
_ABFS: Final = "abfss"
_GS: Final = "gs"
_S3_SCHEMES: Final = ("s3", S3A)
S3_FILE_SYSTEM: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_S3_LAKE_FILES: Final = "io.streamhouse.spark.storage.LakeFileSystem"
"""S3A without a request for the size of files in a plan."""
_ABFS_FILE_SYSTEM: Final = "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem"
_PLAIN_ABFS_FILE_SYSTEM: Final = "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem"
_GOOGLES_CONNECTOR: Final = "gcs-connector"
"""Marker in the list of schemes: the session's ``gs`` file system is Google's connector."""
_BUCKET: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
"""Names of buckets that Hadoop accepts as a host."""
_PACKAGES: Final = {S3A: "org.apache.hadoop:hadoop-aws", _ABFS: "org.apache.hadoop:hadoop-azure"}
_SETTINGS: Final = {S3A: "s3.", _GS: "gcs.", _ABFS: "adls.", "hdfs": "hdfs."}
"""Scheme of a file system → prefix of the warehouse's settings for it."""
REMOTE: Final = tuple(_SETTINGS)
"""Remote file systems with known settings."""
_READER_SETTING: Final = "lake.spark-reader"
MICRO_BATCH_ADVICE: Final = "use a micro-batch trigger, such as trigger(processingTime='1 second')"
_LAKE_PREFIX: Final = "lake."
_POLL_SETTINGS: Final = {
    "input.stream.type": "classic",  # other types request an object's size first
    "retry.limit": "2",
    "retry.throttle.limit": "2",
}
"""S3A settings for a log. Retries are limited, because the reader retries itself and must stop quickly."""
_STATIC_KEYS: Final = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
_SESSION_KEYS: Final = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
USUAL_CHAIN: Final = (
    f"{_SESSION_KEYS},{_STATIC_KEYS},software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
)
_AMAZON: Final = ".amazonaws.com"
_CLIENT_SECRETS: Final = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
_LOGIN_HOSTS: Final = {
    "core.windows.net": "login.microsoftonline.com",
    "core.chinacloudapi.cn": "login.chinacloudapi.cn",
    "core.usgovcloudapi.net": "login.microsoftonline.us",
}
"""Domain of an Azure account's host → the host that issues its tokens."""
_IRRELEVANT_SETTINGS: Final = frozenset({
    "adls.account-host", "adls.account-name", "adls.connect-timeout", "adls.dfs-storage-authority",
    "adls.dfs-storage-scheme", "adls.request-timeout", "gcs.access", "gcs.connect-timeout", "gcs.consistency",
    "gcs.default-bucket-location", "gcs.oauth2.token-expires-at", "gcs.request-timeout", "hdfs.connect-timeout",
    "hdfs.host", "hdfs.port", "hdfs.request-timeout", "hdfs.webhdfs.address",
})  # fmt: skip
"""Settings that a Hadoop file system need not support: they do not affect files, or only another protocol."""


@dataclass(frozen=True, slots=True, repr=False)
class FileSystems:
    """The session's file systems, with the settings of one warehouse."""

    settings: Mapping[str, str]
    """Settings of the warehouse. May contain credentials: never print them."""
    schemes: tuple[str, ...]
    """Schemes for which the session has a file system. Without ``file``, Python also reads local files."""
    hadoop_version: str | None
    warehouse_files: StorageFiles
    own: Mapping[str, str]
    """Scheme of a file system → the scheme with these settings. It selects a separate file system for a bucket."""
    s3_class: str = _S3_LAKE_FILES
    """Class of the S3 file system."""

    @classmethod
    def of(
        cls, storage: Storage, settings: Mapping[str, str], schemes: Sequence[str], hadoop_version: str | None
    ) -> FileSystems:
        own = {S3A: f"{S3A}-{_digest(store_settings(_SETTINGS[S3A], settings))}"}
        if azure_settings := store_settings(_SETTINGS[_ABFS], settings):
            own[_ABFS] = f"{'abfs' if is_unencrypted(azure_settings) else _ABFS}-{_digest(azure_settings)}"
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
        """Return the settings of the file systems with which Spark reads these lake files."""
        remote = {(scheme_of(at), _bucket_and_key(at)[0]) for at in locations if scheme_of(at) in _SETTINGS}
        supported = (place for place in sorted(remote) if self._unsupported_reason(*place) is None)
        settings = [setting for scheme, bucket in supported for setting in self._settings_for(scheme, bucket)]
        return list({setting.key: setting for setting in settings}.values())

    def _settings_for(self, scheme: str, bucket: str) -> list[HadoopSetting]:
        settings_of_store = store_settings(_SETTINGS[scheme], self.settings)
        if scheme == S3A:
            common = [HadoopSetting(f"fs.{self.own[S3A]}.impl", self.s3_class)]
            if "s3.access-key-id" not in self.settings:
                common.append(HadoopSetting("fs.s3a.aws.credentials.provider", USUAL_CHAIN, is_default=True))
            return [*common, *s3a_settings(bucket, settings_of_store)]
        if scheme == _ABFS and settings_of_store:
            kind = _PLAIN_ABFS_FILE_SYSTEM if is_unencrypted(settings_of_store) else _ABFS_FILE_SYSTEM
            return [
                HadoopSetting(f"fs.{self.own[_ABFS]}.impl", kind),
                *abfs_settings(_host_of(bucket), settings_of_store),
            ]
        return gs_settings(settings_of_store) if scheme == _GS else []

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
            return f"no Spark file system is supported for scheme {scheme}"
        if scheme not in self.schemes:
            return f"Spark has no file system {scheme}; {file_system_remedy(scheme, self.hadoop_version)}"
        if not self.warehouse_files.holds(location):
            return "the lake is outside the warehouse and may need other credentials"
        return self._unsupported_reason(scheme, _bucket_and_key(location)[0])

    def _unsupported_reason(self, scheme: str, bucket: str) -> str | None:
        """Return why a file system does not support the warehouse's settings for a bucket, or None if it does."""
        settings_of_store = store_settings(_SETTINGS[scheme], self.settings)
        if scheme == _ABFS:
            return abfs_unsupported_reason(_host_of(bucket), settings_of_store)
        if scheme == _GS:
            return gs_unsupported_reason(settings_of_store, is_google=_GOOGLES_CONNECTOR in self.schemes)
        if scheme == S3A:
            return None if _BUCKET.fullmatch(bucket) else "Hadoop does not support this bucket name"
        return f"Spark's file system does not support settings {_SETTINGS[scheme]}*" if settings_of_store else None


def file_system_remedy(scheme: str, hadoop_version: str | None) -> str:
    """Return how to add a file system to a session, for the session's version of Hadoop."""
    package = _PACKAGES.get(scheme)
    if package is None:
        return f"add Hadoop's file system for {scheme} to the session's jars"
    return f"add --packages {package}:{hadoop_version or '<the version of Spark’s Hadoop>'}"


def scheme_of(location: str) -> str:
    """Return the scheme of Spark's file system for a location: ``file`` for a path, ``s3a`` for all S3 schemes."""
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


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The folder of a log, and the settings of its file system."""

    folder: str
    """A local path, or a URI whose scheme selects the file system with these settings."""
    settings: tuple[HadoopSetting, ...] = ()


def log_folder(table: TableHandle, name: str, schemes: Sequence[str], hadoop_version: str | None) -> LogFolder:
    """Return the folder of a table's log, for a real-time stream of ``name``.

    Raises `InvalidOptionError` if no file system of the session can read it.
    """
    key = table_prefix(table.uuid)
    path = table.storage.local_path(key)
    if path is not None:
        return LogFolder(path)
    places = log_locations_of(table.storage)
    elsewhere = places.place(key) if places is not None else None
    settings = table.settings if elsewhere is None else log_settings(table.settings)
    file_systems = _log_file_systems(elsewhere or table.storage, settings, schemes, hadoop_version)
    location = url_of(table.storage, key).rstrip("/")
    scheme = scheme_of(location)
    uri = file_systems.uri_of(location) if scheme in REMOTE else None
    if uri is None:
        reason = file_systems.unreadable_reason(location) if scheme in REMOTE else f"unsupported scheme {scheme}"
        raise InvalidOptionError(
            f"a stream of {name} in real-time mode cannot read the log at {location} with a Spark file system: "
            f"{reason}; correct that, or {MICRO_BATCH_ADVICE}"
        )
    hadoop_settings = _log_read_settings(file_systems, location)
    if elsewhere is not None:
        hadoop_settings = [_catalog_setting(setting, table.settings) for setting in hadoop_settings]
    return LogFolder(uri, tuple(hadoop_settings))


def store_folder(table: TableHandle) -> LogFolder | None:
    """Return the warehouse's folder on S3, in which Java checks whether log and lake files exist. Returns None for
    another store, or if the table's log is in another location.
    """
    key = table_prefix(table.uuid)
    places = log_locations_of(table.storage)
    location = url_of(table.storage, key)
    if scheme_of(location) != S3A or (places is not None and places.place(key) is not None):
        return None
    file_systems = _log_file_systems(table.storage, table.settings, [S3A], None)
    uri = file_systems.uri_of(location)
    return None if uri is None else LogFolder(uri.removesuffix(key), tuple(_log_read_settings(file_systems, location)))


def _log_file_systems(
    storage: Storage, settings: Mapping[str, str], schemes: Sequence[str], hadoop_version: str | None
) -> FileSystems:
    log_store_settings = {name: value for name, value in settings.items() if not name.startswith(_LAKE_PREFIX)}
    file_systems = FileSystems.of(storage, log_store_settings, schemes, hadoop_version)
    return replace(file_systems, own={**file_systems.own, S3A: f"{file_systems.own[S3A]}-log"}, s3_class=S3_FILE_SYSTEM)


def _log_read_settings(file_systems: FileSystems, location: str) -> list[HadoopSetting]:
    settings = file_systems.settings_for([location])
    if scheme_of(location) != S3A:
        return settings
    bucket, _ = _bucket_and_key(location)
    return [
        *settings,
        *(HadoopSetting(f"fs.s3a.bucket.{bucket}.{key}", value) for key, value in _POLL_SETTINGS.items()),
    ]


def _catalog_setting(setting: HadoopSetting, catalog_settings: Mapping[str, str]) -> HadoopSetting:
    """Return a setting of the log's store with its name in the catalog."""
    own = f"{SETTINGS_PREFIX}{setting.setting}"
    return replace(setting, setting=own) if setting.setting is not None and own in catalog_settings else setting


@dataclass(frozen=True, slots=True)
class HadoopSetting:
    """A file system setting, with its value or with the name of the catalog setting that holds it."""

    key: str
    value: str | None = None
    setting: str | None = None
    is_default: bool = False
    """Whether the session's own value takes precedence."""

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "value": self.value, "setting": self.setting, "is_default": self.is_default}


def store_settings(prefix: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the warehouse's settings with a prefix that affect access to files, so Hadoop must support them."""
    return {k: v for k, v in settings.items() if k.startswith(prefix) and k not in _IRRELEVANT_SETTINGS and v}


def s3a_settings(bucket: str, settings: Mapping[str, str]) -> list[HadoopSetting]:
    """Return the S3A settings of a bucket of the warehouse. They override the settings for all buckets."""
    prefix = f"fs.s3a.bucket.{bucket}."
    endpoint, region = settings.get("s3.endpoint"), settings.get("s3.region")
    hadoop_settings: list[HadoopSetting] = []
    if endpoint:
        hadoop_settings.append(HadoopSetting(f"{prefix}endpoint", endpoint))
    if region:
        hadoop_settings.append(HadoopSetting(f"{prefix}endpoint.region", region))
    is_virtual = settings.get("s3.force-virtual-addressing", "").lower()
    if endpoint or is_virtual:
        has_hosts = is_virtual == "true" or (not is_virtual and _is_amazon(endpoint or _AMAZON))
        hadoop_settings.append(HadoopSetting(f"{prefix}path.style.access", "false" if has_hosts else "true"))
    if settings.get("s3.access-key-id"):
        has_token = bool(settings.get("s3.session-token"))
        hadoop_settings += [
            HadoopSetting(f"{prefix}aws.credentials.provider", _SESSION_KEYS if has_token else _STATIC_KEYS),
            HadoopSetting(f"{prefix}access.key", setting="s3.access-key-id"),
            HadoopSetting(f"{prefix}secret.key", setting="s3.secret-access-key"),
        ]
        if has_token:
            hadoop_settings.append(HadoopSetting(f"{prefix}session.token", setting="s3.session-token"))
    return hadoop_settings


def _is_amazon(endpoint: str) -> bool:
    return (urlsplit(endpoint).hostname or endpoint).endswith(_AMAZON)


def abfs_settings(host: str, settings: Mapping[str, str]) -> list[HadoopSetting]:
    """Return the ABFS settings of the account with this host. They override the settings for all accounts."""

    def named(key: str, setting_value: str | None = None, setting: str | None = None) -> HadoopSetting:
        return HadoopSetting(f"fs.azure.{key}.{host}", setting_value, setting)

    hadoop_settings: list[HadoopSetting] = []
    if "adls.account-key" in settings:
        hadoop_settings += [named("account.auth.type", "SharedKey"), named("account.key", setting="adls.account-key")]
    elif "adls.sas-token" in settings:
        hadoop_settings += [named("account.auth.type", "SAS"), named("sas.fixed.token", setting="adls.sas-token")]
    elif "adls.client-secret" in settings:
        login = f"https://{_login_host(host)}/{settings['adls.tenant-id']}/oauth2/token"
        hadoop_settings += [
            named("account.auth.type", "OAuth"),
            named("account.oauth.provider.type", _CLIENT_SECRETS),
            named("account.oauth2.client.endpoint", login),
            named("account.oauth2.client.id", settings["adls.client-id"]),
            named("account.oauth2.client.secret", setting="adls.client-secret"),
        ]
    if authority := settings.get("adls.blob-storage-authority"):  # an emulator of the Blob endpoint
        hadoop_settings += [
            HadoopSetting("fs.azure.abfs.endpoint", authority),
            HadoopSetting("fs.azure.account.hns.enabled", "false"),
            HadoopSetting("fs.azure.fns.account.service.type", "BLOB"),
        ]
    if is_unencrypted(settings):
        hadoop_settings += [
            HadoopSetting("fs.azure.always.use.https", "false"),
            HadoopSetting("fs.azure.networking.library", "JDK_HTTP_URL_CONNECTION"),
        ]
    return hadoop_settings


def is_unencrypted(settings: Mapping[str, str]) -> bool:
    """Return whether the Azure account is accessed over HTTP."""
    return settings.get("adls.blob-storage-scheme") == "http"


def abfs_unsupported_reason(host: str, settings: Mapping[str, str]) -> str | None:
    """Return why ABFS does not support the warehouse's ``adls.*`` settings, or None if it does."""
    if settings.get("adls.blob-storage-authority", ":").startswith("."):
        return "Spark's file system does not support a domain in adls.blob-storage-authority"
    if "adls.sas-token-file" in settings:
        return "Spark's file system does not support adls.sas-token-file"
    has_keys = "adls.account-key" in settings or "adls.sas-token" in settings
    if not has_keys and "adls.client-secret" in settings and _login_host(host) is None:
        return f"the login host of {host} is unknown"
    if not has_keys and "adls.client-id" in settings and "adls.client-secret" not in settings:
        return "Spark's file system does not support adls.client-id without adls.client-secret"
    return None


def _login_host(host: str) -> str | None:
    return next((login for domain, login in _LOGIN_HOSTS.items() if host.endswith(f".{domain}")), None)


def gs_settings(settings: Mapping[str, str]) -> list[HadoopSetting]:
    """Return settings of Google's connector. It has none per bucket, so the session's settings take precedence."""
    connector_settings: dict[str, str] = {}
    if host := settings.get("gcs.service.host"):
        connector_settings["storage.root.url"] = f"{host.rstrip('/')}/"
    if project := settings.get("gcs.project-id"):
        connector_settings |= {"requester.pays.mode": "ENABLED", "requester.pays.project.id": project}
    if settings.get("gcs.anonymous", "").lower() == "true":  # auth.type is the key since version 3
        connector_settings |= {
            "auth.type": "UNAUTHENTICATED",
            "auth.null.enable": "true",
            "auth.service.account.enable": "false",
        }
    return [HadoopSetting(f"fs.gs.{key}", value, is_default=True) for key, value in connector_settings.items()]


def gs_unsupported_reason(settings: Mapping[str, str], *, is_google: bool) -> str | None:
    """Return why the file system of ``gs`` does not support the ``gcs.*`` settings, or None if it does."""
    for token in ("gcs.oauth2.token", "gcs.oauth2.token-file"):
        if token in settings:
            return f"Spark's file system does not support {token}"
    if settings and not is_google:
        return "settings gcs.* require Google's connector, but the session has another file system"
    return None
