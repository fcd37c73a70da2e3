"""ScriptedEngine passes the contract of every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from engine_contract import EngineContract

from agentflow.engine.model_folder import bundled_model_folder
from agentflow.engine.policy_script import PolicyScript
from agentflow.engine.scripted import ScriptedEngine, ScriptedSettings
from agentflow.engine.template_renderer import TemplateRenderer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agentflow.engine.conversation import Conversation

FOLDER = bundled_model_folder()
RENDERER = TemplateRenderer(FOLDER)


class Talkative:
    """A policy that always says the same long thing."""

    name = "talkative"

    def answer(self, conversation: Conversation) -> str:
        """Count to sixty."""
        return " ".join(str(i) for i in range(60))


def engine_of(max_concurrency: int | None) -> ScriptedEngine:
    """Make an engine over the bundled tokenizer."""
    script = PolicyScript(Talkative(), renderer=RENDERER, tokenizer=FOLDER.tokenizer)
    settings = ScriptedSettings(
        context_length=2048, chunk_tokens=4, max_concurrency=max_concurrency
    )
    return ScriptedEngine(script, tokenizer=FOLDER.tokenizer, settings=settings)


class TestScriptedEngine(EngineContract):
    """The contract, with free slots and with few."""

    @pytest.fixture(params=[None, 2], ids=["unlimited", "two slots"])
    async def engine(self, request: pytest.FixtureRequest) -> AsyncIterator[ScriptedEngine]:
        """Start and close the engine."""
        engine = engine_of(request.param)
        yield engine
        await engine.close()

    @pytest.fixture
    def prompt(self) -> list[int]:
        """Return a rendered question."""
        return RENDERER.opening([{"role": "user", "content": "Count."}])
