"""Commits of several processes of one host in one record.

Whoever has to wait for another process's commit offers its own to it (see `storage.local_turns`). An offer names its
attempts, so that it may be tried by both: the put at the next free number decides, and whoever loses it finds the
attempt in the log, before it tries again. An attempt is therefore in the log once at most, whoever died or slept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import CorruptDataError, FormatVersionError
from streamhouse_spark.log.commits.actions import Action, Payload
from streamhouse_spark.log.commits.frame import decode_frame, encode_frame
from streamhouse_spark.log.commits.record import transaction_from_json, transaction_to_json
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.commits.waiting import Calls, Waiting
from streamhouse_spark.storage.base import Storage

OFFER_BYTES_MAX = 512 << 10


class OfferedPlan(ABC):
    """A `Plan` that another process may plan as well."""

    @abstractmethod
    def __call__(self, state: TableState, time_ms: int) -> Sequence[Action]:
        """See `Plan`."""

    @abstractmethod
    def to_json(self, payload: Payload) -> dict[str, Any] | None:
        """Return the plan, its bytes in the payload; None if only this process can plan it."""

    @abstractmethod
    def accepted(self, data: Mapping[str, Any], payload: memoryview) -> OfferedPlan | None:
        """Return the plan of another process; None unless it is of this one's kind."""


class _Offer:
    """The offer of calls that wait. From then on others may write their attempts, until it is withdrawn."""

    def __init__(self, calls: Sequence[Waiting], world: World) -> None:
        self._calls, self._world = calls, world
        self._offered: list[Waiting] = []

    def __call__(self) -> bytes | None:
        """Return the bytes of the offer; None if some call is this process's alone.

        A call whose attempt may be in the log, or in other hands, is offered to nobody: whoever takes it looks for it
        only in records that it reads from then on.
        """
        payload, attempts = Payload(), []
        for call in self._calls:
            is_new = call.landed is None and not call.tries and not call.unanswered
            if call.transaction is not None and call.transaction.follows is not None:
                return None  # which no record holds, so no offer does
            plan = call.plan.to_json(payload) if isinstance(call.plan, OfferedPlan) and is_new else None
            if plan is None or payload.size_bytes > OFFER_BYTES_MAX:
                return None
            attempt: dict[str, Any] = {"attempt": call.attempt, "staged_ms": call.staged_ms, "plan": plan}
            if call.transaction is not None:
                attempt["transaction"] = transaction_to_json(call.transaction)
            attempts.append(attempt)
        data = encode_frame("offer", {"by": _author(self._world), "attempts": attempts}, payload.parts)
        for call in self._calls:
            call.unanswered += 1  # stays so if an interrupt comes before it is known who has the offer
            self._offered.append(call)
        return data

    def withdrawn(self) -> None:
        """Note that nobody has taken the offer."""
        for call in self._offered:
            call.unanswered -= 1


@contextmanager
def shared_turn(storage: Storage, key: str, calls: Calls, leader: Waiting, world: World) -> Iterator[None]:
    """Wait for the turn to commit. In the block the calls of other processes are among ``calls``, if the leader's may
    share a record with them.
    """
    offer, others = _Offer(calls.led_by(leader), world), list[Waiting]()
    with storage.contention_hint(key, offer) as turn:
        if not turn.was_taken:
            offer.withdrawn()
            if isinstance(leader.plan, OfferedPlan):
                others = [call for data in turn.take() for call in _accepted(data, leader.plan, world)]
        try:
            for call in others:
                calls.add(call)
            yield
        finally:
            for call in others:
                calls.remove(call)


def _accepted(data: bytes, plan: OfferedPlan, world: World) -> Iterator[Waiting]:
    try:
        frame = decode_frame("offer", data, "an offer")
    except (CorruptDataError, FormatVersionError):
        return
    if frame.header["by"] != _author(world):  # a record names one author
        return
    for attempt in frame.header["attempts"]:
        accepted = plan.accepted(attempt["plan"], frame.payload)
        if accepted is not None:
            transaction = attempt.get("transaction")
            named = transaction_from_json(transaction) if transaction else None
            yield Waiting(accepted, named, attempt["staged_ms"], attempt["attempt"], is_shared=True, is_foreign=True)


def _author(world: World) -> list[str]:
    return list(world.author or ())
