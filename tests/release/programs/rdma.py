"""Another process reads memory of the program."""

from mesh_core import Actor, endpoint, this_host
from mesh_rdma import RDMABuffer


class Reader(Actor):
    @endpoint
    def read(self, buffer: RDMABuffer) -> str:
        target = bytearray(5)
        buffer.read_into(target).get()
        return target.decode()


data = bytearray(b"hello")
reader = this_host().spawn_procs().spawn("reader", Reader)
print(reader.read.call_one(RDMABuffer(data)).get())

# prints:
#   hello
