"""Requests of S3, counted as they are sent."""

from __future__ import annotations

import io
from typing import Any, Final

from streamhouse_spark.storage.remote.failures import FailureKind
from streamhouse_spark.storage.requests import METER, Kind, Requests
from streamhouse_spark.storage.s3.client import Client, failures

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
    """A client that counts each request for a store, below the keys of its root."""

    def __init__(self, client: Client, url: str, root: str) -> None:
        self._client = client
        self._url = url
        self._root = root

    async def send(self, operation: str, **parameters: Any) -> dict[str, Any]:
        key = str(parameters.get("Key", parameters.get("Prefix", ""))).removeprefix(self._root)
        sent_bytes = _size_bytes(parameters.get("Body", b""))
        try:
            answer = await self._client.send(operation, **parameters)
        except failures.S3_FAILURES as error:
            outcome = failures.classify(error)
            refused = int(outcome is FailureKind.EXISTS)
            failed = int(outcome not in (FailureKind.EXISTS, FailureKind.ABSENT))
            self._note(key, operation, Requests(refused_puts=refused, failures=failed, sent_bytes=sent_bytes))
            raise
        received_bytes = int(answer.get("ContentLength") or 0) if operation == "get_object" else 0
        self._note(key, operation, Requests(sent_bytes=sent_bytes, received_bytes=received_bytes))
        return answer

    def _note(self, key: str, operation: str, about: Requests) -> None:
        METER.note(self._url, key, Requests(**{_KINDS[operation]: 1}) + about)


def _size_bytes(body: bytes | io.BytesIO) -> int:
    return body.getbuffer().nbytes if isinstance(body, io.BytesIO) else len(body)
