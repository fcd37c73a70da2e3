"""Parts that tests of several folders share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import hypothesis
import pytest

from agentflow.engine.sglang_cpu import CpuServer, Layout, installed

if TYPE_CHECKING:
    from collections.abc import Iterator


hypothesis.settings.register_profile("agentflow", deadline=None)  # no test looks at the clock
hypothesis.settings.load_profile("agentflow")


@pytest.fixture(scope="session")
def sglang_url() -> Iterator[str]:
    """Serve checkpoint `a` on a real SGLang, one server for the whole run.

    `AGENTFLOW_SGLANG_URL` names one that runs already.
    """
    running = os.environ.get("AGENTFLOW_SGLANG_URL")
    if running:
        yield running
        return
    layout = Layout.default()
    if not installed(layout):
        pytest.fail("no SGLang here: `make sglang-cpu` installs it")
    with CpuServer(layout, layout.checkpoint("a")) as server:
        yield server.url
