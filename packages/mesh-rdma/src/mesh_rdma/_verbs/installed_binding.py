"""The installed binding of libibverbs. Both packages with a binding are optional."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_rdma._verbs.ports import NoUsablePortError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_rdma._verbs.binding import Binding

__all__ = ["installed_binding"]

_make: Callable[[], Binding] | None = None
#: The reason why the preferred binding cannot be used.
_why = ""

try:
    from mesh_rdma._verbs.ibverbs_binding import IbverbsBinding

    _make = IbverbsBinding
except ImportError as error:
    _why = str(error)

if _make is None:
    try:
        from mesh_rdma._verbs.pyverbs_binding import PyverbsBinding

        _make = PyverbsBinding
    except ImportError:
        pass


def installed_binding() -> Binding:
    """Return the installed binding of libibverbs.

    Raises:
        NoUsablePortError: No binding is installed.
    """
    if _make is None:
        raise NoUsablePortError(
            f"there is no binding of libibverbs ({_why}): install torchmesh-rdma[verbs] and "
            "libibverbs1"
        )
    return _make()
