"""The bundled tokenizer can be made again, and is as small as it says."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from agentflow.engine import train_tokenizer
from agentflow.engine.model_folder import BUNDLED_FOLDER, bundled_model_folder, load_model_folder

if TYPE_CHECKING:
    from pathlib import Path

_TRAIN_SMALL = """
import sys
from pathlib import Path
from agentflow.engine import train_tokenizer as t
t.write_folder(t.train(t.stdlib_files()[:8], vocab_size=600), Path(sys.argv[1]))
"""


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    """Neither the hash seed nor the process changes the result."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for seed, folder in enumerate(folders):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed + 1)}
        command = [sys.executable, "-c", _TRAIN_SMALL, str(folder)]
        subprocess.run(command, check=True, env=environment, timeout=120)
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == ["generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert load_model_folder(folders[0]).tokenizer.vocab_size == 600


def test_the_bundled_one_is_small() -> None:
    """At most 400 KB on disk, and its vocabulary is what the script says."""
    size = sum(path.stat().st_size for path in BUNDLED_FOLDER.iterdir())
    assert size <= 400_000
    assert bundled_model_folder().tokenizer.vocab_size == train_tokenizer.VOCAB_SIZE


def test_the_bundled_one_halves_code() -> None:
    """On source code that it was not trained on it needs less than half as many ids as bytes."""
    text = "def mean(values):\n    if not values:\n        raise ValueError('empty')\n" * 20
    assert len(bundled_model_folder().tokenizer.encode(text)) < len(text) / 2
