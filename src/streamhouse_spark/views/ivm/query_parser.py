"""Conversion of queries to plans.

sqlglot parses the query and resolves columns to tables, and this module builds the plan. A query that a plan cannot
express is rejected, and the error shows the unsupported part. Allow lists determine which expressions are
deterministic, because a deny list could miss functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import OptimizeError, ParseError, SqlglotError
from sqlglot.optimizer.qualify import qualify

from streamhouse_spark.views.ivm.delta_sql import iter_equal_columns
from streamhouse_spark.views.ivm.logical_plan import (
    FilterProject,
    Group,
    Join,
    Node,
    QueryDialect,
    Scan,
    SourceColumns,
    TypedLiteral,
    Union,
    UnsupportedQueryError,
    print_sql,
    split_conjunction,
)

TypesOf = Callable[[Node], Mapping[str, str]]
"""Returns the column types of a node according to Spark's analysis."""
_INTEGERS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
"""Integer type → precision of the DECIMAL to which Spark converts it for comparisons with a DECIMAL."""
_DECIMAL_DIGITS_MAX: Final = 38
_EXACT_AS: Final = {
    "float": {"tinyint", "smallint", "double"},
    "double": {"tinyint", "smallint", "int", "float"},
    "date": {"timestamp", "timestamp_ntz"},
    "timestamp_ntz": {"date", "timestamp"},
    "string": {*_INTEGERS, "date", "timestamp", "timestamp_ntz", "boolean"},
}
"""Type → other types whose values remain distinct when Spark compares them with it."""
_CLASSES: Final = """
    Add And Avg Between BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Boolean Bracket Case Cast Column Concat Count CountIf
    DPipe DataType DataTypeParam Distinct Div Dot EQ Escape Extract Filter GT GTE ILike Identifier If In IntDiv Interval
    IntervalSpan Is LT LTE Like Literal Max Min Mod Mul NEQ Neg Not Null NullSafeEQ NullSafeNEQ Or Overlay Paren
    RegexpLike Star StrPosition Sub Substring SuffixedNumber Sum Trim TryCast Tuple TypedLiteral Var Where
"""
"""Classes of allowed operators, literals and functions."""
_SCALARS: Final = """
    abs acos acosh asin asinh atan atan2 atanh bit_count bround cbrt ceil ceiling cos cosh cot csc degrees e exp expm1
    floor greatest hypot least ln log log10 log1p log2 mod nanvl negative pi pmod positive pow power radians rint round
    sec shiftleft shiftright shiftrightunsigned sign signum sin sinh sqrt tan tanh width_bucket
    try_add try_divide try_mod try_multiply try_subtract
    coalesce ifnull isnan isnotnull isnull nullif nvl nvl2
    ascii base64 bin bit_length btrim char char_length character_length chr concat concat_ws contains conv decode encode
    endswith find_in_set format_number format_string hex initcap instr lcase left length levenshtein locate lower lpad
    ltrim octet_length printf regexp regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like
    regexp_replace regexp_substr repeat replace reverse right rlike rpad rtrim soundex space split split_part startswith
    substr substring substring_index to_char to_number to_varchar translate try_to_number ucase unbase64 unhex upper
    crc32 hash md5 sha sha1 sha2 xxhash64
    add_months convert_timezone date date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc
    dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour
    last_day make_date make_dt_interval make_timestamp make_timestamp_ntz make_ym_interval minute month monthname
    months_between next_day quarter second timestamp timestamp_micros timestamp_millis timestamp_seconds timestampadd
    timestampdiff to_date to_timestamp to_timestamp_ntz to_unix_timestamp to_utc_timestamp trunc unix_date unix_micros
    unix_millis unix_seconds unix_timestamp weekday weekofyear year
    bigint binary boolean decimal double float int smallint string tinyint
    array_contains array_join array_max array_min array_position array_size arrays_overlap cardinality element_at get
    get_json_object json_array_length map_contains_key size try_element_at
"""
_AGGREGATES: Final = """
    approx_count_distinct bit_and bit_or bit_xor bool_and bool_or corr covar_pop covar_samp every kurtosis mean median
    percentile regr_count skewness some std stddev stddev_pop stddev_samp try_avg try_sum var_pop var_samp variance
"""
_ORDERED_AGGREGATES: Final = """
    any_value array_agg collect_list collect_set first first_value last last_value listagg max_by min_by mode string_agg
"""
SCALAR_FUNCTIONS: Final = frozenset(_SCALARS.split())
"""Spark functions whose result depends only on the arguments, and on session settings that a view stores."""
AGGREGATE_FUNCTIONS: Final = frozenset(_AGGREGATES.split())
"""Spark aggregates that do not depend on the row order, in addition to the allowed classes."""
_ALLOWED_CLASSES: Final = frozenset(_CLASSES.split())
_ORDER_DEPENDENT: Final = frozenset(_ORDERED_AGGREGATES.split())
_NOW_WITHOUT_ARGUMENTS: Final = frozenset({"to_unix_timestamp", "unix_timestamp"})
_SPECIAL_MOMENTS: Final = frozenset({"now", "today", "tomorrow", "yesterday"})
"""Special values of date and timestamp literals, which Spark evaluates when it parses the query."""
_UNSUPPORTED_CLAUSES = ("limit", "offset", "order", "qualify", "windows", "cluster", "distribute", "sort", "fetch")
_UNSUPPORTED_IN_FROM = ("laterals", "pivots", "sample", "connect", "match", "prewhere")
_UNSUPPORTED_OF_TABLE = ("version", "sample", "pivots", "when", "joins", "laterals")
Names = dict[tuple[str, str], str]
"""(alias, column) → name of the column in the plan."""
Scope = Mapping[str, tuple[exp.Expr, Any]]
"""Name of a common table expression → its query, and the scope of that query."""


