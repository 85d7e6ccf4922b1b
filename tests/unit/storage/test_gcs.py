"""URLs, settings and failures of Google Cloud Storage, and uploads in parts."""

from __future__ import annotations

import io
import json

import pytest
import requests
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, RefreshError

from streamhouse_spark.errors import InvalidOptionError, ObjectExistsError, ObjectNotFoundError, StorageRefusedError
from streamhouse_spark.storage import gcs as storage
from streamhouse_spark.storage.gcs import GcsAddress, GcsBucketClient, ResponseError, _Resumable
from streamhouse_spark.storage.remote.retry import FailureKind

URL = "gs://bucket/some/prefix"
TOKEN = "ya29.secret-4711"


def answer(status: int, message: str = "told", reason: str = "") -> requests.Response:
    made = requests.Response()
    made.status_code = status
    made._content = json.dumps({"error": {"message": message, "errors": [{"reason": reason}]}}).encode()
    return made


def plain(status: int, text: str) -> requests.Response:
    made = requests.Response()
    made.status_code = status
    made._content = text.encode()
    return made


def blobs() -> GcsBucketClient:
    return GcsBucketClient(GcsAddress.parse(URL, {"gcs.oauth2.token": TOKEN})[0])


def test_a_url_tells_bucket_and_prefix():
    address, prefix = GcsAddress.parse(URL, {})
    assert (address.bucket, prefix, address.host) == ("bucket", "some/prefix", "https://storage.googleapis.com")
    assert address.is_google
    emulator, _ = GcsAddress.parse("gs://bucket", {"gcs.service.host": "http://127.0.0.1:4443/"})
    assert emulator.host == "http://127.0.0.1:4443"
    assert not emulator.is_google


@pytest.mark.parametrize("url", ["gs://b", "gs://user@bucket/p", "gs://Bucket/p", "gs://bucket/a//b", "gs://bucket/.."])
def test_bad_gcs_urls_are_rejected_without_their_user(url):
    with pytest.raises(InvalidOptionError) as caught:
        GcsAddress.parse(url, {})
    assert "user@" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gcs.oauth2.tokn": "x"}, "did you mean gcs.oauth2.token"),
        ({"gcs.anonymous": "yes"}, "expected true or false"),
        ({"gcs.anonymous": "true", "gcs.oauth2.token": TOKEN}, "exclude each other"),
        ({"gcs.oauth2.token-file": "/t", "gcs.oauth2.token": TOKEN}, "exclude each other"),
        ({"gcs.service.host": "storage.example.com"}, "expected a URL"),
    ],
)
def test_bad_gcs_settings_are_rejected_without_their_value(settings, message):
    with pytest.raises(InvalidOptionError, match=message) as caught:
        GcsAddress.parse(URL, settings)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ResponseError(answer(412, reason="conditionNotMet"), is_put=True), FailureKind.EXISTS),
        (ResponseError(answer(412), is_put=False), FailureKind.FINAL),
        (ResponseError(answer(404, "No such object: bucket/a", "notFound"), is_put=False), FailureKind.ABSENT),
        (ResponseError(plain(404, "No such object: bucket/a"), is_put=False), FailureKind.ABSENT),
        (ResponseError(plain(404, "<html>nothing here</html>"), is_put=False), FailureKind.FINAL),
        (
            ResponseError(answer(404, "The specified bucket does not exist.", "notFound"), is_put=True),
            FailureKind.FINAL,
        ),
        (ResponseError(answer(429, reason="rateLimitExceeded"), is_put=True), FailureKind.THROTTLED),
        (ResponseError(answer(503), is_put=True), FailureKind.THROTTLED),
        (ResponseError(answer(500), is_put=True), FailureKind.TRANSIENT),
        (ResponseError(answer(403, reason="forbidden"), is_put=True), FailureKind.FINAL),
        (requests.ConnectionError("broken"), FailureKind.TRANSIENT),
        (RefreshError("away", retryable=True), FailureKind.TRANSIENT),
        (RefreshError("revoked", retryable=False), FailureKind.FINAL),
        (DefaultCredentialsError("none"), FailureKind.FINAL),
    ],
)
def test_gcs_failures_are_classified(error, kind):
    assert blobs().classify_failure(error).kind is kind


