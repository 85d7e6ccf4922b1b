"""Hadoop file system settings for the files of a warehouse, derived from the warehouse's settings.

Secrets are not included: the setting names the catalog setting, and Java resolves its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from streamhouse_spark.core.lazy_dataclass import dataclass

_GIVEN_KEYS: Final = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
_SESSION_KEYS: Final = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
USUAL_CHAIN: Final = f"{_SESSION_KEYS},{_GIVEN_KEYS},software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
_AMAZON: Final = ".amazonaws.com"
_CLIENT_SECRETS: Final = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
_LOGINS: Final = {
    "core.windows.net": "login.microsoftonline.com",
    "core.chinacloudapi.cn": "login.chinacloudapi.cn",
    "core.usgovcloudapi.net": "login.microsoftonline.us",
}
"""Domain of an account's host → the host that issues its tokens."""
_HARMLESS: Final = frozenset({
    "adls.account-host", "adls.account-name", "adls.connect-timeout", "adls.dfs-storage-authority",
    "adls.dfs-storage-scheme", "adls.request-timeout", "gcs.access", "gcs.connect-timeout", "gcs.consistency",
    "gcs.default-bucket-location", "gcs.oauth2.token-expires-at", "gcs.request-timeout", "hdfs.connect-timeout",
    "hdfs.host", "hdfs.port", "hdfs.request-timeout", "hdfs.webhdfs.address",
})  # fmt: skip
"""Settings that do not affect the files, or only a protocol that Hadoop does not use."""


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
    """Return the warehouse's settings for a store that Hadoop's file system must support."""
    return {k: v for k, v in settings.items() if k.startswith(prefix) and k not in _HARMLESS and v}


def s3a_settings(bucket: str, settings: Mapping[str, str]) -> list[HadoopSetting]:
    """Return S3A settings of a warehouse's bucket. They override the settings for all buckets."""
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
            HadoopSetting(f"{prefix}aws.credentials.provider", _SESSION_KEYS if has_token else _GIVEN_KEYS),
            HadoopSetting(f"{prefix}access.key", setting="s3.access-key-id"),
            HadoopSetting(f"{prefix}secret.key", setting="s3.secret-access-key"),
        ]
        if has_token:
            hadoop_settings.append(HadoopSetting(f"{prefix}session.token", setting="s3.session-token"))
    return hadoop_settings


def _is_amazon(endpoint: str) -> bool:
    return (urlsplit(endpoint).hostname or endpoint).endswith(_AMAZON)


def abfs_settings(host: str, settings: Mapping[str, str]) -> list[HadoopSetting]:
    """Return ABFS settings of an account, given by its host. They override the settings for all accounts."""

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
        return "Spark's file system finds no account by adls.blob-storage-authority"
    if "adls.sas-token-file" in settings:
        return "Spark's file system takes no adls.sas-token-file"
    has_keys = "adls.account-key" in settings or "adls.sas-token" in settings
    if not has_keys and "adls.client-secret" in settings and _login_host(host) is None:
        return f"it is not known who gives tokens for {host}"
    if not has_keys and "adls.client-id" in settings and "adls.client-secret" not in settings:
        return "adls.client-id without a secret means nothing to Spark's file system"
    return None


def _login_host(host: str) -> str | None:
    return next((login for domain, login in _LOGINS.items() if host.endswith(f".{domain}")), None)


def gs_settings(settings: Mapping[str, str]) -> list[HadoopSetting]:
    """Return settings of Google's connector. It has no per-bucket settings, so the session's own take precedence."""
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


def gs_unsupported_reason(settings: Mapping[str, str], *, is_googles: bool) -> str | None:
    """Return why the file system of ``gs`` does not support the ``gcs.*`` settings, or None if it does."""
    for token in ("gcs.oauth2.token", "gcs.oauth2.token-file"):
        if token in settings:
            return f"Spark's file system takes no {token}"
    if settings and not is_googles:
        return "settings gcs.* are known to Google's connector alone, and Spark has another"
    return None
