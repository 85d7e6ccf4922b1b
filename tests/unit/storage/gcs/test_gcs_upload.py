"""A large object in parts: Google stores as much of a part as it likes, and says how much."""

from __future__ import annotations

import io

import pytest
import requests

from streamhouse_spark.storage.gcs.storage import GcsAddress, GcsBlobs, _Resumable


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
    blobs = GcsBlobs(GcsAddress.parse("gs://bucket/p", {"gcs.anonymous": "true"})[0])
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
