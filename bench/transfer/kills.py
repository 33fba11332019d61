"""kill -9 of a node in the middle of a download, again and again: what does it fetch a second time?

Each download is broken at several seeded offsets, counted in bytes that went out. Bytes that were sent and
never arrived count as fetched again, so that the figure is an upper bound.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.link import Shape
from bench.transfer.delivery import served
from bench.transfer.goods import Goods, load_of
from bench.transfer.node import Node, NodeFailed
from bench.transfer.origin import Origin, chunks_of, refetched_bytes
from bench.transfer.replay import DELAY_S
from release.folder import open_release
from release.manifest import CHUNK_BYTES
from release.store import RELEASES

_BYTES_PER_S, _LEAST_S = 12e6, 4.0  # slower for what is small: a kill must find a download to break
_MOST_S = 180.0
_LEAST, _MOST = 0.01, 0.97  # of the download: a kill after its end breaks nothing
_POLL_S = 0.01
_NOTICED_S = 0.2  # for the server to see that its client is gone


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: at which byte of the download, and what the node asked for again after it."""

    download: int
    offset: int
    refetched_bytes: int

    @property
    def refetched_chunks(self) -> int:
        return chunks_of(self.refetched_bytes, CHUNK_BYTES)


async def kill_downloads(
    origin: Origin, goods: Goods, folder: Path, *, kills: int, downloads: int, seed: int, told: Callable[[], None]
) -> list[Kill]:
    """Breaks `downloads` downloads `kills` times in all. Raises NodeFailed where one does not complete, and whole."""
    draw, done = random.Random(seed), list[Kill]()
    for number in range(downloads):
        count = (kills - len(done)) // (downloads - number)
        total = load_of(goods).total
        offsets = sorted(int(draw.uniform(_LEAST, _MOST) * total) for _ in range(count))
        done += await _Download(origin, goods, number, told).broken_at(offsets, folder / f"kill-{number}")
    return done


class _Download:
    """One download, and what the server sent for it in the node's lives so far."""

    def __init__(self, origin: Origin, goods: Goods, number: int, told: Callable[[], None]) -> None:
        self._origin, self._goods, self._number, self._told = origin, goods, number, told
        self._mount = f"kill-{number}"
        self._again: list[int] = []  # bytes fetched again, by life
        self._before = 0  # answers of the server that belong to earlier lives

    async def broken_at(self, offsets: list[int], folder: Path) -> list[Kill]:
        """Kills the node at each offset, lets it complete, and verifies what it then has."""
        goods = self._goods
        async with served(self._origin, self._mount, goods) as link:
            link.shape(Shape(min(_BYTES_PER_S, load_of(goods).total / _LEAST_S), DELAY_S))
            url = f"http://{link.address}/{self._mount}"
            async with Node(folder, url, goods.root, {"bandwidth_share": 1.0}) as node:
                for offset in offsets:
                    await self._until_sent(node, offset + sum(self._again))
                    await node.kill()
                    await asyncio.sleep(_NOTICED_S)
                    self._life_ends()
                    node.start()
                    self._told()
                await node.answers(_MOST_S, precision=8)
                self._life_ends()
                open_release(node.store / RELEASES / goods.releases[-1].id)  # raises unless it is whole
        # What is fetched again in a life is owed to the kill that ended the one before.
        again = zip(offsets, self._again[1:], strict=True)
        return [Kill(self._number, offset, count) for offset, count in again]

    def _life_ends(self) -> None:
        sent = self._origin.sent_of(self._mount)
        self._again.append(refetched_bytes(sent[: self._before], sent[self._before :]))
        self._before = len(sent)

    async def _until_sent(self, node: Node, count: int) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + _MOST_S
        while self._origin.bytes_sent(self._mount) < count:
            node.check()
            if loop.time() > ends:
                raise NodeFailed(f"{count} bytes were not asked for within {_MOST_S:.0f} s; its log:\n{node.tail()}")
            await asyncio.sleep(_POLL_S)
