"""A run seen from outside: status, why, metrics and trace, while it goes and afterwards."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import parts
import pytest
from perfetto_reader import PerfettoTrace
from typer.testing import CliRunner
from watched import EPISODES, agentflow, run, scrape, slices, status

from agentflow.errors import ConfigError
from executors.cli.app import app
from executors.runs.session import Rollout, RolloutFailed

if TYPE_CHECKING:
    from agentflow.config import AgentflowConfig

ROOT = Path(__file__).parent.parent.parent
BY_ACTION = {"enable_action_level_scheduling": True, "gen_concurrency": 2}


def make_rollout(config: AgentflowConfig) -> Rollout:
    """Make a run of the plugged-in parts."""
    return Rollout(config, make_engine=parts.make_engine, load_tasks=parts.make_tasks)


@pytest.mark.parametrize("rollout", [{}, BY_ACTION], ids=["naive", "by action"])
@pytest.mark.slow
async def test_whoever_looks_at_a_run_sees_the_same_numbers(
    tmp_path: Path, rollout: dict[str, Any]
) -> None:
    """Scrape, status and why agree at a moment of the run, and with summary.json at its end."""
    out = tmp_path / "run"
    seen: dict[str, Any] = {}

    def look() -> None:
        url = _metrics_url(out)
        scraped = _counts(scrape(url))
        while scraped != seen.get("scraped"):  # episodes under way go on until they need this loop
            seen["scraped"] = scraped
            seen.update(status=status(out), why=agentflow("why", "task/15", str(out)))
            scraped = _counts(scrape(url))

    await run(out, {40: look}, **rollout)
    scraped, then = seen["scraped"], seen["status"]
    assert (then["status"], then["planned"], then["ended"]) == ("running", EPISODES, 39)
    assert scraped["agentflow_episodes_ended_total{cause=submitted,status=resolved}"] == 10.0
    for doing, count in then["doing"].items():
        assert scraped[f"agentflow_episodes{{doing={doing}}}"] == count
    for stage, count in then["waiting"].items():
        assert scraped[f"agentflow_queue_depth{{stage={stage}}}"] == count
    assert scraped["agentflow_tokens_received_total"] == then["tokens"]["received"]
    assert scraped["agentflow_slots_busy{replica=local}"] == then["slots"]["local"]["busy"]
    assert len(then["episodes"]) == EPISODES - 39
    assert "task/15#3 waits for a worker" in seen["why"]
    assert re.search(r"episodes with the worker: \d+ of \d+ in use", seen["why"])
    _agrees_with_summary(out)


def _counts(scraped: dict[str, float]) -> dict[str, float]:
    """Leave out what time alone changes."""
    return {name: value for name, value in scraped.items() if "_seconds" not in name}


def _metrics_url(out: Path) -> str:
    """Read where metrics are served, before anything was asked."""
    for line in (out / "events.jsonl").read_text().splitlines():
        if (event := json.loads(line))["kind"] == "metrics_served":
            return str(event["url"])
    raise AssertionError


def _agrees_with_summary(out: Path) -> None:
    """Status, the last metrics and the trace of a run that is over say what summary.json says."""
    summary, after = json.loads((out / "summary.json").read_text()), status(out)
    assert (after["status"], after["ended"], after["episodes"]) == ("done", EPISODES, [])
    assert summary["episodes"] == EPISODES
    by_class = {ending["status"]: ending["count"] for ending in after["endings"]}
    assert by_class == {k: v for k, v in summary["by_class"].items() if v}
    for cause in ("received", "delivered", "failed", "restarted", "forked"):
        assert after["tokens"].get(cause, 0) == summary["tokens"][cause]
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["agentflow_tokens_total{cause=delivered}"] == summary["tokens"]["delivered"]
    assert last["agentflow_queue_wait_seconds_count{stage=generation}"] == summary["turns"]
    assert slices(out) == {
        "slots local": summary["turns"],
        "environments": EPISODES,
        "start": EPISODES,
        "command": EPISODES,
        "rewards": EPISODES,
    }


@pytest.mark.slow
async def test_a_run_is_watched_until_it_ends(tmp_path: Path) -> None:
    """`status --watch`, as lines for people and as JSON, follows a run and ends with it."""
    out = tmp_path / "run"
    watching: list[tuple[subprocess.Popen[str], str]] = []

    def watch() -> None:
        for more in ([], ["--json"]):
            command = [
                sys.executable,
                "-m",
                "executors.cli",
                "status",
                "--watch",
                "--every",
                "0.05",
            ]
            process = subprocess.Popen(
                [*command, *more, str(out)], stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            assert process.stdout is not None
            watching.append((process, process.stdout.readline()))  # the run waits here for it

    await run(out, {32: watch}, **BY_ACTION)
    for process, first in watching:
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        if first.startswith("{"):
            looks = [json.loads(line) for line in (first + rest).splitlines()]
            assert looks[0]["status"] == "running"
            assert 0 < looks[0]["ended"] < EPISODES
            assert (looks[-1]["status"], looks[-1]["ended"]) == ("done", EPISODES)
        else:
            assert f"{out}: running" in first
            assert f"{out}: done, 64 of 64 episodes ended" in rest


SLICES = """
select process.name as process, count(*) as n from slice
join thread_track on slice.track_id = thread_track.id join thread using (utid)
join process using (upid) group by 1 order by 1
"""
FAULTS = "select name, value from stats where severity != 'info' and value > 0"


@pytest.mark.slow
async def test_perfetto_opens_the_trace_and_finds_every_slice(tmp_path: Path) -> None:
    """As many as the file has, none dropped, in the lanes that they belong to."""
    out = tmp_path / "run"
    await run(out, {}, **BY_ACTION)
    summary = json.loads((out / "summary.json").read_text())
    trace = PerfettoTrace(out / "trace.json")
    assert trace.query(FAULTS) == []
    assert trace.query(SLICES) == [
        ("environments", 3 * EPISODES),  # each with a start and a command inside
        ("rewards", EPISODES),
        ("slots local", summary["turns"]),
    ]
    depth = "select count(distinct depth) as n from slice where name in ('start', 'command')"
    assert trace.query(depth) == [(1,)]
    lanes = "select count(distinct utid) as n from thread where name like 'slots local %'"
    assert trace.query(lanes) == [(BY_ACTION["gen_concurrency"],)]
    tokens = "select sum(extract_arg(arg_set_id, 'args.tokens')) as n from slice"
    assert trace.query(tokens) == [(summary["tokens"]["received"],)]
    queues = "select distinct name from counter_track order by 1"
    stages = ("admission", "command", "generation", "reward", "start")
    assert trace.query(queues) == [(f"{stage} value",) for stage in stages]


# --- stalls -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rollout", [{}, BY_ACTION], ids=["naive", "by action"])
async def test_a_stall_is_named_and_raised(tmp_path: Path, rollout: dict[str, Any]) -> None:
    """Both executors: the run fails and names who stands still, where; status repeats it."""
    out = tmp_path / "run"
    config = parts.make_config(
        out, environment={"hang_on": "task/1"}, rollout={"stall_s": 0.3, **rollout}
    )
    with pytest.raises(RolloutFailed, match=r"^nothing has happened for \S+ s: task/1#0 command"):
        await make_rollout(config).run()
    found = status(out)
    assert (found["status"], found["ended"]) == ("failed", 2)
    assert "task/1#0 command" in found["error"]
    assert not parts.LIVE


# --- refusals ---------------------------------------------------------------------------------


async def test_a_port_that_is_taken_is_told_before_anything_is_written(tmp_path: Path) -> None:
    """The key, the port and why."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = parts.make_config(tmp_path / "run", observe={"metrics_port": port})
        with pytest.raises(
            ConfigError, match=f"observe.metrics_port: {port} at 127.0.0.1: .*in use"
        ):
            await make_rollout(config).run()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["status", "nowhere"], "nowhere holds no run: run.json: No such file or directory"),
        (["why", "task/1", "nowhere"], "nowhere holds no run"),
        (["trace", "nowhere"], "nowhere holds no run"),
    ],
)
def test_what_is_no_run_is_bad_input(args: list[str], said: str) -> None:
    """One line, exit code 2."""
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 2
    assert said in result.stderr


