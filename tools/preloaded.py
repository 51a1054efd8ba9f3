"""Processes of tests are forked with the test's modules: `pytest -p tools.preloaded`.

Mesh imports the modules that `__main__` uses once, before it forks processes. In a test run
`__main__` is pytest, so each process would import the test file, and pytest with it. A conftest.py
can request more modules with a fixture `preloaded_too` of session scope.
"""

import sys
import sysconfig
from collections.abc import Iterator
from types import ModuleType

import pytest

_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


@pytest.fixture(scope="session")
def preloaded_too() -> tuple[str, ...]:
    """Names of modules that processes of all test files need."""
    return ()


@pytest.fixture(scope="module", autouse=True)
def preloaded(request: pytest.FixtureRequest, preloaded_too: tuple[str, ...]) -> Iterator[None]:
    """Preload the modules whose actors a test file uses, if any."""
    core = sys.modules.get("mesh_core")
    names = actor_modules(request.module) if core is not None else ()
    if core is None or not names:
        yield
        return
    with core.configured(preload=(*preloaded_too, *names)):
        yield


def actor_modules(module: ModuleType) -> tuple[str, ...]:
    """Return all modules that define actors, among this module and the modules that it uses."""
    values = list(vars(module).values())
    sources = (sys.modules.get(getattr(value, "__module__", None) or "") for value in values)
    imported = (value for value in values if isinstance(value, ModuleType))
    used = dict.fromkeys(one for one in (module, *sources, *imported) if one is not None)
    return tuple(one.__name__ for one in used if _defines_actors(one))


def _defines_actors(module: ModuleType) -> bool:
    # Reading the attributes of a library may have side effects, such as a warning.
    path = getattr(module, "__file__", None) or ""
    if path.startswith(_LIBRARIES) or module.__name__.startswith("mesh_"):
        return False
    actor = sys.modules["mesh_core"].Actor
    return any(
        isinstance(value, type) and issubclass(value, actor) and value.__module__ == module.__name__
        for value in list(vars(module).values())
    )
