"""Speed of this project's CPU operations, each against PyTorch's own function.

    python bench/kernels.py --preset small --batch_size 16 --seq_length 128 --dtype bf16

The two take turns on the same input, forward and backward (sampling: forward only). Each line gives both medians and
the speed-up over PyTorch.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bench.batches import VOCABULARY
from bench.contender import StepOptions
from bench.matrix_rate import DTYPES
from bench.timing import seconds_of
from data_prep.masking import mask_size
from electra_sampler.foundation.command_line import run_command
from pretrain.job.processes import start_processes
from pretrain.model.distribution import Dense, largest
from pretrain.model.kernels import cpu_ops
from pretrain.model.sizes import EncoderSizes
from pretrain.presets import preset

P = 0.1
"""Dropout rate of the paper's runs."""


class KernelOptions(StepOptions):
    """The command line of the benchmark."""

    repeats: int = Field(default=20, ge=1)
    """timed repetitions of each, after two that are not counted"""


class Pair(NamedTuple):
    """One operation, as PyTorch does it and as this project does it."""

    name: str
    theirs: Callable[[], object]
    ours: Callable[[], object]


def main(options: KernelOptions) -> None:
    start_processes()
    shape = f"{options.preset}, {options.batch_size} x {options.seq_length}, {options.dtype}"
    print(f"{shape}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for pair in pairs(options):
        theirs, ours = take_turns(pair, options.repeats)
        print(f"  {pair.name:36} PyTorch {theirs * 1e3:8.2f} ms  ours {ours * 1e3:8.2f} ms  {theirs / ours:5.2f}x")


def pairs(options: KernelOptions) -> Iterator[Pair]:
    config = preset(options.preset).model.discriminator(VOCABULARY)
    dtype = DTYPES[options.dtype]
    yield attention(config, options, dtype)
    yield dropout(config, options, dtype)
    yield dense(config, options, dtype)
    yield norm(config, options, dtype)
    yield words(config, options, dtype)
    yield padding(config, options, dtype)
    yield sampling(options)
    yield most_likely(options)
    yield token_probability(options)


def attention(config: EncoderSizes, options: KernelOptions, dtype: torch.dtype) -> Pair:
    heads, length = config.num_attention_heads, options.seq_length
    shape = (options.batch_size, heads, length, config.hidden_size // heads)
    query, key, value = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
    bias = torch.randn(*shape[:2], length, length, dtype=dtype, requires_grad=True)

    def theirs() -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=P)

    def ours() -> Tensor:
        return cpu_ops.attend(query, key, value, bias, P)

    return Pair("attention, learned bias and dropout", backward(theirs), backward(ours))


def dropout(config: EncoderSizes, options: KernelOptions, dtype: torch.dtype) -> Pair:
    values = torch.randn(options.batch_size, options.seq_length, config.hidden_size, dtype=dtype, requires_grad=True)
    return Pair("dropout", backward(lambda: F.dropout(values, P)), backward(lambda: cpu_ops.dropout(values, P)))


def dense(config: EncoderSizes, options: KernelOptions, dtype: torch.dtype) -> Pair:
    inputs, outputs = config.hidden_size, config.intermediate_size
    values = torch.randn(options.batch_size, options.seq_length, inputs, dtype=dtype, requires_grad=True)
    weight = torch.randn(outputs, inputs, dtype=dtype, requires_grad=True)
    bias = torch.randn(outputs, dtype=dtype, requires_grad=True)
    given = (values, weight, bias)
    return Pair("dense layer", backward(lambda: F.linear(*given)), backward(lambda: cpu_ops.linear(*given)))


def norm(config: EncoderSizes, options: KernelOptions, dtype: torch.dtype) -> Pair:
    shape = (options.batch_size, options.seq_length, config.hidden_size)
    values = torch.randn(shape, dtype=dtype, requires_grad=True)
    layer = nn.LayerNorm(config.hidden_size, dtype=dtype)
    ours = partial(cpu_ops.layer_norm, values, layer.weight, layer.bias, layer.eps)
    return Pair("LayerNorm", backward(lambda: layer(values)), backward(ours))


def words(config: EncoderSizes, options: KernelOptions, dtype: torch.dtype) -> Pair:
    ids = torch.randint(VOCABULARY, (options.batch_size, options.seq_length))
    table = torch.randn(VOCABULARY, config.embedding_size, dtype=dtype, requires_grad=True)
    given = (ids, table)
    return Pair("word embeddings", backward(lambda: F.embedding(*given)), backward(lambda: cpu_ops.look_up(*given)))


def sampling(options: KernelOptions) -> Pair:
    p_XV, uniform_X = scores(options).softmax(-1), torch.rand(masked(options)).clamp_(max=1 - 2**-24)
    return Pair(
        "draw one token per row",
        lambda: torch.multinomial(p_XV, 1),
        lambda: Dense(p_XV).draw(uniform_X),
    )


def most_likely(options: KernelOptions) -> Pair:
    values_XV = scores(options)
    return Pair("most likely token per row", lambda: values_XV.argmax(-1), lambda: largest(values_XV))


def token_probability(options: KernelOptions) -> Pair:
    logits_XV, ids_X = scores(options).requires_grad_(), torch.randint(VOCABULARY, (masked(options),))

    def theirs() -> Tensor:
        return logits_XV.log_softmax(-1).gather(-1, ids_X[:, None])

    def ours() -> Tensor:
        return Dense.softmax(logits_XV).log_p(ids_X)

    return Pair("log-probability of a token", backward(theirs), backward(ours))


def scores(options: KernelOptions) -> Tensor:
    """Returns logits over the vocabulary at the masked positions; always in fp32."""
    return torch.randn(masked(options), VOCABULARY)


def padding(config: Any, options: KernelOptions, dtype: torch.dtype) -> Pair:
    """A layer over a batch of which a quarter is padding, with and without computing that."""
    stack = preset(options.preset).model.parts.layers(replace(config, num_hidden_layers=1)).to(dtype)
    hidden = torch.randn(options.batch_size, options.seq_length, config.hidden_size, dtype=dtype)
    lengths = torch.linspace(0.5, 1, options.batch_size)[:, None] * options.seq_length
    visible = torch.arange(options.seq_length) < lengths

    def run(packs: bool) -> Callable[[], Tensor]:
        def forward() -> Tensor:
            stack.packs = packs
            computed: Tensor = stack(hidden.requires_grad_(), visible)
            return computed

        return forward

    cpu_ops.use()
    return Pair("layer, a quarter of it padding", backward(run(False)), backward(run(True)))


def masked(options: KernelOptions) -> int:
    return options.batch_size * int(mask_size(options.seq_length))


def backward(forward: Callable[[], Tensor]) -> Callable[[], None]:
    """Returns a function that runs `forward`, then backward from a gradient of ones."""
    ones = torch.ones_like(forward().detach())
    return lambda: forward().backward(ones)


def take_turns(pair: Pair, repeats: int) -> tuple[float, float]:
    """Returns the median seconds of PyTorch and of this project, timed in turn."""
    seconds = [[seconds_of(work) for work in (pair.theirs, pair.ours)] for _ in range(2 + repeats)]
    theirs, ours = map(statistics.median, zip(*seconds[2:], strict=True))
    return theirs, ours


if __name__ == "__main__":
    sys.exit(run_command(main, KernelOptions, __doc__))
