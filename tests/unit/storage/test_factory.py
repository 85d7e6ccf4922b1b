"""A warehouse's location tells its store."""

from __future__ import annotations

import subprocess
import sys

import pytest

from streamhouse_spark import InvalidOptionError, StorageError
from streamhouse_spark.storage import factory as stores
from streamhouse_spark.storage.factory import network_file_system, open_storage
from streamhouse_spark.storage.hdfs import HdfsStorage
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.remote.storage import BlobStorage
from streamhouse_spark.storage.s3.storage import S3Storage


@pytest.mark.parametrize("form", ["{path}", "file://{path}", "file:{path}", "file://localhost{path}", "FILE://{path}"])
def test_each_local_location_is_a_directory(tmp_path, form):
    (tmp_path / "wh").mkdir()
    (tmp_path / "wh" / "a").write_bytes(b"1")
    store = open_storage(form.format(path=tmp_path / "wh"))
    assert isinstance(store, LocalStorage)
    assert store.url == str(tmp_path / "wh")
    assert store.read("a") == b"1"


def test_paths_are_taken_as_they_are_and_file_urls_are_decoded(tmp_path):
    assert open_storage(f"{tmp_path}/a%20b").url == f"{tmp_path}/a%20b"
    assert open_storage(f"file://{tmp_path}/a%20b").url == f"{tmp_path}/a b"
    assert open_storage(f"{tmp_path}/time 12:30/x").url == f"{tmp_path}/time 12:30/x"


def test_relative_and_home_paths_are_resolved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_storage("wh").url == str(tmp_path / "wh")
    assert open_storage("~/wh").url == str(tmp_path / "wh")


@pytest.mark.parametrize("url", ["s3://bucket/wh", "s3a://bucket/wh", "S3://bucket/wh"])
def test_each_s3_url_is_an_s3_store(url):
    assert isinstance(open_storage(url), S3Storage)


@pytest.mark.parametrize("url", ["gs://bucket/wh", "abfss://box@account.dfs.core.windows.net/wh"])
def test_each_gcs_and_azure_url_is_a_blob_store(url):
    store = open_storage(url)
    assert isinstance(store, BlobStorage)
    assert store.url == url


def test_each_hdfs_url_is_an_hdfs_store():
    for url in ("hdfs://namenode:8020/wh", "hdfs://nameservice/wh"):
        store = open_storage(url)
        assert isinstance(store, HdfsStorage)
        assert store.url == url
    assert open_storage("HDFS://namenode/wh/").url == "hdfs://namenode/wh"


@pytest.mark.parametrize("location", ["webhdfs://host/wh", "az://box/wh", "http://host/wh", "memory://x"])
def test_other_schemes_name_the_supported_ones(location):
    scheme = location.split(":", maxsplit=1)[0]
    with pytest.raises(InvalidOptionError, match=f"{scheme}: .*file:///path, s3://bucket/prefix, gs://bucket"):
        open_storage(location)


@pytest.mark.parametrize("location", ["", "file://host/wh", "file:///wh?x=1", "file:///wh#x"])
def test_bad_locations_of_a_store_are_rejected(location):
    with pytest.raises(InvalidOptionError):
        open_storage(location)


MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
server:/export /mnt/nfs nfs4 rw,vers=4.2 0 0
//server/share /mnt/with\\040space cifs rw 0 0
/dev/vdb /mnt/nfs/local xfs rw 0 0
sshfs /mnt/ssh fuse.sshfs rw 0 0
/dev/sdc1 /mnt/disk fuseblk rw 0 0
overlay /mnt/over overlay rw 0 0
broken
none /mnt/over 9p rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/wh", None),
        ("/mnt/nfs", "nfs4 at /mnt/nfs"),
        ("/mnt/nfs/deep/wh", "nfs4 at /mnt/nfs"),
        ("/mnt/nfs/local/wh", None),
        ("/mnt/nfsx/wh", None),
        ("/mnt/with space/wh", "cifs at /mnt/with space"),
        ("/mnt/ssh/wh", "fuse.sshfs at /mnt/ssh"),
        ("/mnt/disk/wh", None),
        ("/mnt/over/wh", "9p at /mnt/over"),
        ("/dev/shm/wh", None),
    ],
)
def test_network_file_systems_are_seen(tmp_path, path, expected):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert network_file_system(path, str(mounts)) == expected
    assert network_file_system(path, str(tmp_path / "absent")) is None


def test_a_network_file_system_is_refused_unless_one_host_is_promised(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "network_file_system", lambda path: f"nfs4 at {path}")
    with pytest.raises(StorageError, match=r"nfs4 at .*storage.local.single-host"):
        open_storage(str(tmp_path)).check_writable()
    open_storage(str(tmp_path), {"storage.local.single-host": "true"}).check_writable()
    with pytest.raises(InvalidOptionError, match="true or false"):
        open_storage(str(tmp_path), {"storage.local.single-host": "1"})


def test_a_local_warehouse_loads_nothing_heavy():
    script = (
        "import sys, streamhouse_spark.storage.factory as s; s.open_storage('/nowhere')\n"
        "print([m for m in ('s3fs', 'fsspec', 'botocore', 'aiohttp') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_fsync_is_on_unless_the_warehouse_setting_says_no(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    open_storage(str(tmp_path), {"storage.local.fsync": "false"}).put_if_absent("loose", b"rows")
    assert synced == []
    open_storage(str(tmp_path)).put_if_absent("kept", b"rows")
    assert len(synced) == 2  # the file, then its directory
    with pytest.raises(InvalidOptionError, match=r"storage.local.fsync: found 'no', expected true or false"):
        open_storage(str(tmp_path), {"storage.local.fsync": "no"})
