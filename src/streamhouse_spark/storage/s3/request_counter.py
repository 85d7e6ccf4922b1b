"""Counts the requests of S3 as they are sent."""

from __future__ import annotations

import io
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from streamhouse_spark.storage.remote.failures import FailureKind
from streamhouse_spark.storage.request_metrics import METER, Kind, RequestCounts
from streamhouse_spark.storage.s3.client import Answer, Client, failures

T = TypeVar("T")

_KINDS: Final[dict[str, Kind]] = {
    "get_object": "gets",
    "head_object": "heads",
    "head_bucket": "heads",
    "put_object": "puts",
    "create_multipart_upload": "puts",
    "upload_part": "puts",
    "complete_multipart_upload": "puts",
    "abort_multipart_upload": "deletes",
    "list_objects_v2": "lists",
    "delete_object": "deletes",
}


class CountedClient:
    """A client that counts each request, by the keys below the store's root."""

    def __init__(self, client: Client, url: str, root: str) -> None:
        self._client = client
        self._url = url
        self._root = root

    async def send(self, operation: str, **parameters: Any) -> dict[str, Any]:
        key = str(parameters.get("Key", parameters.get("Prefix", ""))).removeprefix(self._root)
        sent_bytes = _size_bytes(parameters.get("Body", b""))
        answer = await self._counted(self._client.send(operation, **parameters), key, operation, sent_bytes)
        self._note(key, operation, RequestCounts(sent_bytes=sent_bytes))
        return answer

    async def get(self, bucket: str, key: str, byte_range: str | None = None) -> Answer:
        """Read an object or byte range, with a fast GET if possible, otherwise through the client."""
        within = key.removeprefix(self._root)
        answer: Answer | None = None
        if self._client.can_get_shortly(bucket):
            answer = await self._counted(self._client.get_shortly(bucket, key, byte_range), within, "get_object")
            if answer is None:
                self._note(within, "get_object", RequestCounts(failures=1))
        if answer is None:
            answer = await self._counted(self._client.get(bucket, key, byte_range), within, "get_object")
        self._note(within, "get_object", RequestCounts(received_bytes=len(answer.data)))
        return answer

    async def _counted(self, request: Coroutine[Any, Any, T], key: str, operation: str, sent_bytes: int = 0) -> T:
        """Await the request, and count it if it fails."""
        try:
            return await request
        except failures.S3_FAILURES as error:
            outcome = failures.classify(error)
            refused = int(outcome is FailureKind.EXISTS)
            failed = int(outcome not in (FailureKind.EXISTS, FailureKind.ABSENT))
            self._note(key, operation, RequestCounts(refused_puts=refused, failures=failed, sent_bytes=sent_bytes))
            raise

    def _note(self, key: str, operation: str, about: RequestCounts) -> None:
        METER.note(self._url, key, RequestCounts(**{_KINDS[operation]: 1}) + about)


def _size_bytes(body: bytes | io.BytesIO) -> int:
    return body.getbuffer().nbytes if isinstance(body, io.BytesIO) else len(body)
