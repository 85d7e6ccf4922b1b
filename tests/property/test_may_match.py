"""The evaluator beside a model that looks at each row: where a row matches, nothing that holds it is left out.

Random rows lie in a file, in a segment, and in partitions that a manifest of either lake names. Random filters are
those of Spark, predicates of the Python interface, and expressions of Arrow.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable, Iterator
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile, DataFileContent, construct_partition_summaries
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from streamhouse_spark.datasource.scan.pushed_filters import column_types, parse_filters
from streamhouse_spark.expressions.filters import parse_filter
from streamhouse_spark.expressions.predicates import Node, to_plan_value
from streamhouse_spark.expressions.row_masks import mask_possible_rows
from streamhouse_spark.lake.iceberg.scan import PartitionFilter as IcebergFilter
from streamhouse_spark.lake.iceberg.schema import iceberg_schema
from streamhouse_spark.lake.parquet.file_columns import FileColumns
from streamhouse_spark.lake.parquet.reader import select_matching_groups
from streamhouse_spark.lake.reader import file_may_match
from streamhouse_spark.lake.types import LakeProjection
from streamhouse_spark.log.data_skipping import segment_may_match
from streamhouse_spark.schema.table_schema import TableSchema
from unit.datasource.scan.filter_trees import ROWS, SCHEMA, TREES, VALUES, is_true, literal
from unit.datasource.scan.test_pushed_filters import STATE, file_of, segment_of

TABLE = TableSchema.of(SCHEMA)
COMPARISONS = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


# -- filters ----------------------------------------------------------------------------------------------------------


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    """Column and value, or values, of each comparison of a tree of `filter_trees`."""
    if tree[0] in ("AND", "OR", "NOT"):
        return [leaf for part in tree[1] for leaf in leaves_of(part)]
    return [tree[1:]]


@st.composite
def rows_of(draw: st.DrawFn, leaves: list[tuple[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """Partition columns, which the filter speaks of, and rows with few values of these, often those of the filter."""
    by = draw(st.lists(st.sampled_from(sorted({name for name, _ in leaves})), min_size=1, max_size=2, unique=True))
    rows = draw(ROWS)
    for name in by:
        asked = [v for n, value in leaves if n == name for v in (value if isinstance(value, list) else [value])]
        fitting = [v for v in asked if name != "c" or v is None or v.as_tuple().exponent >= -2]
        pool = draw(st.lists(st.none() | VALUES[name] | st.sampled_from(fitting or [None]), min_size=1, max_size=2))
        rows = [{**row, name: draw(st.sampled_from(pool))} for row in rows]
    return by, rows


@st.composite
def trees(draw: st.DrawFn) -> tuple[Any, list[str], list[dict[str, Any]]]:
    tree = draw(TREES)
    return tree, *draw(rows_of(leaves_of(tree[0])))


@st.composite
def predicates(draw: st.DrawFn) -> tuple[str, str, Any]:
    name = draw(st.sampled_from(list(VALUES)))
    operator = draw(st.sampled_from([*COMPARISONS, "in", "is null", "not null"]))
    if operator == "in":
        return name, operator, draw(st.lists(st.none() | VALUES[name], max_size=3))
    is_ordered = operator in ("=", "!=") or name not in ("b", "x")
    return name, operator if is_ordered else "=", None if operator.endswith("null") else draw(VALUES[name])


@st.composite
def conditions(draw: st.DrawFn) -> tuple[list[tuple[str, str, Any]], list[str], list[dict[str, Any]]]:
    asked = draw(st.lists(predicates(), min_size=1, max_size=3))
    return asked, *draw(rows_of([(name, value) for name, _, value in asked]))


def as_expression(predicate: tuple[str, str, Any]) -> pc.Expression:
    name, operator, value = predicate
    field, kind = pc.field(name), SCHEMA.field(name).type
    if operator.endswith("null"):
        return field.is_null() if operator == "is null" else field.is_valid()
    if operator == "in":
        return field.isin(pa.array(value, kind))
    return COMPARISONS[operator](field, pa.scalar(value, kind))


def joined(found: list[tuple[str, str, Any]], how: list[str]) -> pc.Expression:
    """Predicates joined by AND and OR; ``~`` negates all that stands before."""
    whole = as_expression(found[0])
    for predicate, join in zip(found[1:], how, strict=False):
        term = as_expression(predicate)
        whole = whole & term if join == "&" else whole | term if join == "|" else ~whole & term
    return ~whole if how[-1] == "~" else whole


def matching(rows: list[dict[str, Any]], expression: pc.Expression) -> list[bool]:
    table = pa.Table.from_pylist(rows, schema=SCHEMA).append_column("row", pa.array(range(len(rows))))
    found = set(table.filter(expression)["row"].to_pylist())
    return [row in found for row in range(len(rows))]


# -- what holds the rows ----------------------------------------------------------------------------------------------


def partitions_of(rows: list[dict[str, Any]], by: list[str]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in by) for row in rows]


def iceberg_outcomes(node: Node, rows: list[dict[str, Any]], by: list[str]) -> tuple[bool, list[bool]]:
    """Whether the manifest that names all rows' files may match, and each row's file."""
    schema = iceberg_schema(TABLE)
    fields = [schema.find_field(name) for name in by]
    parts = (PartitionField(f.field_id, 1000 + i, IdentityTransform(), f.name) for i, f in enumerate(fields))
    metadata = new_table_metadata(schema, PartitionSpec(*parts), UNSORTED_SORT_ORDER, "memory://lake")
    [spec] = metadata.specs().values()
    names = {field.field_id: field.name for field in metadata.schema().fields}
    chosen = IcebergFilter(node, names, TABLE, metadata)
    records = [Record(*map(to_plan_value, values)) for values in partitions_of(rows, by)]
    summaries = construct_partition_summaries(spec, metadata.schema(), records)
    files = [DataFile.from_args(content=DataFileContent.DATA, partition=record) for record in records]
    for file in files:
        file.spec_id = spec.spec_id
    manifest = SimpleNamespace(partition_spec_id=spec.spec_id, partitions=summaries)
    return chosen.may_match_manifest(manifest), [chosen.test(file) for file in files]


def paimon_outcomes(node: Node, rows: list[dict[str, Any]], by: list[str]) -> tuple[bool, list[bool]]:
    """As `iceberg_outcomes`; bounds go through Paimon's binary form."""
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.schema.simple_stats import SimpleStats
    from pypaimon.table.row.binary_row import BinaryRow
    from pypaimon.table.row.generic_row import GenericRow, GenericRowSerializer

    from streamhouse_spark.lake.paimon.manifests import PartitionFilter
    from streamhouse_spark.lake.paimon.schema import new_field

    every = [new_field(i, column, iter(range(100, 200))) for i, column in enumerate(TABLE.columns)]
    fields = [field for name in by for field in every if field.name == name]
    partitions = [GenericRow(list(values), fields) for values in partitions_of(rows, by)]
    file = SimpleNamespace(schema_id=0, level=0, first_row_id=None)
    entries = [SimpleNamespace(kind=0, partition=p, bucket=0, total_buckets=1, file=file) for p in partitions]
    table = SimpleNamespace(partition_keys_fields=fields)
    meta = ManifestFileManager._build_meta(SimpleNamespace(table=table), "manifest-0", entries, 1)
    stored = [
        BinaryRow(GenericRowSerializer.to_bytes(row), fields)
        for row in (meta.partition_stats.min_values, meta.partition_stats.max_values)
    ]
    meta.partition_stats = SimpleStats(*stored, meta.partition_stats.null_counts)
    chosen = PartitionFilter(node, {field.id: field.name for field in every}, TABLE)
    return chosen.may_match_manifest(meta), [chosen.test(partition) for partition in partitions]


