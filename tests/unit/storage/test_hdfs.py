"""A folder of HDFS as the store: its settings, the promises of every store, and lost answers at each request."""

from __future__ import annotations

import getpass
import pickle
from collections.abc import Iterator

import pytest

from faults.sim import SimIds
from storage.hdfs_server import AT_DATANODE, Fault, Hdfs, RemoteError, always, nothing, nth, running_hdfs
from storage.s3_server import ServerClock
from streamhouse_spark import InvalidOptionError
from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import ObjectExistsError, ObjectNotFoundError, StorageError, StorageRefusedError
from streamhouse_spark.storage.hdfs import HdfsAddress, HdfsStorage, open_hdfs_storage
from streamhouse_spark.storage.put_if_absent import PutOutcome, slot_for_bytes
from streamhouse_spark.storage.remote import conditional_put_probe
from streamhouse_spark.storage.remote.multipart_upload import PART_BYTES
from unit.storage.test_contract import TestCreating, TestListing, TestReading
from unit.storage.test_contract import TestWriting as Writing

__all__ = ["TestCreating", "TestListing", "TestReading", "TestWriting"]

CREATE, RENAME = "CREATE", "RENAME"
PUT = [CREATE, CREATE + AT_DATANODE, RENAME]
UNCLEAR = [Fault.LOST_ANSWER, Fault.ERROR_AFTER, Fault.ERROR_BEFORE, Fault.DROPPED, Fault.FULL]
STORED = "/wh/a/1"


class TestWriting(Writing):
    test_of_racing_processes_one_wins = None  # races of processes are those of the real cluster


@pytest.fixture(scope="module")
def server() -> Iterator[Hdfs]:
    with running_hdfs() as running:
        yield running


@pytest.fixture
def hdfs(server: Hdfs) -> Hdfs:
    server.plan = nothing
    server.files.clear()
    server.folders = {"/"}
    server.held.clear()
    return server


@pytest.fixture
def store(hdfs: Hdfs) -> HdfsStorage:
    made = open_hdfs_storage("hdfs://host:8020/wh", hdfs.settings, World(ServerClock(), SimIds(1)))
    made.client._unreachable.clear()  # the tests share a client
    return made


def stored(hdfs: Hdfs) -> bytes | None:
    file = hdfs.files.get(STORED)
    return None if file is None else file.data


def test_each_call_sends_exactly_these_requests(hdfs, store):
    store.now_ms()
    for act, wanted in [
        (lambda: store.put_if_absent("a/1", b"x"), PUT),
        (lambda: store.put("a/1", b"y"), PUT),
        (lambda: store.read("a/1"), ["OPEN", "OPEN" + AT_DATANODE]),
        (lambda: store.size_bytes("a/1"), ["GETFILESTATUS"]),
        (lambda: store.delete("a/1"), ["DELETE"]),
        (lambda: store.list_names("a/"), ["LISTSTATUS_BATCH"]),
    ]:
        hdfs.plan = nothing
        act()
        assert hdfs.operations == wanted


def test_an_object_is_whole_when_its_name_is_there(hdfs, store):
    """It is written under another name; of two that do so at the same time one gets the name."""
    store.now_ms()
    hdfs.plan = nth(RENAME, 0, Fault.HELD)
    with pytest.raises(StorageError):
        store.put_if_absent("a/1", b"late")
    store.put_if_absent("a/1", b"first")
    [late] = hdfs.held
    with pytest.raises(Exception, match="is not found"):  # what was not renamed was deleted: the late rename is void
        late()
    assert stored(hdfs) == b"first"
    assert list(hdfs.files) == [STORED]


@pytest.mark.parametrize("way", ["put_if_absent", "put", "create"])
def test_a_write_that_was_given_up_and_begins_late_spoils_nothing(hdfs, store, monkeypatch, way):
    """A DataNode may get to a request whose client has gone, just before another attempt's file is renamed."""
    create, rename, late = hdfs.create, hdfs.rename, []

    def slow(path: str, data: bytes) -> None:
        if not late:
            late.append(path)
            raise RemoteError(500, "IOException")
        create(path, data)

    def rename_behind_it(path: str, to: str, options: str) -> None:
        create(late[0], b"half")
        rename(path, to, options)

    monkeypatch.setattr(hdfs, "create", slow)
    monkeypatch.setattr(hdfs, "rename", rename_behind_it)
    if way == "create":
        with store.create("a/1") as sink:
            sink.write(b"whole")
    else:
        getattr(store, way)("a/1", b"whole")
    assert stored(hdfs) == b"whole"
    assert list(hdfs.files) == [STORED]


