"""A trainer's side of a weight update; runs in the server's own environment.

usage: python trainer.py tensor CHECKPOINT | distributed CHECKPOINT PORT

`tensor` prints one JSON string, the tensors as SGLang serialises them, and lives until its standard
input closes: the tensors lie in its shared memory. `distributed` prints names, dtypes and shapes,
joins the process group as rank 0 of 2 and sends the tensors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from sglang.srt.utils import MultiprocessingSerializer, init_custom_process_group


def main(how: str, checkpoint: str, port: str = "0") -> None:
    """Do what the command line says."""
    weights = load_file(Path(checkpoint) / "model.safetensors")
    if how == "tensor":
        torch.multiprocessing.set_sharing_strategy("file_system")
        say(MultiprocessingSerializer.serialize(list(weights.items()), output_str=True))
        sys.stdin.read()
        return
    say(
        {
            "names": list(weights),
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()],
            "shapes": [list(tensor.shape) for tensor in weights.values()],
        }
    )
    group = init_custom_process_group(
        backend="gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        world_size=2,
        rank=0,
        group_name="weight_update_group",
    )
    for tensor in weights.values():
        torch.distributed.broadcast(tensor, src=0, group=group)


def say(what: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(what), flush=True)  # noqa: T201  # the answer


if __name__ == "__main__":
    main(*sys.argv[1:])