def test_texts_have_a_remedy_and_no_secret():
    known = blobs()
    denied = ResponseError(answer(403, f"not with {TOKEN}\nhere", "forbidden"), is_put=True)
    error = known.classify_failure(denied).error("write", f"{URL}/a")
    assert type(error) is StorageRefusedError
    assert "grant the role Storage Object User" in str(error)
    assert TOKEN not in str(error)
    assert "\n" not in str(error)
    assert "application-default login" in known.classify_failure(DefaultCredentialsError("none")).remedy
    exists = known.classify_failure(ResponseError(answer(412), is_put=True)).error("write", f"{URL}/a")
    assert type(exists) is ObjectExistsError
    absent = known.classify_failure(ResponseError(plain(404, "No such object: x"), is_put=False)).error(
        "read", f"{URL}/a"
    )
    assert type(absent) is ObjectNotFoundError
    no_bucket = ResponseError(answer(404, "The specified bucket does not exist.", "notFound"), is_put=True)
    assert "create the bucket" in known.classify_failure(no_bucket).remedy


def test_the_text_form_shows_no_secret():
    assert TOKEN not in repr(GcsAddress.parse(URL, {"gcs.oauth2.token": TOKEN})[0])


def test_gcs_credentials_are_renewed_before_requests(monkeypatch):
    """A session asks the credentials before each request, and these get a new token where the old one expires."""
    asked = []

    class Renewed(AnonymousCredentials):
        def before_request(self, request, method, url, headers):
            asked.append(method)
            headers["authorization"] = f"Bearer {len(asked)}"

    def send(_self, request, **_options):
        assert request.headers["authorization"] == f"Bearer {len(asked)}"
        return plain(200, "bytes")

    monkeypatch.setattr(storage, "_credentials", lambda _address: Renewed())
    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    known = GcsBucketClient(GcsAddress.parse(URL, {})[0])
    assert [known.get("a"), known.get("b")] == [b"bytes", b"bytes"]
    assert asked == ["GET", "GET"]


class Session:
    """An upload that takes at most so many bytes of a request, on the other side of HTTP."""

    def __init__(self, takes_bytes: int) -> None:
        self.takes_bytes = takes_bytes
        self.stored = b""
        self.spans: list[str] = []

    def request(self, method, url, *, headers, data, **_options):
        span, _, total = headers["Content-Range"].removeprefix("bytes ").partition("/")
        self.spans.append(f"{span}/{total}")
        if span != "*":
            start = int(span.partition("-")[0])
            if start <= len(self.stored):
                self.stored += data[len(self.stored) - start :][: self.takes_bytes]
        answer = requests.Response()
        answer.status_code = 200 if total == str(len(self.stored)) else 308
        if self.stored:
            answer.headers["Range"] = f"bytes=0-{len(self.stored) - 1}"
        return answer


def uploading(takes_bytes: int) -> tuple[_Resumable, Session]:
    blobs = GcsBucketClient(GcsAddress.parse("gs://bucket/p", {"gcs.anonymous": "true"})[0])
    session = Session(takes_bytes)
    blobs._session = session
    return _Resumable(blobs, "https://upload"), session


@pytest.mark.parametrize("takes_bytes", [1, 3, 4, 100])
@pytest.mark.parametrize("last", [b"", b"89"])
def test_parts_go_on_where_the_store_ended(takes_bytes, last):
    upload, session = uploading(takes_bytes)
    upload.send(1, io.BytesIO(b"0123"), is_last=False)
    upload.send(2, io.BytesIO(b"4567"), is_last=False)
    upload.send(3, io.BytesIO(last), is_last=True)
    assert session.stored == b"01234567" + last


def test_a_part_that_is_sent_again_counts_once():
    upload, session = uploading(100)
    upload.send(1, io.BytesIO(b"0123"), is_last=False)
    again = _Resumable(upload._blobs, "https://upload")
    again.send(1, io.BytesIO(b"0123"), is_last=False)
    again.send(2, io.BytesIO(b"45"), is_last=True)
    assert session.stored == b"012345"


def test_a_store_that_takes_nothing_is_an_error():
    upload, _ = uploading(0)
    with pytest.raises(ConnectionError, match="has 0 bytes"):
        upload.send(1, io.BytesIO(b"0123"), is_last=False)


def test_a_store_that_forgot_parts_is_an_error():
    upload, session = uploading(100)
    upload.send(1, io.BytesIO(b"0123"), is_last=False)
    session.stored = b"01"
    with pytest.raises(ConnectionError, match="has 2 bytes"):
        upload.send(2, io.BytesIO(b"4567"), is_last=True)
