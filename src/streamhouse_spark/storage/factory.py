"""Opens the store of a warehouse's location."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.local import MOUNTS, LocalStorage, mount_of

SINGLE_HOST_SETTING = "storage.local.single-host"
"""``true``: no other host ever opens this warehouse, so that it may lie on a network file system."""

FSYNC_SETTING = "storage.local.fsync"
"""``false``: appends return before their rows are on disk, and take about half the time.

Killed processes still lose nothing. After a power loss or a crash of the operating system, rows that were acknowledged
within the last seconds may be lost, or a table's latest files torn (reads then fail). For tests, and for data that can
be loaded again. Applies to this process's writes only.
"""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
_SUPPORTED = (
    "a local path, file:///path, s3://bucket/prefix, gs://bucket/prefix, "
    "abfss://container@account.dfs.core.windows.net/prefix or hdfs://host:port/path"
)
_NETWORK_TYPES = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "davfs", "fhgfs", "gfs2", "glusterfs", "gpfs", "hgfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs",
    "vmhgfs",
})  # fmt: skip


def storage_for(location: str, settings: Mapping[str, str] | None = None, world: World | None = None) -> Storage:
    """Return the store at a path or URL, without connecting to it.

    ``settings`` are the warehouse's, with pyiceberg's names: ``s3.*``, ``gcs.*``, ``adls.*``, ``hdfs.*``. Raises
    `InvalidOptionError` for an invalid location or setting, `MissingExtraError` for a missing dependency.
    """
    settings = settings or {}
    if not location:
        raise InvalidOptionError(f"the warehouse location is empty: expected {_SUPPORTED}")
    if "\0" in location:
        raise InvalidOptionError(f"warehouse location {location!r} holds a NUL character: expected {_SUPPORTED}")
    match = _SCHEME.match(location)
    if match is None:
        return _local(str(Path(location).expanduser()), settings)
    scheme = match[1].lower()
    if scheme in ("s3", "s3a"):
        from streamhouse_spark.storage.s3.storage import S3Storage

        return S3Storage(scheme + location[match.end(1) :], settings, world)
    if scheme == "gs":
        from streamhouse_spark.storage.gcs.storage import gcs_storage

        return gcs_storage(scheme + location[match.end(1) :], settings, world)
    if scheme in ("abfss", "abfs"):
        from streamhouse_spark.storage.azure.storage import azure_storage

        return azure_storage(scheme + location[match.end(1) :], settings, world)
    if scheme == "hdfs":
        from streamhouse_spark.storage.hdfs.storage import hdfs_storage

        return hdfs_storage(scheme + location[match.end(1) :], settings, world)
    if scheme == "file":
        return _local(_file_path(location), settings)
    raise InvalidOptionError(f"warehouse location with scheme {scheme}: is not supported; expected {_SUPPORTED}")


def _local(path: str, settings: Mapping[str, str]) -> LocalStorage:
    single_host = _flag(settings, SINGLE_HOST_SETTING, default=False)
    return LocalStorage(
        path,
        fsync=_flag(settings, FSYNC_SETTING, default=True),
        network_fs=None if single_host else network_file_system(path),
    )


def _flag(settings: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = settings.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidOptionError(f"{name}: found {text!r}, expected true or false")
    return text == "true"


def _file_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise InvalidOptionError(f"warehouse location {url}: names the host {parts.netloc}; expected file:///path")
    if parts.query or parts.fragment:
        raise InvalidOptionError(f"warehouse location {url}: holds ? or #; write them as %3F and %23, or use the path")
    return unquote(parts.path)


def network_file_system(path: str, mounts: str = MOUNTS) -> str | None:
    """Return type and mount point of the network file system that ``path`` lies on (or would); None for a local one.

    None also if the operating system has no ``/proc/mounts``.
    """
    mount = mount_of(path, mounts)
    return f"{mount.type} at {mount.point}" if mount and _is_network_type(mount.type) else None


def _is_network_type(fs_type: str) -> bool:
    return fs_type in _NETWORK_TYPES or fs_type.startswith("fuse.")
