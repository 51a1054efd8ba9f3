"""Each wheel installs its own layer and no other: users install only what they need."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.layers.conftest import Install, Wheels
from tools.workspace import package

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Promise:
    """The packages that an installation brings, and the modules that it must not bring."""

    distribution: str
    #: All packages that may be installed; None if an upstream project determines the list.
    brings: frozenset[str] | None
    #: Modules that must not be importable afterwards.
    lacks: frozenset[str]

    @property
    def import_name(self) -> str:
        """The module that users import."""
        return f"mesh_{self.distribution.partition('-')[2]}"


CORE = frozenset({"torchmesh-core", "cloudpickle"})
HEAVY = frozenset({"torch", "numpy", "pyarrow", "datafusion", "kubernetes", "grpc"})
MESH = frozenset(
    {"mesh_core", "mesh_rdma", "mesh_telemetry", "mesh_jobs", "mesh_fs", "mesh_tensor"}
)

PROMISES = (
    Promise("torchmesh-core", CORE, HEAVY | MESH - {"mesh_core"}),
    Promise("torchmesh-rdma", CORE | {"torchmesh-rdma"}, HEAVY | MESH - {"mesh_core", "mesh_rdma"}),
    Promise("torchmesh-jobs", CORE | {"torchmesh-jobs"}, HEAVY | MESH - {"mesh_core", "mesh_jobs"}),
    Promise(
        "torchmesh-fs",
        CORE | {"torchmesh-fs", "torchmesh-rdma"},
        HEAVY | MESH - {"mesh_core", "mesh_rdma", "mesh_fs"},
    ),
    Promise(
        "torchmesh-telemetry",
        None,
        (HEAVY - {"pyarrow", "datafusion", "numpy"}) | MESH - {"mesh_core", "mesh_telemetry"},
    ),
    Promise(
        "torchmesh-tensor",
        None,
        (HEAVY - {"torch", "numpy"}) | MESH - {"mesh_core", "mesh_tensor"},
    ),
)

each_package = pytest.mark.parametrize("promise", PROMISES, ids=lambda one: one.distribution)


@each_package
def test_the_wheel_installs_only_the_promised_distributions(
    install: Install, promise: Promise
) -> None:
    installed = install(promise.distribution).distributions()
    assert installed >= {promise.distribution, *CORE}
    if promise.brings is not None:
        assert installed == promise.brings


@each_package
def test_the_public_modules_of_the_wheel_can_be_imported(
    install: Install, promise: Promise
) -> None:
    modules = package(f"mesh-{promise.distribution.partition('-')[2]}").public_modules
    imports = "".join(f"    import {name}\n" for name in modules)
    # A testing module may need pytest, and fault-tolerant training an extra; nothing else.
    code = (
        f"try:\n{imports}except ModuleNotFoundError as error:\n"
        "    assert error.name in ('pytest', 'mesh_rdma'), error.name\n"
    )
    install(promise.distribution).run(code)


@each_package
def test_modules_outside_the_wheel_cannot_be_imported(install: Install, promise: Promise) -> None:
    found = install(promise.distribution).run(
        "import json; from importlib.util import find_spec;"
        f"print(json.dumps([m for m in {sorted(promise.lacks)} if find_spec(m)]))"
    )
    assert json.loads(found) == []


@each_package
def test_the_wheel_is_typed_and_has_a_version(install: Install, promise: Promise) -> None:
    name = promise.import_name
    typed, version = json.loads(
        install(promise.distribution).run(
            "import json; from importlib.metadata import version;"
            "from importlib.resources import files;"
            f"typed = files({name!r}).joinpath('py.typed').is_file();"
            f"print(json.dumps([typed, version({promise.distribution!r})]))"
        )
    )
    assert typed
    assert version


def test_every_wheel_is_under_test(wheels: Wheels) -> None:
    assert set(wheels) == {promise.distribution for promise in PROMISES}


def test_importing_the_core_loads_nothing_heavy(install: Install) -> None:
    loaded = install("torchmesh-core").run(
        "import json, sys; import mesh_core; print(json.dumps([m for m in sys.modules]))"
    )
    assert HEAVY.isdisjoint(name.split(".")[0] for name in json.loads(loaded))


def test_the_core_wheel_supports_python_3_11_and_later(wheels: Wheels) -> None:
    python, abi, platform = wheels["torchmesh-core"].stem.split("-")[-3:]
    assert (python, abi) == ("cp311", "abi3")
    assert "linux" in platform


def test_core_wheel_is_small(wheels: Wheels) -> None:
    assert size(wheels["torchmesh-core"]) <= 5 * MEGABYTE


def test_core_is_small_once_installed(install: Install) -> None:
    assert install("torchmesh-core").installed_bytes() <= 15 * MEGABYTE


def size(path: Path) -> int:
    """Return the size of a file in bytes."""
    return path.stat().st_size
