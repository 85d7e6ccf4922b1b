"""The layout of a Paimon table that another engine made, and the conditions for adding files in it."""

from __future__ import annotations

from pypaimon.schema.table_schema import TableSchema as PaimonSchema

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.lake.column_map import COLUMNS_PROPERTY
from streamhouse_spark.lake.offsets import TABLE_UUID_PROPERTY
from streamhouse_spark.lake.paimon.schema import KEYED_OPTIONS, UNAWARE_BUCKETS, bucket_options
from streamhouse_spark.lake.table_spec import LakeTableSpec

_POSTPONED_BUCKETS = -2
_EXPECTED_OPTIONS = {"file.format": "parquet", "manifest.format": "avro", "type": "table", "branch": "main"}
"""Option → its default, the only value that is read and written here."""
_REFUSED_OPTIONS = ("scan.fallback-branch", "chain-table.enabled", "data-file.thin-mode")


@dataclass(frozen=True, slots=True)
class Layout:
    bucket: int
    """Paimon's own number."""
    bucket_key: tuple[str, ...]
    """Empty if the columns of a row do not determine its bucket."""
    problems: tuple[str, ...]

    @property
    def num_buckets(self) -> int:
        return max(self.bucket, 1)


def read_layout(lake: PaimonSchema) -> Layout:
    """Return the layout. Without ``bucket-key`` the buckets of a table with a primary key are those of the key within a
    partition.
    """
    text = lake.options.get("bucket", str(UNAWARE_BUCKETS)).strip()
    bucket = int(text) if text.lstrip("-").isdigit() else 0
    said = lake.options.get("bucket-key", "")
    bucket_key = tuple(name.strip() for name in said.split(",")) if said.strip() else ()
    if lake.primary_keys:
        if not bucket_key and bucket > 1:
            bucket_key = tuple(name for name in lake.primary_keys if name not in lake.partition_keys)
        return Layout(bucket, bucket_key, tuple(_find_keyed_problems(lake, bucket, text)))
    if bucket == UNAWARE_BUCKETS:
        return Layout(bucket, bucket_key, ())
    if bucket < 1:
        problem = f"its option bucket is {text}, expected {UNAWARE_BUCKETS} or the number of its buckets"
        return Layout(bucket, bucket_key, (problem,))
    problem = f"it has {bucket} buckets (option bucket) and no bucket-key, so that a row's bucket cannot be told"
    return Layout(bucket, bucket_key, () if bucket_key else (problem,))


def _find_keyed_problems(lake: PaimonSchema, bucket: int, text: str) -> list[str]:
    problems = []
    if bucket < 1:
        kinds = {
            UNAWARE_BUCKETS: "dynamic buckets, of which only an index of its own knows",
            _POSTPONED_BUCKETS: "postponed buckets",
        }
        problems.append(f"it has {kinds.get(bucket, 'no buckets')} (option bucket is {text}), expected a fixed number")
    outside = [name for name in lake.partition_keys if name not in lake.primary_keys]
    if outside:
        problems.append(f"partition column '{outside[0]}' is not in its primary key {', '.join(lake.primary_keys)}")
    return problems


def find_option_problems(lake: PaimonSchema) -> list[str]:
    """Return the options, beside those of `paimon_schema.differences`, by which rows would be elsewhere or others."""
    problems = [
        f"option {name} is {lake.options[name]}, expected {expected}"
        for name, expected in {**_EXPECTED_OPTIONS, **(KEYED_OPTIONS if lake.primary_keys else {})}.items()
        if lake.options.get(name, expected).strip().lower() != expected
    ]
    problems += [
        f"option {name} is {value}, which is not read here"
        for name, value in sorted(lake.options.items())
        if (name in _REFUSED_OPTIONS and value.strip().lower() not in ("", "false"))
        or (name.startswith("fields.") and name.endswith(".default-value"))
    ]
    return problems


def options_of_adopted_table(lake: PaimonSchema, spec: LakeTableSpec, *, write_only: bool) -> dict[str, str]:
    """Return the table's options with Paimon's defaults made explicit, and without those of an older owner."""
    options = {k: v for k, v in lake.options.items() if k not in (TABLE_UUID_PROPERTY, COLUMNS_PROPERTY)}
    own = {**bucket_options(spec), **(KEYED_OPTIONS if spec.primary_key else {})}
    return {**options, **own, **({"write-only": "true"} if write_only else {})}