def strip_length(kind: str) -> str:
    """Return the type in which Spark computes: CHAR and VARCHAR become STRING."""
    return "string" if kind.startswith(("char(", "varchar(")) else kind


def char_padding(kind: str) -> str | None:
    """Return the CHAR type to which Spark pads values that it compares with a column; None if it does not pad."""
    return kind if kind.startswith("char(") else None


def is_equal_as_in(kind: str, other: str) -> bool:
    """Return whether ``=`` compares values of two types in the same way as IN with a subquery.

    IN does not pad CHAR, and casts a STRING and another type to the type of their union.
    """
    are_texts = strip_length(kind) == "string", strip_length(other) == "string"
    return are_texts[0] == are_texts[1] and char_padding(kind) is None and char_padding(other) is None


def stays_distinct(kind: str, other: str) -> bool:
    """Return whether a value of type ``other`` equals at most one key of type ``kind``.

    Spark casts values to a common type, so that for example '5' and '05' become one number. Keys that are -0.0 are
    stored as 0.0.
    """
    kind, other = strip_length(kind), strip_length(other)
    if kind == other or (kind in _INTEGERS and other in _INTEGERS):
        return True
    digits, other_digits = _decimal_digits(kind), _decimal_digits(other)
    if digits is not None and other_digits is not None:
        return max(digits[0], other_digits[0]) + max(digits[1], other_digits[1]) <= _DECIMAL_DIGITS_MAX
    return kind in _EXACT_AS.get(other, ())


def _decimal_digits(kind: str) -> tuple[int, int] | None:
    """Return the number of digits before and after the decimal point; None for a type that is not exact."""
    if kind in _INTEGERS:
        return _INTEGERS[kind], 0
    decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)
    return (int(decimal[1]) - int(decimal[2]), int(decimal[2])) if decimal is not None else None