@pytest.mark.parametrize("fault", UNCLEAR)
@pytest.mark.parametrize("operation", PUT)
def test_a_put_whose_answer_gets_lost(hdfs, store, operation, fault):
    """Nothing is acknowledged that is not there, and whoever looks knows whose it is."""
    store.now_ms()
    hdfs.plan = nth(operation, 0, fault)
    taken = slot_for_bytes(store, "a/1", b"mine").take(b"mine")
    if operation != RENAME:
        assert taken.failure is None, "a temporary file is written again"
    assert taken.outcome is (PutOutcome.WON if stored(hdfs) == b"mine" else PutOutcome.NOT_STORED)
    assert (stored(hdfs) is None) == (operation == RENAME and fault in UNCLEAR[2:])
    again = slot_for_bytes(store, "a/1", b"another's").take(b"another's")
    assert again.outcome is (PutOutcome.LOST if taken.outcome is PutOutcome.WON else PutOutcome.WON)
    assert list(hdfs.files) == [STORED]


@pytest.mark.parametrize("fault", UNCLEAR)
@pytest.mark.parametrize("operation", [*PUT, "GETFILESTATUS"])
@pytest.mark.parametrize("size_bytes", [3, PART_BYTES + 1])
def test_a_large_object_whose_answer_gets_lost_is_stored(hdfs, store, operation, fault, size_bytes):
    """The file that has the name is known by its number."""
    store.now_ms()
    hdfs.plan = nth(operation, 0, fault)
    with store.create("a/1") as sink:
        sink.write(bytes(size_bytes))
    assert stored(hdfs) == bytes(size_bytes)
    assert list(hdfs.files) == [STORED]


def test_a_large_object_is_not_taken_for_another(hdfs, store):
    store.put_if_absent("a/1", b"another's")
    hdfs.plan = nothing
    with pytest.raises(ObjectExistsError), store.create("a/1") as sink:
        sink.write(b"mine")
    assert stored(hdfs) == b"another's"
    assert list(hdfs.files) == [STORED]


def test_an_object_that_arrived_short_gets_no_name(hdfs, store, monkeypatch):
    create = hdfs.create
    monkeypatch.setattr(hdfs, "create", lambda path, data: create(path, data[:-1]))
    with pytest.raises(StorageError, match="HDFS has 2 of 3 bytes; retry"), store.create("a/1") as sink:
        sink.write(b"123")
    assert not hdfs.files


@pytest.mark.parametrize("fault", UNCLEAR)
@pytest.mark.parametrize("operation", PUT)
def test_a_hint_whose_answer_gets_lost_is_stored(hdfs, store, operation, fault):
    store.put("a/1", b"old")
    hdfs.plan = nth(operation, 0, fault)
    store.put("a/1", b"new")
    assert stored(hdfs) == b"new"
    assert list(hdfs.files) == [STORED]


@pytest.mark.parametrize("fault", [*UNCLEAR, Fault.CUT_OFF])
@pytest.mark.parametrize(
    ("operation", "act"),
    [
        ("OPEN" + AT_DATANODE, lambda store: store.read("a/1") == b"12345"),
        ("OPEN" + AT_DATANODE, lambda store: store.read_ranges("a/1", [(1, 3), (4, 9)]) == [b"23", b"5"]),
        ("GETFILESTATUS", lambda store: store.size_bytes("a/1") == 5),
        ("LISTSTATUS_BATCH", lambda store: [info.key for info in store.list("a/")] == ["a/1"]),
        ("DELETE", lambda store: store.delete("a/1") is None),
    ],
)
def test_a_read_or_a_delete_is_asked_again(hdfs, store, operation, act, fault):
    store.put_if_absent("a/1", b"12345")
    hdfs.plan = nth(operation, 0, fault)
    assert act(store)
    assert hdfs.operations.count(operation) == 2


