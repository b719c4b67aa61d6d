"""Estimates of a run's needs before it starts: floating-point operations, memory, and the time on some machine: this
one, measured within seconds, or GPUs by their published speeds.

Shape letters: L length, H hidden size, F feed-forward size, E embedding size, N heads.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from data_prep.masking import MASK_RATE, mask_size
from data_prep.workers import start_pool
from electra_sampler.foundation.machine import cores, memory
from pretrain.config import RunConfig
from pretrain.data.batches import random_batch
from pretrain.engine.deepspeed_config import EngineConfig, read
from pretrain.engine.graphs import captured, warm_up
from pretrain.engine.hardware import DTYPES, choose, product_speed, use_operations, wait_for
from pretrain.job.processes import World, local_ranks, share_cores
from pretrain.method.objective import ObjectiveConfig
from pretrain.method.registry import BUILT_IN, objective_class
from pretrain.model.config import WIDEST_HEAD, ModelConfig, Parts
from pretrain.model.kernels.cuda_ops import LEAST_CAPABILITY
from pretrain.model.sizes import EncoderSizes
from pretrain.presets import with_objective

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
"""More bytes of memory than any GPU has."""
LONG_ENOUGH = 0.03
"""Seconds that a layer's forward and backward on a GPU should take, so that they can be measured."""
MOST_TOKENS = 2**16
"""No layer is timed with more tokens: they keep any GPU busy, and with the largest layers take 2 GB."""
STEADY = 1.0
"""Seconds of forwards and backwards timed on a CPU: long enough to see what other processes take of it."""
LAUNCH = 45e-6
"""Seconds of the host per operation launched on a GPU. The host's numbers are of an H100's Intel Xeon; a step of small
without CUDA graphs fits them (docs/evidence/gpu.md)."""
LAUNCHES_OF_LAYER, LAUNCHES_OF_REPLAY, LAUNCHES_OF_METRICS = 88, 89, 50
"""Operations of a micro-batch for each layer, of a replayed micro-batch, and of a step's metrics and copies."""
HOOK, UPDATE = 22e-6, 20e-6
"""Seconds of the host per parameter tensor of the layers: DeepSpeed's hooks, beside the backward, and its update. They
were measured before gradients were flat; now less is expected (docs/evidence/gpu.md)."""
BESIDE_LAYERS, BESIDE_PRODUCTS = 1.1, 4.5
"""Measured factors on a GPU: time of a step, with embeddings and update, over that of its layers; time of heads,
sampling and losses over that of their matrix products (docs/evidence/gpu.md)."""
BESIDE_MODEL, OF_PARAMETER = (1.1, 1.25), (10e-9, 27e-9)
"""The same on a CPU, by one process and by several: time of real sequences, which are padded, over that of full ones
per word piece, where several wait for the slowest; and a step's seconds per parameter for the update, where several
exchange gradients and weights. Fitted to steps of tiny on an EPYC of 2021 and an Intel Xeon of 2023
(docs/evidence/speed.md); small's update took half as long per parameter."""


def flops_per_token(
    model: ModelConfig, objective: ObjectiveConfig, vocab_size: int, length: int, mask_rate: float = MASK_RATE
) -> float:
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
    head = mask_size(length, mask_rate) / length * of_a_mask
    return float(products + cost.vocabulary_products * head + cost.discriminator_forwards * last)


class Sizes(NamedTuple):
    """A run with its vocabulary and sequence length, which together give the operations per token."""

    run: RunConfig
    vocab_size: int
    length: int

    @property
    def encoders(self) -> tuple[EncoderSizes, ...]:
        return tuple(objective_class(self.run.objective.name).encoders(self.run.model, self.vocab_size))

    @property
    def flops(self) -> float:
        run = self.run
        return flops_per_token(run.model, run.objective, self.vocab_size, self.length, run.mask_rate)


class Memory(NamedTuple):
    """Memory of one process in bytes, on its GPU or its host, by use."""

    weights: float
    gradients: float
    optimizer: float
    activations: float