def require_deterministic(expression: exp.Expr) -> None:
    """Raise `UnsupportedQueryError` if the value may depend on more than the row, or for an aggregate, on more than the
    bag of rows.
    """
    for node in expression.walk():
        if isinstance(node, exp.Window):
            raise UnsupportedQueryError("a window function", node)
        if isinstance(node, exp.Subquery | exp.Exists | exp.Select) or node.args.get("query"):
            raise UnsupportedQueryError(
                "a subquery here (supported are EXISTS, NOT EXISTS and IN in WHERE, joined by AND)", node
            )
        if type(node) is exp.Anonymous:
            _require_deterministic_function(node)
        elif isinstance(node, TypedLiteral) and node.this.name.strip().lower() in _SPECIAL_MOMENTS:
            raise UnsupportedQueryError("a value that changes with the current time", node)
        elif type(node).__name__ not in _ALLOWED_CLASSES:
            raise UnsupportedQueryError("not known to be deterministic", node)


def _require_deterministic_function(function: exp.Anonymous) -> None:
    name = function.name.lower()
    if name in _ORDER_DEPENDENT:
        raise UnsupportedQueryError("an aggregate that depends on the order of rows", function)
    if name in _NOW_WITHOUT_ARGUMENTS and not function.expressions:
        raise UnsupportedQueryError("a value that changes with the current time", function)
    if name not in SCALAR_FUNCTIONS | AGGREGATE_FUNCTIONS:
        raise UnsupportedQueryError("a function that is not known to be deterministic", function)


def has_aggregate(expression: exp.Expr) -> bool:
    return any(
        isinstance(node, exp.AggFunc) or (type(node) is exp.Anonymous and node.name.lower() in AGGREGATE_FUNCTIONS)
        for node in expression.walk()
    )


def _assume_one_type(node: Node) -> Mapping[str, str]:
    return dict.fromkeys(node.columns, "int")


def parse_sql(sql: str) -> exp.Query:
    """Parse a query. Raises `UnsupportedQueryError` for any other text."""
    try:
        tree = sqlglot.parse_one(sql, read=QueryDialect)
    except SqlglotError as error:
        problem = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        place = f"{problem.get('description')} at line {problem.get('line')}, column {problem.get('col')}"
        raise UnsupportedQueryError("a syntax error", place if problem else str(error)) from error
    if not isinstance(tree, exp.Query):
        raise UnsupportedQueryError("not a query", tree)
    return tree


def table_names(tree: exp.Query) -> list[str]:
    """Return the distinct tables that a query reads, without its common table expressions."""
    local = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    names = [".".join(part.name for part in t.parts) for t in tree.find_all(exp.Table)]
    return list(dict.fromkeys(name for name in names if name.lower() not in local))


def build_plan(
    tree: exp.Query, sources: Mapping[str, SourceColumns], ids: Mapping[str, str], types_of: TypesOf = _assume_one_type
) -> Node:
    """Return the plan of a query. ``ids`` maps each name in `table_names` to its source.

    Without ``types_of``, all columns are assumed to have one type. Raises `UnsupportedQueryError`.
    """
    tree = tree.copy()
    for table in tree.find_all(exp.Table):
        name = ".".join(part.name for part in table.parts)
        if name in ids:
            alias = table.alias or table.name
            table.set("db", None)
            table.set("catalog", None)
            table.set("this", exp.to_identifier(ids[name]))
            table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    schema: dict[str, object] = {name: dict.fromkeys(source.columns, "string") for name, source in sources.items()}
    try:
        qualified = qualify(tree, schema=schema, dialect=QueryDialect, quote_identifiers=False)
    except OptimizeError as error:
        raise UnsupportedQueryError("an unknown or ambiguous name", str(error)) from error
    names = [part.alias_or_name for part in _first_select(qualified).expressions]
    if len(set(names)) < len(names):
        raise UnsupportedQueryError("columns with equal names", ", ".join(names))
    return _PlanBuilder(sources, types_of).parse(qualified, {})


def _first_select(query: exp.Expr) -> exp.Select:
    while not isinstance(query, exp.Select):
        query = query.this
    return query


