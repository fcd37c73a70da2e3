"""How a name becomes a flow or a provider, and what is said when it does not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from agentflow.errors import ConfigError
from agentflow.registry import import_any, load_agentflow
from agentflow.runner import AsyncioRunner
from agentflow.swe import build_provider

if TYPE_CHECKING:
    from pathlib import Path

BUILTIN = {"record": ".types:RolloutSample"}


def test_a_builtin_name_is_relative_to_the_package() -> None:
    """A target with a leading dot stands in the package agentflow."""
    assert import_any("record", builtin=BUILTIN).__name__ == "RolloutSample"


def test_a_users_module_is_found_in_python_path_which_leaves_sys_path_alone(
    tmp_path: Path,
) -> None:
    """`python_path` is searched first, for the plug-in's own imports too, and then forgotten."""
    (tmp_path / "af_plug_helper.py").write_text("VALUE = 41\n")
    (tmp_path / "af_plug_one.py").write_text(
        "from af_plug_helper import VALUE\n\nclass Mine:\n    value = VALUE + 1\n"
    )
    before = list(sys.path)
    assert import_any("af_plug_one:Mine", path=[str(tmp_path)]).value == 42
    assert sys.path == before


def test_a_users_file_is_loaded_once(tmp_path: Path) -> None:
    """`path/file.py:Object` names the same object every time, also relative to `python_path`."""
    file = tmp_path / "mine.py"
    file.write_text("class Mine:\n    class Inner: ...\n")
    absolute = import_any(f"{file}:Mine.Inner")
    assert import_any("mine.py:Mine.Inner", path=str(tmp_path)) is absolute
    assert sys.modules[absolute.__module__].Mine.Inner is absolute


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("recrod", "did you mean 'record'"),
        ("zzz", "built in: record"),
        ("af_no_such_module:X", "No module named 'af_no_such_module' (python_path: none given)"),
        ("agentflow.types:RolloutSampel", "did you mean 'RolloutSample'"),
        ("no/such/file.py:X", "no such file: no/such/file.py"),
        (":X", "not known"),
        ("agentflow.types:", "not known"),
    ],
)
def test_a_name_without_an_object_is_told_with_what_would_be_right(name: str, said: str) -> None:
    """The message has the name as it was written, and the closest right one."""
    with pytest.raises(ConfigError) as caught:
        import_any(name, builtin=BUILTIN, kind="agent")
    assert said in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def f(:", "SyntaxError"),
        ("import af_missing_dependency", "No module named 'af_missing_dependency'"),
    ],
)
def test_a_plugin_that_fails_to_import_is_one_error(tmp_path: Path, source: str, said: str) -> None:
    """Whatever its import raises becomes a ConfigError with the name and the cause."""
    file = tmp_path / "broken.py"
    file.write_text(source)
    with pytest.raises(ConfigError, match=r"^agent '") as caught:
        import_any(f"{file}:X", kind="agent")
    assert said in str(caught.value)


def test_a_module_of_the_same_name_that_is_imported_already_is_not_taken(tmp_path: Path) -> None:
    """A user's `json.py` in `python_path` is not silently replaced by the one already loaded."""
    import json  # noqa: F401, PLC0415

    (tmp_path / "json.py").write_text("class Mine: ...\n")
    with pytest.raises(ConfigError, match="imported already"):
        import_any("json:Mine", path=[str(tmp_path)])


def test_a_flow_of_the_users_takes_only_the_wiring_it_names(tmp_path: Path) -> None:
    """The specification's two-argument form `flow(config, model)` is enough."""
    file = tmp_path / "flows.py"
    file.write_text(
        "def two(config, model):\n    return (config['name'], model)\n"
        "def three(config, model, *, events):\n    return events\n"
    )
    assert load_agentflow(f"{file}:two", {"name": "mine"}, "engine") == ("mine", "engine")
    assert load_agentflow(f"{file}:three", {}, "engine", events="sink") == "sink"


def test_a_flow_that_raises_is_named_with_its_cause(tmp_path: Path) -> None:
    """A constructor's exception becomes a ConfigError."""
    file = tmp_path / "flows_bad.py"
    file.write_text("def bad(config, model):\n    raise KeyError('port')\n")
    with pytest.raises(ConfigError, match=r"^flow '.*:bad': KeyError: 'port'"):
        load_agentflow(f"{file}:bad", {}, None)


def test_a_provider_that_raises_is_named_with_its_section(tmp_path: Path) -> None:
    """The message leads from the flow over the section and the provider to the cause."""
    pytest.importorskip("agentflow.swe.flow")
    file = tmp_path / "agent_bad.py"
    file.write_text("class Bad:\n    def __init__(self, conf):\n        raise OSError('no GPU')\n")
    with pytest.raises(ConfigError) as caught:
        load_agentflow("swe", {"agent": {"name": f"{file}:Bad"}}, None)
    assert str(caught.value) == f"flow 'swe': agent '{file}:Bad': OSError: no GPU"


def test_a_builder_that_takes_runner_and_run_id_gets_the_flows(tmp_path: Path) -> None:
    """Others are built from their section alone; the built-in environments take it."""
    (tmp_path / "two.py").write_text(
        "class Taking:\n    def __init__(self, conf, *, runner=None, run_id=None):\n"
        "        self.got = runner, run_id\n"
        "class Plain:\n    def __init__(self, conf): self.conf = conf\n"
    )
    runner = AsyncioRunner()

    def build(name: str) -> Any:
        section = {"name": f"{tmp_path}/two.py:{name}" if name.istitle() else name}
        return build_provider({"environment": section}, "environment", runner=runner, run_id="r")

    assert build("Taking").got == (runner, "r")
    assert build("Plain").conf["name"].endswith("Plain")
    assert build("local")._runner is runner
