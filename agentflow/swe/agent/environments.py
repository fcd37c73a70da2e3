"""The library's Environment interface over our ContainerEnv, and over one that is not there yet."""

from __future__ import annotations

import inspect
import subprocess
from typing import TYPE_CHECKING, Any, NoReturn

from agentflow.swe.agent.library import check_finished, recursive_merge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentflow.protocols import ContainerEnv
    from agentflow.types import CommandResult

_SAID = "An error occurred while executing the command: "
"""The library's words before whatever went wrong."""


class DetachedEnv:
    """Stands for an environment that is elsewhere: answers templates, runs nothing."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self.config: dict[str, Any] = dict(variables)

    def execute(self, action: dict[str, Any], cwd: str = "") -> NoReturn:  # noqa: ARG002  # the library's
        """Raise: there is nothing to run it in."""
        raise RuntimeError(f"no environment is attached to run {action.get('command')!r}")

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return what was known of it."""
        return _merged(self.config, kwargs)

    def serialize(self) -> dict[str, Any]:
        """Return nothing: trajectories then lack their environment's part."""
        return {}


class ContainerView:
    """A ContainerEnv as the library sees environments; commands go through `aexecute`."""

    def __init__(self, container: ContainerEnv) -> None:
        self.container = container
        self.config: dict[str, Any] = {"name": getattr(container, "name", "")}

    def execute(self, action: dict[str, Any], cwd: str = "") -> NoReturn:  # noqa: ARG002  # the library's
        """Raise: the container is asynchronous and lives on its own loop."""
        raise RuntimeError(
            f"cannot run {action.get('command')!r} synchronously in {self.config['name']!r}:"
            " await run_episode, or generation_step and env_step, instead of run"
        )

    async def aexecute(self, action: dict[str, Any]) -> dict[str, Any]:
        """Run one action, with the library's output. Raises Submitted, EnvDied, ..."""
        command = action.get("command", "")
        try:
            result = await self.container.execute(command, check=False)
        except (TimeoutError, subprocess.TimeoutExpired) as error:  # a plug-in's way to say it
            output = _failed(error, text_of(getattr(error, "output", None) or b""))
        else:
            output = self.output_of(result, command)
        check_finished(output)
        return output

    def output_of(self, result: CommandResult, command: str) -> dict[str, Any]:
        """`result` as the library's environments would have told it."""
        text = text_of(result.output)
        if result.timed_out:
            expired = subprocess.TimeoutExpired(command, self._deadline_s(result))
            output = _failed(expired, text)
        else:
            said = f"{_SAID}it ran out of memory" if result.out_of_memory else ""
            output = {"output": text, "returncode": result.exit_code, "exception_info": said}
        if result.dropped_bytes:
            output["dropped_bytes"] = result.dropped_bytes
        return output

    def _deadline_s(self, result: CommandResult) -> float:
        """Return the time limit that was passed, a whole number where it is one."""
        variables = self.get_template_vars()
        told = variables.get("timeout", variables.get("timeout_s"))
        seconds = float(told) if told else max(1.0, float(round(result.duration_s)))
        return int(seconds) if seconds.is_integer() else seconds

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return what prompts may say about the container."""
        known = getattr(self.container, "template_vars", dict)
        return _merged(known(), kwargs)

    def serialize(self) -> dict[str, Any]:
        """Return its part of a trajectory file."""
        kind = type(self.container)
        told = {
            "environment": self.config,
            "environment_type": f"{kind.__module__}.{kind.__qualname__}",
        }
        return {"info": {"config": told}}


def as_library_env(env: Any) -> Any:
    """Wrap a ContainerEnv; leave the library's own environments (sync `execute`) as they are."""
    if env is None:
        return DetachedEnv({})
    return ContainerView(env) if inspect.iscoroutinefunction(env.execute) else env


def detached(env: Any) -> DetachedEnv:
    """What can be pickled of an environment: what it tells templates.

    Of the library's own environments that is their configuration alone: they would tell all of
    `os.environ`, which belongs in no file.
    """
    if isinstance(env, DetachedEnv):
        return env
    if isinstance(env, ContainerView):
        return DetachedEnv(env.get_template_vars())
    dump = getattr(getattr(env, "config", None), "model_dump", dict)
    return DetachedEnv(dump())


def _failed(error: Exception, text: str) -> dict[str, Any]:
    return {
        "output": text,
        "returncode": -1,
        "exception_info": f"{_SAID}{error}",
        "extra": {"exception_type": type(error).__name__, "exception": str(error)},
    }


def text_of(output: bytes | str) -> str:
    """Decode as the library's text-mode pipes do, line ends included."""
    text = output.decode("utf-8", errors="replace") if isinstance(output, bytes) else output
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = recursive_merge(*(dict(part) for part in parts))
    return merged
