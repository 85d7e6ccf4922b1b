"""Promises of every `Storage`, asked of each of them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time

import pytest

from storage.s3_server import S3Server, settings_for
from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import ObjectExistsError, ObjectNotFoundError, StorageError
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.hdfs import HdfsStorage
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.storage.remote.multipart_upload import PART_BYTES
from streamhouse_spark.storage.s3.storage import S3Storage

ODD_KEYS = [
    "plain.json",
    "with space/and plus+sign",
    "percent%2Fencoded%20%",
    "equals=1/and&amp",
    "question?mark=1#hash",
    "quote'\"`",
    "brackets[0]{1}(2)",
    "ünïcode/žluťoučký/日本語/🦀",
    "semi;colon,comma:colon@at!",
    "tilde~star*caret^pipe|",
    "dots../a..b.",
    "back\\slash",
    "lt<gt>",
    "x" * 200,
]


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def store(request: pytest.FixtureRequest, tmp_path) -> Storage:
    if request.param == "local":
        return LocalStorage(str(tmp_path / "wh"), fsync=False)
    if request.param == "memory":
        return MemoryStorage(World())
    server: S3Server = request.getfixturevalue("s3_server")
    return S3Storage(f"s3://{server.new_bucket()}/some/prefix", settings_for(server.endpoint))


@pytest.fixture
def shared_store(store: Storage) -> Storage:
    """A store that other processes see."""
    if isinstance(store, MemoryStorage):
        pytest.skip("memory is one process's")
    return store


class TestReading:
    def test_an_absent_object_is_not_found(self, store):
        for ask in (
            lambda: store.read("a/b"),
            lambda: store.size_bytes("a/b"),
            lambda: store.read_ranges("a/b", [(0, 1)]),
            lambda: store.read_ranges("a/b", [(3, 3)]),
            lambda: store.ensure_durable("a/b"),
        ):
            with pytest.raises(ObjectNotFoundError, match="a/b"):
                ask()

    def test_what_was_written_is_read(self, store):
        store.put_if_absent("a/b", b"hello")
        assert store.read("a/b") == b"hello"
        assert store.size_bytes("a/b") == 5
        store.ensure_durable("a/b")

    def test_an_empty_object_is_an_object(self, store):
        store.put_if_absent("empty", b"")
        assert store.read("empty") == b""
        assert store.size_bytes("empty") == 0
        assert store.read_ranges("empty", [(0, 10), (0, 0)]) == [b"", b""]
        with pytest.raises(ObjectExistsError):
            store.put_if_absent("empty", b"")

    def test_ranges_come_in_the_order_asked_and_short_at_the_end(self, store):
        data = bytes(range(256)) * 1000
        store.put_if_absent("data", data)
        asked = [(255_000, 256_000), (0, 1), (10, 20), (15, 25), (7, 7), (255_990, 300_000), (256_000, 256_001), (0, 1)]
        assert store.read_ranges("data", asked) == [data[start:end] for start, end in asked]
        assert store.read_ranges("data", []) == []

    def test_an_object_is_no_folder(self, store):
        store.put_if_absent("a/b", b"")
        with pytest.raises(StorageError):
            store.read("a")
        with pytest.raises(StorageError):
            store.read("a/b/c")


class TestWriting:
    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_buffer_is_taken(self, store, kind):
        store.put_if_absent("a", kind(b"\x00\x01"))
        store.put("b", kind(b"\x02"))
        with store.create("c") as sink:
            assert sink.write(kind(b"\x03\x04")) == 2
        assert [store.read(key) for key in "abc"] == [b"\x00\x01", b"\x02", b"\x03\x04"]

    def test_put_if_absent_keeps_the_first(self, store):
        store.put_if_absent("commits/1", b"first")
        with pytest.raises(ObjectExistsError, match="commits/1"):
            store.put_if_absent("commits/1", b"second")
        assert store.read("commits/1") == b"first"

    def test_put_keeps_the_last(self, store):
        store.put("hint", b"1")
        store.put("hint", b"2")
        assert store.read("hint") == b"2"

    def test_after_a_delete_the_key_is_free(self, store):
        store.put_if_absent("a", b"1")
        store.delete("a")
        store.delete("a")
        store.delete("never/was")
        with pytest.raises(ObjectNotFoundError):
            store.read("a")
        store.put_if_absent("a", b"2")
        assert store.read("a") == b"2"

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_keys_with_odd_characters_are_stored(self, store, key):
        if "\\" in key and store.url.startswith("abfss://"):
            with pytest.raises(StorageError, match="which Azure takes for a slash"):
                store.put_if_absent(key, b"1")
            return
        if ":" in key and store.url.startswith("hdfs://"):
            with pytest.raises(StorageError, match="which HDFS does not take"):
                store.put_if_absent(key, b"1")
            return
        store.put_if_absent(key, b"1")
        with pytest.raises(ObjectExistsError):
            store.put_if_absent(key, b"2")
        assert store.read(key) == b"1"
        assert [info.key for info in store.list("")] == [key]
        assert store.list_names("") == [key.split("/")[0]]
        store.delete(key)
        assert store.list("") == []

    def test_of_racing_threads_one_wins(self, store):
        rounds, threads = 10, 8
        barrier = threading.Barrier(threads)
        winners: list[tuple[int, bytes]] = []

        def race(name: bytes) -> None:
            for number in range(rounds):
                barrier.wait()
                try:
                    store.put_if_absent(f"commits/{number}", name)
                except ObjectExistsError:
                    continue
                winners.append((number, name))

        running = [threading.Thread(target=race, args=(b"%d" % i,)) for i in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert sorted(number for number, _ in winners) == list(range(rounds))
        assert all(store.read(f"commits/{number}") == name for number, name in winners)

    def test_of_racing_processes_one_wins(self, shared_store):
        rounds = 25
        context = multiprocessing.get_context("spawn")
        barrier, results = context.Barrier(2), context.Queue()
        processes = [
            context.Process(target=race_in_process, args=(shared_store, b"%d" % i, rounds, barrier, results))
            for i in range(2)
        ]
        for process in processes:
            process.start()
        winners = sorted(results.get(timeout=240) + results.get(timeout=240))
        for process in processes:
            process.join()
        assert [number for number, _ in winners] == list(range(rounds))
        assert all(shared_store.read(f"commits/{number}") == name for number, name in winners)


def race_in_process(store: Storage, name: bytes, rounds: int, barrier, results) -> None:
    won = []
    for number in range(rounds):
        barrier.wait(240)
        try:
            store.put_if_absent(f"commits/{number}", name)
        except ObjectExistsError:
            continue
        won.append((number, name))
    results.put(won)


class TestCreating:
    def test_nothing_is_visible_before_the_end(self, store):
        with store.create("segments/a") as sink:
            sink.write(b"rows")
            assert store.list("") == []
            with pytest.raises(ObjectNotFoundError):
                store.read("segments/a")
        assert store.read("segments/a") == b"rows"

    def test_many_parts_arrive_in_order(self, store):
        chunk = os.urandom(1_000_003)
        with store.create("segments/large") as sink:
            for _ in range(20):
                assert sink.write(chunk) == len(chunk)
        assert store.read("segments/large") == chunk * 20
        middle = (PART_BYTES - 5, PART_BYTES + 5)
        assert store.read_ranges("segments/large", [middle]) == [(chunk * 20)[slice(*middle)]]

    @pytest.mark.parametrize("size_bytes", [0, 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES])
    def test_objects_of_every_size_are_created(self, store, size_bytes):
        data = bytes(size_bytes)
        with store.create("segments/a") as sink:
            sink.write(data)
        assert store.size_bytes("segments/a") == size_bytes

    def test_the_callers_buffer_may_change_after_a_write(self, store):
        buffer = bytearray(b"1" * 100)
        with store.create("a") as sink:
            sink.write(buffer)
            buffer[:] = b"2" * 100
        assert store.read("a") == b"1" * 100

    @pytest.mark.parametrize("size_bytes", [10, 3 * PART_BYTES])
    def test_an_exception_leaves_nothing(self, store, size_bytes):
        def write_and_fail() -> None:
            with store.create("segments/a") as sink:
                sink.write(bytes(size_bytes))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            write_and_fail()
        assert store.list("") == []
        assert leftovers(store) == []


def leftovers(store: Storage) -> list[object]:
    """What an aborted write left behind, where listings do not show it."""
    if isinstance(store, LocalStorage | HdfsStorage):
        return list(store.list_temporary(""))
    if isinstance(store, S3Storage):
        client = store._client()
        return client.run(lambda c: c.send("list_multipart_uploads", Bucket=store._bucket)).get("Uploads", [])
    return []


class TestListing:
    def test_a_prefix_is_text_not_a_folder(self, store):
        for key in ("a/1", "a/10", "a/2", "ab/1", "b"):
            store.put_if_absent(key, key.encode())
        assert {info.key for info in store.list("a")} == {"a/1", "a/10", "a/2", "ab/1"}
        assert {info.key for info in store.list("a/1")} == {"a/1", "a/10"}
        assert {info.key for info in store.list("")} == {"a/1", "a/10", "a/2", "ab/1", "b"}
        assert store.list("c/") == []

    def test_names_are_the_next_parts(self, store):
        for key in ("sales/orders/names/1", "sales/orders/names/2", "sales/items/names/1", "sales/db.json", "top"):
            store.put_if_absent(key, b"")
        assert store.list_names("") == ["sales", "top"]
        assert store.list_names("sales/") == ["db.json", "items", "orders"]
        assert store.list_names("sales/orders/names/") == ["1", "2"]
        assert store.list_names("absent/") == []

    def test_a_listing_has_sizes_and_times(self, store):
        before_ms = store.now_ms()
        store.put_if_absent("a", b"12345")
        [info] = store.list("")
        assert info.size_bytes == 5
        # S3 tells whole seconds, and its clock is known to about the time of a request.
        assert before_ms - 60_000 <= info.modified_ms <= store.now_ms() + 60_000


class TestTheRest:
    def test_its_time_is_about_ours(self, store):
        before_ms = time.time() * 1000
        told_ms = store.now_ms()
        assert before_ms - 60_000 <= told_ms <= time.time() * 1000 + 60_000

    def test_it_proves_that_it_is_writable_and_leaves_nothing(self, store):
        store.check_writable()
        assert store.list("") == []
        assert store.list_names("") == []

    def test_a_local_path_is_the_object(self, store):
        store.put_if_absent("a/b", b"bytes")
        path = store.local_path("a/b")
        if path is not None:
            with open(path, "rb") as file:  # noqa: PTH123
                assert file.read() == b"bytes"

    def test_the_contention_hint_lets_everybody_in(self, store):
        for _ in range(2):
            with store.commit_lock("commits/lock"), store.commit_lock("commits/lock"):
                store.put("a", b"")

    def test_a_pickled_store_is_the_same_store(self, shared_store):
        shared_store.put_if_absent("a", b"1")
        again = pickle.loads(pickle.dumps(shared_store))
        assert again.url == shared_store.url
        assert again.read("a") == b"1"
        with pytest.raises(ObjectExistsError):
            again.put_if_absent("a", b"2")

    @pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
    def test_a_store_works_in_a_forked_child(self, shared_store):
        shared_store.put_if_absent("parent", b"1")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                shared_store.put_if_absent("child", shared_store.read("parent"))
                status = 0
            finally:
                os._exit(status)
        shared_store.put_if_absent("meanwhile", b"1")
        assert os.waitpid(child, 0)[1] == 0
        assert {info.key for info in shared_store.list("")} == {"parent", "child", "meanwhile"}

    def test_errors_name_the_place(self, store):
        with pytest.raises(StorageError) as caught:
            store.read("a/b")
        assert f"{store.url}/a/b" in str(caught.value)
        assert "\n" not in str(caught.value)
