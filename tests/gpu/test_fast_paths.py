"""Claims about the fast paths on a GPU: against plain PyTorch, and against the CPU.

    TRITON_INTERPRET=0 python -m pytest -m gpu tests/gpu

Claims about one operation are beside it, for both devices: draws in test_distribution.py, the gradient's norm in
test_plain.py, attention in test_triton_attention.py.

Where losses are compared, replacements depend only on the uniforms. Otherwise rounding would flip some draws, and the
discriminator would see different tokens.
"""

import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pretrain.model.distribution
from bench.batches import random_batch
from bench.gpu.setting import LEARNING_RATE, Plainly, Setting, engine_step, gentle_engine, new_batch, new_model, setting
from bench.matrix_rate import DTYPES
from pretrain.config import with_overrides
from pretrain.data.batches import Batch
from pretrain.engine.graphs import replay_micro_batches
from pretrain.engine.hardware import compute_deterministically
from pretrain.engine.optim import parameter_groups
from pretrain.model import ops
from pretrain.model.distribution import BLOCK, draw_in_blocks
from pretrain.runs.models import compile_layers
from pretrain.training.metrics import MetricTotals

ROUNDINGS = 16
"""Tolerance after a dozen layers, in rounding errors of the precision (fp32: of TF32, which may be on)."""
LOSS_SCALE = 2.0**10
ENGINE_STEPS, STEPS_WITHOUT_SYNC = 4, 100


pytestmark = pytest.mark.gpu
by_precision = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
by_objective = pytest.mark.parametrize("objective", ("electra", "hp_loss", "hp_dist"))
by_backbone = pytest.mark.parametrize("backbone", ("electra", "modern"))


@pytest.fixture(scope="session")
def where() -> Setting:
    """Device and shapes, after an engine's start, which chooses the fast operations.

    `bench/gpu.py --device cpu` sets GPU_TESTS_ON, to rehearse on a CPU that declares fp16.
    """
    device = os.environ.get("GPU_TESTS_ON", "cuda")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if device == "cuda" and os.environ["TRITON_INTERPRET"] != "0":
        pytest.skip("needs compiled kernels: set TRITON_INTERPRET=0")
    if device == "cpu" and find_spec("deepspeed"):
        from bench.gpu.declared import declare

        declare(asynchronous=True)
    if device == "cuda":
        compute_deterministically()  # as a run does
    found = setting(device)
    gentle_engine(found, new_model(found), "zero0_fp32")
    return found


@pytest.fixture
def gpu(where: Setting) -> Setting:
    """The setting, for claims that say nothing about a CPU."""
    if where.device.type == "cpu":
        pytest.skip("says nothing about a CPU")
    return where


def off(ours: Tensor, reference: Tensor) -> float:
    """Norm of the difference, relative to the reference's norm."""
    return float((ours.double() - reference.double()).norm() / reference.double().norm())


def roundings(dtype: torch.dtype) -> float:
    """The relative difference allowed for a precision."""
    return ROUNDINGS * (2.0**-11 if dtype == torch.float32 else torch.finfo(dtype).eps)


class Forced:
    """Inside the `with` block, replacements depend only on the uniforms."""

    def __enter__(self) -> None:
        pretrain.model.distribution.draw_in_blocks = forced_draw

    def __exit__(self, *error: object) -> None:
        pretrain.model.distribution.draw_in_blocks = draw_in_blocks


