"""The expressions that have one value for the same row for ever. Pure.

A list of what is allowed: a list of what is forbidden lets through what nobody thought of.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from streamhouse_spark.zset.plan import RefusedPart

_CLASSES: Final = """
    Abs Add And Avg Between BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Boolean Bracket Case Cast Ceil Coalesce
    Column Concat ConcatWs Contains Count CountIf DPipe DataType DataTypeParam Date DateAdd DateDiff DateSub
    DateTrunc Day DayOfMonth DayOfWeek DayOfYear Distinct Div Dot EQ EndsWith Escape Exp Extract Filter Floor
    GT GTE Greatest Hex Hour ILike Identifier If In Initcap IntDiv Interval Is JSONExtract JSONExtractScalar
    JSONPath LT LTE LastDay Least Left Length Like Literal Ln Log LogicalAnd LogicalOr Lower MD5 Max Median Min
    Minute Mod Month Mul NEQ Neg Not Null NullSafeEQ NullSafeNEQ Nullif Nvl2 Or Pad Paren Pow Quarter RLike
    RegexpExtract RegexpLike RegexpReplace Repeat Replace Reverse Right Round SHA SHA2 SafeDivide Second Sign
    Split Sqrt Star StartsWith Stddev StddevPop StddevSamp StrPosition StrToDate StrToTime Sub Substring Sum
    TimeToStr TimestampAdd TimestampDiff TimestampSub TimestampTrunc Trim TryCast TsOrDsAdd TsOrDsDiff
    TsOrDsToDate TsOrDsToTimestamp Tuple UnixSeconds UnixToTime Upper Var Variance VariancePop Week WeekOfYear
    Where Xor Year
"""
_PLAIN: Final = frozenset(_CLASSES.split())
_PLAIN_NAMES: Final = frozenset({"HASH", "XXHASH64", "UNIX_MICROS", "UNIX_MILLIS", "PMOD", "NVL", "TRY_DIVIDE"})
_ORDERED: Final = (exp.First, exp.Last, exp.AnyValue, exp.ArrayAgg, exp.GroupConcat, exp.ArrayUniqueAgg)


def require_plain(expression: exp.Expr) -> None:
    """Raise `RefusedPart` unless the value depends on the row alone, or of an aggregate on the bag of its rows."""
    for node in expression.walk():
        if isinstance(node, exp.Window):
            raise RefusedPart("a window function", node)
        if isinstance(node, exp.Subquery | exp.Exists | exp.Select) or node.args.get("query"):
            raise RefusedPart("a subquery here (only EXISTS, NOT EXISTS and IN in WHERE, joined by AND)", node)
        if isinstance(node, _ORDERED):
            raise RefusedPart("an aggregate that depends on the order of rows", node)
        if type(node) is exp.Anonymous and node.name.upper() in _PLAIN_NAMES:
            continue
        if type(node).__name__ not in _PLAIN:
            raise RefusedPart("not known to have one value for the same rows for ever", node)


def has_aggregate(expression: exp.Expr) -> bool:
    return expression.find(exp.AggFunc) is not None
