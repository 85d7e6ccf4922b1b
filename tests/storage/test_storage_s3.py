"""S3Storage behind a proxy that loses, refuses, delays and cuts: what was stored, and what the caller is told."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import time
import traceback
import tracemalloc
from collections.abc import Iterator
from itertools import count

import pytest

from faults.sim import SimClock, SimIds
from storage.s3_proxy import Fault, Request, S3Proxy, always, nothing, nth, running_s3_proxy
from storage.s3_server import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Server, settings_for
from streamhouse_spark import InvalidOptionError, StorageError
from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import ObjectExistsError, ObjectNotFoundError, StorageRefusedError
from streamhouse_spark.storage.prefetch import PIECE_BYTES_MAX
from streamhouse_spark.storage.remote import client as client_cache
from streamhouse_spark.storage.remote.conditional_put_probe import HELD_ROUNDS, RACERS, ROUNDS
from streamhouse_spark.storage.remote.multipart_upload import PART_BYTES, PARTS_IN_FLIGHT_MAX
from streamhouse_spark.storage.remote.retry import RETRY_MS_MAX
from streamhouse_spark.storage.s3 import client as s3_client
from streamhouse_spark.storage.s3.storage import S3Storage

pytestmark = pytest.mark.s3

TRANSIENT = [Fault.LOST_ACK, Fault.ERROR_AFTER, Fault.ERROR_BEFORE, Fault.DROP_BEFORE, Fault.SLOW_DOWN]
SLOW_REQUEST_MS = 60_000
"""Dates are of whole seconds, and the store's answer may come late."""
_numbers = count()


@pytest.fixture
def store(proxy: S3Proxy, clock: SimClock) -> S3Storage:
    """One that has read before, so it reads on the short way."""
    store = new_store(proxy, clock)
    store.now_ms()
    assert told(store.read, "absent") is not None
    proxy.plan = nothing
    return store


@pytest.fixture
def direct(s3_server: S3Server, store: S3Storage) -> S3Storage:
    """The same bucket, without the proxy."""
    return S3Storage(store.url, settings_for(s3_server.endpoint))


def new_store(proxy: S3Proxy, clock: SimClock) -> S3Storage:
    world = World(clock, SimIds(next(_numbers)))
    return S3Storage(f"s3://{proxy.server.new_bucket()}/wh", settings_for(proxy.endpoint), world)


def told(call, *arguments) -> StorageError | None:
    try:
        call(*arguments)
    except StorageError as error:
        return error
    return None


