"""Stand-alone programs for any host that attack a worker or impersonate one."""

#: Forwards connections and records the bytes that each client sent.
RECORD = """
import socket, sys, threading

target, port, record = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def pump(source, sink, path):
    with open(path, "wb", 0) if path else socket.socket() as copy:
        try:
            while piece := source.recv(1 << 16):
                if path:
                    copy.write(piece)
                sink.sendall(piece)
        except OSError:
            pass
    for one in (source, sink):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

with socket.create_server(("", port)) as server:
    print("ready", flush=True)
    for number in range(1000):
        near = server.accept()[0]
        far = socket.create_connection((target, 26600))
        threading.Thread(target=pump, args=(near, far, f"{record}{number}"), daemon=True).start()
        threading.Thread(target=pump, args=(far, near, None), daemon=True).start()
"""

#: Opens connections, sends an incomplete request on each, and keeps them open.
FLOOD = """
import resource, socket, sys

address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for _ in range(count):
    held.append(socket.create_connection((address, port), 10))
    try:
        held[-1].send(b"\\x16")
    except OSError:
        pass
print(len(held), "open", flush=True)
sys.stdin.read()
"""

#: Attaches to a worker on the loopback interface without credentials.
JOIN = """
from mesh_core import HostDied, attach_to_workers, configure
configure(attach_timeout_s=0.1)
try:
    attach_to_workers(["tcp://127.0.0.1:26701"]).initialized.get()
    print("joined")
except HostDied as error:
    print(error)
"""

#: Sends a request in plaintext, as any process of the machine can.
ASK_WITHOUT_PROOF = """
import socket
with socket.create_connection(("127.0.0.1", 26701)) as worker:
    worker.settimeout(5)
    try:
        worker.sendall(bytes([0xA7, 1, 5, 0, 0]) + bytes(59))
        # An alert of TLS is no frame.
        answer = worker.recv(1)
    except OSError:
        answer = b""
print("an answer" if answer == bytes([0xA7]) else "nothing")
"""
