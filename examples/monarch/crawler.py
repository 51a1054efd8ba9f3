"""Crawl a web site with several processes, fetching every page exactly once.

The frontier actor tracks the pages that are known, queued and being fetched. Each fetcher requests
a page from it, fetches the page, and reports the links in it, with a fixed number of concurrent
requests. The script generates and serves the web site itself.
"""

import argparse
import asyncio
import random
import re
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urldefrag, urljoin

from mesh_core import Actor, Port, endpoint, this_host

REQUESTS_PER_FETCHER = 4
LINK = re.compile(r'href="([^"]+)"')


class Frontier(Actor):
    """Stores each page once. A request for a page waits until one is queued or all are done."""

    def __init__(self, first: str) -> None:
        self.seen = {first}
        self.waiting = deque([first])
        self.being_fetched = 0
        self.askers: deque[Port[str | None]] = deque()

    @endpoint(explicit_response_port=True)
    def next_page(self, port: Port[str | None]) -> None:
        self.askers.append(port)
        self._hand_out()

    @endpoint
    def found(self, links: list[str]) -> None:
        new = [link for link in dict.fromkeys(links) if link not in self.seen]
        self.seen.update(new)
        self.waiting.extend(new)
        self.being_fetched -= 1
        self._hand_out()

    @endpoint
    def seen_count(self) -> int:
        return len(self.seen)

    def _hand_out(self) -> None:
        while self.askers and self.waiting:
            self.being_fetched += 1
            self.askers.popleft().send(self.waiting.popleft())
        if not self.being_fetched:
            while self.askers:
                self.askers.popleft().send(None)


class Fetcher(Actor):
    def __init__(self, frontier: Frontier) -> None:
        self.frontier = frontier
        self.sizes: dict[str, int] = {}
        self.missing: list[str] = []

    @endpoint
    async def crawl(self) -> tuple[dict[str, int], list[str]]:
        await asyncio.gather(*(self._fetch_pages() for _ in range(REQUESTS_PER_FETCHER)))
        return self.sizes, self.missing

    async def _fetch_pages(self) -> None:
        while (page := await self.frontier.next_page.call_one()) is not None:
            text = await asyncio.to_thread(fetch, page)
            if text is None:
                self.missing.append(page)
            else:
                self.sizes[page] = len(text)
            links = [urldefrag(urljoin(page, link)).url for link in LINK.findall(text or "")]
            await self.frontier.found.call_one(links)


def fetch(page: str) -> str | None:
    """Return the text of a page, or None if the page does not exist."""
    try:
        with urllib.request.urlopen(page, timeout=10) as response:
            body: bytes = response.read()
            return body.decode()
    except urllib.error.HTTPError:
        return None


def write_site(folder: Path, count: int) -> None:
    """Write pages that are all reachable from the first; the last one has a broken link."""
    chance = random.Random(0)
    for number in range(count):
        links = [2 * number + 1, 2 * number + 2, *chance.choices(range(count), k=3)]
        body = "".join(f'<a href="{n}.html#top">{n}</a>\n' for n in links if n < count)
        body += '<a href="nowhere.html">gone</a>' if number == count - 1 else ""
        (folder / f"{number}.html").write_text(f"<h1>Page {number}</h1>\n{body}")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def serve(folder: str) -> ThreadingHTTPServer:
    """Serve the files of a folder on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main(n_procs: int, n_pages: int) -> None:
    with TemporaryDirectory() as folder, this_host().spawn_procs({"fetcher": n_procs}) as procs:
        write_site(Path(folder), n_pages)
        server = serve(folder)
        first = f"http://127.0.0.1:{server.server_port}/0.html"
        frontier = this_host().spawn_procs().spawn("frontier", Frontier, first)
        fetchers = procs.spawn("fetchers", Fetcher, frontier)
        started = time.perf_counter()
        fetched: list[str] = []
        missing: list[str] = []
        for point, answer in fetchers.crawl.stream().with_ranks():
            sizes, gone = answer.get()
            fetched += sizes
            missing += gone
            print(f"fetcher {point.rank}: {len(sizes)} pages, {sum(sizes.values())} characters")
        took_s = time.perf_counter() - started
        server.shutdown()
        seen = frontier.seen_count.call_one().get()
    print(
        f"{len(fetched)} pages, {len(missing)} missing, {len(fetched) / took_s:.0f} pages a second"
    )
    assert len(fetched) == len(set(fetched)) == n_pages
    assert [page.rpartition("/")[2] for page in missing] == ["nowhere.html"]
    assert seen == n_pages + 1


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--procs", type=int, default=3)
    options.add_argument("--pages", type=int, default=200)
    chosen = options.parse_args()
    main(chosen.procs, chosen.pages)

# prints:
#   fetcher ...: ... pages, ... characters
#   200 pages, 1 missing, ... pages a second
