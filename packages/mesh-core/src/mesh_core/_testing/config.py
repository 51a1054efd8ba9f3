"""Decorators that run a test under several settings, based on pytest's parametrization."""

from __future__ import annotations

import functools
import inspect
from itertools import product
from typing import Any

import pytest

from mesh_core._configuration.config import configured
from mesh_core._configuration.settings import SETTINGS
from mesh_core._errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["parametrize_config", "parametrize_config_pointwise"]

_ARGUMENT = "mesh_config"


def parametrize_config(**choices: Iterable[Any]) -> Callable[[Any], Any]:
    """Run a test under every combination of these settings.

    Example:
        `@parametrize_config(process_start={"fork", "exec"}, log_prefix=[True, False])` runs the
        test four times.

    Args:
        choices: The values to test for each setting. The values of a set are sorted by their reprs.

    Raises:
        ConfigError: A setting is unknown, or a value is invalid.
    """
    columns = [_in_order(values) for values in choices.values()]
    return _under([dict(zip(choices, row, strict=True)) for row in product(*columns)])


def parametrize_config_pointwise(**choices: Sequence[Any]) -> Callable[[Any], Any]:
    """Run a test under the first value of each setting, then under the second, and so on.

    Args:
        choices: The values to test for each setting; the same number of values for each.

    Raises:
        ConfigError: A setting is unknown, a value is invalid, or the settings have different
            numbers of values.
    """
    if len({len(values) for values in choices.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(values)}" for name, values in choices.items())
        raise ConfigError(f"settings have different numbers of values ({lengths}): make them equal")
    rows = zip(*choices.values(), strict=True)
    return _under([dict(zip(choices, row, strict=True)) for row in rows])


def _in_order(values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=repr) if isinstance(values, (set, frozenset)) else list(values)


def _under(cases: list[dict[str, Any]]) -> Callable[[Any], Any]:
    """Return a decorator that runs a test once per case."""
    for case in cases:
        configured(**case)  # validates the settings when the test is defined

    def decorate(test: Any) -> Any:
        if inspect.iscoroutinefunction(test):

            async def run_async(*args: Any, mesh_config: Mapping[str, Any], **kwargs: Any) -> None:
                with configured(**mesh_config):
                    await test(*args, **kwargs)

            shown: Any = functools.wraps(test)(run_async)

        else:

            def run(*args: Any, mesh_config: Mapping[str, Any], **kwargs: Any) -> None:
                with configured(**mesh_config):
                    test(*args, **kwargs)

            shown = functools.wraps(test)(run)

        shown.__signature__ = _with_argument(inspect.signature(test))
        return pytest.mark.parametrize(_ARGUMENT, cases, ids=_name)(shown)

    return decorate


def _with_argument(signature: inspect.Signature) -> inspect.Signature:
    extra = inspect.Parameter(_ARGUMENT, inspect.Parameter.KEYWORD_ONLY)
    return signature.replace(parameters=[*signature.parameters.values(), extra])


def _name(case: Mapping[str, Any]) -> str:
    return "-".join(f"{name}={value}" for name, value in case.items() if name in SETTINGS)
