"""The file systems by which Spark reads lake files and Java follows a log, without secrets in their settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamhouse_spark import InvalidOptionError
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.warehouse_layout import (
    log_location_key,
    make_external_log_uuid,
    parse_table_name,
    table_prefix,
)
from streamhouse_spark.datasource.scan.file_systems import (
    FileSystems,
    LogFolder,
    file_system_remedy,
    log_folder,
    store_folder,
)
from streamhouse_spark.log.catalog.log_locations import make_log_routing_storage
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.framing import encode_frame
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.factory import open_storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table_handle import TableHandle

KEYS = {"s3.access-key-id": "id-4711", "s3.secret-access-key": "canary-4711"}
STORE = {"s3.endpoint": "http://127.0.0.1:9000", "s3.region": "eu-west-1", **KEYS}
FILE = "s3://bkt/wh/lake/d/t/f.parquet"
ALL = ("file", "s3a", "gs", "abfss", "hdfs")


def of(settings: dict[str, str], *schemes: str, url: str = "s3://bkt/wh", version: str | None = "3.4.2") -> FileSystems:
    return FileSystems.of(open_storage(url, settings), settings, schemes or ALL, version)


def settings_of(found: FileSystems, *locations: str) -> dict[str, Any]:
    return {one.key: one.value or one.setting for one in found.settings_for(locations or (FILE,))}


@pytest.mark.parametrize(
    ("location", "uri"),
    [
        ("/w/a b/x=é%2F/f.parquet", "file:///w/a%20b/x%3D%C3%A9%252F/f.parquet"),
        ("file:///w/a b?#/f.parquet", "file:///w/a%20b%3F%23/f.parquet"),
        ("file:/w/f.parquet", "file:///w/f.parquet"),
        ("s3://bkt/k/f.parquet", None),
        ("hdfs://n:1/f.parquet", None),
    ],
)
def test_files_of_the_disk_are_uris(location, uri):
    assert of({}, "file", url="/w").uri_of(location) == uri
    assert of({}, "s3a", url="/w").uri_of(location) is None


@pytest.mark.parametrize("spelled", ["s3", "s3a", "S3A"])
def test_files_on_s3_have_a_scheme_of_their_warehouse(spelled):
    found = of(STORE)
    scheme, _, rest = found.uri_of(f"{spelled}://bkt/wh/k k/x=é/f.parquet").partition("://")
    assert scheme.startswith("s3a-")
    assert rest == "bkt/wh/k%20k/x%3D%C3%A9/f.parquet"
    assert settings_of(found)[f"fs.{scheme}.impl"] == "io.streamhouse.spark.storage.LakeFileSystem"


def test_warehouses_with_other_keys_on_one_bucket_have_file_systems_of_their_own():
    others = [STORE, {**STORE, "s3.access-key-id": "id-2"}, {**STORE, "s3.secret-access-key": "canary-2"}, {}]
    schemes = {of(settings).uri_of(FILE).partition(":")[0] for settings in others}
    assert len(schemes) == len(others)
    assert of({**STORE, "lake.x": "y"}).uri_of(FILE) == of(STORE).uri_of(FILE)


def test_settings_of_a_store_with_keys():
    prefix = "fs.s3a.bucket.bkt."
    found = settings_of(of(STORE))
    assert {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)} == {
        "endpoint": "http://127.0.0.1:9000",
        "endpoint.region": "eu-west-1",
        "path.style.access": "true",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "access.key": "s3.access-key-id",
        "secret.key": "s3.secret-access-key",
    }
    assert len(found) == 7
    found = settings_of(of({**STORE, "s3.session-token": "canary-token"}))
    assert found[f"{prefix}session.token"] == "s3.session-token"
    assert found[f"{prefix}aws.credentials.provider"].endswith("TemporaryAWSCredentialsProvider")


@pytest.mark.parametrize(
    ("settings", "style"),
    [
        ({}, None),
        ({"s3.endpoint": "https://s3.eu-west-1.amazonaws.com"}, "false"),
        ({"s3.endpoint": "https://minio.example.com"}, "true"),
        ({"s3.endpoint": "https://minio.example.com", "s3.force-virtual-addressing": "TRUE"}, "false"),
        ({"s3.force-virtual-addressing": "false"}, "true"),
    ],
)
def test_buckets_are_addressed_as_the_warehouse_does_it(settings, style):
    assert settings_of(of(settings)).get("fs.s3a.bucket.bkt.path.style.access") == style


def test_without_keys_the_session_decides_and_then_the_usual_chain():
    [_, chain] = of({}).settings_for([FILE])
    assert chain.is_default
    assert chain.key == "fs.s3a.aws.credentials.provider"
    assert chain.value.endswith(",software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider")
    assert not [one for one in of(STORE).settings_for([FILE]) if one.is_default]


def test_no_secret_is_in_an_answer():
    found = of({**STORE, "s3.session-token": "canary-token"})
    said = json.dumps([one.to_json() for one in found.settings_for([FILE])])
    assert "canary" not in repr(found) + said + found.describe([FILE]) + found.uri_of(FILE)


@pytest.mark.parametrize(
    ("found", "location", "way"),
    [
        (of(STORE), FILE, "lake files by Spark's reader over s3a"),
        (
            of(STORE, "file"),
            FILE,
            "lake files by Python: Spark has no file system s3a; add --packages org.apache.hadoop:hadoop-aws:3.4.2",
        ),
        (of(STORE), "s3://other/f.parquet", "lake files by Python: the lake is outside the warehouse and may need"),
        (of(STORE), "gs://bkt/f.parquet", "lake files by Python: the lake is outside the warehouse and may need"),
        (of(STORE), "s3n://bkt/f.parquet", "lake files by Python: no Spark file system is supported for scheme s3n"),
        (of({}, url="hdfs://nn:8020/wh"), "hdfs://nn:8020/wh/f.parquet", "lake files by Spark's reader over hdfs"),
        (
            of({"hdfs.webhdfs.address": "nn:1", "hdfs.request-timeout": "9"}, url="hdfs://nn/wh"),
            "hdfs://nn/wh/f.parquet",
            "lake files by Spark's reader over hdfs",
        ),
        (
            of({"hdfs.user": "ada"}, url="hdfs://nn/wh"),
            "hdfs://nn/wh/f.parquet",
            "lake files by Python: Spark's file system does not support settings hdfs.*",
        ),
        (of({**STORE, "lake.spark-reader": "False"}), FILE, "lake files by Python: lake.spark-reader=false"),
        (
            of(STORE, url="s3://b_b/wh"),
            "s3://b_b/wh/f",
            "lake files by Python: Hadoop does not support this bucket name",
        ),
    ],
)
def test_the_way_is_said(found, location, way):
    assert found.describe(["/w/f.parquet", location]).startswith(f", {way}")
    assert (found.uri_of(location) is None) == ("Python" in way)


def test_files_on_hdfs_are_read_as_they_are_named():
    found = of({}, url="hdfs://nn:8020/wh")
    assert found.uri_of("hdfs://nn:8020/wh/a b/x=é%2F.parquet") == "hdfs://nn:8020/wh/a%20b/x%3D%C3%A9%252F.parquet"
    assert found.settings_for(["hdfs://nn:8020/wh/f.parquet"]) == []


AZURE = "abfss://box@acct.dfs.core.windows.net/wh"
AZURE_FILE = f"{AZURE}/lake/x=é b/f.parquet"
HOST = "acct.dfs.core.windows.net"
PRINCIPAL = {"adls.tenant-id": "tenant", "adls.client-id": "client", "adls.client-secret": "canary-4711"}
EMULATOR = {
    "adls.account-key": "canary-4711",
    "adls.blob-storage-authority": "127.0.0.1:10000",
    "adls.blob-storage-scheme": "http",
}
SECURE = "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem"


def azure(settings: dict[str, str], *schemes: str, url: str = AZURE) -> FileSystems:
    return of(settings, *schemes, url=url)


def test_without_settings_the_session_reaches_azure():
    for settings in ({}, {"adls.request-timeout": "9", "adls.account-name": "acct"}):
        found = azure(settings)
        assert found.uri_of(AZURE_FILE) == "abfss://box@acct.dfs.core.windows.net/wh/lake/x%3D%C3%A9%20b/f.parquet"
        assert found.settings_for([AZURE_FILE]) == []


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (
            {"adls.account-key": "canary-4711"},
            {"account.auth.type": "SharedKey", "account.key": "adls.account-key"},
        ),
        ({"adls.sas-token": "canary-4711"}, {"account.auth.type": "SAS", "sas.fixed.token": "adls.sas-token"}),
        (
            PRINCIPAL,
            {
                "account.auth.type": "OAuth",
                "account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
                "account.oauth2.client.endpoint": "https://login.microsoftonline.com/tenant/oauth2/token",
                "account.oauth2.client.id": "client",
                "account.oauth2.client.secret": "adls.client-secret",
            },
        ),
    ],
)
def test_settings_of_an_account_are_those_of_its_file_system(settings, wanted):
    found = azure({**settings, "adls.connect-timeout": "5"})
    scheme, _, rest = found.uri_of(AZURE_FILE).partition("://")
    assert scheme.startswith("abfss-")
    assert rest == "box@acct.dfs.core.windows.net/wh/lake/x%3D%C3%A9%20b/f.parquet"
    given = settings_of(found, AZURE_FILE)
    assert given.pop(f"fs.{scheme}.impl") == SECURE
    assert {key.removeprefix("fs.azure.").removesuffix(f".{HOST}"): v for key, v in given.items()} == wanted
    said = json.dumps([one.to_json() for one in found.settings_for([AZURE_FILE])]) + found.describe([AZURE_FILE])
    assert "canary" not in said + repr(found) + found.uri_of(AZURE_FILE)


def test_a_key_comes_before_a_signature_and_this_before_a_principal():
    """As it does for Python, so that both read as the same."""
    both = {"adls.account-key": "canary-4711", "adls.sas-token": "canary-4712", **PRINCIPAL}
    kinds = []
    for name in ("", "adls.account-key", "adls.sas-token"):
        both.pop(name, None)
        kinds.append(settings_of(azure(both), AZURE_FILE)[f"fs.azure.account.auth.type.{HOST}"])
    assert kinds == ["SharedKey", "SAS", "OAuth"]


def test_an_emulator_is_reached_at_its_own_address():
    found = azure(EMULATOR)
    scheme = found.uri_of(AZURE_FILE).partition(":")[0]
    assert scheme.startswith("abfs-")
    given = settings_of(found, AZURE_FILE)
    assert given[f"fs.{scheme}.impl"] == "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem"
    assert given["fs.azure.abfs.endpoint"] == "127.0.0.1:10000"
    assert given["fs.azure.always.use.https"] == "false"


def test_clouds_of_their_own_have_their_own_tokens():
    at = "abfss://box@acct.dfs.core.chinacloudapi.cn/wh"
    given = settings_of(azure(PRINCIPAL, url=at), f"{at}/f.parquet")
    key = "fs.azure.account.oauth2.client.endpoint.acct.dfs.core.chinacloudapi.cn"
    assert given[key] == "https://login.chinacloudapi.cn/tenant/oauth2/token"


def test_accounts_with_other_keys_have_file_systems_of_their_own():
    others = [{"adls.account-key": "one"}, {"adls.account-key": "two"}, {"adls.sas-token": "one"}, {}]
    assert len({azure(settings).uri_of(AZURE_FILE).partition(":")[0] for settings in others}) == len(others)


@pytest.mark.parametrize(
    ("settings", "url", "reason"),
    [
        (
            {"adls.client-id": "c"},
            AZURE,
            "Spark's file system does not support adls.client-id without adls.client-secret",
        ),
        ({"adls.sas-token-file": "/t"}, AZURE, "Spark's file system does not support adls.sas-token-file"),
        ({"adls.blob-storage-authority": ".blob.x"}, AZURE, "does not support a domain in adls.blob-storage-authority"),
        (PRINCIPAL, "abfss://box@acct.dfs.other.cloud/wh", "the login host of acct.dfs.other.cloud is unknown"),
    ],
)
def test_what_azures_file_system_cannot_be_told_is_left_to_python(settings, url, reason):
    found, file = azure(settings, url=url), f"{url}/f.parquet"
    assert found.uri_of(file) is None
    assert found.describe([file]).endswith(reason)
    assert found.settings_for([file]) == []


GOOGLE = "gs://bkt/wh"
GOOGLE_FILE = f"{GOOGLE}/f.parquet"
GOOGLES = ("file", "gs", "gcs-connector")


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, {}),
        ({"gcs.request-timeout": "9"}, {}),
        ({"gcs.project-id": "p"}, {"requester.pays.mode": "ENABLED", "requester.pays.project.id": "p"}),
        ({"gcs.service.host": "http://127.0.0.1:4443"}, {"storage.root.url": "http://127.0.0.1:4443/"}),
        (
            {"gcs.anonymous": "TRUE"},
            {
                "auth.type": "UNAUTHENTICATED",
                "auth.null.enable": "true",
                "auth.service.account.enable": "false",
            },
        ),
    ],
)
def test_what_is_no_secret_is_told_to_googles_connector(settings, wanted):
    """It has no settings for one bucket, so those of the session come before."""
    found = of(settings, *GOOGLES, url=GOOGLE)
    assert found.uri_of(GOOGLE_FILE) == GOOGLE_FILE
    given = found.settings_for([GOOGLE_FILE])
    assert {one.key.removeprefix("fs.gs."): one.value for one in given} == wanted
    assert all(one.is_default for one in given)


@pytest.mark.parametrize(
    ("settings", "schemes", "reason"),
    [
        ({"gcs.oauth2.token": "canary-4711"}, GOOGLES, "Spark's file system does not support gcs.oauth2.token"),
        ({"gcs.oauth2.token-file": "/t"}, GOOGLES, "Spark's file system does not support gcs.oauth2.token-file"),
        (
            {"gcs.project-id": "p"},
            ("gs",),
            "settings gcs.* require Google's connector, but the session has another file system",
        ),
    ],
)
def test_what_googles_file_system_cannot_be_told_is_left_to_python(settings, schemes, reason):
    found = of(settings, *schemes, url=GOOGLE)
    assert found.uri_of(GOOGLE_FILE) is None
    assert found.describe([GOOGLE_FILE]).endswith(reason)
    assert found.settings_for([GOOGLE_FILE]) == []
    assert of({}, *schemes, url=GOOGLE).uri_of(GOOGLE_FILE) == GOOGLE_FILE


def test_nothing_is_said_of_files_on_the_disk():
    assert of({}).describe(["/w/f.parquet"]) == of({}).describe([]) == ""
    assert of(STORE).settings_for(["/w/f.parquet"]) == []


def test_what_a_session_lacks_is_named_for_its_hadoop():
    assert file_system_remedy("abfss", "3.5.0") == "add --packages org.apache.hadoop:hadoop-azure:3.5.0"
    assert file_system_remedy("s3a", None).startswith("add --packages org.apache.hadoop:hadoop-aws:<")
    assert file_system_remedy("gs", "3.5.0") == "add Hadoop's file system for gs to the session's jars"


UUID = make_external_log_uuid("0123456789abcdef0123456789abcdef")
LOG_SCHEMES = ("file", "s3a", "gs", "abfss", "hdfs", "gcs-connector")


def handle_of(storage: Storage, settings: dict[str, str]) -> TableHandle:
    world = World()
    return TableHandle(storage, settings, parse_table_name("s.t").path, CommitLog(storage, UUID, world), world)


def folder_of(storage: Storage, settings: dict[str, str], *schemes: str) -> LogFolder:
    return log_folder(handle_of(storage, settings), "s.t", schemes or LOG_SCHEMES, "3.5.0")


def at(url: str, settings: dict[str, str], *schemes: str) -> LogFolder:
    return folder_of(open_storage(url, settings), settings, *schemes)


def elsewhere(url: str, settings: dict[str, str]) -> Storage:
    """A warehouse in memory whose log lies at another place."""
    home = MemoryStorage()
    header = {"table": UUID, "warehouse": "w", "url": url}
    home.put(log_location_key(UUID), encode_frame("location", header))
    return make_log_routing_storage(home, settings, World())


def given(found: LogFolder) -> dict[str, Any]:
    return {one.key: one.value or one.setting for one in found.settings}


def test_a_log_on_the_disk_is_a_path(tmp_path):
    found = at(str(tmp_path), {}, "file")
    assert found == LogFolder(f"{tmp_path}/{table_prefix(UUID)}")


def test_a_log_on_s3_has_a_file_system_of_its_own_beside_that_of_the_lake():
    found = at("s3://bkt/wh", STORE)
    storage = open_storage("s3://bkt/wh", STORE)
    lake = FileSystems.of(storage, STORE, LOG_SCHEMES, "3.5.0").uri_of("s3://bkt/wh/lake/f").partition(":")[0]
    assert found.folder == f"{lake}-log://bkt/wh/tables/{UUID}"
    settings = given(found)
    assert settings[f"fs.{lake}-log.impl"] == "org.apache.hadoop.fs.s3a.S3AFileSystem"
    assert settings["fs.s3a.bucket.bkt.endpoint"] == STORE["s3.endpoint"]
    assert settings["fs.s3a.bucket.bkt.secret.key"] == "s3.secret-access-key"
    assert settings["fs.s3a.bucket.bkt.input.stream.type"] == "classic"


def test_no_secret_is_in_the_location_of_a_log():
    said = json.dumps([one.to_json() for one in at("s3://bkt/wh", STORE).settings]) + repr(at("s3://bkt/wh", STORE))
    assert "canary" not in said


def test_java_looks_for_objects_of_a_warehouse_on_s3_as_it_follows_logs_there():
    folder = store_folder(handle_of(open_storage("s3://bkt/w h", STORE), STORE))
    log = at("s3://bkt/w h", STORE)
    assert folder is not None
    assert (f"{folder.folder}tables/{UUID}", folder.settings) == (log.folder, log.settings)
    in_python = {**STORE, "lake.spark-reader": "false"}
    assert store_folder(handle_of(open_storage("s3://bkt/wh", in_python), in_python)) is not None


@pytest.mark.parametrize("url", ["gs://bkt/wh", "hdfs://nn:8020/wh", "s3://B_kt/wh"])
def test_of_other_stores_python_is_asked(url):
    assert store_folder(handle_of(open_storage(url, {}), {})) is None


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


def test_a_log_on_a_disk_is_followed_wherever_the_warehouse_lies(tmp_path):
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
        (
            "gs://bkt/wh",
            {"gcs.oauth2.token": "t"},
            LOG_SCHEMES,
            r"Spark's file system does not support gcs\.oauth2\.token",
        ),
        ("hdfs://nn/wh", {"hdfs.user": "ada"}, LOG_SCHEMES, r"Spark's file system does not support settings hdfs\.\*"),
        ("s3://b_b/wh", {}, LOG_SCHEMES, "Hadoop does not support this bucket name"),
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