@pytest.mark.parametrize("fault", UNCLEAR)
def test_a_read_whose_redirect_gets_lost_is_asked_again(hdfs, store, fault):
    store.put_if_absent("a/1", b"12345")
    hdfs.plan = nth("OPEN", 0, fault)
    assert store.read("a/1") == b"12345"
    assert hdfs.operations == ["OPEN", "OPEN", "OPEN" + AT_DATANODE]


def test_a_folder_of_many_pages_and_depths_is_listed(hdfs, store):
    keys = [f"t/{folder}/{number}" for folder in "abcd" for number in range(5)] + ["t/e", "u"]
    for key in keys:
        store.put_if_absent(key, b"1")
    assert sorted(info.key for info in store.list("t/")) == keys[:-1]
    assert sorted(info.key for info in store.list("t/b")) == keys[5:10]
    assert store.list_names("t/") == ["a", "b", "c", "d", "e"]


def test_a_listing_that_begins_again_is_an_error(hdfs, store, monkeypatch):
    for number in range(4):
        store.put_if_absent(f"a/{number}", b"1")
    listing = hdfs.listing
    monkeypatch.setattr(hdfs, "listing", lambda path, _: listing(path, ""))
    with pytest.raises(StorageError, match="begins again at '2'"):
        store.list("a/")


def test_what_a_crash_leaves_is_for_cleaning_alone(hdfs, store):
    store.put_if_absent("a/1", b"1")
    hdfs.create("/wh/a/.tmp-0815", b"half")
    assert [info.key for info in store.list("")] == ["a/1"]
    assert store.list_names("a/") == ["1"]
    assert [info.key for info in store.list_temporary("a/")] == ["a/.tmp-0815"]


def test_it_is_probed_and_left_clean(hdfs, store, monkeypatch):
    monkeypatch.setattr(conditional_put_probe, "ROUNDS", 2)
    store.check_writable()
    assert not hdfs.files
    assert hdfs.operations.count(RENAME) == 2 + 2 * conditional_put_probe.RACERS


def test_a_gateway_that_renames_otherwise_is_refused(hdfs, store):
    hdfs.plan = always(Fault.GATEWAY, RENAME)
    with pytest.raises(StorageError, match=r"takes no renameoptions here.*set hdfs\.webhdfs\.address"):
        store.check_writable()


def test_a_namenode_that_is_not_active_is_passed_over(hdfs):
    """The one that answered is asked from then on; nothing is sent twice to it."""
    with running_hdfs() as standby:
        standby.plan = always(Fault.STANDBY)
        settings = {"hdfs.webhdfs.address": f"{standby.address}, http://{hdfs.address}", "hdfs.user": "tester"}
        store = open_hdfs_storage("hdfs://nameservice/wh", settings, World(ServerClock(), SimIds(1)))
        store.put_if_absent("a/1", b"x")
        assert store.read("a/1") == b"x"
        assert len(standby.operations) == 1
        hdfs.plan, standby.plan = always(Fault.STANDBY), nothing
        with pytest.raises(ObjectNotFoundError):
            store.read("a/1")
        assert hdfs.operations == ["OPEN"]


def test_a_namenode_that_is_away_is_passed_over(hdfs):
    with running_hdfs() as gone:
        address = gone.address
    settings = {"hdfs.webhdfs.address": f"{address},{hdfs.address}", "hdfs.user": "tester"}
    store = open_hdfs_storage("hdfs://nameservice/wh", settings, World(ServerClock(), SimIds(1)))
    store.put_if_absent("a/1", b"x")
    assert store.read("a/1") == b"x"


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_datanode_that_is_away_is_passed_over(hdfs, store, monkeypatch, is_alone):
    """The NameNode is asked for another, unless there is none."""
    with running_hdfs() as gone:
        address = gone.address
    monkeypatch.setattr(hdfs, "dead_datanode", None if is_alone else address)
    monkeypatch.setattr(hdfs, "is_alone", is_alone)
    hdfs.plan = nth(CREATE + AT_DATANODE, 0, Fault.DROPPED) if is_alone else nothing
    store.put_if_absent("a/1", b"x")
    assert store.read("a/1") == b"x"
    excluded = [query.get("excludedatanodes") for query in hdfs.queries if query["op"] == CREATE]
    assert excluded == ([None, None, "127.0.0.1", None, None] if is_alone else [None, "127.0.0.1", "127.0.0.1"])


