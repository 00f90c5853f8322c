import pickle
import struct
import tracemalloc
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp import data
from adagp.data import cifar, pickles

ARRAY = np.arange(12, dtype=np.uint8).reshape(3, 4)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        [1, 255, 256, 65536, -1, 2**31, 2**70],
        {"a": [1, 2], "b": ("x", ("y", "z"), (), (1, 2, 3, 4))},
        [[1], [1]] * 3,
        ["long" * 50] * 600,
    ],
    ids=["none", "true", "numbers", "nested", "shared", "many"],
)
def test_plain_values_are_what_pickle_reads(value: Any, protocol: int) -> None:
    assert pickles.loads(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize(
    "array",
    [ARRAY, np.asfortranarray(ARRAY), ARRAY[:0], ARRAY.astype(">i4"), ARRAY.astype(np.int64), np.array(7, np.int8)],
    ids=["rows", "columns", "empty", "big-endian", "int64", "scalar"],
)
def test_arrays_are_what_numpy_reads(array: np.ndarray[Any, Any], protocol: int) -> None:
    found = pickles.loads(pickle.dumps({b"data": array}, protocol))
    assert isinstance(found, dict)
    assert found[b"data"].dtype == array.dtype
    assert np.array_equal(found[b"data"], array)
    assert found[b"data"].shape == array.shape


@settings(deadline=None, max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.binary(max_size=300) | st.text(max_size=60),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9) | st.binary(max_size=9), inner),
        max_leaves=20,
    )
)
def test_whatever_is_plain_comes_back(value: Any) -> None:
    assert pickles.loads(pickle.dumps(value, 4)) == value


def _u32(number: int) -> bytes:
    return struct.pack("<I", number)


def _u64(number: int) -> bytes:
    return struct.pack("<Q", number)


BOMBS = {
    # What Python's own unpickler allocates follows each; the numbers are small enough for a test to fail on.
    "memo": b"\x80\x02Nr" + _u32(1 << 23) + b".",  # 128 MB for a memo of one
    "bytes": b"\x80\x04B" + _u32(1 << 31) + b".",
    "bytes8": b"\x80\x04\x8e" + _u64(1 << 28) + b".",
    "bytearray8": b"\x80\x05\x96" + _u64(1 << 28) + b".",
    "text8": b"\x80\x04\x8d" + _u64(1 << 40) + b".",
    "frame": b"\x80\x04\x95" + _u64(1 << 40) + b"N.",
    "array": b"\x80\x02cnumpy\nndarray\nJ" + _u32(1 << 24) + b"\x85U\x01O\x86R.",
    "array-state": pickle.dumps(ARRAY, 3).replace(b"K\x03K\x04\x86", b"K\x03J" + _u32(1 << 30) + b"\x86"),
    "tuples": b"\x80\x02)" + b"\x85" * 200_000 + b".",
    "tuple-key": b"\x80\x02})" + b"2\x86" * 40 + b"Ns.",  # hashing it takes 2 ** 40 steps
    "deep-key": b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.",  # hashing it runs out of stack
    "marks": b"\x80\x02" + b"(" * 5_000_000 + b".",
    "dicts": b"\x80\x02" + b"}" * 5_000_000 + b".",
    "long": b"\x80\x02\x8b" + _u32(1 << 30) + b"\x01.",
    "digits": b"\x80\x02I" + b"9" * 5_000_000 + b"\n.",
    "line": b"\x80\x02c" + b"a" * 5_000_000 + b"\nb\n.",
    "text": b"\x80\x02X" + _u32(5_000_004) + b"a" * 5_000_000 + "\U0001f600".encode() + b".",  # 20 MB of characters
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_pickle_takes_little_memory(name: str) -> None:
    content = BOMBS[name]
    tracemalloc.start()
    try:
        with pytest.raises(data.CorruptDataError, match=r"^here: train is not a CIFAR-100 batch \(.*; get the archive"):
            cifar.decode("here: train", content, b"fine_labels", 100)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000 + len(content)
    finally:
        tracemalloc.stop()


def test_labels_that_are_lists_of_lists_are_refused_at_once() -> None:
    labels: list[Any] = [1]
    for _ in range(40):
        labels = [labels, labels]  # a tensor of it would have 2 ** 40 numbers
    content = pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": labels}, 4)
    with pytest.raises(data.CorruptDataError, match=r"its labels are not a list of 0\.\.99"):
        cifar.decode("here", content, b"fine_labels", 100)


def test_no_images_are_told() -> None:
    content = pickle.dumps({b"data": np.zeros((0, 3072), np.uint8), b"fine_labels": []}, 4)
    with pytest.raises(data.CorruptDataError, match=r"here is not a CIFAR-100 batch.*no images.*get the archive again"):
        cifar.decode("here", content, b"fine_labels", 100)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pickle.dumps(OrderedDict()), r"asks for collections\.OrderedDict"),
        (b"cos\nsystem\n(S'true'\ntR.", r"asks for os\.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", r"asks for os\.system"),
        (b"\x80\x04K\x01K\x02\x93.", "STACK_GLOBAL"),
        (pickle.dumps(np.zeros(2)), "f8"),
        (pickle.dumps(np.array([None])), "no integer array"),
        (pickle.dumps(ARRAY)[:-5], "cut short"),
        (pickle.dumps({(1,): 2}), "key"),
        (b"\x80\x04K\x01K\x02s.", "SETITEM"),
        (b"\x80\x04K\x01e.", "mark"),
        (b"\x80\x04K\x01(e.", "APPENDS"),
        (b"\x80\x04R.", "REDUCE"),
        (b"\x80\x04h\x07.", "memo"),
        (b"\x80\x04.", "nothing"),
        (b"\xff", "0xff"),
        (b"", "cut short"),
        (b"\x80\x04I1x\n.", "INT"),
        (b"\x80\x04\x8c\x01\xff.", "utf-8"),
    ],
)
def test_other_pickles_are_refused(content: bytes, reason: str) -> None:
    with pytest.raises(pickles.PickleError, match=reason):
        pickles.loads(content)
