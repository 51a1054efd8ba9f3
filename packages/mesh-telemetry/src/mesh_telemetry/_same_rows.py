"""Answers that are good as long as the rows are the same."""

from __future__ import annotations

import re
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from mesh_telemetry._fragment import Fragment

    Tables = Mapping[str, list[pa.RecordBatch]]

__all__ = ["SameRows"]

_ANSWERS_MAX = 64
_BODY_LEN_MAX = 64 * 1024
_BATCHES_MAX = 4096
# What does not depend on rows alone.
_OTHERWISE = re.compile(r"\b(?:now|today|random|uuid|current_\w+)\b", re.IGNORECASE)


class _Kept(NamedTuple):
    batches: tuple[weakref.ref[pa.RecordBatch], ...]
    body: bytes


class SameRows:
    """Keeps the last answers of a host, for who asks the same again while nothing has happened.

    Rows are the same when they are the very same batches: nobody changes one, and what is made anew
    is another one. Batches are not kept alive by this.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[object, _Kept] = OrderedDict()
        self._turn = threading.Lock()

    def answer(self, fragment: Fragment, tables: Tables) -> bytes | None:
        """Gives what the fragment was answered over these rows; None when it was not."""
        with self._turn:
            kept = self._kept.get(_key(fragment))
        if kept is None:
            return None
        batches = _batches(tables)
        if len(batches) != len(kept.batches):
            return None
        is_same = all(ref() is batch for ref, batch in zip(kept.batches, batches, strict=True))
        return kept.body if is_same else None

    def keep(self, fragment: Fragment, tables: Tables, body: bytes) -> None:
        """Notes an answer, if it is one that depends on rows alone, and short."""
        batches = _batches(tables)
        if (
            fragment.values
            or len(body) > _BODY_LEN_MAX
            or len(batches) > _BATCHES_MAX
            or _OTHERWISE.search(fragment.sql)
        ):
            return
        key = _key(fragment)
        with self._turn:
            self._kept[key] = _Kept(tuple(map(weakref.ref, batches)), body)
            self._kept.move_to_end(key)
            while len(self._kept) > _ANSWERS_MAX:
                self._kept.popitem(last=False)


def _key(fragment: Fragment) -> object:
    names = tuple(added.name for added in fragment.added)
    limits = fragment.rows_max, fragment.memory_max_bytes
    return fragment.sql, fragment.tables, names, bool(fragment.values), limits


def _batches(tables: Tables) -> list[pa.RecordBatch]:
    return [batch for batches in tables.values() for batch in batches]