# --- runs that are over -----------------------------------------------------------------------


def left_behind(out: Path, *events: dict[str, Any], **run: Any) -> Path:
    """Make the files of a run that is over."""
    out.mkdir(parents=True)
    facts = {"status": "running", "pid": 0, "started": "2026-01-01", "error": None, **run}
    (out / "run.json").write_text(json.dumps(facts))
    (out / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return out


def at(t: float, kind: str, uid: str | None = None, **facts: Any) -> dict[str, Any]:
    """Make an event."""
    stamp: dict[str, Any] = {"t": t, "wall": 1000.0 + t, "kind": kind}
    return {**stamp, **({"uid": uid, "replica_index": 0} if uid else {}), **facts}


RUN = {
    "planned": 3,
    "by_action": True,
    "policy": "longest_predicted_first",
    "age_s": 60.0,
    "window": 9,
    "generations": 1,
    "live": 2,
    "admitted": 4,
    "starts": 1,
    "commands": 2,
    "rewards": 1,
}


def contended(out: Path, *, elsewhere: str = "", **run: Any) -> Path:
    """Three episodes, one slot: `a` generates, `b` and `c` wait, one of them elsewhere."""
    episodes = [
        at(t, kind, uid, **facts)
        for uid in "abc"
        for t, kind, facts in (
            (0, "issued", {}),
            (1, "leased", {"worker": "another" if uid == elsewhere else "local"}),
            (2, "env_starting", {}),
            (3, "env_started", {}),
        )
    ]
    episodes.sort(key=lambda event: float(event["t"]))
    left_behind(
        out,
        at(0, "run_started", **RUN, **run),
        *episodes,
        at(4, "generation_started", "a", attempt=0),
        at(9, "generation_ended", "x", status="aborted", tokens=0),
    )
    row = {"replica_index": 0, "stage": "pending", "high": False, "preemptions": 0}
    queue = [
        {**row, "uid": "c", "rank": -90.0, "predicted": 90.0},
        {**row, "uid": "b", "rank": None, "predicted": None},
    ]
    (out / "queues.json").write_text(json.dumps({"wall": 1008.0, "queues": {"generation": queue}}))
    return out


def test_why_tells_place_limits_and_priority(tmp_path: Path) -> None:
    """By the scheduler's own order, which is not that of arrival."""
    out = contended(tmp_path / "run")
    assert agentflow("why", "b#0", str(out)).splitlines() == [
        "b#0 waits for a generation, for 6.0 s (turn 0, attempt 0, 0 tokens, with local)",
        "  the run is killed; this is how it was left",
        "  it is number 2 of 2 in that line; ahead c#0",
        "  generation slots: 1 of 1 in use, which is full; by a#0 for 5.0 s",
        "  live episodes: 1 of 2 in use",
        (
            "  priority: policy longest_predicted_first; class low, rank unknown"
            " (lower goes first), no prediction; as of 1.0 s ago"
        ),
        "  after 60 s of waiting it goes before all others",
    ]
    assert "rank -90 (lower goes first), 90 tokens predicted" in agentflow("why", "c", str(out))
    assert agentflow("why", "a#0", str(out)).startswith("a#0 generates, for 5.0 s (turn 1")


def test_why_speaks_of_the_replica_that_an_episode_is_at(tmp_path: Path) -> None:
    """Each has lines and limits of its own."""
    workers = {name: {**RUN, "live": 1} for name in ("local", "another")}
    out = contended(tmp_path / "run", elsewhere="c", workers=workers)
    assert agentflow("why", "b#0", str(out)).splitlines()[2:5] == [
        "  it is number 1 of 1 in that line",
        "  generation slots: 1 of 1 in use, which is full; by a#0 for 5.0 s",
        "  live episodes: 1 of 1 in use, which is full",
    ]
    assert agentflow("why", "c#0", str(out)).splitlines()[2:5] == [
        "  it is number 1 of 1 in that line",
        "  generation slots: 0 of 1 in use",
        "  live episodes: 0 of 1 in use",
    ]
    slots = {name: row["total"] for name, row in status(out)["slots"].items()}
    assert slots == {"local": 1, "another": 1}


def test_an_episode_that_does_not_exist_is_bad_input(tmp_path: Path) -> None:
    """With the nearest name that does."""
    out = left_behind(tmp_path / "run", at(0, "issued", "basket"))
    result = CliRunner().invoke(app, ["why", "baskett", str(out)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'baskett' is no episode of" in result.stderr
    assert "did you mean 'basket'?" in result.stderr
    result = CliRunner().invoke(app, ["why", "3:1", str(out)])
    assert result.exit_code == 2
    assert "its episodes are named as 'basket#0' is" in result.stderr
    (out / "queues.json").write_text('{"wall": 1')
    result = CliRunner().invoke(app, ["why", "basket", str(out)])
    assert result.exit_code == 2
    assert "queues.json: is not JSON" in result.stderr


def test_a_run_that_says_running_and_holds_no_lock_was_killed(tmp_path: Path) -> None:
    """Its times stand still at the last event, and half a line is counted."""
    out = contended(tmp_path / "run")
    with (out / "events.jsonl").open("a") as events:
        events.write('{"t": 10, "kind"\n')
    found = status(out)
    assert (found["status"], found["quiet_s"], found["torn_lines"]) == ("killed", 0.0, 1)
    assert {row["uid"]: row["for_s"] for row in found["episodes"] if row["uid"] in "abc"} == {
        "a": 5.0,
        "b": 6.0,
        "c": 6.0,
    }
    assert "killed, 0 of 3 episodes ended" in agentflow("status", str(out))


def test_the_newest_run_is_meant_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those under runs/, also one level further down."""
    monkeypatch.chdir(tmp_path)
    left_behind(tmp_path / "runs" / "old", started="2026-01-01", status="done")
    left_behind(tmp_path / "runs" / "demo" / "new", started="2026-01-02", status="failed")
    assert json.loads(agentflow("status", "--json"))["dir"] == "runs/demo/new"


def test_a_trace_can_be_drawn_of_a_run_that_was_killed(tmp_path: Path) -> None:
    """From its events alone, into the run's directory or elsewhere."""
    out = contended(tmp_path / "run")
    assert agentflow("trace", str(out)).strip() == str(out / "trace.json")
    assert slices(out)["slots local"] == 1
    agentflow("trace", str(out), "--out", str(tmp_path / "t.json"), "--events", "1")
    assert json.loads((tmp_path / "t.json").read_bytes())["otherData"]["forgotten"] > 0
