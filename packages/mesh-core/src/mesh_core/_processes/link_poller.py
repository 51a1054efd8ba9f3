"""The event loop of a process supervisor."""

import select
from collections.abc import Callable, Sequence

from mesh_core._processes.link import Link


class LinkPoller:
    """Waits for links and other descriptors, and sends what a full socket has not accepted."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._links: dict[int, Link] = {}

    def add(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever the descriptor is readable."""
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def add_link(self, link: Link, handler: Callable[[], None]) -> None:
        """Call `handler` whenever a message has arrived, or the other end is gone."""
        self._links[link.fileno()] = link
        self.add(link.fileno(), handler)

    def remove_link(self, link: Link) -> None:
        """Ignore a link from now on; it must still be open."""
        del self._links[link.fileno()]
        del self._handlers[link.fileno()]
        self._epoll.unregister(link.fileno())

    def send(self, link: Link, message: object, fds: Sequence[int] = ()) -> None:
        """Send a message as soon as the socket accepts it, and close `fds`."""
        if link.send(message, fds):
            self._epoll.modify(link.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def poll(self, wait_s: float | None) -> None:
        """Wait for events, and handle them.

        Args:
            wait_s: The maximum time to wait, in seconds; None for no limit.
        """
        for fd, events in self._epoll.poll(wait_s):
            if events & select.EPOLLOUT and fd in self._links and not self._links[fd].flush():
                self._epoll.modify(fd, select.EPOLLIN)
            if events & ~select.EPOLLOUT and fd in self._handlers:
                self._handlers[fd]()
