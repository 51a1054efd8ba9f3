"""The binding through `pyverbs`, which distributions ship with libibverbs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR, DmaBufMR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from mesh_rdma._verbs.binding import (
    REMOTE,
    Access,
    Completion,
    Device,
    Limits,
    Opcode,
    PortState,
    QueuePair,
    QueuePairEnd,
    Region,
    WorkRequest,
)

#: Constants of libibverbs, which are part of its ABI.
RELIABLE_CONNECTED = 2
STATE, STATE_ERROR = 1, 6
SIGNALLED = 2

#: The hop limit of packets.
HOPS_MAX = 64

#: The acknowledgement timeout of a queue pair (67 ms), and its number of retries. For a peer that
#: is not ready, 7 retries mean unlimited retries.
TIMEOUT, RETRIES, RETRIES_NOT_READY, PAUSE_NOT_READY = 14, 7, 7, 12

#: The reasons for the most common completion errors.
REASONS = {
    1: "local length error",
    2: "local queue pair operation error",
    4: "local protection error",
    5: "work request flushed",
    8: "local access error",
    9: "remote invalid request error",
    10: "remote access error",
    11: "remote operation error",
    12: "transport retry counter exceeded",
    13: "receiver not ready retry counter exceeded",
}


class PyverbsBinding:
    """The package and its devices."""

    name = "pyverbs"

    def devices(self) -> list[str]:
        """Return the names of the devices."""
        return [device.name.decode() for device in _as_os_error(get_device_list)]

    def open(self, device: str) -> Device:
        """Open a device."""
        return PyverbsDevice(_as_os_error(Context, name=device), device)


class PyverbsDevice:
    """A device and its protection domain."""

    def __init__(self, context: Any, name: str) -> None:
        self._context = context
        self._domain = _as_os_error(PD, context)
        self.name = name
        found = context.query_device()
        queue_len_max = min(found.max_qp_wr, found.max_cqe)
        self.limits = Limits(found.phys_port_cnt, queue_len_max, found.max_qp_rd_atom)

    def port(self, number: int) -> PortState:
        """Return the state of a port."""
        found = _as_os_error(self._context.query_port, number)
        return PortState(found.state, found.lid, found.active_mtu, found.max_msg_sz)

    def register(self, address: int, length: int, access: Access) -> Region:
        """Register memory of this process."""
        region = _as_os_error(MR, self._domain, length, int(access), address=address)
        return PyverbsRegion(region, address)

    def register_dmabuf(
        self, descriptor: int, offset: int, address: int, length: int, access: Access
    ) -> Region:
        """Register memory of another device; the device address of its first byte is its offset."""
        region = _as_os_error(
            DmaBufMR, self._domain, length, int(access), dmabuf=descriptor, offset=offset
        )
        return PyverbsRegion(region, offset)

    def queue_pair(self, depth: int) -> QueuePair:
        """Create a queue pair and its completion queue."""
        completions = _as_os_error(CQ, self._context, depth)
        capacity = QPCap(max_send_wr=depth, max_recv_wr=1)
        attributes = QPInitAttr(
            qp_type=RELIABLE_CONNECTED, scq=completions, rcq=completions, cap=capacity, sq_sig_all=0
        )
        return PyverbsQueuePair(_as_os_error(QP, self._domain, attributes), completions)

    def close(self) -> None:
        """Close the device."""
        self._domain.close()
        self._context.close()


class PyverbsRegion:
    """A memory region."""

    def __init__(self, region: Any, address: int) -> None:
        self._region = region
        self.address = address
        self.local_key: int = region.lkey
        self.remote_key: int = region.rkey

    def close(self) -> None:
        """Deregister the memory."""
        _as_os_error(self._region.close)


class PyverbsQueuePair:
    """A queue pair and its completion queue."""

    def __init__(self, pair: Any, completions: Any) -> None:
        self._pair = pair
        self._completions = completions
        self.number: int = pair.qp_num

    def connect(self, port: int, gid_index: int, own: QueuePairEnd, peer: QueuePairEnd) -> None:
        """Move the queue pair through its states until it can send."""
        there = _as_os_error(GID, peer.gid.hex(":", 2))
        rail = GlobalRoute(dgid=there, sgid_index=gid_index, hop_limit=HOPS_MAX)
        wanted = QPAttr(port_num=port)
        wanted.qp_access_flags = int(REMOTE)
        wanted.ah_attr = AHAttr(dlid=peer.lid, port_num=port, is_global=1, gr=rail)
        wanted.dest_qp_num = peer.number
        wanted.path_mtu = min(own.mtu, peer.mtu)
        wanted.rq_psn, wanted.sq_psn = peer.first_packet, own.first_packet
        wanted.max_rd_atomic = min(own.reads_max, peer.reads_max)
        wanted.max_dest_rd_atomic = wanted.max_rd_atomic
        wanted.timeout, wanted.retry_cnt = TIMEOUT, RETRIES
        wanted.rnr_retry, wanted.min_rnr_timer = RETRIES_NOT_READY, PAUSE_NOT_READY
        _as_os_error(self._pair.to_rts, wanted)

    def post(self, works: Sequence[WorkRequest]) -> None:
        """Post work requests."""
        for work in works:
            _as_os_error(self._pair.post_send, _request(work))

    def poll(self, len_max: int) -> list[Completion]:
        """Poll the completion queue."""
        _, found = _as_os_error(self._completions.poll, len_max)
        return [
            Completion(one.wr_id, one.status, _reason(one.status) if one.status else "")
            for one in found
        ]

    def arm(self) -> int | None:
        """Return None: pyverbs does not expose the descriptor of completion events."""
        return None

    def fail(self) -> None:
        """Move the queue pair to the error state."""
        _as_os_error(self._pair.modify, QPAttr(qp_state=STATE_ERROR), STATE)

    def close(self) -> None:
        """Destroy the queue pair and the completion queue."""
        _as_os_error(self._pair.close)
        _as_os_error(self._completions.close)


def _request(work: WorkRequest) -> Any:
    here = [SGE(work.local_address, work.length, work.local_key)] if work.length else []
    flags = SIGNALLED if work.is_signalled else 0
    request = SendWR(work.id, opcode=int(work.opcode), num_sge=len(here), sg=here, send_flags=flags)
    if work.opcode in (Opcode.READ, Opcode.WRITE):
        request.set_wr_rdma(work.remote_key, work.remote_address)
    else:
        request.set_wr_atomic(work.remote_key, work.remote_address, work.operand, work.swap)
    return request


def _reason(status: int) -> str:
    return REASONS.get(status, f"status {status}")


def _as_os_error(call: Any, *arguments: Any, **named: Any) -> Any:
    """Call a function, and translate errors of pyverbs to OSError."""
    try:
        return call(*arguments, **named)
    except PyverbsRDMAError as error:
        raise OSError(error.error_code, str(error)) from error
    except PyverbsError as error:
        raise OSError(0, str(error)) from error
