"""Network settings: the listen address of this process, and the connections per transfer."""

from __future__ import annotations

import os
from ipaddress import ip_address
from typing import TYPE_CHECKING

from mesh_core import ConfigError
from mesh_core.spi import current_process, read_config_table
from mesh_rdma import _core

if TYPE_CHECKING:
    from typing import Any

__all__ = ["configure"]

_TABLE = "rdma"
_STREAMS_MAX = 16
_DEFAULTS: dict[str, Any] = {"rdma_listen": "auto", "rdma_tcp_streams": None}


def configure(*, rdma_listen: str | None = None, rdma_tcp_streams: int | None = None) -> None:
    """Set options for this process, which override the environment and the configuration file.

    The environment variables are `MESH_RDMA_LISTEN` and `MESH_RDMA_TCP_STREAMS`. In the file that
    `MESH_CONFIG` names, the options are in the table `[rdma]`. Use one of these two to configure
    all processes of a job.

    Args:
        rdma_listen: The addresses on which this process listens: `"auto"` for all addresses of its
            machine if the job has credentials, otherwise loopback; `"loopback"`; `"all"`; or one
            address of this machine. The process starts to listen when it pickles its first handle.
        rdma_tcp_streams: The number of connections that carry one long transfer, from 1 to 16.

    Raises:
        ConfigError: A value is invalid, or this process already listens on another address. In this
            case, no option is set.
    """
    given = {"rdma_listen": rdma_listen, "rdma_tcp_streams": rdma_tcp_streams}
    chosen = {name: value for name, value in given.items() if value is not None}
    _apply({**_chosen, **_read(chosen, "")})


def _apply(settings: dict[str, Any]) -> None:
    merged = {**_outside, **settings}
    if not _core.configure(merged["rdma_listen"], merged["rdma_tcp_streams"]):
        raise ConfigError(
            "this process already listens for other machines: set rdma_listen before the first"
            " handle of a buffer is sent"
        )
    _chosen.update(settings)


def _read(given: dict[str, Any], origin: str) -> dict[str, Any]:
    """Validate names and values."""
    settings = {}
    for name, value in given.items():
        if name not in _DEFAULTS:
            raise ConfigError(
                f"unknown setting {name!r}{origin}: the settings are {', '.join(_DEFAULTS)}"
            )
        try:
            settings[name] = _listen(value) if name == "rdma_listen" else _streams(value)
        except (ValueError, TypeError):
            allowed = "'auto', 'all', 'loopback' or an address of this machine"
            if name == "rdma_tcp_streams":
                allowed = f"a number from 1 to {_STREAMS_MAX}"
            raise ConfigError(f"{name} cannot be {value!r}{origin}: it takes {allowed}") from None
    return settings


def _listen(value: Any) -> str:
    if value in {"auto", "all", "loopback"}:
        return str(value)
    return str(ip_address(value if isinstance(value, str) else ""))


def _streams(value: Any) -> int:
    count = int(value)
    if isinstance(value, bool) or not 1 <= count <= _STREAMS_MAX:
        raise ValueError
    return count


def _read_environment() -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in _DEFAULTS:
        variable = f"MESH_{name.upper()}"
        text = os.environ.get(variable)
        if text is not None:
            settings |= _read({name: text.strip()}, f" (from {variable})")
    return settings


def _read_file() -> dict[str, Any]:
    table, path = read_config_table(_TABLE)
    return _read(table, f" (in {path!r})")


_outside = {**_DEFAULTS, **_read_file(), **_read_environment()}
_chosen: dict[str, Any] = {}
_core.set_credentials_check(current_process.has_credentials)
_apply({})
