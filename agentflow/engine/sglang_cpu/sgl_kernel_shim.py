"""Import shim for `sgl_kernel` on a CPU, copied into the server's own environment.

PyPI's sgl-kernel wheels hold CUDA extensions only. On a CPU without AMX tiles SGLang uses its
native torch code for every layer, and needs `sgl_kernel` only so that `from sgl_kernel import
X_cpu` works at import time (speculative decoding, KV moves): those names raise when called. The one
op that a plain server can call, murmur_hash32_cpu of seeded sampling, is implemented in torch.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

__version__ = "0.0.0+cpushim"

_UNUSED = {
    "copy_all_layer_kv_cache_cpu",
    "assign_req_to_token_pool_cpu",
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "build_tree_kernel_efficient_cpu",
    "verify_tree_greedy_cpu",
    "build_draft_decode_metadata_cpu",
}


def __getattr__(name: str) -> Any:
    if name not in _UNUSED:
        raise AttributeError(name)

    def missing(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is not in the CPU shim")

    return missing


_MASK = 0xFFFFFFFF


def _mix(state: Any, key: Any) -> Any:
    key = (key * 0xCC9E2D51) & _MASK
    key = ((key << 15) | (key >> 17)) & _MASK
    key = (key * 0x1B873593) & _MASK
    state ^= key
    state = ((state << 13) | (state >> 19)) & _MASK
    return (state * 5 + 0xE6546B64) & _MASK


def _murmur(seed: Any, positions: Any, columns: Any) -> Any:
    """MurmurHash3 of (seed, position, column), 32 bits, shapes (n,), (n,), (m,) to (n, m)."""
    seed = seed.to(torch.int64).view(-1, 1)
    position = (positions.to(torch.int64) & _MASK).view(-1, 1)
    column = (columns.to(torch.int64) & _MASK).view(1, -1)
    state = torch.zeros_like(seed)
    for key in (seed & _MASK, (seed >> 32) & _MASK, position, column):
        state = _mix(state, key)
    state ^= 16
    state ^= state >> 16
    state = (state * 0x85EBCA6B) & _MASK
    state ^= state >> 13
    state = (state * 0xC2B2AE35) & _MASK
    state ^= state >> 16
    return state.to(torch.uint32)


_library = torch.library.Library("sgl_kernel", "DEF")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
_library.impl("murmur_hash32_cpu", _murmur, "CPU")