def memory_per_process(
    deepspeed: EngineConfig, world_size: int, parameters: int, sizes: Sizes, capability: tuple[int, int]
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
        activations=_activations(deepspeed, sizes, element, capability >= LEAST_CAPABILITY),
    )


def _activations(deepspeed: EngineConfig, sizes: Sizes, element: int, in_triton: bool) -> float:
    """Returns bytes kept for the backward pass by both encoders, plus the scores over the vocabulary.

    If the scores are computed tile by tile (`triton_vocabulary`), they take no memory.
    """
    run, vocab_size, length = sizes
    cost, streams = run.objective.cost, in_triton and element == 2 and deepspeed.stage < 3
    tensors = SCORE_TENSORS if cost.vocabulary_products and (cost.keeps_scores or not streams) else 0
    per_token = sum(
        _kept_per_token(encoder, length, element, deepspeed.recomputes, in_triton) for encoder in sizes.encoders
    )
    scores = tensors * 4.0 * float(mask_size(length, run.mask_rate)) * vocab_size
    return deepspeed.micro_batch_size * (length * per_token + scores)


def _kept_per_token(encoder: EncoderSizes, length: int, element: int, recomputes: bool, in_triton: bool) -> float:
    """Returns bytes per token that an encoder keeps for the backward pass.

    Each layer keeps its `layer_elements`; one fp32 number per attention head, and two for each of two LayerNorms;
    without Triton, the masks of two dropouts. In half precision that is 34 H for ELECTRA, the number of Korthikanti et
    al. 2022 without attention scores.
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


def too_large(sizes: Sizes, micro_batch_size: int, on_gpu: bool) -> Iterator[str]:
    """Yields a problem for each part of a run that cannot possibly fit into memory, before anything is allocated.

    Two lower bounds are checked: the largest weight matrices, which each process builds in fp32 on its host, and the
    inputs of one encoder's layers, which are kept for the backward pass even with activation recomputation.
    """
    run, here = sizes.run, memory()
    weights = MASTER_BYTES * least_parameters(sizes)
    if weights > here:
        yield (
            f"model: got {run.model}, expected one whose weights fit the {here / GIB:,.1f} GiB of memory that a process"
            f" may use here, not {weights / GIB:,.1f} GiB or more; choose fewer layers or smaller sizes"
        )
    room = LARGEST_GPU if on_gpu else here
    kept = LEAST_ELEMENT * micro_batch_size * sizes.length * run.model.layers * run.model.hidden_size
    if kept > room:
        yield (
            f"batch_size: got {run.batch_size}, of which a process holds {micro_batch_size} sequences at once, expected"
            f" a micro-batch that fits {room / GIB:,.1f} GiB, not {kept / GIB:,.1f} GiB or more; lower it with"
            " --set deepspeed.train_micro_batch_size_per_gpu=N"
        )


def least_parameters(sizes: Sizes) -> int:
    """Returns the number of elements of the large matrices only: a lower bound on the parameters, known in advance."""
    model, encoders = sizes.run.model, sizes.encoders
    layers = [4 * encoder.hidden_size**2 + 2 * encoder.hidden_size * encoder.intermediate_size for encoder in encoders]
    return model.layers * sum(layers) + (sizes.vocab_size + model.max_positions) * model.embedding_size


class Machine(NamedTuple):
    """The hardware of a run, and its speed in training one model in one precision."""

    name: str
    flops: float
    """FLOP/s of all processes together, counted as in `flops_per_token`."""
    source: str
    memory: float
    """Bytes of memory for each process."""
    capability: tuple[int, int] = (0, 0)
    """CUDA compute capability of a GPU."""
    products: float = 0.0
    """FLOP/s of square matrix products in the run's precision, of all processes together; 0 for a GPU of a forecast."""
    fp32_products: float = 0.0
    """The same as `products`, but in fp32."""
    width: float = 0.0
    """For a GPU of a forecast, the hidden size at which `flops` was seen. A narrower model is slower in proportion, as
    small was on the H100: a pass over memory has fewer operations."""


