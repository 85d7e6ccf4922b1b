"""Opens the store at the location of a warehouse."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.local import MOUNTS, LocalStorage, find_mount

SINGLE_HOST_SETTING = "storage.local.single-host"
"""``true`` allows a warehouse on a network file system, provided that no other host opens it."""

FSYNC_SETTING = "storage.local.fsync"
"""``false`` makes appends return before their rows are on disk, in about half the time.

A killed process still loses nothing. A power loss or a crash of the operating system may lose rows that were
acknowledged in the last seconds, or tear the latest files of a table, so that reads fail. For tests and reloadable
data. Applies to the writes of this process only.
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


def open_storage(location: str, settings: Mapping[str, str] | None = None, world: World | None = None) -> Storage:
    """Return the store at a path or URL, without connecting to it.

    ``settings`` are those of the warehouse, named as in pyiceberg: ``s3.*``, ``gcs.*``, ``adls.*``, ``hdfs.*``. Raises
    `InvalidOptionError` for an invalid location or setting, and `MissingExtraError` for a missing package.
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
        from streamhouse_spark.storage.gcs import open_gcs_storage

        return open_gcs_storage(scheme + location[match.end(1) :], settings, world)
    if scheme in ("abfss", "abfs"):
        from streamhouse_spark.storage.azure import open_azure_storage

        return open_azure_storage(scheme + location[match.end(1) :], settings, world)
    if scheme == "hdfs":
        from streamhouse_spark.storage.hdfs import open_hdfs_storage

        return open_hdfs_storage(scheme + location[match.end(1) :], settings, world)
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
    """Return type and mount point of the network file system that contains ``path``.

    Returns None for a local file system, or if the operating system has no ``/proc/mounts``. ``path`` need not exist.
    """
    mount = find_mount(path, mounts)
    is_network = mount is not None and (mount.type in _NETWORK_TYPES or mount.type.startswith("fuse."))
    return f"{mount.type} at {mount.point}" if mount and is_network else None
