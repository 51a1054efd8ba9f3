"""Arbitrary bytes as the request to serve a job: rejected with a message, or a valid request."""

import math
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

CRATE = Path(__file__).resolve().parent.parent
PACKAGE = CRATE.parent / "packages" / "mesh-core" / "src" / "mesh_core"

# The package without running its `__init__.py`: the extension module is not built here.
_bare = module_from_spec(ModuleSpec("mesh_core", None, is_package=True))
_bare.__path__ = [str(PACKAGE)]
sys.modules["mesh_core"] = _bare
sys.path.insert(0, str(CRATE))

from guided import Fuzzer  # noqa: E402

from mesh_core._configuration.config import check as check_settings  # noqa: E402
from mesh_core._hosts.attach_request import AttachRequest  # noqa: E402


def check(body: bytes) -> None:
    """Check that an accepted request can be served, and that a rejection is a ValueError."""
    try:
        order = AttachRequest.decode(body)
    except ValueError as error:
        str(error).encode()
        return
    assert len(order.job) == 16
    assert len(order.token) == 32
    assert 0 <= order.host < 2**32
    assert 0 < order.lease_s < math.inf
    assert 0 <= order.orphan_grace_s < math.inf
    assert 0 <= order.epoch < 1 << 12
    assert 0 <= order.generation < 1 << 12
    assert len(order.owner.encode()) < 2000
    assert order.owner.isprintable()
    assert all(isinstance(folder, str) for folder in order.path)
    assert all(isinstance(name, str) for name in order.preload)
    check_settings(order.config)
    again = AttachRequest.decode(order.encode())
    assert again.encode() == order.encode()


if __name__ == "__main__":
    names = ["_hosts/attach_request", "_hosts/request_fields", "_configuration/config"]
    sources = [PACKAGE / f"{name}.py" for name in names]
    sys.exit(Fuzzer(sources, check, sys.argv[1:]).main())
