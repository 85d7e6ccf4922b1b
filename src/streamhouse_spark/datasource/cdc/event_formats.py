"""Change events as parsed by the JVM function: the effect of each event on each row, with values as text.

The function is in the package's jar. It implements the formats and uses the event's own schema if it has one. Numbers
stay text until the type of their column is known, because Spark's JSON reader would convert them to double.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, get_args

from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource.cdc.type_conversion import ValueForms, text_type
from streamhouse_spark.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EventFormat = Literal["debezium-json", "debezium-avro", "maxwell-json", "canal-json"]
FORMATS: Final = get_args(EventFormat)
AVRO: Final = "debezium-avro"
"""Its events were converted to JSON by their schemas."""

UPSERT: Final = "update_after"
DELETE: Final = "delete"
_CLASS: Final = "io.streamhouse.spark.cdc.JsonEvents"


@dataclass(frozen=True, slots=True)
class EventReader:
    """The function that parses a query's events."""

    spec: str
    result: StructType
    """``changes``, an array of structs of ``kind`` (`UPSERT`, `DELETE`) and ``row``, a struct of texts by column, of
    which a deleted row has only the key; the ``reason`` why an event cannot be read, null for a valid event; ``names``
    of columns in the event that the table lacks.
    """

    @classmethod
    def of(cls, how: EventFormat, columns: StructType, key: Sequence[str], forms: ValueForms) -> EventReader:
        """Return the reader for a format and a table with these columns and primary key."""
        spec = {"format": how, "columns": columns.jsonValue(), "key": list(key)}
        change = StructType().add("kind", StringType()).add("row", text_type(columns))
        fields = [StructField("changes", ArrayType(change)), StructField("reason", StringType())]
        result = StructType([*fields, StructField("names", ArrayType(StringType()))])
        return cls(json.dumps({**spec, "times": forms.times, "decimals": forms.decimals}), result)

    def register(self, session: SparkSession) -> str:
        """Register the function and return its name. Raises `InvalidOptionError` in a session without the jar."""
        name = f"streamhouse_events_{hashlib.sha256(self.spec.encode()).hexdigest()[:16]}"
        try:
            session.udf.registerJavaFunction(name, _CLASS, self.result)
        except AnalysisException as error:
            raise InvalidOptionError(
                "events are read by the jar of the package, which Spark was started without; make the session with "
                'streamhouse_spark.configure, or start Spark with --jars "$(streamhouse jar)"'
            ) from error
        return name

    def read(self, session: SparkSession, text: Column) -> Column:
        """Return the parsed event of each text."""
        return f.call_function(self.register(session), text, f.lit(self.spec))
