"""A reader of pickles that hold plain values and integer arrays, and nothing else.

A pickle is a program. Python's unpickler calls whatever the pickle names and trusts every size in it, so ten bytes can
ask for gigabytes. This reader looks up no callable. Each opcode makes at most one value, and no value is larger than
its bytes in the file.
"""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_OPCODES = 1_000_000  # five times the largest CIFAR file; each costs up to a hundred bytes of memory
_MAX_TEXT_BYTES = 4096  # for module and file names; a character may take four times its bytes in memory
_MAX_RANK = 8

_RECONSTRUCT, _NDARRAY, _DTYPE = "_reconstruct", "ndarray", "dtype"
_GLOBALS = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _DTYPE,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
}
_INTEGERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)}


class PickleError(ValueError):
    """The pickle is damaged, or holds more than plain values and arrays."""


@dataclass(frozen=True)
class _Global:
    """A numpy name in the pickle; it is never looked up."""

    name: str


@dataclass
class _Type:
    """A dtype under construction: its code, and its byte order once known."""

    code: str
    order: str = "|"


@dataclass
class _Array:
    """An array under construction. A pickle makes it first and fills it later, and the memo may hold it in between."""

    value: "np.ndarray[Any, Any] | None" = None


def loads(content: bytes) -> object:
    """Read a pickle.

    It may hold None, numbers, bytes, text, lists, tuples, dicts with bytes or text as keys, and integer numpy arrays,
    in protocols 2 to 4 as numpy writes them. Strings of Python 2 become bytes.

    Raises:
        PickleError: if there is anything else, or the pickle is damaged.
    """
    return _Machine(content).run()