class _PlanBuilder:
    def __init__(self, sources: Mapping[str, SourceColumns], types_of: TypesOf) -> None:
        self._sources, self._types_of = sources, types_of
        self._num_names = 0

    def _new_name(self) -> str:
        self._num_names += 1
        return f"c{self._num_names}"

    def parse(self, query: exp.Expr, scope: Scope) -> Node:
        while isinstance(query, exp.Subquery):
            query = query.this
        clause = query.args.get("with_")
        if clause:
            if clause.recursive:
                raise UnsupportedQueryError("a recursive WITH", clause)
            inner = dict(scope)
            for cte in clause.expressions:
                inner[cte.alias] = (cte.this, dict(inner))
            scope = inner
        for name in _UNSUPPORTED_CLAUSES:
            if part := query.args.get(name):
                raise UnsupportedQueryError(
                    f"{name.upper()} (apply order and limit when you read the view)", _first_expression(part)
                )
        if isinstance(query, exp.SetOperation):
            return self._parse_union(query, scope)
        if isinstance(query, exp.Select):
            return self._parse_select(query, scope)
        raise UnsupportedQueryError(f"{type(query).__name__.upper()} is not supported", query)

    def _parse_union(self, query: exp.SetOperation, scope: Scope) -> Node:
        if not isinstance(query, exp.Union) or query.args.get("by_name"):
            raise UnsupportedQueryError("EXCEPT, INTERSECT and UNION BY NAME", query)
        left, right = self.parse(query.left, scope), self.parse(query.right, scope)
        if len(left.columns) != len(right.columns):
            raise UnsupportedQueryError("a UNION of different numbers of columns", query)
        node = self._union_all(left, right)
        return self._add_distinct(node) if query.args.get("distinct") else node

    def _union_all(self, *parts: Node) -> Union:
        """Return the union of two parts, after casts to the types of Spark's union.

        Without the casts, changes of only one part would have the types of this part.
        """
        *types, union_types = self._types_of_union(*parts)
        cast = tuple(self._cast(part, of_part, union_types) for part, of_part in zip(parts, types, strict=True))
        columns = tuple(self._new_name() for _ in union_types)
        not_null = {name for place, name in enumerate(columns) if all(p.columns[place] in p.not_null for p in cast)}
        chars = [list(map(char_padding, of_part)) for of_part in types]
        return Union(cast, columns, frozenset(not_null), sizes_differ=chars[0] != chars[1])

    def _types_of_union(self, *parts: Node) -> list[list[str]]:
        """Return the column types of each part, and then the column types of Spark's union."""
        union = Union(parts, tuple(self._new_name() for _ in parts[0].columns), frozenset())
        *own, of_union = (list(self._types_of(node).values()) for node in (*parts, union))
        return [*own, list(map(strip_length, of_union))]

    def _cast(self, part: Node, types: Sequence[str], union_types: list[str]) -> Node:
        own = list(map(strip_length, types))
        if own == union_types:
            return part
        exprs: dict[str, exp.Expr] = {}
        for name, kind, other in zip(part.columns, own, union_types, strict=True):
            column = exp.column(name)
            exprs[self._new_name()] = column if kind == other else exp.Cast(this=column, to=exp.Var(this=other))
        return _add_projection(part, exprs)

    def _add_distinct(self, child: Node) -> Group:
        exprs: dict[str, exp.Expr] = {self._new_name(): exp.column(name) for name in child.columns}
        not_null = {n for n, c in zip(exprs, child.columns, strict=True) if c in child.not_null}
        return Group(child, child.columns, exprs, None, tuple(exprs), frozenset(not_null))

    def _parse_select(self, query: exp.Select, scope: Scope) -> Node:
        node, names, outer = self._parse_from_where(query, scope)
        if outer:
            raise UnsupportedQueryError("a correlated subquery that is not EXISTS or IN", outer[0])
        chosen = [part.this if isinstance(part, exp.Alias) else part for part in query.expressions]
        for part in chosen:
            require_deterministic(part)
        exprs = {self._new_name(): _resolve_names(part, names) for part in chosen}
        group, having = query.args.get("group"), query.args.get("having")
        if group or having or any(map(has_aggregate, chosen)):
            node = self._add_group(node, exprs, group, having, names)
        else:
            node = _add_projection(node, exprs)
        distinct = query.args.get("distinct")
        if distinct and distinct.args.get("on"):
            raise UnsupportedQueryError("DISTINCT ON", distinct)
        return self._add_distinct(node) if distinct else node

    def _add_group(self, node: Node, exprs: Mapping[str, exp.Expr], group: Any, having: Any, names: Names) -> Group:
        if group and any(part for name, part in group.args.items() if name != "expressions"):
            raise UnsupportedQueryError("GROUP BY ALL, ROLLUP, CUBE, GROUPING SETS", group)
        values = {}
        for part in group.expressions if group else ():
            require_deterministic(part)
            values[self._new_name()] = _resolve_names(part, names)
        condition = None
        if having:
            require_deterministic(having.this)
            condition = _resolve_names(having.this, names)
        below = _add_projection(node, {**{name: exp.column(name) for name in node.columns}, **values})
        by_text = {print_sql(e): name for name, e in values.items() if not isinstance(e, exp.Literal)}
        exprs = {name: _replace_groups(e, by_text) for name, e in exprs.items()}
        shown = {e.name: name for name, e in reversed(exprs.items()) if isinstance(e, exp.Column)}
        key = tuple(shown[name] for name in values) if all(name in shown for name in values) else None
        not_null = {n for n, e in exprs.items() if isinstance(e, exp.Column) and e.name in below.not_null}
        condition = _replace_groups(condition, by_text) if condition else None
        return Group(below, tuple(values), exprs, condition, key, frozenset(not_null))

    # -- FROM, JOIN, WHERE

    def _parse_from_where(
        self, query: exp.Select, scope: Scope, outer: Names | None = None
    ) -> tuple[Node, Names, list[Any]]:
        """Return the node, the names of its columns, and the conditions that refer to an outer query."""
        names: Names = {}
        begin = query.args.get("from_")
        if not begin:
            raise UnsupportedQueryError("a query without FROM", query)
        for name in _UNSUPPORTED_IN_FROM:
            if part := query.args.get(name):
                raise UnsupportedQueryError(name.upper(), _first_expression(part))
        node = self._parse_relation(begin.this, scope, names)
        for join in query.args.get("joins") or ():
            node = self._parse_join(node, join, scope, names)
        where, correlated, everything = query.args.get("where"), [], {**(outer or {}), **names}
        for part in split_conjunction(where.this) if where else ():
            condition = part.unnest()
            inner = condition.this.unnest() if isinstance(condition, exp.Not) else condition
            if isinstance(inner, exp.Exists) or (isinstance(inner, exp.In) and inner.args.get("query")):
                node = self._add_membership(node, inner, scope, names, negated=inner is not condition)
                continue
            require_deterministic(condition)
            resolved = _resolve_names(condition, everything)
            if all(column.name in node.columns for column in resolved.find_all(exp.Column)):
                node = _add_filter(node, resolved)
            else:
                correlated.append(resolved)
        return node, names, correlated

    def _parse_join(self, node: Node, join: exp.Join, scope: Scope, names: Names) -> Node:
        if join.method or join.args.get("using"):
            raise UnsupportedQueryError("NATURAL or USING that was not expanded", join)
        right = self._parse_relation(join.this, scope, names)
        on = join.args.get("on") or exp.true()
        require_deterministic(on)
        on = _resolve_names(on, names)
        side, kind = (join.side or "").lower(), (join.kind or "").lower()
        if kind in ("semi", "anti"):
            return self._join(kind, node, right, on)
        if kind not in ("", "inner", "outer", "cross"):
            raise UnsupportedQueryError(f"{kind.upper()} JOIN", join)
        if side == "right":
            return self._join("left", right, node, on)
        return self._join(side if side in ("left", "full") else "inner", node, right, on)

    def _join(self, kind: str, left: Node, right: Node, on: exp.Expr) -> Join:
        if kind in ("semi", "anti"):
            return Join(kind, left, right, on, left.key, left.not_null)
        combined_key = (*left.key, *right.key) if left.key is not None and right.key is not None else None
        key = combined_key
        if left.key is not None and kind in ("inner", "left") and self._matches_at_most_once(right, left, on):
            key = left.key
        elif right.key is not None and kind == "inner" and self._matches_at_most_once(left, right, on):
            key = right.key
        not_null = (
            frozenset() if kind == "full" else left.not_null | (right.not_null if kind == "inner" else frozenset())
        )
        return Join(kind, left, right, on, key, not_null)

    def _matches_at_most_once(self, side: Node, other: Node, on: exp.Expr) -> bool:
        """Return whether each row of ``other`` joins with at most one row of ``side``."""
        if side.key is None:
            return False
        equal = [pair for pair in iter_equal_columns(on, side, other) if pair[0] in side.key]
        if not {name for name, _ in equal}.issuperset(side.key):
            return False
        own_types, other_types = self._types_of(side), self._types_of(other)
        return {name for name, of in equal if stays_distinct(own_types[name], other_types[of])}.issuperset(side.key)

    def _parse_relation(self, part: exp.Expr, scope: Scope, names: Names) -> Node:
        if isinstance(part, exp.Subquery):
            node = self.parse(part.this, scope)
            columns = [p.alias_or_name for p in _first_select(part.this).expressions]
        elif isinstance(part, exp.Table) and isinstance(part.this, exp.Identifier):
            for name in _UNSUPPORTED_OF_TABLE:
                if part.args.get(name):
                    raise UnsupportedQueryError("a table as of a version, sampled or pivoted", part)
            if part.name in scope:
                body, inner = scope[part.name]
                node = self.parse(body, inner)
                columns = [p.alias_or_name for p in _first_select(body).expressions]
            else:
                node = self._new_scan(part.name)
                columns = [c.lower() for c in self._sources[part.name].columns]
        else:
            raise UnsupportedQueryError("not a table or a subquery", part)
        names.update({(part.alias_or_name, c): name for c, name in zip(columns, node.columns, strict=True)})
        return node

    def _new_scan(self, table: str) -> Scan:
        source = self._sources[table]
        mine = {column: self._new_name() for column in source.columns}
        key = tuple(mine[column] for column in source.key) or None
        return Scan(table, {n: c for c, n in mine.items()}, key, frozenset(mine[c] for c in source.not_null))

    def _add_membership(self, node: Node, part: exp.Expr, scope: Scope, names: Names, *, negated: bool) -> Node:
        """Add a semi join for EXISTS or IN, or an anti join for NOT EXISTS."""
        if isinstance(part, exp.In) and negated:
            raise UnsupportedQueryError("NOT IN (it is never true if the subquery has a NULL; use NOT EXISTS)", part)
        sub = (part.args.get("query") or part.this).unnest()
        simple = isinstance(sub, exp.Select) and not any(
            sub.args.get(name) for name in ("group", "having", "distinct", "limit", "order", "with_")
        )
        if not simple or any(map(has_aggregate, sub.expressions)):
            right = self.parse(sub, scope)
            conditions: list[exp.Expr] = []
            values: Sequence[exp.Expr] = [exp.column(c) for c in right.columns]
        else:
            right, inner, conditions = self._parse_from_where(sub, scope, names)
            values = [v.this if isinstance(v, exp.Alias) else v for v in sub.expressions]
            if isinstance(part, exp.In):
                values = [_resolve_names(v, inner) for v in values]
        on = list(conditions)
        if isinstance(part, exp.In):
            require_deterministic(part.this)
            mine = part.this.expressions if isinstance(part.this, exp.Tuple) else [part.this]
            if len(mine) != len(values):
                raise UnsupportedQueryError("IN with a different number of columns", part)
            on += self._membership_conditions(node, [_resolve_names(m, names) for m in mine], right, values)
        for column in (c for condition in on for c in condition.find_all(exp.Column)):
            if column.name not in node.columns and column.name not in right.columns:
                raise UnsupportedQueryError("a subquery that refers to a query two levels up", part)
        return self._join("anti" if negated else "semi", node, right, exp.and_(*on) if on else exp.true())

    def _membership_conditions(
        self, left: Node, own_values: Sequence[exp.Expr], right: Node, other_values: Sequence[exp.Expr]
    ) -> list[exp.Expr]:
        """Return the conditions that values equal the columns of a subquery."""
        sides = [
            _add_projection(node, {self._new_name(): v for v in vs})
            for node, vs in ((left, own_values), (right, other_values))
        ]
        conditions: list[exp.Expr] = []
        for mine, its, kind, other, union_type in zip(
            own_values, other_values, *self._types_of_union(*sides), strict=True
        ):
            if not is_equal_as_in(kind, other):
                mine, its = (exp.Cast(this=value, to=exp.Var(this=union_type)) for value in (mine, its))  # noqa: PLW2901
            conditions.append(exp.EQ(this=mine, expression=its))
        return conditions


