"""Keys that are looked for among many: the right ones, and without hashing the many each time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.keys.keyed_batch import KeyedBatch, KeyPrefixIndex

KEYS = st.lists(
    st.sampled_from([b"", b"\0", b"a", b"ab", b"abcdefgh"]).flatmap(lambda b: st.binary(max_size=3).map(b.__add__))
)


@given(KEYS, KEYS, st.sampled_from([b"", b"x", b"a long common beginning"]), st.integers(0, 3))
def test_it_says_what_a_set_says(mine, asked, common, skipped):
    mine = [common + key for key in mine] or [common]
    asked = [*asked, *(common + key for key in asked)]
    heads = KeyPrefixIndex(pa.array(sorted(set(mine)), pa.binary()))
    keys = pa.array(asked, pa.binary())[skipped:]
    assert heads.contains(keys).tolist() == [key in set(mine) for key in asked[skipped:]]


@pytest.mark.parametrize("text", ["customer-{:09}", "{:09}-customer"])
def test_a_large_batch_is_not_hashed_at_each_question(monkeypatch, text):
    texts = [text.format(2 * i) for i in range(50_000)]
    keys = encode_keys([pa.array(texts)])
    batch = KeyedBatch.of(keys, [pa.array(texts)], np.zeros(len(keys), np.bool_))
    hashed, real = [], pc.is_in

    def is_in(values, *, value_set):
        hashed.append(len(value_set))
        return real(values, value_set=value_set)

    monkeypatch.setattr(pc, "is_in", is_in)
    for turn in range(20):
        others = encode_keys([pa.array([text.format(999 * turn + i) for i in range(10)])])
        assert batch.has(others).tolist() == [(999 * turn + i) % 2 == 0 for i in range(10)]
    assert sum(hashed) <= 20 * 5 * 2 * 10, "a few keys of the same eight bytes for each"


def test_an_empty_batch_has_none():
    empty = pa.array([], pa.binary())
    batch = KeyedBatch.of(empty, [], np.zeros(0, np.bool_))
    assert batch.has(pa.array([b"x", b""], pa.binary())).tolist() == [False, False]
