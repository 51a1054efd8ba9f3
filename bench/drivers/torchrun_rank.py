"""A rank that torchrun starts: it reports to the driver, and executes the commands of the driver.

python torchrun_rank.py HOST PORT
"""

import json
import os
import signal
import socket
import sys
import time


def main(host: str, port: int) -> None:
    """Report that the script runs, and execute the first command."""
    with socket.create_connection((host, port)) as driver:
        here = {"rank": int(os.environ["RANK"]), "pid": os.getpid()}
        driver.sendall(f"{json.dumps(here)}\n".encode())
        command, _, argument = driver.makefile().readline().strip().partition(" ")
        if command == "end":
            return
        if command == "hang":
            fd = os.open(argument, os.O_WRONLY)
            os.write(fd, b"x")
            os.close(fd)
            time.sleep(600)
        if command == "fill_memory":
            kept = []
            while True:
                kept.append(bytearray(b"x") * (32 << 20))
        # The driver has exited: a training would not notice that either.
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