OUTCOMES = {"iceberg": iceberg_outcomes, "paimon": paimon_outcomes}


def footer_of(rows: list[dict[str, Any]], *, as_integer: bool) -> tuple[pq.FileMetaData, FileColumns]:
    """The footer of a Parquet file in which each row is a row group, and the table's columns in it."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), sink, row_group_size=1, store_decimal_as_integer=as_integer)
    file = pq.ParquetFile(sink.getvalue())
    projection = LakeProjection(TABLE, (None,) * len(TABLE.names), TABLE.names)
    return file.metadata, FileColumns(file, "data.parquet", projection)


class Held:
    """Rows in files, in their row groups, in a segment, and in partitions of the columns ``by`` of both lakes."""

    def __init__(self, rows: list[dict[str, Any]], by: list[str]) -> None:
        self.rows, self.by = rows, by
        self.files = [file_of(rows, nan_is_counted=counted) for counted in (False, True)]
        self.segment = segment_of(rows, by)
        named = {"partition_by": tuple(by), "former_partitionings": ()}
        held = SimpleNamespace(schema=TABLE, schemas={1: TABLE}, **named, primary_key=())
        self.state = held if by else STATE
        self.footers = [footer_of(rows, as_integer=as_integer) for as_integer in (False, True)]

    def require_kept(self, node: Node, matches: list[bool]) -> None:
        """Require that ``node`` leaves out nothing that holds a row that matches."""
        if any(matches):
            assert all(file_may_match(file, TABLE, node) for file in self.files)
            assert segment_may_match(self.state, self.segment, self.segment.offsets, node)
        for footer, columns in self.footers:
            kept = select_matching_groups(footer, range(len(matches)), columns, node)
            assert {row for row, match in enumerate(matches) if match} <= {*kept}
        batch = pa.RecordBatch.from_pylist(self.rows, SCHEMA)
        possible = mask_possible_rows(node, batch)
        assert possible is None or all(kept for kept, match in zip(possible, matches, strict=True) if match)
        for lake_format, outcomes_of in OUTCOMES.items():
            manifest, files = outcomes_of(node, self.rows, self.by)
            assert manifest or not any(matches), lake_format
            assert all(kept for kept, match in zip(files, matches, strict=True) if match), lake_format


# -- every small case -------------------------------------------------------------------------------------------------

MOMENTS = dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2)
TWO_VALUES = {
    "i": (1, 2),
    "n": (1, 2),
    "f": (1.5, -2.0),
    "g": (1.5, -2.0),
    "s": ("a", "b"),
    "x": (b"a", b"b"),
    "c": (decimal.Decimal("1.50"), decimal.Decimal("2.50")),
    "d": tuple(moment.date() for moment in MOMENTS),
    "t": tuple(moment.replace(tzinfo=dt.UTC) for moment in MOMENTS),
    "u": MOMENTS,
    "b": (True, False),
}


Meaning = Callable[[list[dict[str, Any]]], list[bool]]


def filters_of_spark(name: str, values: list[Any]) -> Iterator[tuple[Node, Meaning]]:
    """Each filter of one comparison, as Spark has it, and which rows it means."""
    types = column_types(TABLE)
    for operator in ["IS_NULL", "IS_NOT_NULL"]:
        pushed = {"op": operator, "children": [{"column": [name]}]}
        yield parse_filters([pushed], types), lambda rows, o=operator: [bool(is_true((o, name, None), r)) for r in rows]
    for operator, value in product(["=", "<>", "<=>", "<", "<=", ">", ">="], values):
        tree = (operator, name, value)
        pushed = {"op": operator, "children": [{"column": [name]}, literal(name, value)]}
        for whole, tried in ((tree, pushed), (("NOT", [tree]), {"op": "NOT", "children": [pushed]})):
            yield parse_filters([tried], types), lambda rows, w=whole: [bool(is_true(w, row)) for row in rows]


def small_filters(name: str, values: list[Any]) -> Iterator[tuple[Node, Meaning]]:
    """Each filter of one comparison, as Spark and as the Python interface has it, and which rows it means."""
    yield from filters_of_spark(name, values)
    known = [value for value in values if value is not None]
    asked = [*product([name], COMPARISONS, known), (name, "in", known[:1]), (name, "is null", None)]
    for predicate in asked:
        if name in ("b", "x") and predicate[1][0] in "<>":
            continue
        for bound in (parse_filter(f).bind(SCHEMA) for f in ([predicate], ~as_expression(predicate))):
            yield bound.node, lambda rows, e=bound.expression: matching(rows, e)


@pytest.mark.parametrize("name", TWO_VALUES)
def test_every_small_filter_prunes_no_matching_row(name):
    values = [*TWO_VALUES[name], None, *([math.nan, math.inf] if name in "fg" else [])]
    rows = [dict.fromkeys(SCHEMA.names) | {name: value} for value in values]
    contents = [chosen for length in (1, 2) for chosen in combinations(range(len(values)), length)]
    held = [(chosen, Held([rows[i] for i in chosen], [name])) for chosen in contents]
    for node, meaning in small_filters(name, values):
        matches = meaning(rows)
        for chosen, holding in held:
            holding.require_kept(node, [matches[i] for i in chosen])


@pytest.mark.parametrize("name", TWO_VALUES)
def test_a_mask_leaves_out_all_other_rows(name):
    """Keeping every row would be right too. Only NaN is a constant that a mask knows nothing of."""
    values = [*TWO_VALUES[name], None, *([math.inf] if name in "fg" else [])]
    rows = [dict.fromkeys(SCHEMA.names) | {name: value} for value in [*values, *([math.nan] if name in "fg" else [])]]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    for node, meaning in filters_of_spark(name, values):
        possible = mask_possible_rows(node, batch)
        assert possible is not None, node
        assert possible.tolist() == meaning(rows), node


# -- the property -----------------------------------------------------------------------------------------------------


def a_filter_of_spark(drawn: Any) -> None:
    (meant, pushed), by, rows = drawn
    node = parse_filters([pushed], column_types(TABLE))
    matches = [any(is_true(meant, row, unknown) for unknown in (True, False, None)) for row in rows]
    Held(rows, by).require_kept(node, matches)


def predicates_in_a_list(drawn: Any) -> None:
    asked, by, rows = drawn
    bound = parse_filter(asked).bind(SCHEMA)
    Held(rows, by).require_kept(bound.node, matching(rows, bound.expression))


def an_expression_of_arrow(drawn: Any) -> None:
    (asked, by, rows), how = drawn
    bound = parse_filter(joined(asked, how)).bind(SCHEMA)
    Held(rows, by).require_kept(bound.node, matching(rows, bound.expression))


JOINS = st.lists(st.sampled_from(["&", "|", "~"]), min_size=3, max_size=3)
PROPERTIES = [
    (a_filter_of_spark, trees()),
    (predicates_in_a_list, conditions()),
    (an_expression_of_arrow, st.tuples(conditions(), JOINS)),
]


@pytest.mark.parametrize("num_examples", [60, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize(("leaves_out_nothing", "drawn"), PROPERTIES, ids=["spark", "predicates", "arrow"])
def test_random_filters_prune_no_matching_row(leaves_out_nothing, drawn, num_examples):
    settings(max_examples=num_examples, derandomize=True, deadline=None)(given(drawn)(leaves_out_nothing))()


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
@pytest.mark.parametrize("name", sorted(set(TWO_VALUES) - {"f", "g"}))
def test_a_manifest_is_left_out_that_holds_another_partition(lake_format, name):
    """Leaving nothing out would be right too: so it is counted for a column of each type."""
    here, other = TWO_VALUES[name]
    rows = [dict.fromkeys(SCHEMA.names) | {name: here}]
    for predicate, kept in [((name, "=", here), True), ((name, "=", other), False), ((name, "is null", None), False)]:
        node = parse_filter([predicate]).bind(SCHEMA).node
        assert OUTCOMES[lake_format](node, rows, [name]) == (kept, [kept]), predicate


def test_like_of_a_prefix_leaves_out_other_texts():
    rows = [dict.fromkeys(SCHEMA.names) | {"s": text} for text in ("ba", "bz")]
    for prefix, kept in [("b", True), ("a", False), ("c", False), ("bz", True)]:
        pushed = {"op": "STARTS_WITH", "children": [{"column": ["s"]}, {"literal": prefix, "type": '"string"'}]}
        node = parse_filters([pushed], column_types(TABLE))
        assert iceberg_outcomes(node, rows, ["s"])[0] is kept
