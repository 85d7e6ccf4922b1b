"""Mistakes about appends that are offered to other processes, and the tests that find them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faults.offered_appends import AppendOffered, goes_on_before_call
from faults.plants import patched, plant
from faults.scenarios import Run
from faults.sweep import sweep_scenario
from streamhouse_spark.log.commits import commit_log, offers
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.commits.waiting import Committed, Waiting


def goes_on_at_any_time(fails_from: int | None = None) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        base = Run(directory=Path(folder) / "warehouse")
        base.create()
        base.append()
        for at in range(goes_on_before_call(base, 1000) + 1):
            goes_on_before_call(base, at, fails_from=fails_from)


@plant
def whoever_waited_makes_a_new_attempt() -> Iterator[None]:
    """As if nobody could have taken the offer."""
    original = offers._Offer.__call__

    def offered(self: offers._Offer) -> bytes | None:
        own = [call.attempt for call in self._calls]
        for number, call in enumerate(self._calls):
            call.attempt = f"{number:032x}"
        data = original(self)
        for call, attempt in zip(self._calls, own, strict=True):
            call.attempt = attempt
        return data

    with patched((offers._Offer, "__call__", offered)):
        yield


@plant
def the_taker_does_not_look_for_the_offered_attempts() -> Iterator[None]:
    original = commit_log.CommitLog._read_forward

    def read_forward(self: Any, state: Any, own: dict[str, Committed], *more: Any) -> TableState | None:
        return original(self, state, {}, *more)

    with patched((commit_log.CommitLog, "_read_forward", read_forward)):
        yield


@plant
def an_offer_counts_as_withdrawn() -> Iterator[None]:
    """So a failure is told as certain, although the one that took the offer may yet write."""
    original = offers._Offer.__call__

    def offered(self: offers._Offer) -> bytes | None:
        data = original(self)
        self.withdrawn()
        self._offered.clear()
        return data

    with patched((offers._Offer, "__call__", offered)):
        yield


@plant
def a_refusal_of_the_taker_is_the_owners() -> Iterator[None]:
    """What fails for the one that took an offer is told to the other, which has to try itself."""
    original = commit_log.CommitLog._commit_for

    def commit_for(self: commit_log.CommitLog, leader: Waiting) -> None:
        if leader.unanswered:
            leader.error = commit_log.CommitStateUnknownError("the one that took the offer did not say")
            return
        original(self, leader)

    with patched((commit_log.CommitLog, "_commit_for", commit_for)):
        yield


FINDERS: dict[str, Callable[[], object]] = {
    "whoever_waited_makes_a_new_attempt": goes_on_at_any_time,
    "the_taker_does_not_look_for_the_offered_attempts": goes_on_at_any_time,
    "an_offer_counts_as_withdrawn": lambda: goes_on_at_any_time(fails_from=0),
    "a_refusal_of_the_taker_is_the_owners": lambda: sweep_scenario(AppendOffered(), methods=("put_if_absent",)),
}