GPUS = {
    ("v100", "fp16"): Machine(
        "V100",
        32.8e12,
        "26% of 125 TFLOP/s: NVIDIA's ELECTRA-base at length 512, 96 sequences/s per V100",
        32 * GIB,
        (7, 0),
        width=768,
    ),
    ("v100", "fp32"): Machine(
        "V100",
        3.3e12,
        "21% of 15.7 TFLOP/s: google-research/electra's small model, 4 days on a V100",
        32 * GIB,
        (7, 0),
        width=256,
    ),
    ("a100", "bf16"): Machine(
        "A100",
        58.5e12,
        "19% of 312 TFLOP/s: NVIDIA's ELECTRA-base at length 512, 171 sequences/s per A100",
        80 * GIB,
        (8, 0),
        width=768,
    ),
    ("h100", "bf16"): Machine(
        "H100",
        262e12,
        "26% of 989 TFLOP/s: the kernels of base at length 512, 42 ms for 32 sequences",
        80 * GIB,
        (9, 0),
        width=768,
    ),
}
"""GPUs by name and precision. Sources: NVIDIA DeepLearningExamples, TensorFlow2 ELECTRA, pre-training performance;
google-research/electra's README; NVIDIA's data sheets; docs/evidence/gpu.md (H100). A speed is sequences per second
times the FLOPs counted here; the memory is that of the largest version sold."""


def this_machine(sizes: Sizes, precision: str, processes: int = 1, world: World | None = None) -> Machine:
    """Returns this machine with its measured speed: that of all ranks of `world`, each as fast as the slowest, or,
    without `world`, an estimate for `processes` from this process, with its share of the cores. Collective.
    """
    if not world:
        share_cores(processes)
    use_operations(world, few_shapes=True)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    products = product_speed(precision, device)
    seconds = (
        seconds_on_gpu(sizes, precision, device, products)
        if cuda
        else seconds_on_cpu(sizes, precision, device, products, processes)
    )
    # after the model, so that the ranks measure theirs at the same time
    fp32 = products if precision == "fp32" else product_speed("fp32", device)
    own = sizes.flops / seconds, products, fp32
    flops, *speeds = (processes * min(world.of_ranks(speed) if world else [speed]) for speed in own)
    if cuda:
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        capability, source = (gpu.major, gpu.minor), "the speed of one layer of each encoder, timed now"
        return Machine(f"{processes} {gpu.name}", flops, source, float(gpu.total_memory), capability, *speeds)
    here = local_ranks() if world else processes
    name = "this core" if cores() == 1 else f"these {cores()} cores"
    name = name if here == processes else f"{processes} processes"
    return Machine(name, flops, "the speed of this model, timed now", memory() / here, (0, 0), *speeds)