class _Machine:
    """Pickle's virtual machine: stack, marks and memo."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> object:
        for _ in range(MAX_OPCODES):
            code = self._take(1)[0]
            if code == _STOP:
                return _finished(self._pop("STOP"))
            if code not in _OPCODES:
                raise PickleError(f"opcode 0x{code:02x} is not needed for plain values and arrays")
            name, act = _OPCODES[code]
            try:
                act(self)
            except PickleError:
                raise
            except (ValueError, TypeError, IndexError) as error:
                raise PickleError(f"{name} cannot be done ({error})") from error
        raise PickleError(f"it has more than {MAX_OPCODES:,} opcodes")

    # Reading from the file.

    def _take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._content) - self._place:
            raise PickleError("it is cut short")
        self._place += count
        return self._content[self._place - count : self._place]

    def _number(self, form: str) -> int:
        number: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _text(self, count: int) -> str:
        if count > _MAX_TEXT_BYTES:
            raise PickleError(f"it has a text of {count} bytes, more than {_MAX_TEXT_BYTES}")
        return self._take(count).decode("utf-8", "surrogatepass")

    def _line(self) -> str:
        end = self._content.find(b"\n", self._place, self._place + _MAX_TEXT_BYTES)
        if end < 0:
            raise PickleError("a line in it has no end")
        return self._take(end + 1 - self._place)[:-1].decode("ascii")

    # Stack operations.

    def _pop(self, name: str) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise PickleError(f"{name} finds nothing on the stack")
        return self._stack.pop()

    def _top(self, name: str, kind: type) -> Any:
        value = self._pop(name)
        if type(value) is not kind:
            raise PickleError(f"{name} finds a {type(value).__name__} where a {kind.__name__} should be")
        self._stack.append(value)
        return value

    def _since_mark(self) -> list[Any]:
        if not self._marks:
            raise PickleError("a mark is missing")
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def tuple_of(self, count: int) -> None:
        values = [self._pop("TUPLE") for _ in range(count)]
        self.push(tuple(reversed(values)))

    def tuple_since_mark(self) -> None:
        self.push(tuple(self._since_mark()))

    def append(self, values: list[Any]) -> None:
        self._top("APPENDS", list).extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = self._top("SETITEMS", dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            # Hashing nested values could hang, or overflow the stack of the process.
            if type(key) not in (bytes, str):
                raise PickleError(f"a key is a {type(key).__name__}, neither bytes nor text")
            target[key] = value

    def remember(self, index: int) -> None:
        value = self._pop("PUT")
        self.push(value)
        self._memo[index] = value

    def recall(self, index: int) -> None:
        if index not in self._memo:
            raise PickleError(f"the memo has no {index}")
        self.push(self._memo[index])

    # Numpy arrays and dtypes.

    def global_named(self, module: object, name: object) -> None:
        if type(module) is not str or type(name) is not str:
            raise PickleError("STACK_GLOBAL finds no names")
        if (module, name) not in _GLOBALS:
            raise PickleError(f"it asks for {module}.{name}, which plain values and arrays do not need")
        self.push(_Global(_GLOBALS[module, name]))

    def reduce(self) -> None:
        arguments, called = self._pop("REDUCE"), self._pop("REDUCE")
        match called, arguments:
            case _Global(name=name), tuple() if name == _RECONSTRUCT:
                self.push(_Array())  # its state repeats its arguments
            case _Global(name=name), (str() | bytes() as code, *_) if name == _DTYPE:
                self.push(_Type(code if isinstance(code, str) else code.decode("latin-1")))
            case _:
                raise PickleError("REDUCE finds no array and no dtype")

    def build(self) -> None:
        state, target = self._pop("BUILD"), self._pop("BUILD")
        match target, state:
            case _Type(), (int(), str() | bytes() as order, None, None, None, *_):
                target.order = order if isinstance(order, str) else order.decode("latin-1")
            case _Array(), (int(), tuple() as shape, _Type() as dtype, fortran, bytes() as raw):
                target.value = _array(shape, dtype, bool(fortran), raw)
            case _:
                raise PickleError("BUILD finds no integer array")
        self.push(target)


def _array(shape: tuple[Any, ...], dtype: _Type, fortran: bool, raw: bytes) -> "np.ndarray[Any, Any]":
    if dtype.code not in _INTEGERS or dtype.order not in ("|", "<", ">", "="):
        raise PickleError(f"an array has the type {dtype.code[:20]!r}, not integers")
    if len(shape) > _MAX_RANK or not all(type(size) is int and size >= 0 for size in shape):
        raise PickleError("an array has no proper shape")
    numpy_type = np.dtype(dtype.order + dtype.code)
    if math.prod(shape) * numpy_type.itemsize != len(raw):
        raise PickleError(f"an array of {len(raw)} bytes claims another size")
    return np.frombuffer(raw, numpy_type).reshape(shape, order="F" if fortran else "C")


def _finished(value: object) -> object:
    """Put the arrays in place, at the top level and in a dict at the top level; they occur nowhere else."""
    if isinstance(value, dict):
        return {key: _finished_array(item) for key, item in value.items()}
    return _finished_array(value)


def _finished_array(value: object) -> object:
    return value.value if isinstance(value, _Array) else value


def _integer(line: str) -> int | bool:
    """Parse the argument of INT, in which 00 and 01 mean False and True."""
    return {"00": False, "01": True}[line] if line in ("00", "01") else int(line)


_STOP = ord(".")
_ACTIONS: Mapping[str, tuple[int, Callable[[_Machine], object]]] = {
    "PROTO": (0x80, lambda m: m._take(1)),
    "FRAME": (0x95, lambda m: m._take(8)),
    "MARK": (ord("("), _Machine.mark),
    "NONE": (ord("N"), lambda m: m.push(None)),
    "NEWTRUE": (0x88, lambda m: m.push(True)),
    "NEWFALSE": (0x89, lambda m: m.push(False)),
    "INT": (ord("I"), lambda m: m.push(_integer(m._line()))),
    "BININT": (ord("J"), lambda m: m.push(m._number("<i"))),
    "BININT1": (ord("K"), lambda m: m.push(m._number("<B"))),
    "BININT2": (ord("M"), lambda m: m.push(m._number("<H"))),
    "LONG1": (0x8A, lambda m: m.push(int.from_bytes(m._take(m._number("<B")), "little", signed=True))),
    "BINSTRING": (ord("T"), lambda m: m.push(m._take(m._number("<i")))),
    "SHORT_BINSTRING": (ord("U"), lambda m: m.push(m._take(m._number("<B")))),
    "BINBYTES": (ord("B"), lambda m: m.push(m._take(m._number("<I")))),
    "SHORT_BINBYTES": (ord("C"), lambda m: m.push(m._take(m._number("<B")))),
    "BINUNICODE": (ord("X"), lambda m: m.push(m._text(m._number("<I")))),
    "SHORT_BINUNICODE": (0x8C, lambda m: m.push(m._text(m._number("<B")))),
    "EMPTY_LIST": (ord("]"), lambda m: m.push([])),
    "EMPTY_DICT": (ord("}"), lambda m: m.push({})),
    "EMPTY_TUPLE": (ord(")"), lambda m: m.push(())),
    "TUPLE": (ord("t"), _Machine.tuple_since_mark),
    "TUPLE1": (0x85, lambda m: m.tuple_of(1)),
    "TUPLE2": (0x86, lambda m: m.tuple_of(2)),
    "TUPLE3": (0x87, lambda m: m.tuple_of(3)),
    "APPEND": (ord("a"), lambda m: m.append([m._pop("APPEND")])),
    "APPENDS": (ord("e"), lambda m: m.append(m._since_mark())),
    "SETITEM": (ord("s"), lambda m: m.set_items([m._pop("SETITEM"), m._pop("SETITEM")][::-1])),
    "SETITEMS": (ord("u"), lambda m: m.set_items(m._since_mark())),
    "BINPUT": (ord("q"), lambda m: m.remember(m._number("<B"))),
    "LONG_BINPUT": (ord("r"), lambda m: m.remember(m._number("<I"))),
    "MEMOIZE": (0x94, lambda m: m.remember(len(m._memo))),
    "BINGET": (ord("h"), lambda m: m.recall(m._number("<B"))),
    "LONG_BINGET": (ord("j"), lambda m: m.recall(m._number("<I"))),
    "GLOBAL": (ord("c"), lambda m: m.global_named(m._line(), m._line())),
    "STACK_GLOBAL": (0x93, lambda m: m.global_named(*[m._pop("STACK_GLOBAL") for _ in range(2)][::-1])),
    "REDUCE": (ord("R"), _Machine.reduce),
    "BUILD": (ord("b"), _Machine.build),
}
_OPCODES = {code: (name, act) for name, (code, act) in _ACTIONS.items()}
