"""KVHousing: which live episodes may hold a context in the engine's KV memory, by their moves.

Owns what each episode's context takes, in tokens, and tells `Residency` who generates, who waits
and who needs no context any more. Until the memory's size is known everybody may enter.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agentflow.errors import EngineError
from agentflow.scheduling import LIVE, OUT, Stage
from priority.residency import KV_SHARE, Footprint, Residency

if TYPE_CHECKING:
    from agentflow.protocols import Model
    from agentflow.scheduling import WorkItem

logger = logging.getLogger(__name__)


class KVHousing:
    """The `Housing` of one engine."""

    def __init__(
        self, residency: Residency[WorkItem] | None = None, *, share: float = KV_SHARE
    ) -> None:
        """Without `residency`, let contexts take `share` of the memory once its size is known."""
        self.residency = residency
        """None while the memory's size is not known."""
        self._share = share
        self._footprints: dict[WorkItem, Footprint] = {}

    async def learn_size(self, engine: Model) -> None:
        """Ask the engine how large its memory is, and keep contexts within it if it knows."""
        try:
            info = await engine.info()
        except EngineError as exc:
            logger.warning("contexts may exceed KV memory, whose size is not known: %s", exc)
            return
        if info.kv_tokens is not None:
            self.residency = Residency(info.kv_tokens, share=self._share)

    def holds(self, item: WorkItem, *, prompt: int, own: int) -> None:
        """Take note of an item's context in tokens: its first prompt, and what came behind it."""
        footprint = self._footprints[item] = Footprint(item.episode.uid, prompt, own)
        if self.residency is not None and item in self.residency:
            self.residency.grow(item, footprint)

    def fits(self, item: WorkItem) -> bool:
        """Whether there is room for an item that wants to enter."""
        return self.residency is None or self.residency.fits(self._footprint(item))

    def moved(self, item: WorkItem) -> bool:
        """Let in who generates, out who needs no context; True: an item exceeds the memory."""
        stage, residency = item.stage, self.residency
        if stage in OUT:
            self._footprints.pop(item, None)
        if residency is None:
            return False
        if stage is Stage.GENERATING and item not in residency:
            residency.enter(item, self._footprint(item))
        elif stage not in LIVE or stage is Stage.FINALIZING:
            residency.leave(item)
        return stage is Stage.RESUMING and residency.exceeds(item)

    def _footprint(self, item: WorkItem) -> Footprint:
        return self._footprints.get(item) or Footprint(item.episode.uid)
