"""The position in a checkpoint, as it lies on users' disks: read for ever, written to the same text, newer refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamhouse_spark.datasource.stream_offset import StreamOffset
from streamhouse_spark.errors import FormatVersionError

UUID = "1e2feb89414c343c1027c4d1c386bbc4"
GOLDEN = Path(__file__).parents[2] / "golden" / "stream-offsets" / "v1.jsonl"
LINES = GOLDEN.read_text(encoding="utf-8").splitlines()
WRITTEN = [
    StreamOffset(UUID, {0: 0, 1: 7}, {0: 0, 1: 7}),
    StreamOffset(UUID, {0: 120, 1: 7}, {0: 0, 1: 7}),
    StreamOffset(UUID, {10: 3, 1: 2**63 - 1, 0: 120}),
    StreamOffset(UUID, {0: 130, 1: 9}, truncation=42),
]
"""What the golden lines say. Each is one offset, as Spark stores it in the checkpoint's ``offsets`` folder."""


@pytest.mark.parametrize(("line", "offset"), list(zip(LINES, WRITTEN, strict=True)))
def test_it_is_read_and_written_alike(line, offset):
    assert StreamOffset.from_json(json.loads(line), "sales.orders", UUID) == offset
    assert json.dumps(offset.to_json()) == line  # Spark compares the texts


@pytest.mark.parametrize("version", [2, 0, "1", None])
def test_another_version_is_refused(version):
    data = json.loads(LINES[0]) | {"version": version}
    with pytest.raises(FormatVersionError, match=r"sales\.orders has offsets of version .*, expected 1"):
        StreamOffset.from_json(data, "sales.orders", UUID)
    del data["version"]
    with pytest.raises(FormatVersionError):
        StreamOffset.from_json(data, "sales.orders", UUID)
