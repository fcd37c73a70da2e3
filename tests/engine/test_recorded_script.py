"""A recorded run is played back to the same tokens, and nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentflow.engine.model_folder import bundled_model_folder
from agentflow.engine.recorded_tokens import RecordedTokens, read_tokens, tokens_name
from agentflow.engine.rids import RidFactory, episode_key
from agentflow.engine.scripted_spec import scripted_engine
from agentflow.engine.template_renderer import TemplateRenderer
from agentflow.engine.token_record import TokenRecord
from agentflow.engine.turns import EngineAccess, TurnModel
from agentflow.errors import ConfigError, EngineRejected
from agentflow.types import EpisodeId, GenerationRequest, SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.engine.scripted import ScriptedEngine
    from agentflow.types import Message

RENDERER = TemplateRenderer(bundled_model_folder())
PATCH = "".join(f"+line {i}\n" for i in range(40))
TASK = {"instance_id": "t", "problem_statement": "It fails.", "patch": PATCH}
FIELDS = tuple(RecordedTokens.__dataclass_fields__)


async def roll_out(
    engine: ScriptedEngine, episode: EpisodeId, *, turns: int = 4, budget: int = 60, **other: Any
) -> TokenRecord:
    """Let `engine` play some turns of an episode, some of them cut by their budget."""
    record = TokenRecord()
    model = TurnModel(
        episode=episode,
        record=record,
        sampling=SamplingParams(max_new_tokens=budget),
        access=EngineAccess(engine=engine, renderer=RENDERER, rids=RidFactory()),
    )
    messages: list[Message] = [{"role": "user", "content": other.get("prompt", "Fix: It fails.")}]
    for turn in range(turns):
        answer = await model.generate(messages)
        messages += [
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": other.get("observation", f"output {turn}")},
        ]
    return record


def write(run_dir: Path, episode: EpisodeId, record: TokenRecord) -> None:
    """Write a record as a run does."""
    path = run_dir / tokens_name(episode.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: getattr(record, name) for name in FIELDS})


def assert_same(one: TokenRecord, two: TokenRecord) -> None:
    """Compare all five arrays."""
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)


@pytest.mark.parametrize("budget", [60, 2000])
async def test_playback_gives_the_same_record(tmp_path: Path, budget: int) -> None:
    """Ids, log-probs, masks and versions are the recorded ones, replicas each their own."""
    episodes = [EpisodeId(uid="u", replica_index=i) for i in range(2)]
    recorded = []
    for episode in episodes:
        engine = scripted_engine("scripted:noisy:3", [TASK])
        engine.weight_version = 5 + episode.replica_index
        recorded.append(await roll_out(engine, episode, budget=budget))
        write(tmp_path, episode, recorded[-1])
    engine = scripted_engine(f"scripted:{tmp_path}", [])
    for episode, record in zip(episodes, recorded, strict=True):
        assert_same(await roll_out(engine, episode, budget=budget), record)


async def test_another_episode_is_found_by_its_prompt(tmp_path: Path) -> None:
    """A run under other uids plays the record that began with the same prompt."""
    record = await roll_out(scripted_engine("scripted:oracle", [TASK]), EpisodeId(uid="u"))
    write(tmp_path, EpisodeId(uid="u"), record)
    engine = scripted_engine(f"scripted:{tmp_path}", [])
    assert_same(await roll_out(engine, EpisodeId(uid="other")), record)
    with pytest.raises(EngineRejected, match="neither this episode nor one that began"):
        await roll_out(engine, EpisodeId(uid="other"), prompt="Something else.")


async def test_another_prompt_is_refused_with_its_position(tmp_path: Path) -> None:
    """An observation that differs from the record is named by position and ids."""
    episode = EpisodeId(uid="u")
    record = await roll_out(scripted_engine("scripted:oracle", [TASK]), episode)
    write(tmp_path, episode, record)
    engine = scripted_engine(f"scripted:{tmp_path}", [])
    with pytest.raises(EngineRejected, match=r"at position (\d+) the prompt has id") as caught:
        await roll_out(engine, episode, observation="another output")
    position = int(str(caught.value).split("at position ")[1].split()[0])
    first_turn = int(np.flatnonzero(record.response_mask == 0)[0])
    assert position > len(record.prompts) + first_turn


async def test_more_turns_than_recorded_are_refused(tmp_path: Path) -> None:
    """Behind the record's end there is nothing to play."""
    episode = EpisodeId(uid="u")
    record = await roll_out(scripted_engine("scripted:oracle", [TASK]), episode, turns=2)
    write(tmp_path, episode, record)
    engine = scripted_engine(f"scripted:{tmp_path}", [])
    with pytest.raises(EngineRejected, match=f"position .* of its {len(record)} tokens"):
        await roll_out(engine, episode, turns=3)


async def test_a_prompt_shorter_than_the_recorded_one_is_refused(tmp_path: Path) -> None:
    """A prefix of the recorded prompt is not where generation began."""
    episode = EpisodeId(uid="u")
    record = await roll_out(scripted_engine("scripted:oracle", [TASK]), episode)
    write(tmp_path, episode, record)
    request = GenerationRequest(
        rid=RidFactory().make(episode, attempt=0, generation=0),
        input_ids=record.prompts[:-2],
        sampling=SamplingParams(),
    )
    with pytest.raises(EngineRejected, match="nothing was generated at position"):
        await scripted_engine(f"scripted:{tmp_path}", []).generate(request, TokenRecord())


async def test_an_aborted_turn_goes_on_from_the_record(tmp_path: Path) -> None:
    """Part of a recorded turn in the prompt is continued, versions within the turn kept."""
    record = TokenRecord()
    record.extend_rendered([5, 6])
    record.append([7, 8], [-1.0, -0.5], 1)
    record.append([9], [-0.25], 2)
    episode = EpisodeId(uid="u")
    write(tmp_path, episode, record)
    played = TokenRecord()
    played.extend_rendered([5, 6])
    played.append([7], [-1.0], 1)
    request = GenerationRequest(
        rid=RidFactory().make(episode, attempt=1, generation=0),
        input_ids=played.ids,
        sampling=SamplingParams(),
    )
    await scripted_engine(f"scripted:{tmp_path}", []).generate(request, played)
    assert_same(played, record)


def test_a_run_without_tokens_is_refused(tmp_path: Path) -> None:
    """The folder of a run that recorded nothing says what is missing."""
    with pytest.raises(ConfigError, match=r"has no tokens/\*\.npz"):
        scripted_engine(f"scripted:{tmp_path}", [])


@pytest.mark.parametrize("damage", ["text", "missing", "uneven", "cut", "gone"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    """The error has the path and what a right file holds."""
    arrays = {name: np.zeros(3, np.int32) for name in FIELDS}
    path = tmp_path / "x.npz"
    if damage == "missing":
        del arrays["prompts"]
    if damage == "uneven":
        arrays["response_mask"] = np.zeros(2, np.int8)
    if damage != "gone":
        np.savez(path, **arrays)
    if damage == "text":
        path.write_text("hello")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ConfigError, match=r"x\.npz is no record.*rollout_log_prob"):
        read_tokens(path)


def test_rids_find_their_episode(tmp_path: Path) -> None:
    """The key in a rid is the name of the file."""
    episode = EpisodeId(uid="u", replica_index=2)
    rid = RidFactory().make(episode, attempt=3, generation=4)
    assert episode_key(rid) == (tmp_path / tokens_name(episode.key)).stem
    assert episode_key("of-another-make") is None
