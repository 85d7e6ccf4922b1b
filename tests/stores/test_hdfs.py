"""What HDFS alone has, asked of a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage.hdfs_server import running_hdfs
from stores.servers import Server, hdfs
from streamhouse_spark.errors import StorageRefusedError
from streamhouse_spark.storage.hdfs import HdfsStorage, ResponseError, open_hdfs_storage

pytestmark = pytest.mark.stores


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with hdfs(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def store(cluster: Server) -> HdfsStorage:
    return open_hdfs_storage(cluster.new_url(), cluster.settings)


@pytest.mark.usefixtures("all_races")
def test_hdfs_passes_the_race_for_conditional_puts(store):
    for _ in range(3):
        store.check_writable()
    assert store.list("") == []
    assert list(store.list_temporary("")) == []


def test_a_datanode_can_be_excluded_by_its_address(store):
    """There is only one here, so the NameNode says that there is none left, and it is asked for again."""
    store.put_if_absent("a/1", b"x")
    hdfs_client = store.client
    hdfs_client._unreachable["127.0.0.1"] = hdfs_client._boot_ms() + 60_000
    with pytest.raises(ResponseError) as told:
        hdfs_client.get(f"{store._prefix}a/1")
    assert told.value.name == "IOException"
    assert store.read("a/1") == b"x"


def test_a_user_without_the_right_is_told_so(cluster, store):
    store.put_if_absent("a/1", b"x")
    other = open_hdfs_storage(store.url, {**cluster.settings, "hdfs.user": "somebody"})
    assert other.read("a/1") == b"x"
    with pytest.raises(StorageRefusedError, match=r"Permission denied: user=somebody.*set hdfs\.user"):
        other.put_if_absent("a/2", b"x")


def test_the_small_server_of_the_unit_tests_answers_as_hadoop_does(cluster, store):
    """Each failure that the store has to understand, asked of both."""
    store.put_if_absent("t/1", b"123")
    store.put_if_absent("t/2", b"")
    with running_hdfs() as small:
        ours = open_hdfs_storage("hdfs://host/folder/some/prefix", small.settings)
        for one in (store, ours):
            one.put_if_absent("t/1", b"123") if one is ours else None
            one.put_if_absent("t/2", b"") if one is ours else None
        told = [[outcome(one, act) for act in ASKED] for one in (store, ours)]
    assert told[0] == told[1]


ASKED = [
    lambda client, at: client.rename(f"{at}t/1", f"{at}t/2", replace=False),
    lambda client, at: client.rename(f"{at}t/none", f"{at}t/2", replace=False),
    lambda client, at: client.rename(f"{at}t/none", f"{at}t/3", replace=True),
    lambda client, at: client.rename(f"{at}t/1", f"{at}t", replace=False),
    lambda client, at: client.get(f"{at}t/none"),
    lambda client, at: client.get(f"{at}t/1/below"),
    lambda client, at: client._open(f"{at}t/1", {"offset": "3", "length": "1"}),
    lambda client, at: client.get_range(f"{at}t/1", 3, 9),
    lambda client, at: client.get_range(f"{at}t/2", 0, 9),
    lambda client, at: client.entry(f"{at}t"),
    lambda client, at: client.entry(f"{at}none"),
    lambda client, at: client.children(f"{at}none", None),
    lambda client, at: [(e.name, e.is_folder, e.size_bytes) for e in client.children(f"{at}t", "1")[0]],
    lambda client, at: client.write(f"{at}t/1/below", b""),
    lambda client, at: client.write(f"{at}t/a:b", b""),
    lambda client, at: client.write(f"{at}t/1", b"again"),
    lambda client, at: client.size_bytes(f"{at}t/1"),
    lambda client, at: client.delete(f"{at}none"),
]


def outcome(store: HdfsStorage, act) -> object:
    try:
        return act(store.client, store._prefix)
    except ResponseError as error:
        return error.status, error.name, error.operation
