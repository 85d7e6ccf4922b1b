"""Reads on the short way: what they find, what is told of failures, and when the client is asked after all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest

from faults.sim import SimIds
from storage.s3_proxy import Fault, S3Proxy, always, nothing, nth
from storage.s3_server import ServerClock, settings_for
from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import ObjectNotFoundError, StorageError
from streamhouse_spark.storage.request_metrics import METER
from streamhouse_spark.storage.s3.client import CLIENTS, S3Client
from streamhouse_spark.storage.s3.fast_get import FastGetClient, _SignedGet
from streamhouse_spark.storage.s3.storage import S3Storage

pytestmark = pytest.mark.s3
KEYS = ["commits/00000000000000000001.json", "a b+c~d/ä%20&=?#.json", "x//y/../z", "p=1/q=a:b,c(d)'e!*;@$[1]"]
DATA = bytes(range(256)) * 40
FAULTS = [
    Fault.TRUNCATED,
    Fault.ERROR_BEFORE,
    Fault.DROP_BEFORE,
    Fault.SLOW_DOWN,
    Fault.NOT_IMPLEMENTED,
    Fault.FORBIDDEN,
    Fault.ABSENT,
    Fault.GATEWAY_ABSENT,
    Fault.PRECONDITION_BARE,
]
_numbers = count()


@pytest.fixture
def store(proxy: S3Proxy) -> Iterator[S3Storage]:
    """A new bucket with an object, and no way to it so far."""
    proxy.plan = nothing
    world = World(ServerClock(), SimIds(next(_numbers)))
    store = S3Storage(f"s3://{proxy.server.new_bucket()}/wh/ü x", settings_for(proxy.endpoint), world)
    store.put("there", DATA)
    yield store
    proxy.plan = nothing


@pytest.fixture
def through_client(monkeypatch) -> list[str]:
    """The keys of the GETs that went through the client."""
    keys: list[str] = []
    send = S3Client.send

    async def noted(self, operation, **parameters):
        if operation == "get_object":
            keys.append(parameters["Key"].removeprefix("wh/ü x/"))
        return await send(self, operation, **parameters)

    monkeypatch.setattr(S3Client, "send", noted)
    return keys


def client_of(store: S3Storage) -> S3Client:
    return CLIENTS.get(store._settings)


def way_to(store: S3Storage) -> _SignedGet | None:
    return client_of(store)._short.of(store._bucket)


def test_one_read_shows_the_way_of_all_others(store, through_client):
    for key in KEYS:
        store.put(key, key.encode() * 50)
    assert store.read("there") == DATA
    assert [store.read(key) for key in KEYS] == [key.encode() * 50 for key in KEYS]
    assert store.read_many(["no/1", KEYS[1], "no/2"]) == [None, KEYS[1].encode() * 50, None]
    assert store.read_ranges("there", [(3, 9), (5_000, 5_400), (20_000, 20_010)]) == [DATA[3:9], DATA[5_000:5_400], b""]
    with pytest.raises(ObjectNotFoundError):
        store.read("absent")
    assert through_client == ["there"]


def test_an_absent_object_shows_the_way_too(store, through_client):
    for _ in range(2):
        with pytest.raises(ObjectNotFoundError):
            store.read("absent")
    assert through_client == ["absent"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("lasting", [False, pytest.param(True, marks=pytest.mark.long)], ids=["once", "always"])
def test_a_failure_is_told_as_the_client_tells_it(store, proxy, fault, lasting):
    """But for an answer that ends too early, whose text the client has from another place."""

    def outcomes() -> list[object]:
        found = []
        for work in (
            lambda: store.read("there"),
            lambda: store.read_many(["there"]),
            lambda: store.read_ranges("there", [(10, 200), (300, 310)]),
        ):
            proxy.plan = always(fault, "GET") if lasting else nth("GET", 0, fault)
            try:
                found.append(work())
            except StorageError as error:
                text = re.sub(r", request [^)]*", "", str(error))
                found.append((type(error), text if fault is not Fault.TRUNCATED else ""))
            found.append(len(proxy.methods) if fault is not Fault.SLOW_DOWN else len(proxy.methods) > 1)
            proxy.plan = nothing
        return found

    by_client = outcomes_without_ways(store, outcomes)
    store.read("there")
    assert way_to(store) is not None
    assert outcomes() == by_client
    assert store.read("there") == DATA


def outcomes_without_ways(store: S3Storage, outcomes):
    short = client_of(store)._short
    learn, short._learn = short._learn, lambda *_: None
    try:
        assert way_to(store) is None
        return outcomes()
    finally:
        short._learn = learn


def test_a_store_that_ignores_ranges_is_understood(store, proxy):
    store.read("there")
    proxy.plan = always(Fault.IGNORE_RANGE, "GET")
    assert store.read_ranges("there", [(10, 20)]) == [DATA[10:20]]


def test_a_way_that_leads_nowhere_is_forgotten_and_the_client_is_asked(store, through_client, monkeypatch):
    store.read("there")
    get, nowhere = _SignedGet.get, [0]

    async def lost(self, key, byte_range):
        nowhere[0] += 1
        return

    monkeypatch.setattr(_SignedGet, "get", lost)
    before = METER.of(store.url)
    for number in range(1, 6):
        assert store.read("there") == DATA
        assert nowhere[0] == min(number, 3), "after a few times it is not learned again"
    counted = METER.of(store.url) - before
    assert (counted.gets, counted.failures) == (5 + 3, 3)
    assert counted.received_bytes == 5 * len(DATA)
    assert through_client == ["there"] * 6
    monkeypatch.setattr(_SignedGet, "get", get)
    assert store.read("there") == DATA
    assert through_client == ["there"] * 7


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403])
def test_a_store_that_says_where_or_how_is_asked_through_the_client(store, through_client, monkeypatch, status):
    """The client knows redirects, other regions, wrong clocks and expired credentials."""
    store.read("there")
    way = way_to(store)

    async def body():
        return b"<Error><Code>Other</Code><Message>Go &amp; ask</Message></Error>"

    async def send(_):
        return SimpleNamespace(status_code=status, headers={}, content=body())

    monkeypatch.setattr(way, "_send", send)
    assert store.read("there") == DATA
    assert through_client == ["there", "there"]
    assert way_to(store) is not way


def test_it_signs_as_the_client_does_with_the_credentials_of_the_moment(store, proxy, monkeypatch):
    """A request is signed again by the library itself, from what was sent."""
    store.read("there")
    way, asked = way_to(store), []
    get_auth, send = way._signer.get_auth_instance, way._send

    async def noted_auth(*arguments):
        asked.append(await get_auth(*arguments))
        return asked[-1]

    sent = []

    async def noted_send(request):
        sent.append(request)
        return await send(request)

    monkeypatch.setattr(way._signer, "get_auth_instance", noted_auth)
    monkeypatch.setattr(way, "_send", noted_send)
    store.read_ranges("there", [(1, 5)])
    store.read("there")
    assert len(asked) == len(sent) == 2
    for auth, request in zip(asked, sent, strict=True):
        assert isinstance(auth, S3SigV4Auth)
        assert auth.credentials.access_key == store._settings.access_key_id
        found = {name: value.decode() if isinstance(value, bytes) else value for name, value in request.headers.items()}
        again = AWSRequest("GET", request.url, headers={k: v for k, v in found.items() if k != "Authorization"})
        again.context["timestamp"] = found["X-Amz-Date"]
        signature = auth.signature(auth.string_to_sign(again, auth.canonical_request(again)), again)
        assert found["Authorization"].endswith(f"Signature={signature}")
        assert "/us-east-1/s3/aws4_request" in found["Authorization"]
        assert "botocore" in found["User-Agent"].lower()


def test_a_client_without_the_parts_that_are_needed_keeps_its_own_way():
    short = FastGetClient(SimpleNamespace())  # of another release
    with short.observe_get("bucket", "key"):
        pass
    assert short.of("bucket") is None


@pytest.mark.parametrize(
    ("url", "version", "signing", "is_learned"),
    [
        ("https://b.s3.us-east-1.amazonaws.com/wh/k.json", "s3v4", {"region": "us-east-1"}, True),
        ("https://b.s3.us-east-1.amazonaws.com/wh/k.json?x=1", "s3v4", {}, False),
        ("https://b.s3.us-east-1.amazonaws.com/wh/other.json", "s3v4", {}, False),
        ("https://b.s3.us-east-1.amazonaws.com/wh/k.json", "s3v4a", {}, False),
        ("https://b.s3.us-east-1.amazonaws.com/wh/k.json", "v4-s3express", {"identity_cache": object()}, False),
        ("https://b.s3.us-east-1.amazonaws.com/wh/k.json", "s3v4", {"request_credentials": object()}, False),
    ],
)
def test_only_plain_requests_show_a_way(url, version, signing, is_learned):
    """Anonymous requests, those of several regions and those of directory buckets stay with the client."""
    hooks = {}

    events = SimpleNamespace(register=lambda name, hook: hooks.update({name.split(".")[0]: hook}))
    session = SimpleNamespace(send=lambda request: request)
    short = FastGetClient(
        SimpleNamespace(meta=SimpleNamespace(events=events), _endpoint=SimpleNamespace(http_session=session))
    )
    request = SimpleNamespace(context={"signing": signing}, headers={"User-Agent": b"agent"}, url=url)
    with short.observe_get("b", "wh/k.json"):
        named = {"signing_name": "s3", "request_signer": object(), "operation_name": "GetObject"}
        hooks["before-sign"](request=request, region_name="eu-west-1", signature_version=version, **named)
        hooks["before-send"](request=request)
    assert (short.of("b") is not None) == is_learned
    if is_learned:
        assert short.of("b")._signing == ("s3", "us-east-1", "s3v4")
        assert short.of("b")._base == url.removesuffix("wh/k.json")


def test_reads_of_many_tasks_learn_apart(store, through_client):
    """Requests that are under way at the same time do not see each other's."""
    assert store.read_many(["there", "absent", "there"]) == [DATA, None, DATA]
    assert sorted(through_client) == ["absent", "there", "there"]
    assert way_to(store)._base.endswith(f"/{store._bucket}/")
