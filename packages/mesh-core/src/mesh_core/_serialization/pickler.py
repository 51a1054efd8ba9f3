"""Serialization of arguments and results, with large payloads as separate buffers.

`encode` produces a pickle (protocol 5) and a list of buffers. Small values stay in the pickle.
Large values are not copied here: a buffer that an object exports (numpy, torch, anything that
pickles through `PickleBuffer`) is passed on as it is. The same holds for a large `bytes`,
`bytearray` or `str` at any depth, because the C pickler passes it to its file as a separate object,
and the file here is a list. `decode` reads such a stream piece by piece, so a large `bytes` is
copied only once, out of the buffer in which it arrived.

A body has one of two forms. It is a plain pickle, or it is a splice, which starts with the byte 0,
followed by the number of pieces (u32), the length of the inline stream before each piece (u64), and
the inline stream. In a splice, the first buffers are the pieces.

Functions and classes that the other side cannot import are pickled by value: objects defined in
`__main__`, local ones, lambdas, and objects of modules registered with cloudpickle. cloudpickle is
imported when the first such object is pickled.
"""

from __future__ import annotations

import sys

# Import only the C module: `pickle` also imports its Python implementation, and `re` with it.
from _pickle import PickleBuffer, Pickler, Unpickler, dumps, loads
from copyreg import dispatch_table
from types import (
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MethodType,
    ModuleType,
)

from mesh_core._core import SharedBuffer, copy_fresh
from mesh_core._errors import Unpicklable
from mesh_core._serialization.arrays import array_reducers
from mesh_core._serialization.classes import (
    find_pickled_class,
    keep_pickled_class,
    load_pickled_class,
)
from mesh_core._serialization.error_path import unpicklable
from mesh_core._serialization.tensors import Spans, tensor_reducers
from mesh_core._tensor_engine import RequiresTensorEngine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from typing_extensions import Buffer

    from mesh_core._meshes.spawn_request import SpawnRequest
    from mesh_core._serialization.arrays import Reducer
    from mesh_core._serialization.classes import PickledClass


__all__ = ["decode", "encode", "encode_request", "encode_value", "is_importable"]

_PROTOCOL = 5
# What cloudpickle writes instead of the file of a code object.
_NO_FILE = "<dynamic-code>"
# Minimum length in bytes at which huge pages are worthwhile for new memory.
_HUGE_LEN = 4 << 20
_PLAIN = 0x80  # every pickle of this protocol starts with this byte
_SPLICED = b"\x00"
# Maximum number of buffers in a frame. If a message has more large values, the others stay in its
# stream, which is sent beside the body as a single piece.
_BUFFERS_LEN_MAX = 255
_ATOMS = frozenset({int, float, bool, complex, type(None)})
# Opcodes before a payload that the pickler writes separately; its length follows in 8 or 4 bytes.
_LONG_HEADS = frozenset({b"\x8e", b"\x96", b"\x8d"})
_SHORT_HEADS = frozenset({b"B", b"X"})


def encode(
    args: tuple[Any, ...], kwargs: dict[str, Any], threshold: int, names: Sequence[str] = ()
) -> tuple[bytes, list[memoryview]]:
    """Encode the arguments of a call as a body and separate buffers.

    Args:
        args: The positional arguments.
        kwargs: The keyword arguments.
        threshold: Minimum size in bytes of buffers that are sent beside the body.
        names: The names of the positional parameters, for error messages.

    Returns:
        The body, which `decode` turns into `(args, kwargs)`, and contiguous byte views that share
        memory with the arguments. Copy or send the views before control returns to the caller.

    Raises:
        Unpicklable: An argument contains an object that cannot be pickled; the message contains its
            path.
        RequiresTensorEngine: An argument contains an object that only the tensor layer can send.
    """
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind not in _ATOMS and not ((kind is str or kind is bytes) and len(value) < threshold):
            break
    else:
        return dumps((args, kwargs), _PROTOCOL), []
    known = len(_reducers)
    try:
        return _encode((args, kwargs), threshold)
    except (MemoryError, RequiresTensorEngine):
        raise
    except Exception as error:
        if _adopt_cloudpickle() > known:
            return encode(args, kwargs, threshold, names)
        raise unpicklable((args, kwargs), error, _probe, names) from None


