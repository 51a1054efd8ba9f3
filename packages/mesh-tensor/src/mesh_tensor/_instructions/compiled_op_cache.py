"""The compiled ops that the program uses, by key and by number.

The cache is bounded, so that a program whose shapes change at each step does not accumulate
compiled ops. When the limit is exceeded, the older half is evicted; an evicted compiled op is
compiled again when it is needed again. A compiled op is removed here and in the processes when
nothing refers to its `CacheEntry` any more and all of its operations are done.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

from mesh_tensor._instructions.compiled_op import CompiledOp, Eviction
from mesh_tensor._instructions.results import NewTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._instructions.instruction_stream import InstructionStream
    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._simulator.simulated_engine import Simulated
    from mesh_tensor._tensor.meta import Meta

__all__ = ["CacheEntry", "CompiledOpCache"]

#: The maximum number of cached compiled ops.
_COMPILED_OPS_MAX = 4096


class CacheEntry:
    """A compiled op as the controller uses it: its opcode, and how to create the results.

    Attributes:
        opcode: The number of the compiled op in the instruction stream.
        reshaped: The operands whose metadata it changes: index, new metadata, and the operand whose
            storage they share then.
        is_scalar: Whether all operands and results are scalars that the program can evaluate
            itself.
        parts: The return value; see `OpResult`.
        meta: The metadata of the result, if the result is a single new tensor.
        aliased: The index of the operand whose storage this tensor shares.
    """

    __slots__ = ("_retired", "aliased", "is_scalar", "meta", "opcode", "parts", "reshaped")

    def __init__(self, opcode: int, parts: Any, retired: list[int]) -> None:
        self.opcode = opcode
        self.reshaped: Sequence[tuple[int, Meta, int | None]] = ()
        self.is_scalar: bool | None = None
        self._retired = retired
        self.learn(parts)

    def learn(self, parts: Any) -> None:
        """Set the description of the return value."""
        self.parts = parts
        is_single = type(parts) is NewTensor
        self.meta: Meta | None = parts.meta if is_single else None
        self.aliased: int | None = parts.aliased if is_single else None

    def __del__(self) -> None:
        self._retired.append(self.opcode)


class CompiledOpCache:
    """The compiled ops of one engine.

    Args:
        stream: The instruction stream that sends them.
        simulated: The simulation, if any. It is notified of each compiled op and determines its
            results, because no process does so.
    """

    def __init__(self, stream: InstructionStream, simulated: Simulated | None = None) -> None:
        self._stream = stream
        self._simulated = simulated
        #: By key.
        self.entries: dict[tuple[Any, ...], CacheEntry] = {}
        #: By opcode.
        self.compiled_ops: dict[int, CompiledOp] = {}
        self._opcodes = itertools.count(1)
        #: Opcodes of compiled ops that can no longer be issued. Finalizers append to it at any
        #: time.
        self._retired: list[int] = []
        #: The opcodes that the processes remove, and the number of operations issued by then.
        self._evicted: deque[tuple[int, list[int]]] = deque()

    def define(
        self, key: tuple[Any, ...] | None, mesh: DeviceMesh, parts: Any, **fields: Any
    ) -> CacheEntry:
        """Add a compiled op.

        Raises:
            MeshError: The processes have exited.
        """
        with self._stream.lock:
            made = CompiledOp(
                opcode=next(self._opcodes),
                ranks=mesh._encoded,
                stream_number=mesh._stream_slots.number,
                **fields,
            )
            self.compiled_ops[made.opcode] = made
            self._stream.define(made)
            entry = CacheEntry(made.opcode, parts, self._retired)
            if self._simulated is not None:
                self._simulated.add(made, entry)
            if key is not None:
                self.entries[key] = entry
                if len(self.entries) > _COMPILED_OPS_MAX:
                    for old in list(itertools.islice(self.entries, _COMPILED_OPS_MAX // 2)):
                        del self.entries[old]
            if self._retired:
                self._evict_retired()
        return entry

    def _evict_retired(self) -> None:
        """Remove compiled ops that can no longer be issued, also in the processes.

        The caller holds the lock.
        """
        while self._evicted and self._evicted[0][0] <= self._stream.done:
            for opcode in self._evicted.popleft()[1]:
                self.compiled_ops.pop(opcode, None)
        if len(self._retired) < _COMPILED_OPS_MAX // 8:
            return
        # The operations that use these compiled ops must be in earlier batches.
        self._stream.flush()
        count = len(self._retired)
        opcodes = self._retired[:count]
        del self._retired[:count]
        self._stream.define(Eviction(tuple(opcodes)))
        self._evicted.append((self._stream.issued, opcodes))
