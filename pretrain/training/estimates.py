"""Estimates of a run's needs before it starts: floating-point operations, GPU memory, speed.

Shape letters: L length, H hidden size, F feed-forward size, E embedding size, N heads.
"""

from collections.abc import Iterator
from typing import NamedTuple

from data_prep.masking import mask_size
from foundation.machine import memory
from pretrain.config import RunConfig
from pretrain.engine.deepspeed_config import EngineConfig
from pretrain.method.objective import ObjectiveConfig
from pretrain.method.registry import objective_class
from pretrain.model.config import WIDEST_HEAD, ModelConfig
from pretrain.model.cuda_ops import LEAST_CAPABILITY
from pretrain.model.encoder import EncoderSizes

FORWARD_AND_BACKWARD = 3
"""Matrix products of the same size per forward product: the product itself, and two for its gradients."""
MASTER_BYTES, MOMENTS_BYTES = 4, 8
"""Bytes per parameter of the fp32 master weight and of Adam's two moments."""
SCORE_TENSORS = 4
"""fp32 tensors over the vocabulary held at once: the scores, their logarithms, and a gradient of each."""
LEAST_ELEMENT = 2
"""Bytes per activation element in the narrowest precision."""
GIB = 2**30
LARGEST_GPU = 1024 * GIB
"""More than any GPU has."""


def flops_per_token(model: ModelConfig, objective: ObjectiveConfig, vocab_size: int, length: int) -> float:
    """Returns FLOPs per word piece of a training step: matrix products and attention, forward and backward.

    Vocabulary heads are counted at masked positions only.
    """
    encoders, cost = objective_class(objective.name).encoders(model, vocab_size), objective.cost
    products = last = 0.0
    for encoder in encoders:
        hidden = encoder.hidden_size
        projection = encoder.embedding_size * hidden if encoder.embedding_size != hidden else 0
        last = encoder.num_hidden_layers * encoder.layer_flops(length) + 2 * projection
        products += last * FORWARD_AND_BACKWARD
    of_a_mask = 2 * encoders[0].embedding_size * (vocab_size + encoders[0].hidden_size)
    head = mask_size(length) / length * of_a_mask
    return float(products + cost.vocabulary_products * head + cost.discriminator_forwards * last)


class Memory(NamedTuple):
    """Memory of one process in bytes, on its GPU or its host, by use."""

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        return sum(self)


def memory_per_process(
    deepspeed: EngineConfig,
    world_size: int,
    parameters: int,
    run: RunConfig,
    vocab_size: int,
    length: int,
    capability: tuple[int, int],
) -> Memory:
    """Returns an estimate of the memory that a process needs on a GPU of this compute capability; (0, 0) for a CPU.

    States are counted as by Rajbhandari et al. 2020 (ZeRO), activations by `_activations`.
    """
    element = 4 if deepspeed.precision == "fp32" else 2
    share = {level: 1 / world_size if deepspeed.stage >= level else 1.0 for level in (1, 2, 3)}
    master = MASTER_BYTES if deepspeed.stage else 0  # the weights themselves at stage 0, which is fp32
    return Memory(
        weights=parameters * element * share[3],
        gradients=parameters * element * share[2],
        optimizer=0.0 if deepspeed.offloads else parameters * (master + MOMENTS_BYTES) * share[1],
        activations=_activations(deepspeed, run, vocab_size, length, element, capability >= LEAST_CAPABILITY),
    )


def _activations(
    deepspeed: EngineConfig, run: RunConfig, vocab_size: int, length: int, element: int, in_triton: bool
) -> float:
    """Returns bytes kept for the backward pass by both encoders, plus the scores over the vocabulary.

    With these streamed (`triton_vocabulary`) no tensor of their size exists.
    """
    cost, streams = run.objective.cost, in_triton and element == 2 and deepspeed.stage < 3
    encoders = objective_class(run.objective.name).encoders(run.model, vocab_size)
    tensors = SCORE_TENSORS if cost.vocabulary_products and (cost.keeps_scores or not streams) else 0
    per_token = sum(_kept_per_token(encoder, length, element, deepspeed.recomputes, in_triton) for encoder in encoders)
    return deepspeed.micro_batch_size * (length * per_token + tensors * 4.0 * float(mask_size(length)) * vocab_size)


def _kept_per_token(encoder: EncoderSizes, length: int, element: int, recomputes: bool, in_triton: bool) -> float:
    """Returns bytes per token that an encoder keeps for the backward pass.

    Of a layer: its `layer_elements`; one fp32 number per head of attention, two for each of two LayerNorms; without
    Triton, the masks of two dropouts. In half precision that is 34 H for ELECTRA, as in Korthikanti et al. 2022 without
    their attention scores.
    """
    H, E, N = encoder.hidden_size, encoder.embedding_size, encoder.num_attention_heads
    mask = 1 if encoder.hidden_dropout_prob else 0
    layer = element * encoder.layer_elements + 4 * N + 16 + (0 if in_triton else 2 * mask * H)
    layers = encoder.num_hidden_layers
    kept = layer + (layers - 1) * element * H if recomputes else layers * layer
    embeddings = (element + mask) * E + (element * E if E != H else 0) + 8  # input and output of their LayerNorm
    # unless by Triton in half precision: the bias [B, N, L, L], a layer's gradient, the sum of gradients from above
    has_table = in_triton and element == 2 and H <= WIDEST_HEAD * N
    bias = 0 if has_table or not encoder.learns_bias else 3 * element * N * length
    return kept + embeddings + bias + element * H  # and the last layer's output


def too_large(run: RunConfig, micro_batch_size: int, vocab_size: int, length: int, on_gpu: bool) -> Iterator[str]:
    """Yields a problem for each part of a run that cannot possibly fit into memory, before anything is allocated.

    Two lower bounds are checked: the largest weight matrices, which each process builds in fp32 on its host, and the
    inputs of one encoder's layers, which are kept for the backward pass even with activation recomputation.
    """
    here = memory()
    weights = MASTER_BYTES * least_parameters(run, vocab_size)
    if weights > here:
        yield (
            f"model: got {run.model}, expected one whose weights fit the {here / GIB:,.1f} GiB of memory that a process"
            f" may use here, not {weights / GIB:,.1f} GiB or more; choose fewer layers or smaller sizes"
        )
    room = LARGEST_GPU if on_gpu else here
    kept = LEAST_ELEMENT * micro_batch_size * length * run.model.layers * run.model.hidden_size
    if kept > room:
        yield (
            f"batch_size: got {run.batch_size}, of which a process holds {micro_batch_size} sequences at once, expected"
            f" a micro-batch that fits {room / GIB:,.1f} GiB, not {kept / GIB:,.1f} GiB or more; lower it with"
            " --set deepspeed.train_micro_batch_size_per_gpu=N"
        )


def least_parameters(run: RunConfig, vocab_size: int) -> int:
    """Returns the number of elements of the large matrices only: a lower bound on the parameters, known in advance."""
    encoders = objective_class(run.objective.name).encoders(run.model, vocab_size)
    layers = [4 * encoder.hidden_size**2 + 2 * encoder.hidden_size * encoder.intermediate_size for encoder in encoders]
    return run.model.layers * sum(layers) + (vocab_size + run.model.max_positions) * run.model.embedding_size
