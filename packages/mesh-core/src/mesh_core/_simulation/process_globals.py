"""Module variables of `mesh_core` that belong to one of the many processes of a simulation.

They are exchanged whenever a thread of another process runs. Code that runs in a real process
therefore needs no indirection.
"""

from __future__ import annotations

from mesh_core._calls import deadlock, event_loop, port_holders, reduction
from mesh_core._configuration import config
from mesh_core._runtime import runtime
from mesh_core._supervision import policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

__all__ = ["ProcessGlobals"]


def _nothing() -> None:
    return None


def _refuse_start() -> None:
    raise RuntimeError("the job of the simulation has ended: use another simulation")


# The modules, the names of their variables, and the functions that create the initial values.
_VARIABLES: list[tuple[ModuleType, str, Callable[[], object]]] = [
    (runtime, "_current", _nothing),
    (config, "_layers", config._Layers),
    (runtime, "_start", lambda: _refuse_start),
    (runtime, "_followers", list),
    (policy, "_hook", lambda: policy.unhandled_fault_hook),
    (event_loop, "_thread", _nothing),
    (deadlock, "_set_up", _nothing),
    (deadlock, "_waits", set),
    (deadlock, "_ticking", set),
    (reduction, "_served", dict),
    (port_holders, "holders", dict),
    (port_holders, "_coming", dict),
    (port_holders, "_early", dict),
    (port_holders, "_handed_on", dict),
]
_PLACES: list[tuple[dict[str, Any], str]] = [(vars(owner), name) for owner, name, _ in _VARIABLES]


class ProcessGlobals:
    """The variables of one process.

    Only one set is active at a time. The values of the others are kept in their objects.
    """

    _active: ProcessGlobals

    def __init__(self) -> None:
        self._values: list[object] = [create() for _, _, create in _VARIABLES]

    @staticmethod
    def of_this_process() -> ProcessGlobals:
        """Return the set of the real process, which is active."""
        real = ProcessGlobals()
        ProcessGlobals._active = real
        return real

    def activate(self) -> None:
        """Make this set the active one."""
        active = ProcessGlobals._active
        if active is self:
            return
        active._values = [namespace[name] for namespace, name in _PLACES]
        for (namespace, name), value in zip(_PLACES, self._values, strict=True):
            namespace[name] = value
        ProcessGlobals._active = self

    def value(self, name: str) -> object:
        """Return a variable of a process that is not active."""
        index = [one for _, one, _ in _VARIABLES].index(name)
        return self._values[index]

    def inherit_configuration(self, mailbox_len: int | None) -> None:
        """Use the settings of the active set, as the program of a simulation does.

        Args:
            mailbox_len: The length of mailboxes. Default: the length in these settings.
        """
        settings = config.effective().as_mapping()
        if mailbox_len is not None:
            settings = {**settings, "mailbox_len_max": mailbox_len}
        layers = config._Layers()
        layers.set_inherited(config._read(settings))
        self._values[1] = layers