def encode_value(
    value: object, threshold: int, what: str = "value"
) -> tuple[bytes, list[memoryview]]:
    """Encode one value, such as a result or a message, as a body and separate buffers.

    Args:
        value: The value to send.
        threshold: Minimum size in bytes of buffers that are sent beside the body.
        what: A noun for the value, for error messages.

    Raises:
        Unpicklable: The value contains an object that cannot be pickled; the message contains its
            path.
    """
    kind = type(value)
    if kind in _ATOMS or ((kind is str or kind is bytes) and len(value) < threshold):  # type: ignore[arg-type]
        return dumps(value, _PROTOCOL), []
    known = len(_reducers)
    try:
        return _encode(value, threshold)
    except MemoryError:
        raise
    except Exception as error:
        if _adopt_cloudpickle() > known:
            return encode_value(value, threshold, what)
        raise unpicklable(value, error, _probe, what=what) from None


def encode_request(request: SpawnRequest, threshold: int) -> tuple[bytes, list[memoryview]]:
    """Encode a spawn request as a body and separate buffers.

    Args:
        request: The actor class and the arguments of its `__init__`.
        threshold: Minimum size in bytes of buffers that are sent beside the body.

    Raises:
        Unpicklable: An argument contains an object that cannot be pickled; the message contains its
            path.
    """
    try:
        return encode_value(request, threshold)
    except Unpicklable as error:
        # The search starts with the arguments, so that the path contains their names.
        init = getattr(request.cls, "__init__", None)
        code = getattr(init, "__code__", None)
        names = () if code is None else code.co_varnames[1 : code.co_argcount]
        arguments = (request.args, request.kwargs)
        try:
            _probe(arguments)
        except Exception as refusal:
            raise unpicklable(arguments, refusal, _probe, names) from None
        # The class itself cannot be pickled.
        raise error from None


def decode(body: bytes | memoryview, buffers: Sequence[Buffer] = ()) -> Any:
    """Decode the value of a body and its buffers.

    Arrays share memory with the buffers, and are writable if the buffers are.

    Args:
        body: The body from `encode` or `encode_value`.
        buffers: The buffers, in the original order.

    Raises:
        Exception: Any exception that unpickling an object raises, for example `ModuleNotFoundError`
            if the module of its class does not exist.
    """
    if body[0] == _PLAIN:
        return loads(body, buffers=buffers)
    return _decode_spliced(memoryview(body), buffers)


class _Chunks(list["Buffer | PickleBuffer"]):
    """A file for the pickler that stores each chunk of the stream without copying it."""

    __slots__ = ()
    write = list.append