def test_safe_mode_is_waited_for_and_then_told(hdfs, store):
    store.now_ms()
    hdfs.plan = lambda operation, number: Fault.SAFE_MODE if operation == CREATE and number < 5 else None
    store.put_if_absent("a/1", b"x")
    hdfs.plan = always(Fault.SAFE_MODE, CREATE)
    with pytest.raises(StorageError, match=r"SafeModeException.*: Cannot create file.*wait until it has left it"):
        store.put_if_absent("a/2", b"x")


def test_a_right_that_is_missing(hdfs, store):
    hdfs.plan = always(Fault.DENIED)
    with pytest.raises(StorageRefusedError, match=r"Permission denied: user=x, access=WRITE; .*set hdfs\.user") as told:
        store.put_if_absent("a/1", b"x")
    assert "\n" not in str(told.value)


def test_kerberos_is_rejected_with_a_remedy(hdfs, store):
    hdfs.plan = always(Fault.KERBEROS)
    with pytest.raises(StorageRefusedError, match="asks for Kerberos, which is not supported: get a delegation token"):
        store.read("a/1")


def test_another_web_server_is_told_from_an_absent_file(hdfs, store):
    hdfs.plan = always(Fault.NO_HADOOP)
    with pytest.raises(StorageError, match=r"HTTP 404.*dfs\.namenode\.http-address") as told:
        store.read("a/1")
    assert not isinstance(told.value, ObjectNotFoundError)


def test_the_user_and_the_token_go_with_each_request_to_the_namenode(hdfs):
    token = "JAAJ-canary-4711"
    for settings, wanted in [({"hdfs.user": "ada"}, ("user.name", "ada")), ({"hdfs.delegation-token": token},) * 2]:
        named = wanted if isinstance(wanted, tuple) else ("delegation", token)
        known = {"hdfs.webhdfs.address": hdfs.address, **settings}
        hdfs.plan = nothing
        open_hdfs_storage("hdfs://host/wh", known, World(ServerClock(), SimIds(1))).put_if_absent("a/1", b"")
        assert all(query[named[0]] == named[1] for query in hdfs.queries)
        assert all(len(query.keys() & {"user.name", "delegation"}) == 1 for query in hdfs.queries)
        hdfs.files.clear()


@pytest.mark.parametrize("fault", [Fault.TOKEN_EXPIRED, Fault.DROPPED])
def test_a_token_is_never_told(hdfs, fault):
    settings = {"hdfs.webhdfs.address": hdfs.address, "hdfs.delegation-token": "JAAJ-canary-4711"}
    store = open_hdfs_storage("hdfs://host/wh", settings, World(ServerClock(), SimIds(1)))
    hdfs.plan = always(fault)
    with pytest.raises(StorageError) as told:
        store.read("a/1")
    assert "canary" not in f"{told.value!r} {store!r} {store._address!r}"
    expected = "get another, and set hdfs.delegation-token" if fault is Fault.TOKEN_EXPIRED else hdfs.address
    assert expected in str(told.value)


def test_a_token_that_others_renewed_is_taken_up(hdfs, tmp_path):
    file = tmp_path / "token"
    file.write_text("first-canary")
    settings = {"hdfs.webhdfs.address": hdfs.address, "hdfs.delegation-token-file": str(file)}
    store = open_hdfs_storage("hdfs://host/wh", settings, World(ServerClock(), SimIds(1)))
    store.put_if_absent("a/1", b"x")
    hdfs.plan = always(Fault.TOKEN_EXPIRED)
    with pytest.raises(StorageRefusedError, match=r"write it into the file of hdfs\.delegation-token-file") as told:
        store.read("a/1")
    assert "canary" not in str(told.value)
    hdfs.plan = nth("OPEN", 0, Fault.TOKEN_EXPIRED)
    file.write_text("second-canary")
    assert store.read("a/1") == b"x"
    asked = [query["delegation"] for query in hdfs.queries if query["op"] == "OPEN" and "delegation" in query]
    assert asked[0] == "first-canary"
    assert set(asked[1:]) == {"second-canary"}


