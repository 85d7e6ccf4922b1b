"""The attempts of clients and the answers that they got: the model that the checkers compare storage with.

A batch is some rows with identifiers of their own. What its client was told only ever becomes more certain::

    ATTEMPTED     it never heard the end of it: stored once or not at all
    REFUSED       it was told that nothing was added: not stored, now or later
    ACKNOWLEDGED  it was given offsets: stored exactly once, there
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from faults.faulty_storage import Crash
from streamhouse_spark import BucketOffsets, CommitStateUnknownError, StreamhouseError, Table, Transaction

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
BATCH_IDS = 1000


class Told(enum.Enum):
    NOTHING = "not attempted"
    ATTEMPTED = "attempted"
    REFUSED = "refused"
    ACKNOWLEDGED = "acknowledged"


@dataclass(frozen=True, slots=True)
class Batch:
    number: int
    num_rows: int
    row_chars: int = 4
    transaction: Transaction | None = None
    told: Told = Told.NOTHING
    offsets: BucketOffsets | None = None
    overwrites: bool = False
    """Its rows take the place of all that are there."""
    truncations_before: int = 0
    """How many truncations had begun when the client was given offsets."""
    truncations_at_first: int | None = None
    """How many had begun when it was sent for the first time."""
    is_amid_truncation: bool = False
    """Others began since then, or had not ended by the time that the client was given offsets: either may be first."""
    columns: tuple[str, ...] = ()
    """Those of the columns that were added to the table that its rows have, as they were called then."""

    @property
    def ids(self) -> range:
        return range(self.number * BATCH_IDS, self.number * BATCH_IDS + self.num_rows)

    def rows(self) -> pa.Table:
        """The same rows at every call: a retry sends what was sent before."""
        rows = pa.table({"id": list(self.ids), "text": [text_of(i, self.row_chars) for i in self.ids]}, schema=SCHEMA)
        for name in self.columns:
            rows = rows.append_column(name, pa.array([added_value(i, number_of(name)) for i in self.ids]))
        return rows


def text_of(row_id: int, chars: int) -> str:
    return f"{row_id:x}-".ljust(chars, "x")


def added_column(number: int, renamed: int = 0) -> str:
    """Return the name of the column after so many renames: a name is never used again."""
    return f"c{number}" if not renamed else f"c{number}_{renamed}"


def number_of(name: str) -> int:
    """Return the number of the added column that has or had this name."""
    return int(name[1:].partition("_")[0])


def added_type(number: int) -> str:
    return "int" if number % 2 else "string"


def added_value(row_id: int, number: int) -> str | int:
    return row_id * 10 + number if number % 2 else f"{row_id}:{number}"


@dataclass(slots=True)
class History:
    """The batches of one table. Copy it with `copy` to go on from the same past several times."""

    batches: dict[int, Batch] = field(default_factory=dict)
    truncations: list[Told] = field(default_factory=list)
    """Of each truncation and overwrite, in the order in which they began, what its client was told."""

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches.values())

    def copy(self) -> History:
        return History(dict(self.batches), list(self.truncations))

    def new_batch(
        self,
        num_rows: int = 3,
        *,
        row_chars: int = 4,
        transaction: Transaction | None = None,
        overwrites: bool = False,
        columns: Sequence[str] = (),
    ) -> Batch:
        number = len(self.batches) + 1
        batch = Batch(number, num_rows, row_chars, transaction, overwrites=overwrites, columns=tuple(columns))
        self.batches[batch.number] = batch
        return batch

    def append(self, table: Table, batch: Batch) -> BucketOffsets:
        """Append a batch, for the first time or again, and note what the client was told.

        A batch is sent again only with its transaction, or when its client was told that nothing was added.
        """
        before = self.batches[batch.number]
        if before.truncations_at_first is None:
            before = replace(before, truncations_at_first=len(self.truncations))
        assert batch.transaction is not None or before.told in (Told.NOTHING, Told.REFUSED), before
        self._note(before, Told.ATTEMPTED)
        try:
            if batch.overwrites and before.told is not Told.ACKNOWLEDGED:
                with self._truncating(was_tried=before.told is Told.ATTEMPTED):
                    offsets = table.overwrite(batch.rows(), transaction=batch.transaction)
            else:
                offsets = table.append(batch.rows(), transaction=batch.transaction)
        except (Crash, CommitStateUnknownError):
            raise
        except StreamhouseError:
            if before.told in (Told.NOTHING, Told.REFUSED):
                self._note(before, Told.REFUSED)
            else:
                self.batches[batch.number] = before
            raise
        if before.told is Told.ACKNOWLEDGED:
            assert dict(offsets) in (dict(before.offsets or {}), {}), f"{before} was then given {offsets}"
            self.batches[batch.number] = before
        elif offsets.num_rows:
            meanwhile = len(self.truncations) - (before.truncations_at_first or 0) - batch.overwrites
            self.batches[batch.number] = replace(
                before,
                told=Told.ACKNOWLEDGED,
                offsets=offsets,
                truncations_before=len(self.truncations),
                is_amid_truncation=meanwhile > 0 or Told.ATTEMPTED in self.truncations,
            )
        return offsets

    def truncate(self, table: Table) -> None:
        """Truncate the table, and note what the client was told."""
        with self._truncating():
            table.truncate()

    @contextmanager
    def _truncating(self, *, was_tried: bool = False) -> Iterator[None]:
        """``was_tried``: it may have happened before, and then does not happen now."""
        number = len(self.truncations)
        self.truncations.append(Told.ATTEMPTED)
        try:
            yield
        except (Crash, CommitStateUnknownError):
            raise
        except StreamhouseError:
            if not was_tried:
                self.truncations[number] = Told.REFUSED
            raise
        if not was_tried:
            self.truncations[number] = Told.ACKNOWLEDGED

    def _note(self, batch: Batch, told: Told) -> None:
        if batch.told is not Told.ACKNOWLEDGED:
            self.batches[batch.number] = replace(batch, told=told)
