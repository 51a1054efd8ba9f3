"""The default logger of an actor, and actors that define another one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import Actor, endpoint

if TYPE_CHECKING:
    from mesh_core import ProcMesh


class Default(Actor):
    """Defines no logger."""

    @endpoint
    def logger_name(self) -> str:
        return self.logger.name


class Assigning(Default):
    """Assigns a logger, as many programs do."""

    def __init__(self) -> None:
        self.logger = logging.getLogger("assigned")


class AssigningAnything(Default):
    """Assigns an object that is not a `logging.Logger`."""

    def __init__(self) -> None:
        self.logger = logging.LoggerAdapter(logging.getLogger("adapted"))


class Defining(Default):
    """Defines a logger for the class."""

    logger: Any = logging.getLogger("defined")


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (Default, "Default"),
        (Assigning, "assigned"),
        (AssigningAnything, "adapted"),
        (Defining, "defined"),
    ],
)
def test_a_logger_defined_by_the_actor_takes_precedence(
    proc: ProcMesh, cls: type[Default], name: str
) -> None:
    assert proc.spawn("logging", cls).logger_name.call_one().get() == name
