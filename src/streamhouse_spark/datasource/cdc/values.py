"""Values of change events: from text to the types of a table. A text that is no value gives null, and is told apart."""

from __future__ import annotations

from decimal import Decimal
from typing import Final, Literal, get_args

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from streamhouse_spark.core.values import dataclass
from streamhouse_spark.errors import InvalidOptionError

TimeUnit = Literal["millis", "micros", "nanos"]
DecimalForm = Literal["text", "base64"]
UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Debezium's word for a large value that did not change and that the log of the source lacks."""

_PER_SECOND: Final = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_WHOLE: Final = r"^[+-]?[0-9]+$"


@dataclass(frozen=True, slots=True)
class ValueForms:
    """The forms of values that their texts do not tell."""

    times: TimeUnit | None
    """The unit of timestamps that are numbers."""
    decimals: DecimalForm | None

    def require(self, columns: t.StructType, *, are_numbers: bool, are_told: bool) -> None:
        """Raise `InvalidOptionError` for a wrong form, and for one that is not given and that the columns need.

        ``are_numbers`` says whether events of the format may have numbers for timestamps, and bytes for decimals;
        ``are_told`` whether their schemas say so.
        """
        for name, given, known in (("times", self.times, TimeUnit), ("decimals", self.decimals, DecimalForm)):
            if given is not None and given not in get_args(known):
                raise InvalidOptionError(f"{name} is {given!r}, expected one of {', '.join(get_args(known))}")
        if are_told and self.decimals is not None:
            raise InvalidOptionError("decimals is of events in JSON; in Avro the schemas have it, leave it out")
        if not are_numbers:
            return
        for field in columns:
            if isinstance(field.dataType, t.TimestampType | t.TimestampNTZType) and self.times is None:
                raise InvalidOptionError(
                    f"column '{field.name}' is a timestamp, and Debezium writes most of these as numbers, in a unit "
                    "that depends on the source's type; give times='micros' (PostgreSQL, MySQL with a precision above "
                    "3) or 'millis', 'nanos'"
                )
            if isinstance(field.dataType, t.DecimalType) and self.decimals is None:
                raise InvalidOptionError(
                    f"column '{field.name}' is a decimal, and Debezium writes these as bytes unless the connector has "
                    "decimal.handling.mode=string; give decimals='base64' for bytes, 'text' for the other modes"
                )


def typed(text: Column, kind: t.DataType, forms: ValueForms) -> Column:
    """Return the value of a text; null for null and for a text that is no value of the type."""
    match kind:
        case t.ArrayType() | t.MapType() | t.StructType() | t.StringType():
            return text
        case t.DateType():
            days = f.date_from_unix_date(text.try_cast("int"))
            return f.when(text.rlike(_WHOLE), days).otherwise(text.try_cast(kind))
        case t.TimestampType() | t.TimestampNTZType():
            return _moment(text, kind, forms)
        case t.VariantType():  # sources send their columns of JSON as texts
            return f.try_parse_json(text)
        case t.BinaryType():
            return f.try_to_binary(text, f.lit("base64"))
        case t.DecimalType():
            number = _from_bytes(text, kind.scale) if forms.decimals == "base64" else text
            return number.try_cast(kind)
    return text.try_cast(kind)


def _moment(text: Column, kind: t.DataType, forms: ValueForms) -> Column:
    read = text.try_cast(kind)
    if forms.times is None:  # a number without a unit is no moment, and Spark would take it for a year
        return f.when(~text.rlike(_WHOLE), read)
    number = text.try_cast("bigint")
    if forms.times == "nanos":
        micros = f.call_function("div", number - f.pmod(number, f.lit(1000)), f.lit(1000))
    else:
        micros = f.try_multiply(number, f.lit(10**6 // _PER_SECOND[forms.times]))
    moment = f.timestamp_micros(micros)
    if isinstance(kind, t.TimestampNTZType):  # the wall clock that the source had, whatever the session's zone
        seconds = (micros.cast("decimal(20, 0)") / f.lit(Decimal(10**6))).cast("decimal(18, 6)")
        zero = f.lit(0)
        moment = f.lit("1970-01-01").cast(kind) + f.make_dt_interval(zero, zero, zero, seconds)
    return f.when(text.rlike(_WHOLE), moment).otherwise(read)


def _from_bytes(text: Column, scale: int) -> Column:
    """Return the text of a decimal that is an unscaled number in two's complement, of up to 16 bytes, in base64."""
    digits = f.hex(f.try_to_binary(text, f.lit("base64")))
    sign = f.when(f.substring(digits, 1, 1) >= f.lit("8"), f.lit("F")).otherwise(f.lit("0"))
    whole = f.lpad(digits, 32, sign)
    high = f.conv(f.substring(whole, 1, 16), 16, -10).cast("decimal(38, 0)")
    low = f.conv(f.substring(whole, 17, 16), 16, 10).cast("decimal(38, 0)")
    unscaled = f.try_add(f.try_multiply(high, f.lit(Decimal(2**64))), low)
    return f.when(f.length(digits).between(2, 32), f.concat(unscaled.cast("string"), f.lit(f"E-{scale}")))
