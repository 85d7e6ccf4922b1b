"""The writes of a run, each known by its number, and the answers that a state behind so many of them gives.

`s.events` has no primary key. Write `n` appends the batch `n`, or, each tenth one, deletes an earlier batch.
`s.accounts` has one: a write moves money between two accounts, opens an empty one or deletes an empty one, so that the
sum of all balances is the same in each state. What a state answers follows from the number of its writes alone: readers
work it out, and ask nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

EVENTS = "s.events"
EVENTS_COLUMNS = "id BIGINT, batch BIGINT, name STRING"
BATCH_ROWS = 40
ACCOUNTS = "s.accounts"
ACCOUNTS_COLUMNS = "id BIGINT NOT NULL, balance BIGINT, moved BIGINT"
ACCOUNTS_FULL = 200
BALANCE = 1_000
ABSENT = -1
"""No account has this id."""
CHOICES = (EVENTS, ACCOUNTS)

Answer = tuple[int, int, int, int]
"""Of events: rows, sum, least and largest id. Of accounts: rows, sum of balances, sum of balance times id, and sum of
`moved`. Nulls of a state without rows are zeros."""


# -- events ---------------------------------------------------------------------------------------------------------


def deleted_batch(number: int) -> int | None:
    """The batch that a write of events deletes; None for one that appends. It may be gone, or never have been there."""
    if number % 10 != 9:
        return None
    is_recent = number // 10 % 2
    return number - 19 if is_recent else number // 30 * 10 + 5


def batch_rows(number: int) -> list[dict[str, object]]:
    first = number * BATCH_ROWS
    return [{"id": i, "batch": number, "name": f"event {i}"} for i in range(first, first + BATCH_ROWS)]


def events_answer(writes: int, since: int) -> Answer:
    """The answer of the state behind so many writes, of the batches from one on."""
    gone = {deleted_batch(number) for number in range(writes)}
    batches = [b for b in range(max(0, since), writes) if deleted_batch(b) is None and b not in gone]
    if not batches:
        return 0, 0, 0, 0
    rows, each = len(batches) * BATCH_ROWS, BATCH_ROWS * (BATCH_ROWS - 1) // 2
    total = sum(batches) * BATCH_ROWS * BATCH_ROWS + len(batches) * each
    return rows, total, batches[0] * BATCH_ROWS, (batches[-1] + 1) * BATCH_ROWS - 1


# -- accounts -------------------------------------------------------------------------------------------------------


def accounts_write(number: int) -> tuple[str, list[int]]:
    """What a write of accounts does, and to which ids: `load`, `move` from one to another, `open` or `delete`."""
    if number == 0:
        return "load", list(range(ACCOUNTS_FULL))
    if number % 11 == 9:
        return "open", [ACCOUNTS_FULL + number]
    if number % 11 == 10:
        return "delete", [ACCOUNTS_FULL + number - 23 if number > 23 else ABSENT]
    return "move", Random(number).sample(range(ACCOUNTS_FULL), 2)


@dataclass
class AccountsState:
    """The rows of accounts, brought on write by write."""

    writes: int = 0
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Id → balance, and the write that changed it last."""

    def advance(self) -> tuple[str, list[dict[str, int]]]:
        """Do the next write; returns `upsert` or `delete`, and its rows."""
        number, (kind, ids) = self.writes, accounts_write(self.writes)
        self.writes += 1
        if kind == "delete":
            self.rows.pop(ids[0], None)
            return "delete", [{"id": ids[0]}]
        amount = number % 7 + 1
        for i, by in zip(ids, (-amount, amount) if kind == "move" else [0] * len(ids), strict=True):
            before = self.rows[i][0] if kind == "move" else BALANCE if kind == "load" else 0
            self.rows[i] = (before + by, number)
        return "upsert", [{"id": i, "balance": self.rows[i][0], "moved": number} for i in ids]

    def answer(self, since: int) -> Answer:
        """The answer of this state, of the accounts that a write from one on changed last."""
        found = [(i, balance, moved) for i, (balance, moved) in self.rows.items() if moved >= since]
        return (
            len(found),
            sum(balance for _, balance, _ in found),
            sum(balance * i for i, balance, _ in found),
            sum(moved for _, _, moved in found),
        )
