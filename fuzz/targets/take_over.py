"""Arbitrary bytes as the request to take over a job, or as the reply of a worker to it."""

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

from mesh_core._hosts.take_over_request import Refusal, TakeOverReply, TakeOverRequest  # noqa: E402

EPOCHS = 1 << 12
NAME_LEN_MAX = 300


def check(body: bytes) -> None:
    """Check that accepted messages are valid, and that other input is rejected as documented."""
    check_wish(body)
    check_grant(body)
    refusal = Refusal.decode(body)
    assert isinstance(refusal.is_final, bool)
    refusal.encode().encode()


def check_wish(body: bytes) -> None:
    """Decode the bytes as a worker does."""
    wish = TakeOverRequest.decode(body)
    if wish is None:
        return
    for name in (wish.owner, wish.claim):
        assert len(name) <= NAME_LEN_MAX
        assert name.isprintable()
    assert wish.job is None or len(wish.job) == 16
    assert 0 <= wish.generation < EPOCHS
    assert 0 < wish.lease_s < math.inf
    again = TakeOverRequest.decode(wish.encode())
    assert again is not None
    assert again.encode() == wish.encode()


def check_grant(body: bytes) -> None:
    """Decode the bytes as a successor does."""
    try:
        grant = TakeOverReply.decode(body)
    except ValueError as error:
        str(error).encode()
        return
    assert (len(grant.job), len(grant.token)) == (16, 32)
    assert 0 < grant.host < 2**32
    assert 0 <= grant.epoch < EPOCHS
    assert 0 < grant.generation < EPOCHS
    assert grant.host_name.isprintable()
    assert TakeOverReply.decode(grant.encode().encode()).encode() == grant.encode()


if __name__ == "__main__":
    sources = [PACKAGE / "_hosts/take_over_request.py", PACKAGE / "_hosts/request_fields.py"]
    sys.exit(Fuzzer(sources, check, sys.argv[1:]).main())
