"""Deterministic expressions: those that always have the same value for the same row. Pure.

These are allow lists: a deny list would miss functions that nobody listed.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from streamhouse_spark.views.ivm.dialect import TypedLiteral
from streamhouse_spark.views.ivm.logical_plan import UnsupportedQueryError

_CLASSES: Final = """
    Add And Avg Between BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Boolean Bracket Case Cast Column Concat Count CountIf
    DPipe DataType DataTypeParam Distinct Div Dot EQ Escape Extract Filter GT GTE ILike Identifier If In IntDiv Interval
    IntervalSpan Is LT LTE Like Literal Max Min Mod Mul NEQ Neg Not Null NullSafeEQ NullSafeNEQ Or Overlay Paren
    RegexpLike Star StrPosition Sub Substring SuffixedNumber Sum Trim TryCast Tuple TypedLiteral Var Where
"""
"""Operators, literals, and functions for which `QueryDialect` has a class."""
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
"""Spark functions whose value depends only on their arguments and on session settings that a view stores."""
AGGREGATE_FUNCTIONS: Final = frozenset(_AGGREGATES.split())
"""Spark aggregates that do not depend on the row order, in addition to those with a class."""
_ALLOWED_CLASSES: Final = frozenset(_CLASSES.split())
_ORDER_DEPENDENT: Final = frozenset(_ORDERED_AGGREGATES.split())
_NOW_WITHOUT_ARGUMENTS: Final = frozenset({"to_unix_timestamp", "unix_timestamp"})
_SPECIAL_MOMENTS: Final = frozenset({"now", "today", "tomorrow", "yesterday"})
"""Special values of date and timestamp literals, which Spark evaluates when it parses the query."""


def require_deterministic(expression: exp.Expr) -> None:
    """Raise `UnsupportedQueryError` unless the value depends only on the row, or an aggregate only on the bag
    of rows.
    """
    for node in expression.walk():
        if isinstance(node, exp.Window):
            raise UnsupportedQueryError("a window function", node)
        if isinstance(node, exp.Subquery | exp.Exists | exp.Select) or node.args.get("query"):
            raise UnsupportedQueryError(
                "a subquery here (only EXISTS, NOT EXISTS and IN in WHERE, joined by AND)", node
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
