"""A delta join as Spark runs it, without Spark: micro-batches in tasks, while both sides go on changing.

What a run does is decided by a seed: which rows change and when, also between two lookups of one task; how many changes
a micro-batch takes; in which order its tasks look and write; where the query dies, before a commit or behind it, and
whether what it would have written is written later after all.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from kit.keyed_writes import change
from streamhouse_spark import Transaction
from streamhouse_spark.lookup.batch_lookup import BatchLookup
from streamhouse_spark.lookup.delta_join import DELETE, KIND_COLUMN, DeltaPlan, Join, JoinLookups

SIDES = ("left", "right")


@dataclass(frozen=True)
class Case:
    """Tables to join: DDL and primary keys, and what is joined."""

    left: str
    left_key: list[str]
    right: str
    right_key: list[str]
    on: Any
    how: str = "inner"
    prefix: str = ""


MANY_TO_MANY = Case("j INT, a INT, v INT", ["j", "a"], "j INT, b INT, w INT", ["j", "b"], ["j"])
TO_ONE = Case("j INT, a STRING, v INT", ["j", "a"], "k INT, w INT", ["k"], {"j": "k"})
LEFT_TO_ONE = Case("j INT, a STRING, v INT", ["j", "a"], "k INT, w INT", ["k"], {"j": "k"}, "left")
LEFT_ONE_TO_ONE = Case("id STRING, v INT", ["id"], "id STRING, v INT", ["id"], "id", "left", "r_")
ONE_TO_MANY = Case("j INT, v INT", ["j"], "j INT, b INT, w INT", ["j", "b"], "j")
TWO_COLUMNS = Case(
    "x INT, y STRING, a INT, v INT", ["x", "y", "a"], "q STRING, p INT, b INT, v INT", ["q", "p", "b"],
    {"x": "p", "y": "q"}, "inner", "r_",
)  # fmt: skip
CASES = [MANY_TO_MANY, TO_ONE, LEFT_TO_ONE, LEFT_ONE_TO_ONE, ONE_TO_MANY, TWO_COLUMNS]


@dataclass
class Simulation:
    wh: Any
    case: Case
    random: random.Random
    number: int = 0
    handled: dict[str, dict[int, int]] = field(default_factory=lambda: {"left": {}, "right": {}})
    late: list[tuple[int, pa.Table]] = field(default_factory=list)
    """Batches that a query computed before it died, which may still be written."""
    busy: bool = True
    """Whether rows change while tasks look."""

    def __post_init__(self):
        case, make = self.case, self.wh.create_table
        buckets = self.random.choice([1, 1, 2])
        self.left = make("left", case.left, primary_key=case.left_key, buckets=buckets)
        self.right = make("right", case.right, primary_key=case.right_key, buckets=self.random.choice([1, 3]))
        join = Join.of(self.left.state, self.right.state, case.on, case.how, case.prefix)
        columns, key = join.ddl().split(", PRIMARY KEY ")
        self.target = make("target", columns, primary_key=key.strip("()").split(", "), buckets=buckets)
        self.plan = DeltaPlan.of(join, self.target.state)
        self.join = join

    # -- what others do -------------------------------------------------------------------------------------------

    def change(self):
        """One write to one side: upserts or deletions of a few keys."""
        table = getattr(self, self.random.choice(SIDES))
        if self.random.random() < 0.4:
            table.delete([self._row(table, table.state.primary_key) for _ in range(self.random.randint(1, 3))])
        else:
            table.upsert([self._row(table, table.schema.names) for _ in range(self.random.randint(1, 4))])

    def _row(self, table, names):
        return {name: self._value(table.schema.field(name).type) for name in names}

    def _value(self, data_type):
        number = self.random.randint(0, 3)
        return f"t{number}" if pa.types.is_string(data_type) else number

    # -- the query ------------------------------------------------------------------------------------------------

    def micro_batch(self):
        """One batch, from the ends in the checkpoint to its commit, with everything that can happen to it."""
        ends = {side: self._ends(side) for side in SIDES}
        while True:
            changes = self._computed(ends)
            fate = self.random.random() if self.busy else 1.0
            if fate < 0.15:  # the query dies before its commit, which may still come; a new run does the batch again
                self.late.append((self.number, changes))
                continue
            if self.late and self.random.random() < 0.5:
                self._commit(*self.late.pop(self.random.randrange(len(self.late))))
            self._commit(self.number, changes)
            if fate < 0.3:  # it dies before Spark notes the commit: the batch is done again
                continue
            break
        self.handled = {side: {**self.handled[side], **ends[side]} for side in SIDES}
        self.number += 1

    def _ends(self, side):
        ends = {}
        for bucket, end in getattr(self, side).refresh().ends.items():
            start = self.handled[side].get(bucket, 0)
            ends[bucket] = self.random.randint(start, end) if self.busy and self.random.random() < 0.5 else end
        return ends

    def _computed(self, ends):
        tasks = [(side, keys) for side in SIDES for keys in self._tasks(side, ends[side])]
        found = {}
        for place in self.random.sample(range(len(tasks)), len(tasks)):
            side, keys = tasks[place]
            found[place] = self.plan.changes(side, keys, self._lookups())
        return pa.concat_tables([self.plan.schema.empty_table(), *(found[place] for place in range(len(tasks)))])

    def _tasks(self, side, ends):
        table = getattr(self, side)
        key = self.plan.left_key if side == "left" else self.plan.right_key
        for batch in table.tail("earliest", include_metadata=True, until_ms=0):
            bucket = batch.column("_bucket")[0].as_py()
            offsets = batch.column("_log_offset").to_numpy()
            start = self.handled[side].get(bucket, 0)
            mine = np.flatnonzero((offsets >= start) & (offsets < ends.get(bucket, 0)))
            if len(mine):
                yield pa.Table.from_batches([batch]).select(list(key)).take(pa.array(mine))

    def _lookups(self):
        def find(table, columns, keys):
            while self.busy and self.random.random() < 0.25:
                self.change()
            return BatchLookup(table.keyed).matches(keys, columns=columns, max_staleness_ms=0)

        plan = self.plan
        return JoinLookups(
            partial(find, self.left, plan.columns_of("left")),
            partial(find, self.right, plan.columns_of("right")),
            partial(find, self.target, plan.target_key),
        )

    def _commit(self, number, changes):
        deleted = np.array([kind == DELETE for kind in changes[KIND_COLUMN].to_pylist()], np.bool_)
        rows = changes.drop_columns([KIND_COLUMN])
        change(self.target, rows, deleted, transaction=Transaction("delta_join", number, "query"))

    # -- what is right --------------------------------------------------------------------------------------------

    def finish(self):
        """Handle what is left, undisturbed; what older runs still write then counts for nothing."""
        self.busy = False
        self.micro_batch()
        for number, changes in self.late:
            self._commit(number, changes)

    def expected(self):
        pairs = self.join.pairs
        right = self.right.to_arrow().to_pylist()
        rows = []
        for left in self.left.to_arrow().to_pylist():
            partners = [r for r in right if all(left[a] == r[b] for a, b in pairs)]
            if not partners and self.case.how == "left":
                partners = [dict.fromkeys(self.right.schema.names)]
            rows += [
                left | {self.case.prefix + n: v for n, v in r.items() if n not in {b for _, b in pairs}}
                for r in partners
            ]
        return _sorted(rows, self.target.schema.names)

    def found(self):
        return _sorted(self.target.to_arrow().to_pylist(), self.target.schema.names)


def _sorted(rows, names):
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)
