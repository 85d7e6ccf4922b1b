"""Temporary credentials: assumes a role with a session policy that restricts it to a part of the store."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final
from urllib.parse import urlsplit

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, MissingExtraError, StorageError, StorageRefusedError
from streamhouse_spark.storage.remote.retry import FailureKind, to_one_line
from streamhouse_spark.storage.s3.settings import S3Settings

logger = logging.getLogger(__name__)

SESSION_POLICY_CHARS_MAX: Final = 2_048
"""Characters that STS accepts as a session policy."""
_ROLE: Final = re.compile(r"arn:(?P<partition>[a-z0-9-]{1,40}):iam::[0-9]{0,12}:role/[\w+=,.@/-]{1,512}\Z", re.ASCII)
_NO_SESSION_CHARS: Final = re.compile(r"[^\w+=,.@-]", re.ASCII)
_SESSION_CHARS_MAX: Final = 64
_AMAZON: Final = (".amazonaws.com", ".amazonaws.com.cn")
_STS_ENDPOINT: Final = "AWS_ENDPOINT_URL_STS"
_REGION: Final = "us-east-1"


@dataclass(frozen=True, slots=True)
class TemporaryCredentials:
    """Credentials that expire. ``repr`` shows none of them."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    ends_ms: int
    """Unix time of expiry, by the store's clock."""


def parse_partition(role_arn: str) -> str:
    """Return the partition of a role's ARN, such as ``aws``. Raises `InvalidOptionError` for any other text."""
    match = _ROLE.match(role_arn)
    if match is None:
        raise InvalidOptionError(
            f"{role_arn[:80]!r} names no role; expected an ARN such as arn:aws:iam::123456789012:role/readers"
        )
    return match["partition"]


class StsRoles:
    """Assumes roles with the credentials of a warehouse's settings, else with the AWS default chain. Thread-safe.

    Requests go to Amazon's STS, or to the store itself if ``s3.endpoint`` is another vendor's. The variable
    ``AWS_ENDPOINT_URL_STS`` overrides both.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Raises `MissingExtraError`, `InvalidOptionError`."""
        self._settings = S3Settings.parse(settings)
        self._client = _client(self._settings)

    def assume(self, role_arn: str, session: str, policy: str, seconds: int) -> TemporaryCredentials:
        """Return credentials of the role, restricted by the policy.

        Raises `StorageError`, and `StorageRefusedError` if a retry cannot succeed. The texts contain neither the role
        nor credentials nor the store's message, because clients see them; the log has the message without credentials.
        """
        from streamhouse_spark.storage.s3 import errors as failures

        name = _NO_SESSION_CHARS.sub("-", session)[:_SESSION_CHARS_MAX]
        try:
            response = self._client.assume_role(
                RoleArn=role_arn, RoleSessionName=name, Policy=policy, DurationSeconds=seconds
            )
        except failures.S3_FAILURES as error:
            code = failures.error_code(error)
            logger.warning("AssumeRole of %s failed: %s", role_arn, to_one_line(str(error), self._settings.secrets))
            if failures.classify_failure(error) is FailureKind.FINAL:
                raise StorageRefusedError(
                    f"the store denied this server credentials for readers ({code}); its operator must allow the "
                    "server to assume the configured role, see its log"
                ) from None
            raise StorageError(f"the store gave no credentials for readers ({code}); try again later") from None
        credentials: dict[str, Any] = response["Credentials"]
        return TemporaryCredentials(
            credentials["AccessKeyId"],
            credentials["SecretAccessKey"],
            credentials["SessionToken"],
            int(credentials["Expiration"].timestamp() * 1000),
        )


def _client(settings: S3Settings) -> Any:
    try:
        import botocore.config
        import botocore.session
    except ImportError as error:
        raise MissingExtraError(
            f"credentials of S3 need the package {error.name}, which is not installed: "
            "pip install 'streamhouse-spark[s3]'"
        ) from error
    parsers = logging.getLogger("botocore.parsers")
    if not any(isinstance(log_filter, _WithoutCredentials) for log_filter in parsers.filters):
        parsers.addFilter(_WithoutCredentials())
    config = botocore.config.Config(
        connect_timeout=settings.connect_timeout_seconds,
        read_timeout=settings.request_timeout_seconds,
        retries={"mode": "standard", "total_max_attempts": 3},
    )
    session = botocore.session.get_session()
    region = settings.region or session.get_config_variable("region") or _REGION
    return session.create_client(
        "sts",
        region_name=region,
        endpoint_url=_endpoint(settings),
        aws_access_key_id=settings.access_key_id,
        aws_secret_access_key=settings.secret_access_key,
        aws_session_token=settings.session_token,
        config=config,
    )


def _endpoint(settings: S3Settings) -> str | None:
    host = urlsplit(settings.endpoint or "").hostname
    return None if host is None or host.endswith(_AMAZON) or _STS_ENDPOINT in os.environ else settings.endpoint


class _WithoutCredentials(logging.Filter):
    """Removes responses with credentials from the client library's log, which at DEBUG has every response."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "SecretAccessKey" not in record.getMessage()
