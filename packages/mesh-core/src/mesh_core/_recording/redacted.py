"""The marker that a recording contains in place of a redacted value."""

from __future__ import annotations

from mesh_core._recording.errors import ValueRedacted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["Redacted"]


class Redacted:
    """A value that was redacted. It can be passed on and printed; any other use is an error.

    Args:
        field: The name of the argument, of the key or of the environment variable.
    """

    __slots__ = ("_field",)

    def __init__(self, field: str) -> None:
        self._field = field

    def __repr__(self) -> str:
        return "<redacted>"

    def __reduce__(self) -> Any:
        return Redacted, (self._field,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Libraries look for optional protocols in this way.
            raise AttributeError(name)
        self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        raise ValueRedacted(
            f"the value of {self._field!r} is not in the recording, because the setting "
            "record_redact names it: a replay cannot use the value"
        )

    # Python looks for these methods in the class.
    __abs__ = __add__ = __and__ = __bool__ = __bytes__ = __call__ = __contains__ = _refuse
    __delitem__ = __divmod__ = __enter__ = __eq__ = __float__ = __floordiv__ = _refuse
    __ge__ = __getitem__ = __gt__ = __hash__ = __index__ = __int__ = __invert__ = _refuse
    __iter__ = __le__ = __len__ = __lt__ = __matmul__ = __mod__ = __mul__ = __ne__ = _refuse
    __neg__ = __next__ = __or__ = __pow__ = __radd__ = __rmul__ = __rsub__ = _refuse
    __setitem__ = __sub__ = __truediv__ = __xor__ = __fspath__ = __buffer__ = _refuse