class _Pickler(Pickler):
    """The C pickler, which calls Python only for objects that are not plain data.

    Attributes:
        spans: The storages of the tensors in the message.
        packing: The classes that are currently being packed, outermost first.
        parts: The functions, classes and pickled classes that were packed with the innermost class.
        inlined: Classes that depend on a class that is being packed and therefore have no parcel.
    """

    spans: Spans | None = None
    packing: tuple[type, ...] = ()
    parts: list[Any]
    inlined: set[type]
    is_circular = False
    _cloudpickle: Any = None

    def reducer_override(self, value: Any) -> Any:
        """Return the reduction of a value, or leave it to the C pickler."""
        kind = type(value)
        reduce = _reducers.get(kind)
        if reduce is not None:
            return reduce(self, value)
        if kind is FunctionType or issubclass(kind, type):
            return NotImplemented if is_importable(value) else self.reduce_by_value(value)
        if kind.__module__ in _unadopted:
            _reducers.update(_unadopted.pop(kind.__module__)())
            return self.reducer_override(value)
        return NotImplemented

    def reduce_by_value(self, value: Any) -> Any:
        """Reduce a class to its pickled form, and any other object as cloudpickle does."""
        if issubclass(type(value), type):
            if value not in self.packing:
                pickled = find_pickled_class(value) or self._pack(value)
                if pickled is not None:
                    if self.packing:
                        self.parts.append(pickled)
                    return load_pickled_class, (pickled.key, pickled.body)
            elif value is not self.packing[-1]:
                self.is_circular = True
        if self.packing and (type(value) is FunctionType or issubclass(type(value), type)):
            self.parts.append(value)
        return self._reduce_by_cloudpickle(value)

    def _reduce_by_cloudpickle(self, value: Any) -> Any:
        if self._cloudpickle is None:
            # Use one cloudpickle pickler per message, so that functions continue to share their
            # globals.
            self._cloudpickle = _load_cloudpickle().Pickler(_Chunks(), _PROTOCOL)
        reduced = self._cloudpickle.reducer_override(value)
        if reduced is NotImplemented:
            reduce = self._cloudpickle.dispatch_table.get(type(value))
            if reduce is None:
                return NotImplemented
            reduced = reduce(value)
            return _with_file(value, reduced) if type(value) is CodeType else reduced
        return reduced

    def _pack(self, cls: type) -> PickledClass | None:
        """Pack a class, unless cloudpickle knows it by name or it is part of a cycle."""
        if cls.__module__ == "builtins" or (self.packing and cls in self.inlined):
            return None
        pickler = _Pickler(chunks := _Chunks(), _PROTOCOL)
        pickler.packing = (*self.packing, cls)
        pickler.parts = []
        pickler.inlined = self.inlined if self.packing else set()
        pickler.dump(cls)
        if pickler.is_circular:
            # Its pickle refers to an enclosing class that is not complete yet.
            pickler.inlined.add(cls)
            return None
        return keep_pickled_class(cls, b"".join(chunks), pickler.parts)


def _encode(
    value: object, threshold: int, spans: Spans | None = None
) -> tuple[bytes, list[memoryview]]:
    chunks = _Chunks()
    buffers: list[memoryview] = []

    def stays(buffer: PickleBuffer) -> bool:
        """Return whether a buffer stays in the pickle; otherwise, add it to the buffers."""
        raw = buffer.raw()
        if raw.nbytes < threshold or len(buffers) >= _BUFFERS_LEN_MAX // 2:
            return True
        buffers.append(raw)
        return False

    pickler = _Pickler(chunks, _PROTOCOL, buffer_callback=stays)
    if spans is not None:
        pickler.spans = spans
    pickler.dump(value)
    if pickler.spans is not None and pickler.spans.trim():
        return _encode(value, threshold, pickler.spans)
    if len(chunks) == 1 and len(chunks[0]) < threshold:  # type: ignore[arg-type]
        return chunks[0], buffers  # type: ignore[return-value]
    return _splice(chunks, buffers, threshold)


def _probe(value: object) -> None:
    """Raise the exception of pickling this value alone; copies as little as possible."""
    _encode(value, 1)


