"""Whether this machine can emulate hosts, and if not, the reason."""

from __future__ import annotations

import functools
import subprocess

from tests.hosts.world.enclosure import NAMESPACES, environment
from tests.hosts.world.world import user_namespace_options
from tools import system

#: Everything that a world requires: two namespaces with a link and a filter, and a mount namespace.
_PROBE = """set -eu
mount -n -t tmpfs probe /mnt
ip link add probe0 type veth peer name probe1
ip link add probe2 type bridge
printf 'table netdev p { chain c { type filter hook ingress device "probe0" priority 0; }; }' |
    nft -f -
"""


@functools.cache
def why_not() -> str | None:
    """Return the reason why hosts cannot be emulated here, or None if they can.

    Raises:
        FileNotFoundError: A program is not installed: install it, do not skip the tests.
    """
    namespaces = ["unshare", *NAMESPACES, "--fork", "--mount-proc"]
    refused = _complaint([*namespaces, *user_namespace_options(), "true"])
    if refused:
        return f"no namespaces: {refused}"
    if missing := system.missing(system.HOSTS):
        raise FileNotFoundError(f"not installed: apt-get install {' '.join(missing)}")
    refused = _complaint([*namespaces, *user_namespace_options(), "sh", "-c", _PROBE])
    return f"no network between namespaces: {refused}" if refused else None


def _complaint(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment(), timeout=30
        )
    except FileNotFoundError as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"status {done.returncode}"
