"""Credential vending: temporary credentials for the files of one table (``streamhouse serve --vend-role``).

They come from a role of the store's owner, restricted to the table's lake folder and, for the table with its hot rows,
to the folders of its virtual tables. They are given to one client, cached in memory only, and reused until half of
their lifetime is over.
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
"""Characters with a special meaning in a policy."""


class StsClient(Protocol):
    def assume(self, role_arn: str, session: str, policy: str, seconds: int) -> TemporaryCredentials: ...


@dataclass(frozen=True, slots=True)
class VendedCredentials:
    """Credentials, and the location prefixes that they can read."""

    credentials: TemporaryCredentials
    prefixes: tuple[str, ...]

    @property
    def ends(self) -> str:
        return dt.datetime.fromtimestamp(self.credentials.ends_ms / 1000, dt.UTC).isoformat(timespec="seconds")

    def config(self) -> dict[str, str]:
        """Return them as properties of Iceberg clients."""
        credentials = self.credentials
        return {
            "s3.access-key-id": credentials.access_key_id,
            "s3.secret-access-key": credentials.secret_access_key,
            "s3.session-token": credentials.session_token,
            "s3.session-token-expires-at-ms": str(credentials.ends_ms),
        }

    def storage_credentials(self, client_config: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return one entry per prefix, as in the protocol, with the settings that a client needs to reach the store."""
        config = {name: value for name, value in client_config.items() if name.startswith(("s3.", "client."))}
        return [{"prefix": prefix, "config": {**config, **self.config()}} for prefix in self.prefixes]


@dataclass(frozen=True, slots=True)
class _CachedCredentials:
    vended: VendedCredentials
    until_boot_ms: int


class CredentialVendor:
    """Vends credentials for tables of one warehouse. Safe for threads. The caller has checked the right to read."""

    def __init__(self, warehouse: Warehouse, options: VendOptions, roles: StsClient | None = None) -> None:
        """Raises `InvalidOptionError`, `MissingExtraError`."""
        options.require_usable(warehouse.url)
        self._options = options
        self._partition = parse_partition(options.role_arn)
        self._clock = warehouse.world.clock
        self._roles = roles or StsRoles(warehouse.settings)
        self._lock = new_lock()
        self._cache: OrderedDict[tuple[str, str], _CachedCredentials] = OrderedDict()

    def vend(self, client: str, table: Table, *, of: Literal["both", "lake", "virtual"] = "both") -> VendedCredentials:
        """Return credentials for the table's files: lake and virtual tables, or one of the two.

        ``virtual`` is for system tables. Raises `LakeMismatchError` for a table with files outside of its folder,
        `InvalidOptionError`, `StorageError`.
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
                f"no credentials are given for {state.name}: its lake names {stray}, outside of {state.lake_location} "
                "in the warehouse; read it with credentials of your own, and request none (without "
                "X-Iceberg-Access-Delegation)"
            )


def read_policy(partition: str, bucket: str, prefixes: Sequence[str]) -> str:
    """Return a policy that allows reading and listing the objects under some prefixes.

    Raises `InvalidOptionError` for a prefix that a policy cannot express: a wider one would expose other files.
    """
    for prefix in prefixes:
        if not prefix or _SPECIAL.search(prefix):
            raise InvalidOptionError(
                f"no policy can express exactly the prefix {prefix[:80]!r}; read the table with credentials of your own"
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
            f"the policy for the files of this table has {len(text)} characters, and a store accepts "
            f"{SESSION_POLICY_CHARS_MAX}; read the table with credentials of your own"
        )
    return text
