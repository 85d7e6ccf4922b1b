"""The position in a checkpoint, as it lies on users' disks: read for ever, written to the same text, newer refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamhouse_spark import CorruptDataError, FormatVersionError
from streamhouse_spark.datasource.stream.stream_offset import BootstrapPosition, StreamOffset

UUID = "1e2feb89414c343c1027c4d1c386bbc4"
GOLDEN = Path(__file__).parents[3] / "golden" / "stream-offsets"
LINES = [line for name in ("v1", "v2") for line in (GOLDEN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
WRITTEN = [
    StreamOffset(UUID, {0: 0, 1: 7}, {0: 0, 1: 7}),
    StreamOffset(UUID, {0: 120, 1: 7}, {0: 0, 1: 7}),
    StreamOffset(UUID, {10: 3, 1: 2**63 - 1, 0: 120}),
    StreamOffset(UUID, {0: 130, 1: 9}, truncation=42),
    StreamOffset(UUID, {0: 100, 1: 7}, {0: 100, 1: 7}, rows=BootstrapPosition(31, 3)),
    StreamOffset(UUID, {0: 100, 1: 7}, {0: 100, 1: 7}, rows=BootstrapPosition(31, 3, 2)),
    StreamOffset(UUID, {0: 120, 1: 9}, truncation=12, rows=BootstrapPosition(31, 3, 3)),
]
"""What the golden lines say. Each is one offset, as Spark stores it in the checkpoint's ``offsets`` folder."""


@pytest.mark.parametrize(("line", "offset"), list(zip(LINES, WRITTEN, strict=True)))
def test_it_is_read_and_written_alike(line, offset):
    assert StreamOffset.from_json(json.loads(line), "sales.orders", UUID) == offset
    assert json.dumps(offset.to_json()) == line  # Spark compares the texts


@pytest.mark.parametrize("version", [3, 0, "1", None])
def test_another_version_is_refused(version):
    data = json.loads(LINES[0]) | {"version": version}
    with pytest.raises(FormatVersionError, match=r"sales\.orders has offsets of version .*, expected 1 or 2"):
        StreamOffset.from_json(data, "sales.orders", UUID)
    del data["version"]
    with pytest.raises(FormatVersionError):
        StreamOffset.from_json(data, "sales.orders", UUID)


@pytest.mark.parametrize("rows", [{"commit": 3, "files": 2, "read": 3}, {"commit": 3, "files": 2}, None, 7])
def test_rows_that_cannot_be_are_refused(rows):
    data = json.loads(LINES[-1]) | {"rows": rows}
    with pytest.raises(CorruptDataError, match=r"stream from sales\.orders has an invalid offset"):
        StreamOffset.from_json(data, "sales.orders", UUID)


def test_an_unfinished_first_batch_begins_with_the_rows_that_it_began_with():
    first_end = StreamOffset(UUID, {0: 10}, {0: 10}, rows=BootstrapPosition(5, 3, 2))
    asked_again = StreamOffset(UUID, {0: 40}, {0: 40}, rows=BootstrapPosition(9, 7))
    begin = asked_again.begin_of_batch(first_end)
    assert begin.offsets == {0: 10}
    assert begin.rows == BootstrapPosition(5, 3)
    assert begin.files_before(first_end) == range(2)


def test_rows_that_were_read_are_not_read_again():
    part = StreamOffset(UUID, {0: 10}, {0: 10}, rows=BootstrapPosition(5, 3, 2))
    rest = StreamOffset(UUID, {0: 12}, rows=BootstrapPosition(5, 3, 3))
    assert not part.is_initial
    assert part.begin_of_batch(rest) == part
    assert part.files_before(rest) == range(2, 3)
    assert not rest.files_before(StreamOffset(UUID, {0: 30}))
