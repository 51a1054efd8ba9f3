"""The binding through the package `ibverbs` from PyPI."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import ibverbs

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

#: The hop limit of packets.
HOPS_MAX = 64

SIGNALLED = int(ibverbs.SendFlags.SIGNALED)


class IbverbsBinding:
    """The package and its devices."""

    name = "ibverbs"

    def devices(self) -> list[str]:
        """Return the names of the devices."""
        return [device.name for device in ibverbs.get_device_list()]

    def open(self, device: str) -> Device:
        """Open a device."""
        for found in ibverbs.get_device_list():
            if found.name == device:
                return IbverbsDevice(found.open())
        raise OSError(f"verbs device {device!r} no longer exists")


class IbverbsDevice:
    """A device and its protection domain."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._domain = context.alloc_pd()
        self.name: str = context.name
        found = context.query_device()
        queue_len_max = min(found.max_qp_wr, found.max_cqe)
        self.limits = Limits(found.phys_port_cnt, queue_len_max, found.max_qp_rd_atom)

    def port(self, number: int) -> PortState:
        """Return the state of a port."""
        found = self._context.query_port(number)
        return PortState(found.state, found.lid, found.active_mtu, found.max_msg_sz)

    def register(self, address: int, length: int, access: Access) -> Region:
        """Register memory of this process."""
        return IbverbsRegion(self._domain.reg_mr(address, length, int(access)), address)

    def register_dmabuf(
        self, descriptor: int, offset: int, address: int, length: int, access: Access
    ) -> Region:
        """Register memory of another device."""
        region = self._domain.reg_dmabuf_mr(offset, length, address, descriptor, int(access))
        return IbverbsRegion(region, address)

    def queue_pair(self, depth: int) -> QueuePair:
        """Create a queue pair and its completion queue."""
        events = self._context.create_comp_channel()
        os.set_blocking(events.fd, False)
        completions = self._context.create_cq(depth, events)
        attributes = ibverbs.QPInitAttr(
            send_cq=completions,
            recv_cq=completions,
            qp_type=ibverbs.QPType.RC,
            max_send_wr=depth,
            max_recv_wr=1,
        )
        return IbverbsQueuePair(self._domain.create_qp(attributes), completions, events)

    def close(self) -> None:
        """Close the device."""
        self._domain.close()
        self._context.close()


class IbverbsRegion:
    """A memory region."""

    def __init__(self, region: Any, address: int) -> None:
        self._region = region
        self.address = address
        self.local_key: int = region.lkey
        self.remote_key: int = region.rkey

    def close(self) -> None:
        """Deregister the memory."""
        self._region.close()


class IbverbsQueuePair:
    """A queue pair, its completion queue and its completion channel."""

    def __init__(self, pair: Any, completions: Any, events: Any) -> None:
        self._pair = pair
        self._completions = completions
        self._events = events
        self.number: int = pair.qp_num

    def connect(self, port: int, gid_index: int, own: QueuePairEnd, peer: QueuePairEnd) -> None:
        """Move the queue pair through its states until it can send."""
        remote = ibverbs.QPInfo(
            peer.number, peer.first_packet, peer.lid, peer.gid, port, min(own.mtu, peer.mtu)
        )
        reads = min(own.reads_max, peer.reads_max)
        self._pair.to_init(port, int(REMOTE))
        self._pair.to_rtr(
            remote, sgid_index=gid_index, hop_limit=HOPS_MAX, max_dest_rd_atomic=reads
        )
        self._pair.to_rts(own.first_packet, max_rd_atomic=reads)

    def post(self, works: Sequence[WorkRequest]) -> None:
        """Post work requests, all in one call."""
        self._pair.post_send([_request(work) for work in works])

    def poll(self, len_max: int) -> list[Completion]:
        """Poll the completion queue."""
        return [
            Completion(found.wr_id, found.status, "" if found.is_success else found.status_str)
            for found in self._completions.poll(len_max)
        ]

    def arm(self) -> int | None:
        """Request a notification of the next completion."""
        try:
            while True:
                self._events.get_cq_event().ack_events()
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
        self._completions.req_notify()
        return int(self._events.fd)

    def fail(self) -> None:
        """Move the queue pair to the error state."""
        self._pair.modify(int(ibverbs.QPAttrMask.STATE), qp_state=int(ibverbs.QPState.ERR))

    def close(self) -> None:
        """Destroy the queue pair, the completion queue and the completion channel."""
        self._pair.close()
        self._completions.close()
        self._events.close()


def _request(work: WorkRequest) -> Any:
    here = [ibverbs.SGE(work.local_address, work.length, work.local_key)] if work.length else []
    flags = SIGNALLED if work.is_signalled else 0
    if work.opcode in (Opcode.READ, Opcode.WRITE):
        return ibverbs.SendWR(
            work.id, here, work.opcode, flags, work.remote_address, work.remote_key
        )
    return ibverbs.SendWR(
        wr_id=work.id,
        sg_list=here,
        opcode=work.opcode,
        send_flags=flags,
        remote_addr=work.remote_address,
        rkey=work.remote_key,
        compare_add=work.operand,
        swap=work.swap,
    )