def _splice(
    chunks: _Chunks, buffers: list[memoryview], threshold: int
) -> tuple[bytes, list[memoryview]]:
    """Split a stream into the part that stays in the body and the pieces sent beside it."""
    pieces: list[memoryview] = []
    inline: list[Any] = []
    lengths: list[int] = []
    run: list[Any] = []
    run_len = 0
    inline_len = 0

    def end_run() -> None:
        nonlocal run, run_len, inline_len
        if run_len >= threshold:
            pieces.append(memoryview(run[0] if len(run) == 1 else b"".join(run)))
            lengths.append(inline_len)
            inline_len = 0
        else:
            inline.extend(run)
            inline_len += run_len
        run, run_len = [], 0

    # Each payload may also end a run that becomes a piece, and so may the end of the stream.
    payloads_left = (_BUFFERS_LEN_MAX - len(buffers) - 1) // 2
    before: Any = None
    for chunk in chunks:
        size = memoryview(chunk).nbytes
        if size >= threshold and payloads_left and _announces(before, size):
            payloads_left -= 1
            end_run()
            pieces.append(memoryview(chunk).cast("B"))
            lengths.append(inline_len)
            inline_len = 0
        else:
            run.append(chunk)
            run_len += size
        before = chunk
    end_run()
    if not pieces:
        return b"".join(inline), buffers
    head = b"".join(length.to_bytes(8, "little") for length in lengths)
    count = len(pieces).to_bytes(4, "little")
    return b"".join((_SPLICED, count, head, *inline)), pieces + buffers


def _announces(chunk: Any, size: int) -> bool:
    """Return whether a chunk ends with the header of a payload of `size` bytes.

    A payload is passed on without copying; other chunks are joined first. Mistaking one for the
    other costs only a copy, because the reader joins whatever was split here.
    """
    if type(chunk) is not bytes:
        return False
    if size < 1 << 32 and chunk[-5:-4] in _SHORT_HEADS:
        return chunk[-4:] == size.to_bytes(4, "little")
    return chunk[-9:-8] in _LONG_HEADS and chunk[-8:] == size.to_bytes(8, "little")


def _decode_spliced(body: memoryview, buffers: Sequence[Buffer]) -> Any:
    count = int.from_bytes(body[1:5], "little")
    rest = 5 + 8 * count
    if body[:1] != _SPLICED or len(body) < rest or len(buffers) < count:
        raise ValueError("body was not created by encode: pass the body with its own buffers")
    parts: list[memoryview] = []
    for at, piece in zip(range(5, rest, 8), buffers, strict=False):
        length = int.from_bytes(body[at : at + 8], "little")
        # A read-only buffer does not have to be checked for writes when it is released.
        source = piece.frozen() if type(piece) is SharedBuffer else piece
        parts += (body[rest : rest + length], memoryview(source).cast("B"))
        rest += length
    parts = [part for part in (*parts, body[rest:]) if part]
    beside = buffers[count:]
    if len(parts) == 1:
        return loads(parts[0], buffers=beside)
    # The unpickler accepts any buffer from its file, but its stubs do not declare this.
    reader: Any = _SplicedReader(parts)
    return Unpickler(reader, buffers=beside).load()


class _SplicedReader:
    """A file for the unpickler over the parts of a stream; returns views instead of copies."""

    __slots__ = ("_at", "_parts")

    def __init__(self, parts: list[memoryview]) -> None:
        self._parts = parts[::-1]
        self._at = 0

    def peek(self, _size: int) -> memoryview:
        """Return the rest of the current part without advancing."""
        return self._parts[-1][self._at :] if self._parts else memoryview(b"")

    def read(self, size: int) -> bytes | memoryview:
        """Return the next bytes, without copying if a single part contains them all."""
        if not self._parts:
            return b""
        part, start = self._parts[-1], self._at
        end = start + size
        if end < len(part):
            self._at = end
            return part[start:end]
        self._parts.pop()
        self._at = 0
        if end == len(part):
            return part[start:]
        return b"".join((part[start:], self.read(end - len(part))))

    def readinto(self, target: memoryview) -> int:
        """Fill the target with the next bytes; this is the only copy of a large `bytes`."""
        data = self.read(target.nbytes)
        if len(data) < _HUGE_LEN:
            target[: len(data)] = data
        else:
            copy_fresh(target, data)
        return len(data)

    def readline(self) -> bytes:
        """Return the bytes up to the next line end; protocol 5 never calls this."""
        line = bytearray()
        while byte := self.read(1):
            line += byte
            if byte == b"\n":
                break
        return bytes(line)


