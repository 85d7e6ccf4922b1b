"""Damaged and missing files read through the catalog: an error or exactly the same rows, whoever reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark, pytest.mark.long]  # tests/corruption sees most of it without Spark
ROWS = 4_000
ERRORS = (PySparkException, Py4JJavaError)
"""PySpark hands over what its Parquet reader says as it came from the JVM."""
QUERIES = ("SELECT * FROM {}", "SELECT name FROM {} WHERE id >= 1000 AND id < 3000")
"""One that reads everything, one that trusts what the footer says about values."""


@pytest.fixture(scope="module")
def lake(spark, wh):
    """A table all of whose rows are in one lake file, and the file."""
    table = wh.create_table("corruption.lake", "id BIGINT NOT NULL, name STRING, amount DOUBLE")
    table.append([{"id": i, "name": f"name {i * 7919 % ROWS}", "amount": i / 3} for i in range(ROWS)])
    tier(spark, wh.url, [table.name])
    (file,) = Path(wh.url, "lake", "corruption").rglob("*.parquet")
    return "streamhouse.corruption.`lake$lake`", file


@pytest.fixture(scope="module")
def hot(wh):
    """A table all of whose rows are in one segment, and its file."""
    properties = {"table.datalake.enabled": "false"}
    table = wh.create_table("corruption.hot", "id BIGINT NOT NULL, name STRING, amount DOUBLE", properties=properties)
    table.append([{"id": i, "name": f"name {i * 7919 % ROWS}" * 5, "amount": i / 3} for i in range(ROWS * 2)])
    (file,) = Path(wh.url, "tables", table.uuid).rglob("*.arrow")
    return "streamhouse.corruption.hot", file


def answers(spark, name: str) -> list[list[tuple]]:
    return [sorted(tuple(row) for row in spark.sql(query.format(name)).collect()) for query in QUERIES]


def flip(spark, name: str, file: Path, places: list[int]) -> dict[int, str]:
    """What became of each flip. Raises `AssertionError` for other rows than before, naming the bytes."""
    whole, expected = file.read_bytes(), answers(spark, name)
    outcomes, wrong = {}, []
    try:
        for at in places:
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            for query, rows in zip(QUERIES, expected, strict=True):
                try:
                    found = sorted(tuple(row) for row in spark.sql(query.format(name)).collect())
                except ERRORS:
                    outcomes[at] = "error"
                else:
                    outcomes.setdefault(at, "same")
                    if found != rows:
                        wrong.append((at, query, len(found)))
    finally:
        file.write_bytes(whole)
    assert not wrong
    assert answers(spark, name) == expected
    return outcomes


def spread(start: int, end: int, count: int) -> list[int]:
    return [start + (end - start) * (2 * i + 1) // (2 * count) for i in range(count)]


def footer_start(file: Path) -> int:
    whole = file.read_bytes()
    return len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")


def test_flipped_bits_in_pages_of_a_lake_file_are_detected(spark, lake):
    name, file = lake
    metadata = pq.read_metadata(file)
    chunks = [metadata.row_group(0).column(i) for i in range(metadata.num_columns)]
    places = []
    for chunk in chunks:
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        places.extend(spread(start, start + chunk.total_compressed_size, 3))
    outcomes = flip(spark, name, file, places)
    assert list(outcomes.values()).count("error") >= len(places) - 1


def test_flipped_bits_in_the_footer_of_a_lake_file_are_detected(spark, lake):
    name, file = lake
    size = file.stat().st_size
    flip(spark, name, file, [*spread(footer_start(file), size, 14), size - 6, size - 1])


@pytest.mark.xfail(strict=True, reason="Spark checks neither footer nor page index: it skips what they exclude")
def test_flips_in_what_a_lake_file_says_of_its_values(spark, lake):
    """The greatest id, in the page index and in the footer: flipped it is negative, and no row seems to match."""
    name, file = lake
    greatest = (ROWS - 1).to_bytes(8, "little")
    places = [match.end() - 1 for match in re.finditer(re.escape(greatest), file.read_bytes())]
    flip(spark, name, file, places)


@pytest.mark.spark41
def test_a_missing_lake_file_is_an_error_whatever_the_session_says(spark, lake):
    name, file = lake
    away = file.with_suffix(".away")
    for setting in ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles"):
        spark.conf.set(setting, "true")
    try:
        file.rename(away)
        for query in QUERIES:
            with pytest.raises(ERRORS):
                spark.sql(query.format(name)).collect()
        away.rename(file)
        whole = file.read_bytes()
        middle = footer_start(file) // 3
        file.write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :])
        with pytest.raises(ERRORS):
            answers(spark, name)
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ERRORS):
            answers(spark, name)
        file.write_bytes(whole)
    finally:
        for setting in ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles"):
            spark.conf.unset(setting)
    assert len(answers(spark, name)[0]) == ROWS


def test_flipped_bits_in_a_segment_are_detected(spark, hot):
    name, file = hot
    outcomes = flip(spark, name, file, spread(0, file.stat().st_size, 5))
    assert list(outcomes.values()).count("error") >= 3
    whole = file.read_bytes()
    file.unlink()
    with pytest.raises(PySparkException, match="CORRUPT_DATA"):
        answers(spark, name)
    file.write_bytes(whole)
