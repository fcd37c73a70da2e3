"""Make a small Qwen2 checkpoint whose greedy choice is never close.

usage: python checkpoint.py FOLDER SEED (runs in the server's environment)

A random model has near-ties that another batch shape flips. Here the output layer is tied, through
a permutation of the vocabulary, to the embeddings: the next token is the last one's successor by a
clear margin, whatever came before, while random attention lets the whole context show in the
log-probability. So each token of an output can be checked against the one before it, and with two
seeds even which weights generated it. `successors.json` has the permutation; special tokens are
followed by ordinary ones and never follow.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 512
HIDDEN = 128
SHARPNESS = 7.0
"""Logit of the successor; the others are normal around 0 with a deviation of 0.6."""
ATTENTION = 2.0
"""Norm of the attention outputs: one other token of context moves a log-prob by about 0.01."""
MARGIN = 1.0
"""Least difference in logits between first and second that is accepted, in nats."""

TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer with a ChatML template."""
    corpus = [
        "The quick brown fox jumps over the lazy dog. " * 3,
        "def main():\n    return 0\n",
        "system user assistant tool hello world 0123456789",
    ] * 20
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    raw.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",  # noqa: S106  # a token of text  # a token of text
        pad_token="<|endoftext|>",  # noqa: S106  # a token of text  # a token of text
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast


def successors(vocab_size: int, seed: int) -> list[int]:
    """Return one cycle through all ordinary ids; special ids lead into it."""
    order = list(range(len(SPECIAL), vocab_size))
    random.Random(seed).shuffle(order)  # noqa: S311  # a permutation, not a secret  # a permutation, not a secret
    following = [0] * vocab_size
    for here, there in zip(order, order[1:] + order[:1], strict=True):
        following[here] = there
    for special in range(len(SPECIAL)):
        following[special] = order[special]
    return following


def model(vocab_size: int, eos_id: int, following: list[int], seed: int) -> Qwen2ForCausalLM:
    """Return the model."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=eos_id,
        torch_dtype="float32",
    )
    made = Qwen2ForCausalLM(config)
    with torch.no_grad():
        rows = torch.nn.functional.normalize(torch.randn(vocab_size, HIDDEN), dim=-1)
        made.model.embed_tokens.weight.copy_(rows)
        output = torch.zeros(vocab_size, HIDDEN)
        for here, there in enumerate(following):
            if here >= len(SPECIAL):
                output[there] = rows[here]
        for special in range(len(SPECIAL)):
            made.model.embed_tokens.weight[special] = _predecessor(rows, following, special)
        made.lm_head.weight.copy_(output * SHARPNESS / HIDDEN**0.5)
        for layer in made.model.layers:
            layer.mlp.down_proj.weight.zero_()
            layer.self_attn.o_proj.weight.mul_(ATTENTION / layer.self_attn.o_proj.weight.norm())
    return made


def _predecessor(rows: torch.Tensor, following: list[int], special: int) -> torch.Tensor:
    """Return the embedding that has the same successor as `special`."""
    target = following[special]
    return rows[next(i for i in range(len(SPECIAL), len(following)) if following[i] == target)]


def margin(made: Qwen2ForCausalLM, following: list[int]) -> float:
    """Return the least margin, in nats, over walks through the whole cycle."""
    vocab = len(following)
    starts = torch.arange(vocab)
    walk = [starts]
    for _ in range(63):
        walk.append(torch.tensor(following)[walk[-1]])
    ids = torch.stack(walk, dim=1)
    with torch.no_grad():
        top = made(ids).logits.topk(2, dim=-1)
    expected = torch.tensor(following)[ids]
    if not bool((top.indices[..., 0] == expected).all()):
        return -1.0
    return float((top.values[..., 0] - top.values[..., 1]).min())


def main(folder: Path, seed: int) -> None:
    """Write the checkpoint to `folder`."""
    fast = tokenizer()
    vocab_size = len(fast)
    following = successors(vocab_size, seed)
    made = model(vocab_size, fast.eos_token_id, following, seed)
    least = margin(made, following)
    if least < MARGIN:
        raise SystemExit(f"seed {seed}: margin {least:.2f} is below {MARGIN}; take another seed")
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(folder)
    made.save_pretrained(folder)
    (folder / "successors.json").write_text(json.dumps(following))
    print(f"{folder}: {vocab_size} ids, least margin {least:.2f} nats")  # noqa: T201  # a script  # a script


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
