"""The file system by which Java follows a log, its settings without a secret, and the logs that none reaches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamhouse_spark import InvalidOptionError
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.paths import location_key, make_placed_uuid, parse_table_name, table_prefix
from streamhouse_spark.datasource.scan.file_systems import FileSystems, LogFolder, log_folder, store_folder
from streamhouse_spark.log.catalog.log_locations import with_log_places
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.framing import encode_frame
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.factory import storage_for
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table_handle import TableHandle

UUID = make_placed_uuid("0123456789abcdef0123456789abcdef")
KEYS = {"s3.access-key-id": "id-4711", "s3.secret-access-key": "canary-4711"}
STORE = {"s3.endpoint": "http://127.0.0.1:9000", "s3.region": "eu-west-1", **KEYS}
ALL = ("file", "s3a", "gs", "abfss", "hdfs", "gcs-connector")


def handle_of(storage: Storage, settings: dict[str, str]) -> TableHandle:
    world = World()
    return TableHandle(storage, settings, parse_table_name("s.t").path, CommitLog(storage, UUID, world), world)


def folder_of(storage: Storage, settings: dict[str, str], *schemes: str) -> LogFolder:
    return log_folder(handle_of(storage, settings), "s.t", schemes or ALL, "3.5.0")


def at(url: str, settings: dict[str, str], *schemes: str) -> LogFolder:
    return folder_of(storage_for(url, settings), settings, *schemes)


def elsewhere(url: str, settings: dict[str, str]) -> Storage:
    """A warehouse in memory whose log lies at another place."""
    home = MemoryStorage()
    header = {"table": UUID, "warehouse": "w", "url": url}
    home.put(location_key(UUID), encode_frame("location", header))
    return with_log_places(home, settings, World())


def given(found: LogFolder) -> dict[str, Any]:
    return {one.key: one.value or one.setting for one in found.settings}


def test_a_log_on_the_disk_is_a_path(tmp_path):
    found = at(str(tmp_path), {}, "file")
    assert found == LogFolder(f"{tmp_path}/{table_prefix(UUID)}")


def test_a_log_on_s3_has_a_file_system_of_its_own_beside_that_of_the_lake():
    found = at("s3://bkt/wh", STORE)
    storage = storage_for("s3://bkt/wh", STORE)
    lake = FileSystems.of(storage, STORE, ALL, "3.5.0").uri_of("s3://bkt/wh/lake/f").partition(":")[0]
    assert found.folder == f"{lake}-log://bkt/wh/tables/{UUID}"
    settings = given(found)
    assert settings[f"fs.{lake}-log.impl"] == "org.apache.hadoop.fs.s3a.S3AFileSystem"
    assert settings["fs.s3a.bucket.bkt.endpoint"] == STORE["s3.endpoint"]
    assert settings["fs.s3a.bucket.bkt.secret.key"] == "s3.secret-access-key"
    assert settings["fs.s3a.bucket.bkt.input.stream.type"] == "classic"


def test_no_secret_is_in_an_answer():
    said = json.dumps([one.to_json() for one in at("s3://bkt/wh", STORE).settings]) + repr(at("s3://bkt/wh", STORE))
    assert "canary" not in said


def test_java_looks_for_objects_of_a_warehouse_on_s3_as_it_follows_logs_there():
    folder = store_folder(handle_of(storage_for("s3://bkt/w h", STORE), STORE))
    log = at("s3://bkt/w h", STORE)
    assert folder is not None
    assert (f"{folder.folder}tables/{UUID}", folder.settings) == (log.folder, log.settings)
    in_python = {**STORE, "lake.spark-reader": "false"}
    assert store_folder(handle_of(storage_for("s3://bkt/wh", in_python), in_python)) is not None


@pytest.mark.parametrize("url", ["gs://bkt/wh", "hdfs://nn:8020/wh", "s3://B_kt/wh"])
def test_of_other_stores_python_is_asked(url):
    assert store_folder(handle_of(storage_for(url, {}), {})) is None


def test_of_a_log_elsewhere_python_is_asked():
    assert store_folder(handle_of(elsewhere("s3://bkt/logs", STORE), STORE)) is None


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("gs://bkt/w h", f"gs://bkt/w%20h/tables/{UUID}"),
        ("hdfs://nn:8020/wh", f"hdfs://nn:8020/wh/tables/{UUID}"),
        (
            "abfss://box@acct.dfs.core.windows.net/wh",
            f"abfss://box@acct.dfs.core.windows.net/wh/tables/{UUID}",
        ),
    ],
)
def test_other_stores_are_read_by_the_file_system_of_the_session(url, folder):
    assert at(url, {}) == LogFolder(folder)


def test_the_setting_about_lakes_does_not_hold_for_logs():
    found = at("s3://bkt/wh", {**STORE, "lake.spark-reader": "false"})
    assert found.folder == at("s3://bkt/wh", STORE).folder


def test_a_log_in_another_store_is_read_there_with_the_settings_of_that_store():
    shared = folder_of(elsewhere("s3://fast/logs", STORE), STORE)
    assert shared.folder.endswith(f"-log://fast/logs/tables/{UUID}")
    assert given(shared)["fs.s3a.bucket.fast.access.key"] == "s3.access-key-id"
    own = {"log.s3.endpoint": "http://127.0.0.1:9001", "log.s3.access-key-id": "i", "log.s3.secret-access-key": "s"}
    settings = {**STORE, **own}
    found = folder_of(elsewhere("s3://fast/logs", settings), settings)
    assert given(found)["fs.s3a.bucket.fast.endpoint"] == "http://127.0.0.1:9001"
    assert given(found)["fs.s3a.bucket.fast.secret.key"] == "log.s3.secret-access-key"
    assert "fs.s3a.bucket.fast.endpoint.region" not in given(found), "no setting of the warehouse goes there"
    assert found.folder.partition(":")[0] != shared.folder.partition(":")[0]


def test_a_log_on_the_disk_of_a_warehouse_elsewhere(tmp_path):
    assert folder_of(elsewhere(str(tmp_path), {}), {}, "file") == LogFolder(f"{tmp_path}/{table_prefix(UUID)}")


@pytest.mark.parametrize(
    ("url", "settings", "schemes", "reason"),
    [
        (
            "s3://bkt/wh",
            STORE,
            ("file",),
            r"Spark has no file system s3a; add --packages org\.apache\.hadoop:hadoop-aws:3\.5\.0;",
        ),
        ("gs://bkt/wh", {"gcs.oauth2.token": "t"}, ALL, r"Spark's file system does not support gcs\.oauth2\.token"),
        ("hdfs://nn/wh", {"hdfs.user": "ada"}, ALL, r"Spark's file system does not support settings hdfs\.\*"),
        ("s3://b_b/wh", {}, ALL, "Hadoop does not support this bucket name"),
    ],
)
def test_a_log_that_no_file_system_reaches_is_refused(url, settings, schemes, reason):
    with pytest.raises(
        InvalidOptionError, match=rf"the log at {url}/tables/{UUID} with a Spark file system: {reason}"
    ) as raised:
        at(url, settings, *schemes)
    assert "use a micro-batch trigger" in str(raised.value)


def test_a_store_without_a_file_system_is_refused():
    with pytest.raises(InvalidOptionError, match=r"the log at memory://.*: unsupported scheme memory; correct"):
        folder_of(MemoryStorage(), {})
