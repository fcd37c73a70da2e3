"""CoordinatorHooks: what an action-level flow tells the coordinator, and asks a predictor."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from agentflow.errors import AgentflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from agentflow.swe.sample import SWESample
    from agentflow.types import EpisodeId, Message
    from executors.data.coordinator import DataCoordinator

logger = logging.getLogger(__name__)


class PredictionFailed(AgentflowError):
    """A predictor gave no answer; the episode is served as it came."""


class Predictor(Protocol):
    """Predicts lengths, at the URL that the coordinator knows."""

    async def predict(self, messages: Sequence[Message]) -> float:
        """Predict the tokens that an episode will still generate. Raises PredictionFailed."""
        ...


class CoordinatorHooks:
    """`SchedulingHooks` of one worker; called on the flow worker."""

    def __init__(
        self,
        coordinator: DataCoordinator,
        worker: str,
        *,
        connect: Callable[[str], Predictor] | None = None,
    ) -> None:
        """`connect` makes the client of a predictor's URL; without one nothing is predicted."""
        self._coordinator = coordinator
        self._worker = worker
        self._connect = connect
        self._predictor: Predictor | None = None
        self.failed = 0
        """Predictions that could not be had."""

    def replica_inflight(self, episode: EpisodeId) -> None:
        """Pass it on."""
        self._coordinator.replica_inflight(episode, self._worker)

    def predict(
        self, sample: SWESample, *, gen_turn_seq: int
    ) -> Coroutine[Any, Any, float | None] | None:
        """Predict and report; None without a predictor, or when it fails."""
        predictor = self._connected()
        if predictor is None:
            return None
        return self._predict(predictor, sample, sample.attempt, gen_turn_seq)

    async def _predict(
        self, predictor: Predictor, sample: SWESample, attempt: int, gen_turn_seq: int
    ) -> float | None:
        try:
            tokens = await predictor.predict(sample.messages)
        except PredictionFailed as error:
            self.failed += 1
            logger.info("%s: no prediction: %s", sample.episode, error)
            return None
        fresh = self._coordinator.report_prediction(
            sample.episode,
            tokens,
            gen_turn_seq=gen_turn_seq,
            attempt=attempt,
            worker=self._worker,
        )
        return tokens if fresh else None

    def _connected(self) -> Predictor | None:
        if self._predictor is None and self._connect is not None:
            url = self._coordinator.get_predictor_url()
            if url is not None:
                self._predictor = self._connect(url)
        return self._predictor
