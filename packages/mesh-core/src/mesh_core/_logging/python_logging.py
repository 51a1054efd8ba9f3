"""The standard `logging` module in processes of a mesh."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import Any

__all__ = ["logger_of_class", "set_level", "warn"]


def logger_of_class(cls: type) -> logging.Logger:
    """Return the logger of an actor class, which passes on the records of every level."""
    module = _load()
    logger: logging.Logger = module.getLogger(cls.__name__)
    logger.setLevel(module.DEBUG)
    return logger


def set_level(level: int) -> None:
    """Set the level of the records that this process prints."""
    module = _load()
    module.getLogger().setLevel(level)
    if module.lastResort is not None:
        # The loggers of actors have separate levels.
        module.lastResort.setLevel(level)


def warn(message: str) -> None:
    """Log a warning of Mesh itself; unless the program configures logging, to stderr."""
    _load().getLogger("mesh_core").warning("%s", message)


def _load() -> Any:
    """Import `logging`, which takes an eighth of the import time of Mesh, on first use."""
    import logging  # noqa: PLC0415

    return logging