class TestRequests:
    def test_the_hot_path_has_one_request_each(self, store, proxy):
        for number in range(3):
            store.put_if_absent(f"commits/{number}", b"record")
            store.read(f"commits/{number}")
        assert told(store.read, "commits/3")
        assert proxy.methods == ["PUT", "GET"] * 3 + ["GET"]

    def test_a_small_create_is_one_request(self, store, proxy):
        with store.create("segments/a") as sink:
            sink.write(b"rows")
        assert proxy.methods == ["PUT"]

    def test_the_store_is_asked_before_large_bodies_alone(self, store, proxy):
        """The question is a round trip of its own."""
        store.put_if_absent("a", bytes(1 << 19))
        store.put("b", b"1")
        with store.create("c") as sink:
            sink.write(b"rows")
        with store.create("d") as sink:
            sink.write(bytes((1 << 19) + 1))
        assert [request.asks_first for request, _ in proxy.log] == [False, False, False, True]

    def test_near_ranges_share_a_request_and_far_ones_go_side_by_side(self, store, proxy):
        data = bytes(range(256)) * (4 << 10)
        store.put_if_absent("a", data)
        proxy.plan = nothing
        ranges = [(0, 10), (1000, 1010), (900_000, 900_010)]
        assert store.read_ranges("a", ranges) == [data[a:b] for a, b in ranges]
        assert proxy.methods == ["GET", "GET"]

    def test_a_long_range_comes_in_pieces(self, store, direct, proxy):
        data = bytes(range(256)) * ((PIECE_BYTES_MAX + 1000) // 256)
        direct.put("a", data)
        assert store.read_ranges("a", [(10, len(data) + 5)]) == [data[10:]]
        assert len(proxy.methods) == 2

    def test_a_store_that_ignores_ranges_is_understood(self, store, proxy):
        store.put_if_absent("a", b"0123456789")
        proxy.plan = always(Fault.IGNORE_RANGE, "GET")
        assert store.read_ranges("a", [(2, 5), (8, 20)]) == [b"234", b"89"]


class TestPutIfAbsent:
    @pytest.mark.parametrize("fault", [Fault.LOST_ACK, Fault.ERROR_AFTER])
    def test_a_stored_object_without_acknowledgement_is_an_error_and_reading_back_resolves_it(
        self, store, direct, proxy, fault
    ):
        proxy.plan = nth("PUT", 0, fault)
        error = told(store.put_if_absent, "commits/1", b"mine")
        assert isinstance(error, StorageError)
        assert not isinstance(error, ObjectNotFoundError)
        assert proxy.faults_fired == 1
        assert direct.read("commits/1") == b"mine"

    def test_an_unclear_answer_is_not_sent_again(self, store, direct, proxy, clock):
        proxy.plan = nth("PUT", 0, Fault.ERROR_BEFORE)
        error = told(store.put_if_absent, "commits/1", b"mine")
        assert type(error) is StorageError
        assert "unknown" in str(error)
        assert proxy.methods == ["PUT"]
        assert clock.slept_ms == []
        assert direct.list("") == []

    def test_a_conflict_is_unclear_too(self, store, proxy):
        proxy.plan = nth("PUT", 0, Fault.CONFLICT)
        error = told(store.put_if_absent, "commits/1", b"mine")
        assert type(error) is StorageError
        assert "read the object back" in str(error)
        assert proxy.methods == ["PUT"]

    def test_a_broken_connection_leaves_all_or_nothing(self, store, direct, proxy):
        proxy.plan = nth("PUT", 0, Fault.DROP_BEFORE)
        error = told(store.put_if_absent, "commits/1", b"mine")
        stored = [info.key for info in direct.list("")]
        assert stored == ([] if error else ["commits/1"])

    def test_exists_needs_no_particular_text(self, store, proxy):
        proxy.plan = nth("PUT", 0, Fault.PRECONDITION_BARE)
        assert type(told(store.put_if_absent, "commits/1", b"mine")) is ObjectExistsError

    def test_slow_down_is_waited_out(self, store, proxy, clock):
        proxy.plan = nth("PUT", 0, Fault.SLOW_DOWN, times=6)
        store.put_if_absent("commits/1", b"mine")
        assert len(proxy.methods) == 7
        assert len(clock.slept_ms) == 6
        assert clock.slept_ms[-1] > clock.slept_ms[0]

    def test_slow_down_is_not_waited_out_for_ever(self, store, direct, proxy, clock):
        proxy.plan = always(Fault.SLOW_DOWN)
        error = told(store.put_if_absent, "commits/1", b"mine")
        assert type(error) is StorageError
        assert "SlowDown" in str(error)
        assert "fewer writers" in str(error)
        assert RETRY_MS_MAX <= sum(clock.slept_ms) <= 1.2 * RETRY_MS_MAX
        assert len(proxy.methods) < 60
        assert direct.list("") == []


class TestReads:
    @pytest.mark.parametrize("fault", [*TRANSIENT, Fault.TRUNCATED])
    def test_a_failure_is_passed_over(self, store, proxy, fault):
        data = bytes(range(256)) * 100
        store.put_if_absent("a", data)
        for ask, expected in (
            (lambda: store.read("a"), data),
            (lambda: store.read_ranges("a", [(5, 10), (20_000, 30_000)]), [data[5:10], data[20_000:]]),
        ):
            proxy.plan = nth("GET", 0, fault)
            assert ask() == expected
            assert proxy.faults_fired == 1

    @pytest.mark.parametrize("fault", TRANSIENT)
    def test_listing_and_sizes_pass_over_failures(self, store, proxy, fault):
        for number in range(3):
            store.put_if_absent(f"a/{number}", b"x")
        for method, ask, expected in (
            ("GET", lambda: len(store.list("")), 3),
            ("GET", lambda: store.list_names("a/"), ["0", "1", "2"]),
            ("HEAD", lambda: store.size_bytes("a/1"), 1),
            ("DELETE", lambda: store.delete("a/1"), None),
        ):
            proxy.plan = nth(method, 0, fault)
            assert ask() == expected
            assert proxy.faults_fired == 1
        assert store.list_names("a/") == ["0", "2"]

    def test_only_the_missing_pieces_are_fetched_again(self, store, proxy):
        data = bytes(1 << 20)
        store.put_if_absent("a", data)
        proxy.plan = nth("GET", 1, Fault.TRUNCATED)
        ranges = [(0, 1000), (300_000, 301_000), (700_000, 701_000)]
        assert store.read_ranges("a", ranges) == [data[a:b] for a, b in ranges]
        assert len(proxy.methods) == 4

    @pytest.mark.parametrize("fault", [Fault.TRUNCATED, Fault.LOST_ACK, Fault.ERROR_BEFORE, Fault.DROP_BEFORE])
    def test_a_lasting_failure_is_an_error_in_bounded_requests(self, store, proxy, fault):
        store.put_if_absent("a", b"0123456789")
        proxy.plan = always(fault)
        assert type(told(store.read, "a")) is StorageError
        assert type(told(store.read_ranges, "a", [(0, 5)])) is StorageError
        assert len(proxy.methods) <= 20

    def test_another_servers_404_is_no_absence(self, store, proxy):
        proxy.plan = always(Fault.GATEWAY_ABSENT, "GET")
        assert type(told(store.read, "commits/7")) is StorageError

    def test_a_read_never_finds_that_something_exists(self, store, proxy):
        proxy.plan = always(Fault.PRECONDITION_BARE, "GET")
        assert type(told(store.read, "commits/7")) is StorageError

    def test_long_listings_have_pages(self, store, direct, proxy):
        for number in range(7):
            direct.put(f"a/{number}", b"")
        page = store._pages
        store._pages = lambda prefix, **more: page(prefix, MaxKeys=3, **more)
        proxy.plan = nth("GET", 1, Fault.ERROR_BEFORE)
        assert sorted(info.key for info in store.list("a/")) == [f"a/{n}" for n in range(7)]
        assert store.list_names("a/") == [str(n) for n in range(7)]


class TestCreate:
    @pytest.mark.parametrize("fault", TRANSIENT)
    def test_a_small_object_is_written_despite_a_fault(self, store, direct, proxy, fault):
        proxy.plan = nth("PUT", 0, fault)
        with store.create("segments/a") as sink:
            sink.write(b"rows")
        assert proxy.faults_fired == 1
        assert direct.read("segments/a") == b"rows"

    @pytest.mark.parametrize("fault", TRANSIENT)
    @pytest.mark.parametrize(("method", "number"), [("POST", 0), ("PUT", 0), ("PUT", 2), ("POST", 1)])
    def test_a_multipart_object_is_written_despite_a_fault(self, store, direct, proxy, fault, method, number):
        data = bytes(range(256)) * (2 * PART_BYTES // 256 + 1)
        proxy.plan = nth(method, number, fault)
        with store.create("segments/a") as sink:
            sink.write(data)
        assert proxy.faults_fired == 1
        assert direct.read("segments/a") == data

    @pytest.mark.parametrize("method", ["PUT", "POST"])
    @pytest.mark.parametrize("fault", [Fault.FORBIDDEN, Fault.ERROR_BEFORE])
    def test_a_lasting_failure_leaves_nothing(self, store, direct, proxy, fault, method):
        proxy.plan = nth(method, 1, fault, times=1000)

        def write() -> None:
            with store.create("segments/a") as sink:
                sink.write(bytes(5 * PART_BYTES))

        assert type(told(write)) is (StorageRefusedError if fault is Fault.FORBIDDEN else StorageError)
        assert direct.list("") == []
        assert uploads(direct) == []

    def test_another_writers_object_is_not_taken_for_ones_own(self, store, direct):
        direct.put("segments/a", b"other")

        def write(size_bytes: int) -> None:
            with store.create("segments/a") as sink:
                sink.write(bytes(size_bytes))

        assert type(told(write, 10)) is ObjectExistsError
        assert type(told(write, PART_BYTES + 1)) is ObjectExistsError
        assert direct.read("segments/a") == b"other"
        assert uploads(direct) == []

    def test_an_upload_holds_few_parts_in_memory(self, direct):
        chunk = bytes(1 << 20)
        tracemalloc.start()
        try:
            with direct.create("segments/a") as sink:
                for _ in range(12 * PART_BYTES // len(chunk)):
                    sink.write(chunk)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert direct.size_bytes("segments/a") == 12 * PART_BYTES
        assert peak_bytes < (PARTS_IN_FLIGHT_MAX + 3) * PART_BYTES

    def test_parts_that_cannot_be_removed_are_named(self, store, proxy):
        def write() -> None:
            with store.create("segments/a") as sink:
                sink.write(bytes(PART_BYTES + 1))
                proxy.plan = always(Fault.FORBIDDEN)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as caught:
            write()
        assert "uploaded parts remain" in caught.value.__notes__[0]


def uploads(store: S3Storage) -> list[object]:
    return store._client().run(lambda c: c.send("list_multipart_uploads", Bucket=store._bucket)).get("Uploads", [])


@pytest.mark.usefixtures("all_races")
class TestCheckWritable:
    def test_a_store_without_conditional_writes_is_refused_and_left_clean(self, store, direct, proxy):
        proxy.plan = always(Fault.IGNORE_CONDITION, "PUT")
        with pytest.raises(StorageError, match=r"ignores If-None-Match.*use a store that honours"):
            store.check_writable()
        assert everything(direct) == []

    def test_a_store_that_looks_and_then_writes_is_refused_and_left_clean(self, store, direct, proxy):
        proxy.plan = always(Fault.CHECK_THEN_WRITE, "PUT")
        store.put_if_absent("a", b"1")
        with pytest.raises(ObjectExistsError):  # puts in sequence cannot see it
            store.put_if_absent("a", b"2")
        with pytest.raises(StorageError, match=r"does not support atomic conditional writes.*use a store that honours"):
            store.check_writable()
        assert everything(direct) == ["wh/a"]

    def test_amazons_own_store_is_known_and_not_raced(self, store, proxy, monkeypatch):
        store.check_writable()
        raced = proxy.methods.count("PUT")
        monkeypatch.setattr(s3_client.S3Client, "is_amazon", True)
        proxy.plan = lambda _: None
        store.check_writable()
        assert (raced, proxy.methods) == (2 + (HELD_ROUNDS + ROUNDS) * RACERS, ["GET", "PUT", "PUT", "GET", "DELETE"])

    def test_a_store_that_does_not_know_conditional_writes_is_refused(self, store, proxy):
        proxy.plan = always(Fault.NOT_IMPLEMENTED, "PUT")
        with pytest.raises(StorageError, match="honours If-None-Match"):
            store.check_writable()

    def test_a_cache_before_the_store_is_refused(self, store, direct, proxy):
        proxy.plan = always(Fault.ABSENT, "GET")
        with pytest.raises(StorageError, match="does not return what was written"):
            store.check_writable()
        assert everything(direct) == []

    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
    def test_a_missing_permission_is_named(self, store, proxy, method):
        proxy.plan = always(Fault.FORBIDDEN, method)
        with pytest.raises(StorageError, match="grant s3:GetObject"):
            store.check_writable()

    def test_a_lost_acknowledgement_is_not_taken_for_a_broken_store(self, store, direct, proxy):
        proxy.plan = nth("PUT", 0, Fault.LOST_ACK)
        error = told(store.check_writable)
        assert error is None or "unknown" in str(error)
        assert everything(direct) == []


def everything(store: S3Storage) -> list[str]:
    return [found["Key"] for page in store._pages("") for found in page.get("Contents", ())]


class TestErrors:
    def test_no_text_holds_credentials(self, store, proxy):
        proxy.plan = always(Fault.FORBIDDEN)
        for call, arguments in (
            (store.read, ("a",)),
            (store.put_if_absent, ("a", b"")),
            (store.list, ("",)),
            (store.delete, ("a",)),
            (store.read_ranges, ("a", [(0, 1)])),
        ):
            error = told(call, *arguments)
            assert error is not None
            for text in (str(error), repr(error), repr(store)):
                assert not {ACCESS_KEY_ID, SECRET_ACCESS_KEY, "AKIA0123456789ABCDEF"} & set(
                    text.replace(",", "").split()
                )
                assert "\n" not in text
            assert "AccessDenied (HTTP 403" in str(error)

    def test_a_traceback_holds_no_secret(self, s3_server, clock):
        gone = S3Storage("s3://bucket/wh", settings_for("http://127.0.0.1:9"), World(clock, SimIds(0)))
        error = told(gone.read, "a")
        assert "check s3.endpoint and the network" in str(error)
        assert SECRET_ACCESS_KEY not in "".join(traceback.format_exception(error))
        assert SECRET_ACCESS_KEY not in repr(gone._settings)

    def test_an_absent_bucket_is_not_an_absent_object(self, s3_server):
        store = S3Storage("s3://no-such-bucket/wh", settings_for(s3_server.endpoint))
        for error in (told(store.read, "a"), told(store.list, ""), told(store.put_if_absent, "a", b"")):
            assert type(error) is StorageError
            assert "NoSuchBucket" in str(error)
            assert "create the bucket" in str(error)

    def test_a_pickle_carries_the_settings(self, direct):
        store = direct
        store.put_if_absent("a", b"1")
        again = pickle.loads(pickle.dumps(store))
        assert again._settings == store._settings
        assert again.read("a") == b"1"


class TestStoreTime:
    @pytest.fixture
    def shifted(self, s3_server, clock) -> Iterator[tuple[S3Storage, S3Proxy]]:
        with running_s3_proxy(s3_server) as proxy:
            yield new_store(proxy, clock), proxy

    @pytest.mark.parametrize(("shift_seconds", "word"), [(-600, "ahead of"), (600, "behind")])
    def test_a_wrong_clock_is_refused_for_writes(self, shifted, shift_seconds, word):
        store, proxy = shifted
        proxy.date_shift_seconds = shift_seconds
        for write in (
            lambda: store.put_if_absent("a", b""),
            lambda: store.put("a", b""),
            lambda: store.create("a"),
            store.check_writable,
        ):
            with pytest.raises(StorageRefusedError, match=rf"clock is [56]\d\d seconds {word} the store's.*NTP"):
                write()  # nothing is sent, so nobody has to look what became of it
        assert store.list("") == []
        assert "PUT" not in proxy.methods

    def test_a_small_difference_is_fine_and_time_is_the_stores(self, shifted):
        store, proxy = shifted
        proxy.date_shift_seconds = 200
        store.put_if_absent("a", b"")
        assert -SLOW_REQUEST_MS <= store.now_ms() - 200_000 - time.time() * 1000 <= SLOW_REQUEST_MS

    def test_a_refusal_tells_the_time(self, shifted):
        store, proxy = shifted
        proxy.plan = always(Fault.FORBIDDEN)
        assert -SLOW_REQUEST_MS <= store.now_ms() - time.time() * 1000 <= SLOW_REQUEST_MS

    def test_a_store_without_dates_is_not_written_to(self, shifted):
        store, proxy = shifted
        proxy.date_shift_seconds = None
        with pytest.raises(StorageError, match="no Date header"):
            store.put_if_absent("a", b"")

    def test_a_store_that_is_away_is_said_to_be(self, clock):
        store = S3Storage("s3://bucket/wh", settings_for("http://127.0.0.1:9"), World(clock, SimIds(0)))
        with pytest.raises(StorageError, match="EndpointConnectionError"):
            store.put_if_absent("a", b"")


class TestClients:
    def test_clients_are_shared_by_settings_and_bounded(self, s3_server, monkeypatch):
        monkeypatch.setattr(client_cache, "_CLIENTS_MAX", 2)
        bucket = s3_server.new_bucket()
        for number in range(4):
            settings = settings_for(s3_server.endpoint) | {"s3.session-token": f"token-{number}"}
            S3Storage(f"s3://{bucket}/wh", settings).put(f"a/{number}", b"")
        first = S3Storage(f"s3://{bucket}/wh", settings)
        assert first._client() is S3Storage(f"s3://{bucket}/other", settings)._client()
        gc.collect()
        assert len(first.list("a/")) == 4
        assert len(s3_client.CLIENTS._clients) <= 2

    def test_a_missing_package_is_named(self):
        script = (
            "import sys; sys.modules['s3fs'] = None\n"
            "from streamhouse_spark.storage.factory import open_storage\n"
            "from streamhouse_spark.errors import MissingExtraError\n"
            "try: open_storage('s3://bucket/wh')\n"
            "except MissingExtraError as error: print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        assert "pip install 'streamhouse-spark[s3]'" in done.stdout

    def test_a_process_ends_without_warnings(self, s3_server):
        script = (
            "import sys\n"
            "from streamhouse_spark.storage.s3.storage import S3Storage\n"
            "from storage.s3_server import settings_for\n"
            f"store = S3Storage('s3://{s3_server.new_bucket()}/wh', settings_for({s3_server.endpoint!r}))\n"
            "store.put('a', b'1'); print(store.read('a'))\n"
        )
        command = [sys.executable, "-W", "error", "-c", script]
        environment = {"PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        assert (done.stdout, done.stderr) == ("b'1'\n", "")


class TestUrlsAndSettings:
    @pytest.mark.parametrize(
        "url",
        [
            "s3://",
            "s3:///wh",
            "s3://b",
            "s3://key:secret@bucket/wh",
            "s3://bucket//wh",
            "s3://bucket/a/../b",
            "http://x/y",
        ],
    )
    def test_bad_s3_urls_are_rejected_without_their_secret(self, url):
        with pytest.raises(InvalidOptionError) as caught:
            S3Storage(url, {})
        assert "secret" not in str(caught.value)

    def test_s3_urls_may_have_spaces_and_slashes(self, s3_server):
        bucket = s3_server.new_bucket()
        settings = settings_for(s3_server.endpoint)
        S3Storage(f"s3a://{bucket}/a b/c/", settings).put("x/y", b"1")
        assert [info.key for info in S3Storage(f"s3://{bucket}", settings).list("")] == ["a b/c/x/y"]
        assert S3Storage(f"s3://{bucket}/", settings).read("a b/c/x/y") == b"1"
        assert S3Storage(f"s3a://{bucket}/a b/c/", settings).url == f"s3a://{bucket}/a b/c"

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"s3.acces-key-id": "x"}, "did you mean s3.access-key-id"),
            ({"s3.access-key-id": "x"}, "go together"),
            ({"s3.endpoint": "storage:9000"}, "expected a URL"),
            ({"s3.endpoint": "http://user:canary@host"}, "credentials"),
            ({"s3.request-timeout": "soon"}, "number of seconds"),
            ({"s3.connect-timeout": "-1"}, "number of seconds"),
            ({"s3.force-virtual-addressing": "yes"}, "true or false"),
        ],
    )
    def test_bad_s3_settings_are_rejected_without_their_value(self, settings, message):
        with pytest.raises(InvalidOptionError, match=message) as caught:
            S3Storage("s3://bucket/wh", settings)
        assert "canary" not in str(caught.value)

    def test_settings_of_others_are_left_alone(self):
        S3Storage("s3://bucket/wh", {"lake.iceberg.catalog.type": "rest"})


def test_requests_carry_their_number(proxy, store):
    """The proxy itself: without it the tests above prove nothing."""
    seen: list[Request] = []
    proxy.plan = lambda request: seen.append(request)  # noqa: PLW0108
    store.put("a", b"")
    store.put("b", b"")
    store.read("a")
    assert [(r.method, r.number) for r in seen] == [("PUT", 0), ("PUT", 1), ("GET", 0)]