def forced_draw(
    sum_XN: Tensor, block: Callable[[Tensor], Tensor], size: int, uniform_X: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    token_X1 = (uniform_X[..., None] * size).long()
    weight_X1 = block(token_X1 // BLOCK).gather(-1, token_X1 % BLOCK)
    return token_X1.squeeze(-1), sum_XN.sum(-1), weight_X1.squeeze(-1)


def loss_and_gradient(model: nn.Module, batch: Batch, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Loss and gradient of one forward and backward; the gradient is one flat fp32 tensor."""
    with Forced():
        loss = model(batch).loss
        (scale * loss).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return loss.detach().float(), torch.cat([gradient.float().flatten() for gradient in gradients]) / scale


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=("bf16", "fp16"))
@by_backbone
@by_objective
def test_half_precision_has_the_loss_and_gradient_of_fp32(
    where: Setting, objective: str, backbone: str, dtype: torch.dtype
) -> None:
    """Loss and gradient in half precision against fp32, both from the same rounded weights."""
    model, reference = (new_model(setting(where.device.type, backbone), objective).to(dtype) for _ in range(2))
    loss, gradient = loss_and_gradient(model, new_batch(where), LOSS_SCALE if dtype == torch.float16 else 1.0)
    with Plainly():
        expected_loss, expected = loss_and_gradient(reference.float(), new_batch(where))
    assert max(off(loss, expected_loss), off(gradient, expected)) <= roundings(dtype)


@by_precision
@by_backbone
@by_objective
def test_this_device_has_the_loss_and_gradient_of_the_cpu(
    gpu: Setting, objective: str, backbone: str, dtype: torch.dtype
) -> None:
    """Loss and gradient on this device against the CPU in fp32, both from the same rounded weights."""
    model, reference = (new_model(setting("cuda", backbone), objective).to(dtype) for _ in range(2))
    loss, gradient = loss_and_gradient(model, new_batch(gpu), LOSS_SCALE if dtype == torch.float16 else 1.0)
    cpu = torch.device("cpu")
    with Plainly():
        expected_loss, expected = loss_and_gradient(reference.to(cpu).float(), new_batch(gpu).to(cpu))
    assert max(off(loss.cpu(), expected_loss), off(gradient.cpu(), expected)) <= roundings(dtype)


@by_backbone
@by_objective
def test_compiled_layers_have_the_loss_and_gradient_of_eager_ones(gpu: Setting, objective: str, backbone: str) -> None:
    """Loss and gradient with compiled layers (`--compile`) against eager mode, in fp32."""
    gpu = setting("cuda", backbone)
    compiled = new_model(gpu, objective)
    compile_layers(compiled)
    loss, gradient = loss_and_gradient(compiled, new_batch(gpu))
    with Plainly():
        expected_loss, expected = loss_and_gradient(new_model(gpu, objective), new_batch(gpu))
    assert max(off(loss, expected_loss), off(gradient, expected)) <= roundings(torch.float32)


@by_precision
def test_forward_and_backward_draw_the_same_dropout(where: Setting, dtype: torch.dtype) -> None:
    """Forward and backward draw the same dropout, in attention and before LayerNorm; half of the values are dropped.

    Attention's output is linear in the values: its square is their product with their gradient. Before LayerNorm, what
    was dropped has no gradient.
    """
    torch.manual_seed(0)
    on: dict[str, Any] = {"device": where.device, "dtype": dtype}
    query, key, value = torch.randn(3, 2, 4, where.length, 64, **on).requires_grad_().unbind()
    visible_BL = torch.ones(2, where.length, dtype=torch.bool, device=where.device)
    output = ops.attention_bias(visible_BL, None, where.length, 64, dtype).attend(query, key, value, 0.5)
    (gradient,) = torch.autograd.grad(output, value, output.detach())
    square = output.double().square().sum()
    layer = ops.ResidualLayerNorm(256, device=where.device, dtype=dtype).train()
    values, residual = torch.randn(2, 500, 256, **on).unbind()
    _, normal = layer(values.requires_grad_(), residual, 0.5)
    (slope,) = torch.autograd.grad(normal, values, torch.randn_like(normal))
    total = residual.double() + 2 * values.double() * (slope != 0)
    linear = float((value.double() * gradient.double()).sum().detach() / square.detach())
    assert abs(linear - 1) <= roundings(dtype)
    assert off(normal, torch.nn.functional.layer_norm(total, (256,), eps=layer.eps)) <= roundings(dtype)
    assert abs(float((slope != 0).double().mean()) - 0.5) <= roundings(dtype)


@pytest.mark.parametrize("config", ("zero0_fp32", "zero1_fp32", "zero1_bf16", "zero1_fp16"))
@by_objective
def test_the_engine_has_the_losses_of_plain_pytorch(where: Setting, config: str, objective: str) -> None:
    """Losses of a few steps under DeepSpeed against plain PyTorch in fp32."""
    if "zero0" not in config:
        pytest.importorskip("deepspeed")
    if where.device.type == "cuda" and "bf16" in config and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("this GPU has no bf16")
    engine = gentle_engine(where, new_model(where, objective), config)
    model = new_model(where, objective)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=LEARNING_RATE, eps=1e-6)
    batch, ours, expected = new_batch(where), [], []
    with Forced():
        for _ in range(ENGINE_STEPS):
            ours.append(engine_step(engine, batch))
            with Plainly():
                loss = model(batch).loss
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), where.run.optim.gradient_clipping)
            optimizer.step()
            optimizer.zero_grad()
            expected.append(loss.detach())
    assert off(torch.stack(ours).float(), torch.stack(expected)) <= roundings(engine.dtype)


@pytest.mark.parametrize("dropout", (0.0, 0.1))
@by_backbone
@pytest.mark.parametrize(
    ("config", "objective"),
    [
        *(("zero0_fp32", objective) for objective in ("hp_loss", "hp_dist", "electra", "mlm")),
        *((config, "hp_loss") for config in ("zero1_bf16", "zero1_fp16")),
    ],
)
def test_under_the_engine_cuda_graphs_give_the_bits_of_eager_steps_with_new_batches(
    gpu: Setting, config: str, objective: str, backbone: str, dropout: float
) -> None:
    if "zero0" not in config:
        pytest.importorskip("deepspeed")
    gpu = setting("cuda", backbone)
    gpu = gpu._replace(run=with_overrides(gpu.run, [f"model.dropout={dropout}", f"model.attention_dropout={dropout}"]))
    batches = [random_batch(gpu.batch_size, gpu.length, gpu.vocabulary) for _ in range(ENGINE_STEPS)]
    results = []
    for graphed in (False, True):
        engine = gentle_engine(gpu, new_model(gpu, objective), config)
        on_gpu = [batch.to(gpu.device, counts=True) for batch in batches]
        if graphed:
            replay_micro_batches(engine, on_gpu[0], MetricTotals(gpu.device).add)
        for step, batch in enumerate(on_gpu):
            torch.manual_seed(step)
            engine_step(engine, batch)
        results.append([parameter.detach().clone() for parameter in engine.module.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_forward_and_backward_never_wait_for_the_device(gpu: Setting) -> None:
    """Forward and backward never synchronize host and device; counts the waits in DeepSpeed's update."""
    pytest.importorskip("deepspeed")
    engine, batch = gentle_engine(gpu, new_model(gpu), "zero1_bf16"), new_batch(gpu)
    for _ in range(3):
        engine_step(engine, batch)
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        try:
            for _ in range(STEPS_WITHOUT_SYNC):
                torch.cuda.set_sync_debug_mode("error")
                engine.backward(engine.forward(batch).loss)
                torch.cuda.set_sync_debug_mode("warn")
                engine.update(LEARNING_RATE)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    print(f"{len(waits) / STEPS_WITHOUT_SYNC} waits in an update")
