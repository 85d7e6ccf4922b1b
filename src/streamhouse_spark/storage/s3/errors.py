"""Classifies S3 failures, and describes them in one line with a remedy and without credentials."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import Any, TypeVar

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
    SSLError,
)
from botocore.parsers import ResponseParserError

from streamhouse_spark.errors import StorageError
from streamhouse_spark.storage.remote.retry import SLOW_DOWN, UNKNOWN_OUTCOME, Failure, FailureKind, to_one_line

T = TypeVar("T")

S3_FAILURES: tuple[type[Exception], ...] = (
    ClientError,
    BotoCoreError,
    ResponseParserError,
    aiohttp.ClientError,
    asyncio.TimeoutError,
    OSError,
)
"""Every exception that a request can raise, except bugs."""

_TRANSIENT_ERRORS = (
    HTTPClientError,
    ResponseStreamingError,
    IncompleteReadError,
    ResponseParserError,
    aiohttp.ClientError,
    asyncio.TimeoutError,
    OSError,
)
_THROTTLING_CODES = frozenset({
    "SlowDown",
    "SlowDownRead",
    "SlowDownWrite",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
    "RequestThrottled",
    "RequestLimitExceeded",
    "TooManyRequests",
})  # fmt: skip
_CONDITIONAL_OPERATIONS = frozenset({"PutObject", "CompleteMultipartUpload"})
_TRANSIENT_CODES = frozenset({"RequestTimeout", "InternalError", "OperationAborted", "ConditionalRequestConflict"})
_REFUSED_CODES = frozenset({"AccessDenied", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch"})
_EXPIRED_CODES = frozenset({
    "ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidToken",
    "InvalidTokenId", "TokenRefreshRequired",
})  # fmt: skip
_ACCESS_KEY_ID = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")


def error_code(error: BaseException) -> str:
    """Return the store's error code ("NoSuchKey"), or the name of the exception."""
    return str(_error_fields(error).get("Code") or type(error).__name__)


def http_status(error: BaseException) -> int:
    """Return the HTTP status of the response, or 0 without a response."""
    return int(_metadata(error).get("HTTPStatusCode") or 0)


def response_date(error: BaseException) -> str | None:
    """Return the ``Date`` header of the response, if there is one."""
    headers: dict[str, str] = _metadata(error).get("HTTPHeaders") or {}
    return headers.get("date")


def classify_failure(error: BaseException) -> FailureKind:
    if isinstance(error, ClientError):
        return _classify_answer(error)
    if isinstance(error, _TRANSIENT_ERRORS) and not isinstance(error, SSLError):
        return FailureKind.TRANSIENT
    return FailureKind.FINAL


def _classify_answer(error: ClientError) -> FailureKind:
    code, status = error_code(error), http_status(error)
    if (status == 412 or code == "PreconditionFailed") and error.operation_name in _CONDITIONAL_OPERATIONS:
        return FailureKind.EXISTS
    # A bare 404 may come from a gateway, so only S3's own error code counts. The response to HEAD has no body and so no
    # code.
    if code == "NoSuchKey" or (status == 404 and error.operation_name == "HeadObject"):
        return FailureKind.ABSENT
    if code in _THROTTLING_CODES or status in (429, 503):
        return FailureKind.THROTTLED
    if code in _TRANSIENT_CODES or (status >= 500 and status != 501):
        return FailureKind.TRANSIENT
    return FailureKind.FINAL


async def with_credentials(request: Awaitable[T]) -> T:
    """Await a request. Expired credentials that could not be renewed are a failure, not a bug."""
    try:
        return await request
    except RuntimeError as error:
        if "refreshed credentials" not in str(error):
            raise
        raise CredentialRetrievalError(provider="the AWS chain", error_msg=str(error)) from error


def has_expired_credentials(error: BaseException) -> bool:
    """Return whether the store may accept renewed credentials of the same caller."""
    if isinstance(error, CredentialRetrievalError):
        return True
    is_without_code = isinstance(error, ClientError) and error.operation_name.startswith("Head")
    return error_code(error) in _EXPIRED_CODES or (is_without_code and http_status(error) in (400, 401, 403))


def storage_error(error: BaseException, verb: str, where: str, secrets: tuple[str, ...]) -> StorageError:
    """Convert a failed request to an exception of this package. ``secrets`` are masked in the store's message."""
    kind = classify_failure(error)
    refused = kind is FailureKind.FINAL and error_code(error) in _REFUSED_CODES
    return Failure(kind, _describe_failure(error, secrets), _remedy(error, kind), refused).error(verb, where)


def _describe_failure(error: BaseException, secrets: tuple[str, ...]) -> str:
    if isinstance(error, ClientError):
        message = str(_error_fields(error).get("Message") or "")
        request_id = _metadata(error).get("RequestId")
        request = f", request {request_id}" if request_id else ""
        head = f"{error_code(error)} (HTTP {http_status(error)}{request})"
    else:
        message, head = str(error), type(error).__name__
    message = to_one_line(_ACCESS_KEY_ID.sub("***", message), secrets)
    return f"{head}: {message}" if message else head


def _remedy(error: BaseException, kind: FailureKind) -> str:
    remedy = _REMEDIES.get(error_code(error))
    if remedy is not None:
        return remedy
    if kind is FailureKind.TRANSIENT:
        return UNKNOWN_OUTCOME
    if kind is FailureKind.THROTTLED:
        return SLOW_DOWN
    if http_status(error) == 403:
        return _DENIED
    return "check the endpoint, region and credentials (s3.endpoint, s3.region, s3.access-key-id)"


_DENIED = (
    "grant s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket (without s3:ListBucket the store reports "
    "denied access instead of an absent object)"
)
_CREDENTIALS = "correct s3.access-key-id and s3.secret-access-key, or the AWS credentials of this machine"
_ENDED = (
    "the credentials have expired, and no new ones were found: renew them (s3.session-token, or the AWS sources of "
    "this machine)"
)
_REGION = "set s3.region to the bucket's region and s3.endpoint to its endpoint"
_REMEDIES = {
    "AccessDenied": _DENIED,
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "CredentialRetrievalError": _ENDED,
    "ExpiredToken": _ENDED,
    "ExpiredTokenException": _ENDED,
    "InvalidToken": "the store rejects the session token: get a new token",
    "NoSuchBucket": "create the bucket, or correct its name in the warehouse URL",
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it (NTP), then retry",
    "ConditionalRequestConflict": "a concurrent write of the same key: the outcome is unknown, read the object back",
    "NotImplemented": "the store does not support this request: use one that honours If-None-Match, as Amazon S3 does",
    "NoCredentialsError": "set s3.access-key-id and s3.secret-access-key, or the AWS credentials of this machine",
    "PartialCredentialsError": _CREDENTIALS,
    "ProfileNotFound": "correct AWS_PROFILE, or set s3.access-key-id and s3.secret-access-key",
    "EndpointConnectionError": "check s3.endpoint and the network, then retry",
}


def _error_fields(error: BaseException) -> dict[str, Any]:
    return error.response.get("Error", {}) if isinstance(error, ClientError) else {}


def _metadata(error: BaseException) -> dict[str, Any]:
    return error.response.get("ResponseMetadata", {}) if isinstance(error, ClientError) else {}
