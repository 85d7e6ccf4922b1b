"""Identities of requests, so that retried requests are stored once.

A request has either an ``Idempotency-Key``, which is an opaque string, or a ``Producer-Id`` and a ``Producer-Sequence``
that increases by one. The commit record of the request's rows stores the identity, with a fingerprint of the request.
Every server of the warehouse therefore repeats the first response, also if a server crashed after the commit.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from starlette.datastructures import Headers

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import StreamBatch, Transaction, check_app_id
from streamhouse_spark.errors import (
    CommitConflictError,
    IdempotencyKeyReusedError,
    InvalidOptionError,
    ProducerSequenceError,
)
from streamhouse_spark.log.commit_validation import find_stored_transaction
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import TransactionEntry, find_stored_version

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
PRODUCER_ID: Final = "Producer-Id"
PRODUCER_SEQUENCE: Final = "Producer-Sequence"
NAME_CHARS_MAX: Final = 255
_NAME: Final = re.compile(r"[ -~]+")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_SEQUENCE: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """The durable identity of one request to one table."""

    transaction: Transaction
    shown: str
    """The identity in errors."""

    @classmethod
    def of(cls, headers: Headers, client: str, table_uuid: str, request: Sequence[bytes]) -> RequestIdentity | None:
        """Return the identity of a request with these headers, or None.

        ``request`` is the body and all parameters that affect the stored rows. The scope of a key is one client and one
        table; branches and copies are other tables. Raises `InvalidOptionError` for malformed headers.
        """
        key, producer, sequence = (
            _single_header(headers, name) for name in (IDEMPOTENCY_KEY, PRODUCER_ID, PRODUCER_SEQUENCE)
        )
        if key is None and producer is None and sequence is None:
            return None
        if key is not None and (producer is not None or sequence is not None):
            raise InvalidOptionError(
                f"the request has {IDEMPOTENCY_KEY} and {PRODUCER_ID} or {PRODUCER_SEQUENCE}; send either the key, or "
                "both headers of the producer"
            )
        fingerprint = _digest(request)
        if key is not None:
            opaque = _parse_name(IDEMPOTENCY_KEY, key, "a string such as a UUID")
            digest = _digest((client.encode(), table_uuid.encode(), opaque.encode()))
            return cls(Transaction.of_request(digest, fingerprint), f"{IDEMPOTENCY_KEY} {opaque!r}")
        if producer is None or sequence is None or not _SEQUENCE.fullmatch(sequence.strip()):
            raise InvalidOptionError(
                f"{PRODUCER_ID} is {(producer or '')[:80]!r} and {PRODUCER_SEQUENCE} {(sequence or '')[:80]!r}; send "
                "both, with a sequence number that starts at 0 and increases by one per request of the producer"
            )
        number = int(sequence)
        app_id = _parse_name(PRODUCER_ID, producer, "the name of a producer such as checkout-7")
        check_app_id(app_id)
        transaction = Transaction(app_id, number, batch=StreamBatch(fingerprint), follows=number - 1)
        return cls(transaction, f"{PRODUCER_ID} {app_id!r}, {PRODUCER_SEQUENCE} {number}")

    def find_stored_outcome(self, state: TableState) -> TransactionEntry | None:
        """Return the outcome of the request if it is already stored, or None.

        Raises `IdempotencyKeyReusedError` if another request is stored under this identity, and
        `ProducerSequenceError` if the sequence number does not follow the stored sequence number.
        """
        try:
            return find_stored_transaction(state, self.transaction)
        except CommitConflictError as error:
            raise self._sequence_error(state) or error from error

    @contextmanager
    def translate_conflicts(self, refresh: Callable[[], TableState]) -> Iterator[None]:
        """Convert a commit conflict of the block to the error of the producer's sequence."""
        try:
            yield
        except CommitConflictError as error:
            raise self._sequence_error(refresh()) or error from error

    def _sequence_error(self, state: TableState) -> IdempotencyKeyReusedError | ProducerSequenceError | None:
        app_id, number = self.transaction.app_id, self.transaction.version
        stored = find_stored_version(state.transactions, state.past_transactions, app_id)
        if self.transaction.follows is None or stored == self.transaction.follows:
            return None
        if stored == number:
            return IdempotencyKeyReusedError(
                f"sequence {number} of producer {app_id!r} is stored in {state.name} with another body or other "
                f"parameters; nothing was written, send new rows as sequence {number + 1}"
            )
        expected = 0 if stored is None else stored + 1
        stored_text = (
            "the table has no request of this producer" if stored is None else f"the last stored number is {stored}"
        )
        return ProducerSequenceError(
            f"sequence {number} of producer {app_id!r} cannot be stored in {state.name}: {stored_text}, expected "
            f"sequence {expected}; nothing was written, send the missing requests first or choose another {PRODUCER_ID}"
        )

    def dead_letter_transaction(self, table: str, rows: Sequence[int]) -> Transaction:
        """Return the transaction for storing the bad rows of this request in the dead-letter table.

        It depends on the row numbers, because after a change of columns a retry may have other bad rows.
        """
        numbers = ",".join(map(str, rows))
        batch = self.transaction.batch
        fingerprint = (batch and batch.fingerprint) or _digest(())
        parts = (self.transaction.app_id, str(self.transaction.version), table, numbers)
        return Transaction.of_request(_digest([part.encode() for part in parts]), fingerprint)


class RequestsInFlight:
    """The requests with an identity that this server is executing."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._identities: set[tuple[str, str, int]] = set()

    @contextmanager
    def enter(self, table_uuid: str, identity: RequestIdentity) -> Iterator[None]:
        """Register a request until the block ends. Raises `CommitConflictError` if it is already in flight."""
        entry = (table_uuid, identity.transaction.app_id, identity.transaction.version)
        with self._lock:
            if entry in self._identities:
                raise CommitConflictError(
                    f"a request with {identity.shown} is in flight; retry later to get its response",
                    condition="REQUEST_IN_FLIGHT",
                )
            self._identities.add(entry)
        try:
            yield
        finally:
            with self._lock:
                self._identities.discard(entry)


def _single_header(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if len(values) > 1:
        raise InvalidOptionError(f"the request has {len(values)} headers {name}, expected at most one")
    return values[0] if values else None


def _parse_name(header: str, text: str, expected: str) -> str:
    """Parse the value of a header, which may be a quoted string as in the IETF draft."""
    text = text.strip()
    if quoted := _QUOTED.fullmatch(text):
        text = re.sub(r"\\(.)", r"\1", quoted[1])
    if not _NAME.fullmatch(text) or len(text) > NAME_CHARS_MAX:
        raise InvalidOptionError(
            f"{header} is {text[:80]!r}, expected {expected}; send 1 to {NAME_CHARS_MAX} printable ASCII characters"
        )
    return text


def _digest(parts: Sequence[bytes]) -> str:
    """Return a hash of all parts and their lengths, as 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