def is_importable(value: Any) -> bool:
    """Return whether the other side can import this function or class by its name."""
    name = value.__module__
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return False
    found: Any = module
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not value:
        # The types of None, ... and NotImplemented have no importable name, but pickle handles
        # them.
        return name == "builtins" and value in _SINGLETON_TYPES
    cloudpickle = sys.modules.get("cloudpickle")
    if not hasattr(cloudpickle, "list_registry_pickle_by_value"):
        # cloudpickle is not imported, or another thread is importing it: no module is registered.
        return True
    return not _is_sent_by_value(name, cloudpickle)


def _is_sent_by_value(name: str, cloudpickle: Any) -> bool:
    """Return whether a module, or an enclosing package, is registered for pickling by value."""
    registered = cloudpickle.list_registry_pickle_by_value()
    if not registered:
        return False
    parts = name.split(".")
    return any(".".join(parts[:end]) in registered for end in range(len(parts), 0, -1))


def _with_file(code: CodeType, reduced: Any) -> Any:
    """Keep the file of a code object, which tracebacks and stacks show.

    cloudpickle 3.1.3 replaces its name, so that pickles of notebook cells are always the same.
    """
    make, arguments = reduced
    return make, tuple(code.co_filename if one == _NO_FILE else one for one in arguments)


def _load_cloudpickle() -> Any:
    """Import cloudpickle lazily, because its import costs as much as all other imports together."""
    import cloudpickle  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415

    return cloudpickle


def _adopt_cloudpickle() -> int:
    """Adopt the reducers of cloudpickle for unknown types; return the total number of reducers.

    If two threads do this at the same time, both see the number increase.
    """
    known = _load_cloudpickle().Pickler.dispatch_table
    unknown = [kind for kind in known if kind not in _reducers and kind not in dispatch_table]
    _reducers.update(dict.fromkeys(unknown, _reduce_by_value))
    return len(_reducers)


def _reduce_by_value(pickler: _Pickler, value: object) -> Any:
    return pickler.reduce_by_value(value)


def _reduce_method(_pickler: _Pickler, value: MethodType) -> Any:
    return _method, (value.__func__, value.__self__)


def _method(function: Any, owner: object) -> MethodType:
    return MethodType(function, owner)


def _reduce_memoryview(_pickler: _Pickler, value: memoryview) -> Any:
    flat = value if value.contiguous else memoryview(value.tobytes())
    return _view, (PickleBuffer(flat), value.format, value.shape)


def _view(buffer: Buffer, code: str, shape: tuple[int, ...]) -> memoryview:
    flat = memoryview(buffer).cast("B")
    return flat if (code, len(shape)) == ("B", 1) else flat.cast(code, shape)  # type: ignore[call-overload]


def _typing_reducers() -> dict[type, Reducer]:
    return {sys.modules["typing"].TypeVar: _reduce_by_value}


_SINGLETON_TYPES = frozenset({type(None), type(...), type(NotImplemented)})
# Reducers for objects that the C pickler does not support, by exact type.
_reducers: dict[type, Reducer] = {
    MethodType: _reduce_method,
    memoryview: _reduce_memoryview,
    **dict.fromkeys(
        (
            CellType,
            CodeType,
            GetSetDescriptorType,
            MappingProxyType,
            ModuleType,
            classmethod,
            property,
            staticmethod,
            type({}.keys()),
            type({}.values()),
            type({}.items()),
        ),
        _reduce_by_value,
    ),
}
# Factories of reducers by module, called when a type of the module is first pickled, so that a
# program without torch does not pay for them.
_unadopted = {
    "numpy": array_reducers,
    "torch": tensor_reducers,
    "torch.nn.parameter": tensor_reducers,
    "torch.storage": tensor_reducers,
    "typing": _typing_reducers,
}
