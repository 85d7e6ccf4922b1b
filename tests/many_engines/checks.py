"""Whether an answer is one state of a table: it equals that of a number of writes, which is not too small.

The protocol promises of every way to read but the lake alone: a query shows one commit, which is no older than the
newest one that was acknowledged before the query began. So the number of writes never goes back for anybody, whichever
server answers, and no row that was durable is missing. A reader of the lake alone sees what was tiered: one state too,
which does not go back either.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from many_engines.written import ACCOUNTS, CHOICES, EVENTS, AccountsState, Answer, events_answer

IN_FLIGHT_MAX = 1
"""Writes of a table that may be in a state although nobody acknowledged them yet: it has one writer."""


class WrongAnswerError(Exception):
    """An answer that is no state, or an older one than it may be."""


class Acknowledged:
    """Numbers of acknowledged writes, in a file that one process writes and all read."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def put(self, table: str, writes: int) -> None:
        os.pwrite(self._file, struct.pack("<q", writes), 8 * CHOICES.index(table))

    def get(self, table: str) -> int:
        found = os.pread(self._file, 8, 8 * CHOICES.index(table))
        return struct.unpack("<q", found)[0] if len(found) == 8 else 0


@dataclass
class Checks:
    """The answers of one reader so far."""

    last: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHOICES, 0))
    """Table → writes of the newest answer."""
    _accounts: AccountsState = field(default_factory=AccountsState)

    def check(self, table: str, answer: Answer, since: int, at_least: int, at_most: int) -> int:
        """Return the number of writes whose state an answer to a question about `since` is.

        `at_least` were acknowledged before the query began, as far as its reader promises to see them; `at_most` by its
        end. Raises `WrongAnswerError`.
        """
        low, high = max(at_least, self.last[table]), at_most + IN_FLIGHT_MAX
        found = self._found(table, answer, since, low, high)
        if found is None:
            older = self._older(table, answer, since, low)
            if older is None:
                raise WrongAnswerError(f"torn: {table} since {since} gave {answer}, which is no state up to {high}")
            what = "went back" if older < self.last[table] else "misses acknowledged writes"
            raise WrongAnswerError(f"{what}: {table} since {since} gave the state {older}, expected {low} at least")
        self.last[table] = found
        return found

    def _found(self, table: str, answer: Answer, since: int, low: int, high: int) -> int | None:
        if table == EVENTS:
            return next((n for n in range(low, high + 1) if events_answer(n, since) == answer), None)
        assert table == ACCOUNTS
        if self._accounts.writes > low:
            self._accounts = AccountsState()
        while self._accounts.writes < low:
            self._accounts.advance()
        while self._accounts.answer(since) != answer:
            if self._accounts.writes >= high:
                return None
            self._accounts.advance()
        return self._accounts.writes

    def _older(self, table: str, answer: Answer, since: int, low: int) -> int | None:
        if table == EVENTS:
            return next((n for n in range(low - 1, -1, -1) if events_answer(n, since) == answer), None)
        state, found = AccountsState(), None
        while state.writes < low:
            found = state.writes if state.answer(since) == answer else found
            state.advance()
        return found