def test_a_colon_is_refused_before_anything_is_sent(hdfs, store):
    with pytest.raises(StorageError, match="holds a colon, which HDFS does not take"):
        store.put_if_absent("a:b", b"x")
    assert hdfs.operations == []


def test_it_goes_to_other_processes(hdfs):
    store = open_hdfs_storage("hdfs://host:8020/wh", hdfs.settings)
    store.put_if_absent("a/1", b"x")
    assert pickle.loads(pickle.dumps(store)).read("a/1") == b"x"


URL = "hdfs://namenode:8020/some/path"
TOKEN = "JAAJ-canary-4711"


@pytest.mark.parametrize(
    ("url", "given", "namenodes", "path"),
    [
        (URL, None, ("http://namenode:9870",), "some/path"),
        ("hdfs://namenode", None, ("http://namenode:9870",), ""),
        ("hdfs://namenode/", None, ("http://namenode:9870",), ""),
        ("hdfs://name-service_1/a b/", "nn1:50070", ("http://nn1:50070",), "a b"),
        (URL, "nn1:9870, https://nn2:9871/", ("http://nn1:9870", "https://nn2:9871"), "some/path"),
    ],
)
def test_a_url_tells_the_namenode_and_a_setting_where_it_answers(url, given, namenodes, path):
    found, root = HdfsAddress.parse(url, {} if given is None else {"hdfs.webhdfs.address": given})
    assert (found.namenodes, root) == (namenodes, path)


@pytest.mark.parametrize(
    "url", ["hdfs:///path", "hdfs:/path", "hdfs://user@host/p", "hdfs://host/a//b", "hdfs://host/../b", "hdfs://h/a:b"]
)
def test_bad_hdfs_urls_are_rejected_without_their_user(url):
    with pytest.raises(InvalidOptionError) as told:
        HdfsAddress.parse(url, {})
    assert "user@" not in str(told.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hdfs.usr": "x"}, "did you mean hdfs.user"),
        ({"hdfs.webhdfs.address": "ftp://host"}, "expected a URL"),
        ({"hdfs.webhdfs.address": "http://user:pw@host"}, "put credentials into hdfs.user"),
        ({"hdfs.request-timeout": "soon"}, "expected a number of seconds"),
        ({"hdfs.kerberos_ticket": "/tmp/krb5cc"}, r"Kerberos is not supported; get a delegation token"),
        ({"hdfs.delegation-token": TOKEN, "hdfs.user": "ada"}, "exclude each other"),
        ({"hdfs.delegation-token-file": "/t", "hdfs.user": "ada"}, "exclude each other"),
        ({"hdfs.delegation-token-file": "/t", "hdfs.delegation-token": TOKEN}, "exclude each other"),
    ],
)
def test_bad_hdfs_settings_are_rejected_without_their_value(given, message):
    with pytest.raises(InvalidOptionError, match=message) as told:
        HdfsAddress.parse(URL, given)
    assert TOKEN not in str(told.value)


def test_the_user_is_the_one_that_hadoop_would_name(monkeypatch):
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    assert HdfsAddress.parse(URL, {})[0].user == getpass.getuser()
    monkeypatch.setenv("HADOOP_USER_NAME", "ada")
    assert HdfsAddress.parse(URL, {})[0].user == "ada"
    assert HdfsAddress.parse(URL, {"hdfs.user": "eve"})[0].user == "eve"
    assert HdfsAddress.parse(URL, {"hdfs.delegation-token": TOKEN})[0].user is None


def test_a_user_without_a_name_is_asked_for(monkeypatch):
    def nobody() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    monkeypatch.setattr(getpass, "getuser", nobody)
    with pytest.raises(InvalidOptionError, match=r"has no name .*: set hdfs\.user"):
        HdfsAddress.parse(URL, {})


def test_the_text_form_shows_no_secret():
    assert TOKEN not in repr(HdfsAddress.parse(URL, {"hdfs.delegation-token": TOKEN})[0])
