"""Our action-level executor on real servers with played agents: a driver of `benchmarks.peers`."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.live_play import play
from benchmarks.peer_server import VOCAB
from benchmarks.peer_work import load, report


def main() -> None:
    """Play the workload on all servers."""
    workload, urls = load(sys.argv[1]), tuple(sys.argv[2:])
    report(lambda: asyncio.run(play(workload, urls, vocab_size=VOCAB)))


if __name__ == "__main__":
    main()
