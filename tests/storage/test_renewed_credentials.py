"""Credentials of the AWS chain that end before their time: others are looked for, without a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import CredentialRetrievalError

from storage.s3_proxy import Fault, S3Proxy, nothing, running_s3_proxy
from storage.s3_server import settings_for
from streamhouse_spark import StorageError
from streamhouse_spark.storage.remote.multipart_upload import PART_BYTES
from streamhouse_spark.storage.s3 import client as s3_client
from streamhouse_spark.storage.s3.storage import S3Storage

pytestmark = pytest.mark.s3


@pytest.fixture
def proxy(s3_server) -> Iterator[S3Proxy]:
    with running_s3_proxy(s3_server) as running:
        yield running


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of credentials that the chain finds."""
    path = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    write(path, "first")
    return path


@pytest.fixture
def store(s3_server, proxy, profile) -> S3Storage:
    settings = {"s3.endpoint": proxy.endpoint, "s3.region": "us-east-1"}
    return S3Storage(f"s3://{s3_server.new_bucket()}/wh", settings)


def write(path: Path, name: str) -> None:
    keys = f"aws_access_key_id = {name}\naws_secret_access_key = secret\naws_session_token = token\n"
    path.write_text(f"[default]\n{keys}")


def takes(proxy: S3Proxy, caller: str) -> None:
    proxy.plan = lambda request: None if request.caller == caller else Fault.EXPIRED


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.read("a"),
        lambda store: store.put_if_absent("b", b"1"),
        lambda store: store.size_bytes("a"),
        lambda store: store.list(""),
        lambda store: store.read_ranges("a", [(0, 1)]),
        lambda store: store.delete("a"),
    ],
)
def test_others_are_found_when_the_store_takes_these_no_longer(store, proxy, profile, act):
    proxy.plan = nothing
    store.put("a", b"1")
    store.read("a")  # the short way is known now
    takes(proxy, "second")
    write(profile, "second")
    act(store)
    callers = [request.caller for request, _ in proxy.log]
    assert callers[-1] == "second"
    assert callers.count("first") <= 2
    takes(proxy, "second")
    assert store.read_many(["c"]) == [None]
    assert {request.caller for request, _ in proxy.log} == {"second"}


def test_a_large_object_goes_on_with_the_new_ones(store, proxy, profile):
    store.put("a", b"1")
    with store.create("large") as sink:
        sink.write(bytes(PART_BYTES + 1))
        takes(proxy, "second")
        write(profile, "second")
        sink.write(bytes(PART_BYTES))
    assert store.size_bytes("large") == 2 * PART_BYTES + 1


def test_without_others_the_error_says_so(store, proxy):
    takes(proxy, "second")
    with pytest.raises(StorageError, match=r"ExpiredToken .*the credentials have expired, and no new ones were found"):
        store.read("a")
    assert len(proxy.log) == 2


def test_keys_that_the_settings_name_are_not_replaced(s3_server, proxy, profile):
    store = S3Storage(f"s3://{s3_server.new_bucket()}/wh", settings_for(proxy.endpoint))
    takes(proxy, "second")
    write(profile, "second")
    with pytest.raises(StorageError, match="the credentials have expired"):
        store.read("a")


def test_renewed_credentials_that_have_ended_are_a_failure_of_the_store(store, monkeypatch):
    """The client's own error for it is one of defects."""

    async def sign(*_: object, **__: object) -> None:
        raise RuntimeError("Credentials were refreshed, but the refreshed credentials are still expired.")

    api = s3_client.CLIENTS.get(store._settings)._api
    monkeypatch.setattr(api, "put_object", sign)
    monkeypatch.setattr(s3_client.CLIENTS, "forget", lambda *_: None)
    with pytest.raises(StorageError, match=r"CredentialRetrievalError.*the credentials have expired") as told:
        store.put_if_absent("a", b"1")
    assert isinstance(told.value.__cause__, CredentialRetrievalError)
