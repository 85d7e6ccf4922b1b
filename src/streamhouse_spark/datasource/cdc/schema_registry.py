"""Schemas by id, from a registry with Confluent's REST API.

The schema of an id never changes, so each is fetched once per query, and only by the driver. Tasks need no access to
the registry, and credentials stay on the driver.

Sources: Confluent's "Schema Registry API Reference", ``GET /schemas/ids/{id}`` and its errors. Apicurio (below
``/apis/ccompat/v7``), Karapace and Redpanda implement it too.
"""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final
from urllib.parse import urlsplit

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, StorageError, StorageRefusedError, quote

Auth = Sequence[str] | str
"""A user and password, or a token."""

_ACCEPTED: Final = "application/vnd.schemaregistry.v1+json, application/json"
_TIMEOUT_S: Final = 10
_PATIENCE_MS: Final = 30_000
"""How long the registry may be unavailable before the query fails."""
_ANSWER_BYTES_MAX: Final = 8 << 20
_NOT_FOUND: Final = range(40_400, 40_500)
"""Error codes in the body of a 404: no such schema, subject or version. Any other 404 comes from another server."""


@dataclass(frozen=True, slots=True)
class RegistrySchema:
    """The schema of an id, or the reason why the registry has no usable one."""

    schema: str | None
    reason: str = ""


class _UnavailableError(Exception):
    """The registry did not answer; a retry may succeed."""


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A registry at a URL."""

    url: str
    authorization: str | None = field(repr=False)
    world: World = field(default_factory=World)

    @classmethod
    def of(cls, url: str, auth: Auth | None, world: World) -> SchemaRegistry:
        """Validate the URL and credentials. Raises `InvalidOptionError`, which shows no secret."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidOptionError(f"registry is {quote(url)}, expected a URL such as 'https://registry:8081'")
        if parts.username or parts.password:
            raise InvalidOptionError(
                "registry has a user or password in its URL, which errors show; give them as registry_auth=(user, "
                "password)"
            )
        return cls(url.rstrip("/"), None if auth is None else _authorization(auth), world)

    def schema(self, number: int) -> RegistrySchema:
        """Return the schema of an id.

        A registry that fails or does not answer is retried for 30 seconds. Raises `StorageError` if it is still
        unavailable, and `StorageRefusedError` if it rejects the client or the URL is not a registry.
        """
        begin_ms = self.world.clock.boot_ms()
        attempt = 0
        while True:
            try:
                return self._request(number)
            except _UnavailableError as error:
                attempt += 1
                if self.world.clock.boot_ms() - begin_ms >= _PATIENCE_MS:
                    raise StorageError(
                        f"the schema registry {self.url} has not answered {attempt} requests for schema {number}: "
                        f"{error}; nothing of this batch was written, start the query again when the registry answers",
                        condition="SCHEMA_REGISTRY_UNAVAILABLE",
                    ) from error
            self.world.wait_to_retry(attempt)

    def _request(self, number: int) -> RegistrySchema:
        request = urllib.request.Request(f"{self.url}/schemas/ids/{number}", headers={"Accept": _ACCEPTED})  # noqa: S310 - `of`
        if self.authorization is not None:
            request.add_unredirected_header("Authorization", self.authorization)  # not sent on redirects
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as before
                body = answer.read(_ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                return self._handle_http_error(number, error.code, error.read(_ANSWER_BYTES_MAX))
        except (OSError, http.client.HTTPException) as error:
            raise _UnavailableError(f"{type(error).__name__}: {error}") from error
        return _parse_answer(_parse_object(body), number)

    def _handle_http_error(self, number: int, status: int, body: bytes) -> RegistrySchema:
        if status == 429 or status >= 500:
            raise _UnavailableError(f"it answered {status}")
        if status == 404 and _error_code(body) in _NOT_FOUND:
            return RegistrySchema(None, f"its schema {number} is not in the registry")
        advice = "give the credentials as registry_auth=" if status in (401, 403) else "give the registry's own URL"
        raise StorageRefusedError(
            f"the schema registry {self.url} answered {status} to a request for schema {number}; nothing of this batch "
            f"was written, {advice} and start the query again",
            condition="SCHEMA_REGISTRY_REFUSED",
        )


def _authorization(auth: Auth) -> str:
    if isinstance(auth, str) and auth.isascii() and auth.isprintable() and auth.strip():
        return f"Bearer {auth}"
    if isinstance(auth, list | tuple) and len(auth) == 2 and all(isinstance(part, str) for part in auth):
        return "Basic " + base64.b64encode(f"{auth[0]}:{auth[1]}".encode()).decode()
    raise InvalidOptionError(
        f"registry_auth is a {type(auth).__name__} that is no credentials; expected (user, password) or a token"
    )


def _parse_answer(answer: dict[str, Any], number: int) -> RegistrySchema:
    kind, schema = answer.get("schemaType", "AVRO"), answer.get("schema")
    if kind != "AVRO":
        return RegistrySchema(None, f"its schema {number} is of the type {quote(kind)}, and no Avro")
    if answer.get("references"):
        return RegistrySchema(None, f"its schema {number} refers to other schemas, which are not fetched")
    if not isinstance(schema, str):
        raise _UnavailableError("its answer has no schema")
    return RegistrySchema(schema)


def _parse_object(body: bytes) -> dict[str, Any]:
    if len(body) > _ANSWER_BYTES_MAX:
        raise _UnavailableError(f"its answer has more than {_ANSWER_BYTES_MAX >> 20} MiB")
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise _UnavailableError("its answer is no JSON object")
    return answer


def _error_code(body: bytes) -> int:
    try:
        answer = json.loads(body)
    except ValueError:
        return 0
    code = answer.get("error_code") if isinstance(answer, dict) else None
    return code if isinstance(code, int) else 0