def _first_expression(part: Any) -> exp.Expr:
    expression: exp.Expr = part[0] if isinstance(part, list) else part
    return expression


def _resolve_names(expression: exp.Expr, names: Names) -> exp.Expr:
    """Replace column references by the names in the plan. Raises `UnsupportedQueryError` for an unknown column."""

    def resolve(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        name = names.get((node.table, node.name))
        if name is None:
            raise UnsupportedQueryError("an unknown column", node)
        return exp.column(name)

    return expression.copy().transform(resolve)


def _replace_groups(expression: exp.Expr, by_text: Mapping[str, str]) -> exp.Expr:
    def replace_group(node: exp.Expr) -> exp.Expr:
        name = by_text.get(print_sql(node))
        return node if name is None else exp.column(name)

    return expression.copy().transform(replace_group)


def _add_filter(child: Node, condition: exp.Expr) -> Node:
    if isinstance(child, FilterProject) and child.where is not None and _is_identity(child):
        return replace(child, where=exp.and_(child.where, condition))
    exprs = {name: exp.column(name) for name in child.columns}
    return FilterProject(child, exprs, condition, child.key, child.not_null)


def _is_identity(rows: FilterProject) -> bool:
    return all(isinstance(e, exp.Column) and e.name == name for name, e in rows.exprs.items())


def _add_projection(child: Node, exprs: Mapping[str, exp.Expr]) -> FilterProject:
    shown: dict[str, str] = {}
    for name, e in exprs.items():
        if isinstance(e, exp.Column):
            shown.setdefault(e.name, name)
    key = None
    if child.key is not None and all(name in shown for name in child.key):
        key = tuple(shown[name] for name in child.key)
    not_null = {n for n, e in exprs.items() if isinstance(e, exp.Column) and e.name in child.not_null}
    return FilterProject(child, exprs, None, key, frozenset(not_null))


def prune_columns(root: Node) -> Node:
    """Return an equivalent plan without unused columns. Each node keeps at least one column."""
    return _prune_node(root, root.columns)


def _prune_node(node: Node, required: Collection[str]) -> Node:
    names = tuple(name for name in node.columns if name in required) or node.columns[:1]
    match node:
        case Scan(of=of):
            return replace(node, of={name: of[name] for name in names})
        case FilterProject(child, exprs, where):
            exprs = {name: exprs[name] for name in names}
            return replace(node, child=_prune_node(child, _referenced_columns([*exprs.values(), where])), exprs=exprs)
        case Join(left=left, right=right, on=on):
            needed = {*names, *_referenced_columns([on])}
            return replace(node, left=_prune_node(left, needed), right=_prune_node(right, needed))
        case Union(parts):
            places = [node.columns.index(name) for name in names]
            of_parts = [_prune_node(part, [part.columns[place] for place in places]) for part in parts]
            return replace(node, parts=tuple(of_parts), columns=names)
        case Group(child, groups, exprs, having):
            exprs = {name: exprs[name] for name in names}
            needed = {*groups, *_referenced_columns([*exprs.values(), having])}
            return replace(node, child=_prune_node(child, needed), exprs=exprs)


def _referenced_columns(expressions: Iterable[exp.Expr | None]) -> set[str]:
    defined = (expression for expression in expressions if expression is not None)
    return {column.name for expression in defined for column in expression.find_all(exp.Column)}
