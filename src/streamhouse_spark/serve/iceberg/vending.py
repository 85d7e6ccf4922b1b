"""Credential vending: temporary credentials for the files of one table (``streamhouse serve --vend-role``).

They are credentials of an S3 role, restricted to the table's lake folder and to the folders of its virtual tables with
hot rows. They are cached in memory per client and table, and reused during the first half of their lifetime.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import VIRTUAL_PREFIX
from streamhouse_spark.errors import InvalidOptionError, LakeMismatchError
from streamhouse_spark.lake.iceberg.clone import find_out_of_place_location
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.serve.options import VendOptions
from streamhouse_spark.storage.s3.sts import SESSION_POLICY_CHARS_MAX, StsRoles, TemporaryCredentials, parse_partition
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

_CACHED_MAX: Final = 1_000
_SPECIAL: Final = re.compile(r"[*?$\x00-\x1f\x7f]")
"""Characters that have a special meaning in a policy."""


class StsClient(Protocol):
    def assume(self, role_arn: str, session: str, policy: str, seconds: int) -> TemporaryCredentials: ...


@dataclass(frozen=True, slots=True)
class VendedCredentials:
    """Credentials, and the location prefixes that they permit to read."""

    credentials: TemporaryCredentials
    prefixes: tuple[str, ...]

    @property
    def ends(self) -> str:
        return dt.datetime.fromtimestamp(self.credentials.ends_ms / 1000, dt.UTC).isoformat(timespec="seconds")

    def config(self) -> dict[str, str]:
        """Return the credentials as properties of Iceberg clients."""
        credentials = self.credentials
        return {
            "s3.access-key-id": credentials.access_key_id,
            "s3.secret-access-key": credentials.secret_access_key,
            "s3.session-token": credentials.session_token,
            "s3.session-token-expires-at-ms": str(credentials.ends_ms),
        }

    def storage_credentials(self, client_config: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the protocol's entry per prefix: the credentials, and the client settings for the store."""
        config = {name: value for name, value in client_config.items() if name.startswith(("s3.", "client."))}
        return [{"prefix": prefix, "config": {**config, **self.config()}} for prefix in self.prefixes]


@dataclass(frozen=True, slots=True)
class _CachedCredentials:
    vended: VendedCredentials
    until_boot_ms: int


class CredentialVendor:
    """Vends credentials for tables of a warehouse. Safe for threads. The caller must check the right to read."""

    def __init__(self, warehouse: Warehouse, options: VendOptions, roles: StsClient | None = None) -> None:
        """Raises `InvalidOptionError` and `MissingExtraError`."""
        options.require_usable(warehouse.url)
        self._options = options
        self._partition = parse_partition(options.role_arn)
        self._clock = warehouse.world.clock
        self._roles = roles or StsRoles(warehouse.settings)
        self._lock = new_lock()
        self._cache: OrderedDict[tuple[str, str], _CachedCredentials] = OrderedDict()

    def vend(self, client: str, table: Table, *, of: Literal["both", "lake", "virtual"] = "both") -> VendedCredentials:
        """Return credentials for the files of the table's lake, its virtual tables and system tables, or both.

        Raises `LakeMismatchError` for a lake with files outside of its folder, `InvalidOptionError` and `StorageError`.
        """
        state = table.state
        keys = [f"{state.lake_location}/"] if of == "lake" or (of == "both" and state.has_lake) else []
        if of != "lake":
            keys.append(f"{VIRTUAL_PREFIX}{state.table_uuid}-")
        url = urlsplit(table.storage.url)
        root = url.path.strip("/")
        policy = read_policy(self._partition, url.netloc, [f"{root}/{key}" if root else key for key in keys])
        key = client, policy
        with self._lock:
            cached = self._cache.get(key)
        if cached is not None and self._clock.boot_ms() < cached.until_boot_ms:
            return cached.vended
        if of != "virtual":
            self._require_files_in_place(table)
        began_ms, seconds = self._clock.boot_ms(), self._options.seconds
        credentials = self._roles.assume(self._options.role_arn, f"streamhouse-{client}", policy, seconds)
        vended = VendedCredentials(credentials, tuple(f"{table.storage.url.rstrip('/')}/{prefix}" for prefix in keys))
        with self._lock:
            self._cache[key] = _CachedCredentials(vended, began_ms + seconds * 500)
            self._cache.move_to_end(key)
            while len(self._cache) > _CACHED_MAX:
                self._cache.popitem(last=False)
        return vended

    @staticmethod
    def _require_files_in_place(table: Table) -> None:
        state = table.state
        if not state.has_lake:
            return
        lake = table.open_lake()
        assert isinstance(lake, IcebergLake)
        stray = find_out_of_place_location(lake.binding, with_files=state.parsed.datalake_adopted is not None)
        if stray is not None:
            raise LakeMismatchError(
                f"cannot vend credentials for {state.name}: its lake references {stray}, outside of "
                f"{state.lake_location} in the warehouse; read the table with your own credentials, and request none "
                "(without X-Iceberg-Access-Delegation)"
            )


def read_policy(partition: str, bucket: str, prefixes: Sequence[str]) -> str:
    """Return a policy that permits to read and list the objects under the prefixes, and nothing else.

    Raises `InvalidOptionError` for a prefix that a policy cannot express exactly.
    """
    for prefix in prefixes:
        if not prefix or _SPECIAL.search(prefix):
            raise InvalidOptionError(
                f"a policy cannot express exactly the prefix {prefix[:80]!r}; read the table with your own credentials"
            )
    patterns = [f"{prefix}*" for prefix in prefixes]
    bucket_arn = f"arn:{partition}:s3:::{bucket}"
    statements = [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": [f"{bucket_arn}/{pattern}" for pattern in patterns]},
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": bucket_arn,
            "Condition": {"StringLike": {"s3:prefix": patterns}},
        },
    ]
    text = json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))
    if len(text) > SESSION_POLICY_CHARS_MAX:
        raise InvalidOptionError(
            f"the policy for the table's files has {len(text)} characters, expected at most "
            f"{SESSION_POLICY_CHARS_MAX}; read the table with your own credentials"
        )
    return text
