"""The frame of metadata files finds every damage before anything is parsed."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import CorruptDataError, FormatVersionError
from streamhouse_spark.log.framing import decode_frame, encode_frame, translate_field_errors

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(header=st.dictionaries(st.text(max_size=8), JSON, max_size=5), payload=st.binary(max_size=200))
def test_what_goes_in_comes_out(header, payload):
    frame = decode_frame("commit", encode_frame("commit", header, [payload]), "here")
    assert frame.header == header
    assert bytes(frame.payload) == payload


@given(payload=st.binary(max_size=50), data=st.data())
def test_any_other_bytes_are_refused(payload, data):
    whole = encode_frame("commit", {"number": 7, "text": "zäh"}, [payload])
    damage = data.draw(st.sampled_from(["flip", "cut", "insert", "remove"]))
    at = data.draw(st.integers(0, len(whole) - 1))
    if damage == "flip":
        other = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    elif damage == "cut":
        other = whole[:at]
    elif damage == "insert":
        other = whole[:at] + data.draw(st.binary(min_size=1, max_size=3)) + whole[at:]
    else:
        other = whole[:at] + whole[at + 1 :]
    if other == whole:
        return
    with pytest.raises((CorruptDataError, FormatVersionError), match="here"):
        decode_frame("commit", other, "here")


def test_another_kind_of_file_is_refused():
    with pytest.raises(CorruptDataError, match="commit file"):
        decode_frame("commit", encode_frame("checkpoint", {}), "here")


def test_a_newer_format_is_refused_before_its_checksum_is_looked_at():
    newer = encode_frame("commit", {}).replace(b'"version":1', b'"version":2').replace(b"xxh3", b"xxh3")
    with pytest.raises(FormatVersionError, match="upgrade"):
        decode_frame("commit", newer, "here")


def test_numbers_that_json_does_not_have_are_refused():
    with pytest.raises(ValueError, match="float"):
        encode_frame("commit", {"x": float("nan")})


@pytest.mark.parametrize("header", ["[1]", "null", "1", "x", "", "[" * 20_000, "{" * 5_000, '{"a":NaN'])
def test_a_frame_without_a_header_is_corrupt_data(header):
    with pytest.raises(CorruptDataError, match="has a correct checksum but not the fields of a commit file"):
        decode_frame("commit", encode_frame("commit", header), "here")


def test_a_missing_header_field_is_corrupt_data():
    found = decode_frame("commit", encode_frame("commit", {"number": 1}), "here").header
    assert found["number"] == 1
    assert found.get("attempt") is None
    with pytest.raises(CorruptDataError, match=r"here has a correct checksum.*'attempt'"):
        found["attempt"]
    assert type(pickle.loads(pickle.dumps(found))) is dict


@pytest.mark.parametrize("error", [KeyError("a"), TypeError("b"), ValueError("c"), IndexError(), OverflowError()])
def test_wrong_fields_are_damage(error):
    with pytest.raises(CorruptDataError, match="another program wrote it"), translate_field_errors("commit", "here"):
        raise error
    with pytest.raises(OSError, match="x"), translate_field_errors("commit", "here"):
        raise OSError("x")
