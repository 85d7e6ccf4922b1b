"""Changelogs against a dictionary: what they say happened is what happened, and folding them gives the rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.key_codec import encode_keys, encode_lmdb_keys
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv.change_staging import compute_changes
from streamhouse_spark.kv.merge_engines import ColumnwiseMerge, FirstRowMerge
from streamhouse_spark.kv.row_codec import ValueCodec
from streamhouse_spark.schema.table_schema import TableSchema

SCHEMA = TableSchema.of("k STRING NOT NULL, n BIGINT, tags ARRAY<STRING>")
LAST_ROW = ColumnwiseMerge(frozenset({0}), {})
ROWS = st.tuples(
    st.sampled_from(["a", "b", "c", "long" * 200]),
    st.none() | st.integers(0, 2),
    st.none() | st.lists(st.sampled_from(["x", None]), max_size=2),
)
BATCHES = st.lists(st.lists(st.tuples(st.booleans(), ROWS), min_size=1, max_size=8), max_size=5)


def write(stored, batch, engine=LAST_ROW, schemas=None, schema_id=1, **options):
    values = ValueCodec(schemas or {1: SCHEMA}, schema_id)
    columns = [
        pa.array([row[i] if i < len(row) else None for _, row in batch], c.type)
        for i, c in enumerate(values.schema.columns)
    ]
    grouped = KeyedBatch.of(encode_keys(columns[:1]), columns, np.array([d for d, _ in batch], np.bool_))
    before = [stored.get(key) for key in encode_lmdb_keys(grouped.keys)]
    changes = compute_changes(grouped, engine, values, before, **options)
    assert len(changes.columns) == len(columns)
    stored.update(changes.values.by_key)
    rows = zip(*(column.to_pylist() for column in changes.columns), strict=True)
    return [(ChangeType(t), row) for t, row in zip(changes.types.tolist(), rows, strict=True)]


def rows_of(stored):
    found = ValueCodec({1: SCHEMA}, 1).unpack([value for value in stored.values() if value is not None])
    return {row[0]: row for row in zip(*(column.to_pylist() for column in found.columns), strict=True)}


@given(BATCHES)
def test_net_changes_in_the_order_of_keys(batches):
    stored, model = {}, {}
    for batch in batches:
        before = dict(model)
        for deleted, row in batch:
            model.pop(row[0], None)
            if not deleted:
                model[row[0]] = row
        expected = []
        for key in sorted({row[0] for _, row in batch}):
            old, new = before.get(key), model.get(key)
            if old is None and new is not None:
                expected.append((ChangeType.INSERT, new))
            elif old is not None and new is None:
                expected.append((ChangeType.DELETE, old))
            elif old != new:
                expected += [(ChangeType.UPDATE_BEFORE, old), (ChangeType.UPDATE_AFTER, new)]
        assert write(stored, batch) == expected
        assert rows_of(stored) == model


@given(BATCHES)
def test_a_changelog_without_before_images_has_all_other_changes(batches):
    full, wal = {}, {}
    for batch in batches:
        expected = [change for change in write(full, batch) if change[0] != ChangeType.UPDATE_BEFORE]
        assert write(wal, batch, before_images=False) == expected
        assert wal == full


def test_an_engine_that_keeps_rows_says_nothing():
    stored = {}
    assert write(stored, [(False, ("a", 1, None))], FirstRowMerge()) == [(ChangeType.INSERT, ("a", 1, None))]
    assert write(stored, [(False, ("a", 2, None))], FirstRowMerge()) == []


def test_no_writes_give_no_changes():
    assert write({}, []) == []


class TestSchemas:
    WIDER = SCHEMA.with_added(TableSchema.of("note STRING"), first_id=4)

    def test_older_rows_have_null_and_are_rewritten_only_when_they_change(self):
        schemas = {1: SCHEMA, 2: self.WIDER}
        stored = {}
        write(stored, [(False, ("a", 1, ["x"])), (False, ("b", 1, None))])
        found = write(stored, [(False, ("b", 1, None, "new")), (True, ("a",))], schemas=schemas, schema_id=2)
        assert found == [
            (ChangeType.DELETE, ("a", 1, ["x"], None)),
            (ChangeType.UPDATE_BEFORE, ("b", 1, None, None)),
            (ChangeType.UPDATE_AFTER, ("b", 1, None, "new")),
        ]

    def test_the_same_row_again_is_no_change(self):
        stored = {}
        write(stored, [(False, ("a", 1, ["x"]))])
        assert write(stored, [(False, ("a", 1, ["x"], None))], schemas={1: SCHEMA, 2: self.WIDER}, schema_id=2) == []

    def test_rows_of_several_schemas_in_their_order(self):
        schemas = {1: SCHEMA, 2: self.WIDER}
        old, new = ValueCodec(schemas, 1), ValueCodec(schemas, 2)
        older = old.pack([pa.array(["a", "b"]), pa.array([1, 2]), pa.array([["x"], None], pa.list_(pa.string()))])
        newer = new.pack([pa.array(["c"]), pa.array([3]), pa.array([[]], pa.list_(pa.string())), pa.array(["hi"])])
        found = new.unpack([newer[0], None, older[1], older[0]], new.schema.select(["note", "k"]).columns)
        assert [column.to_pylist() for column in found.columns] == [["hi", None, None, None], ["c", None, "b", "a"]]
        assert found.exists.tolist() == [True, False, True, True]

    @pytest.mark.parametrize("wanted", [None, ["tags"]])
    def test_unpacking_no_rows_gives_empty_typed_columns(self, wanted):
        values = ValueCodec({1: SCHEMA}, 1)
        found = values.unpack([], wanted and SCHEMA.select(wanted).columns)
        assert [(len(c), c.type) for c in found.columns] == [
            (0, c.type) for c in SCHEMA.columns if wanted is None or c.name in wanted
        ]