def seconds_on_cpu(sizes: Sizes, precision: str, device: torch.device, products: float, processes: int) -> float:
    """Measures the model itself on random word pieces; returns the seconds of a training step per token.

    Takes `STEADY` seconds, or as long as a twentieth of a short run. In place of a sampler of one's own, which may read
    the run's text, ELECTRA is measured, at its speed per FLOP.
    """
    run, length = sizes.run, sizes.length
    if run.objective.name not in BUILT_IN:
        run = with_objective(run, "electra")
    rows = int(min(max(1, STEADY / 3 * products / (sizes.flops * length)), run.batch_size // processes))
    with torch.random.fork_rng(devices=[]):  # the run's randomness is untouched
        model = objective_class(run.objective.name)(run.model, run.objective, sizes.vocab_size, 0).to(
            device, DTYPES[precision]
        )
        batch = random_batch(rows, length, sizes.vocab_size, run.mask_rate)
        seconds: list[float] = []
        while len(seconds) < 2 or (
            sum(seconds[1:]) < STEADY and len(seconds) * rows < run.optim.steps * run.batch_size / processes / 20
        ):
            started = time.perf_counter()
            model(batch).loss.backward()
            seconds.append(time.perf_counter() - started)
    updated = sum(weight.numel() for weight in model.parameters()) * processes / run.batch_size  # for each row
    several = processes > 1
    of_row = BESIDE_MODEL[several] * sum(seconds[1:]) / len(seconds[1:]) / rows + OF_PARAMETER[several] * updated
    return of_row / length * sizes.flops / sizes._replace(run=run).flops


def step_seconds(
    sizes: Sizes, machine: Machine, mean_length: float, micro_batches: int = 1, graphs: bool = True
) -> float:
    """Returns the seconds of a training step of all processes; sequences have `mean_length` tokens without padding.

    A GPU computes padding too, while its host launches; then it waits for the update. Communication of GPUs is not
    counted: at ZeRO stage 1 the flat gradient of each group takes one reduce-scatter and one all-gather.
    """
    of_sequence = sizes.run.batch_size * sizes.flops / machine.flops
    if machine.capability == (0, 0):
        return of_sequence * mean_length
    with torch.device("meta"):
        stacks = [sizes.run.model.parts.layers(encoder) for encoder in sizes.encoders]
    tensors = sum(1 for stack in stacks for _ in stack.parameters())
    operations = LAUNCHES_OF_REPLAY if graphs else LAUNCHES_OF_LAYER * sum(len(stack.layer) for stack in stacks)
    launching = micro_batches * (LAUNCH * operations + HOOK * tensors)
    after = LAUNCH * LAUNCHES_OF_METRICS + UPDATE * tensors
    return max(of_sequence * sizes.length, launching) + after


def seconds_on_gpu(sizes: Sizes, precision: str, device: torch.device, products: float) -> float:
    """Measures a layer of each encoder, forward and backward; returns the seconds of a GPU's work per token, given the
    speed of products in the run's precision, which the heads are computed in, too.
    """
    seconds, of_layers = 0.0, 0.0
    for encoder in sizes.encoders:
        flops = FORWARD_AND_BACKWARD * encoder.layer_flops(sizes.length)
        tokens = min(LONG_ENOUGH * products / flops, MOST_TOKENS)
        rows = max(1, int(tokens / sizes.length))
        seconds += encoder.num_hidden_layers * _layer_seconds(
            sizes.run.model.parts, encoder, rows, sizes.length, precision, device
        )
        of_layers += encoder.num_hidden_layers * flops
    return BESIDE_LAYERS * seconds + BESIDE_PRODUCTS * (sizes.flops - of_layers) / products


def _layer_seconds(
    parts: Parts, encoder: EncoderSizes, rows: int, length: int, precision: str, device: torch.device
) -> float:
    """Returns the shortest of three replays of a CUDA graph of one layer's forward and backward, per token."""
    with torch.random.fork_rng(devices=[device]):  # the run's randomness is untouched
        stack = parts.layers(replace(encoder, num_hidden_layers=1)).to(device, DTYPES[precision]).train()
        hidden_BLH = torch.randn(rows, length, encoder.hidden_size, device=device).to(DTYPES[precision])
        visible_BL = torch.ones(rows, length, dtype=torch.bool, device=device)
        leaves = [hidden_BLH.requires_grad_(), *stack.parameters()]

        def work() -> None:
            output_BLH = stack(hidden_BLH, visible_BL)
            torch.autograd.grad(output_BLH, leaves, torch.ones_like(output_BLH), allow_unused=True)

        warm_up(work, times=1)
        graph = torch.cuda.CUDAGraph()
        with captured(graph):
            work()
        seconds = []
        for _ in range(3):
            wait_for(hidden_BLH)
            started = time.perf_counter()
            graph.replay()
            wait_for(hidden_BLH)
            seconds.append(time.perf_counter() - started)
    return min(seconds) / (rows * length)


def forecast_here(sizes: Sizes, mean_length: float, processes: int) -> tuple[str, float]:
    """Forecasts a run whose shards do not exist yet: returns the hardware, such as `these 2 cores in fp32`, and the
    seconds of a step. On a CPU, as many processes are measured at once as will train.
    """
    precision = read(choose(processes).path).precision
    ranks = 1 if torch.cuda.is_available() else processes
    with start_pool(ranks) as pool:
        assert pool is not None  # only ranks of an mpirun have none
        machines = [found for _, found in pool.run(this_machine, [sizes] * ranks, precision, processes)]
    machine = min(machines, key=lambda found: found.flops)
    return f"{machine.name} in {precision}", step_seconds(sizes, machine, mean_length, graphs=precision == "bf16")
