"""Claims about the fast paths on a GPU: against plain PyTorch, and against the CPU.

    TRITON_INTERPRET=0 python -m pytest -m gpu tests/gpu

Where losses are compared, replacements depend only on the uniforms. Otherwise rounding would flip some draws, and the
discriminator would see different tokens.
"""

import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import pretrain.model.distribution
from bench.gpu.setting import LEARNING_RATE, Plainly, Setting, engine_step, gentle_engine, new_batch, new_model, setting
from bench.matrix_rate import DTYPES
from pretrain.config import with_overrides
from pretrain.data.batches import Batch
from pretrain.engine.graphs import replay_micro_batches
from pretrain.engine.hardware import compute_deterministically
from pretrain.engine.optim import parameter_groups
from pretrain.engine.plain import squared_norm
from pretrain.model import ops
from pretrain.model.distribution import BLOCK, Dense, draw_in_blocks
from pretrain.runs.models import compile_layers
from pretrain.training.metrics import MetricTotals

ROUNDINGS = 16
"""Tolerance after a dozen layers, in rounding errors of the precision (fp32: of TF32, which may be on)."""
LOSS_SCALE = 2.0**10
ENGINE_STEPS, STEPS_WITHOUT_SYNC = 4, 100
DRAWS = 200_000
MISSED = 2e-6
"""Tolerance for rounded fp32 sums: distance of a uniform from its token's interval, as a share of the total weight."""


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


@pytest.mark.parametrize("dtype", (None, *DTYPES.values()), ids=("formula", *DTYPES))
def test_attention_with_a_bias_and_padding_is_the_formulas(where: Setting, dtype: torch.dtype | None) -> None:
    """Outputs and the bias table's gradient.

    With `dtype`, compares whichever kernel PyTorch chooses with the plain formula in fp64. Without it, compares the
    plain formula in fp64 on this device with the CPU.
    """
    batch = new_batch(where)
    visible_BL = batch.attention_mask_BL.clone()
    visible_BL[0, where.length // 2 :] = False
    batch = batch._replace(attention_mask_BL=visible_BL)
    results = []
    for device, precision in ((where.device, dtype), (where.device if dtype else torch.device("cpu"), None)):
        encoder = new_model(where).discriminator.to(device, dtype or torch.float64)
        on = batch.to(device)
        if precision is None:
            encoder = encoder.double()
        backends = [SDPBackend.MATH] if precision is None else list(SDPBackend.__members__.values())[1:]
        with sdpa_kernel(backends), Plainly() if precision is None else nullcontext():
            hidden_XH = encoder(on.input_ids_BL, on.attention_mask_BL, on.token_type_ids_BL)[on.attention_mask_BL]
            loss = (hidden_XH * torch.linspace(-1, 1, hidden_XH.shape[-1]).to(hidden_XH)).mean()
            (loss * LOSS_SCALE).backward()
        table = encoder.get_parameter("encoder.relative_attention_bias.weight").grad
        assert table is not None
        results.append((hidden_XH.detach().cpu(), table.cpu()))
    (ours, our_table), (expected, expected_table) = results
    limit = roundings(dtype) if dtype else 1e-9
    assert max(off(ours, expected), off(our_table, expected_table)) <= limit


@by_precision
def test_attention_to_a_window_is_the_formulas(where: Setting, dtype: torch.dtype) -> None:
    """Outputs and gradients at word pieces, of two sequences with and without padding, against float64."""
    torch.manual_seed(0)
    parts = torch.randn(4, 2, 4, where.length, 64, device=where.device, dtype=dtype)
    visible_BL = torch.ones(2, where.length, dtype=torch.bool, device=where.device)
    visible_BL[0, where.length // 3 :] = False
    parts *= visible_BL[:, None, :, None]
    results = []
    for precision, place in ((dtype, nullcontext()), (torch.float64, Plainly())):
        query, key, value, gradient = parts.to(precision, copy=True).requires_grad_().unbind()
        with place:
            bias = ops.attention_bias(visible_BL, None, where.length // 4, 64, precision)
            output = bias.attend(query, key, value, 0.0).where(visible_BL[:, None, :, None], 0.0)
            slopes = torch.autograd.grad(output, (query, key, value), gradient.detach())
        results.append(torch.stack((output.detach(), *slopes)))
    assert off(*results) <= roundings(dtype)


def random_weights(where: Setting) -> tuple[Tensor, Tensor]:
    """Weights [rows, vocabulary] distributed as a trained model's, and uniforms of at most 24 bits."""
    random = torch.Generator().manual_seed(2)
    rows = 4096 if where.device.type == "cuda" else 512
    uniform_X = torch.randint(2**23, (rows,), generator=random).mul(2).add(1).float() / 2**24
    return (torch.randn(rows, where.vocabulary, generator=random) * 3).exp(), uniform_X


def test_every_uniform_draws_the_token_in_whose_interval_it_lies(where: Setting) -> None:
    """Every uniform draws the token in whose interval of the total weight it lies, up to rounding of the sums."""
    weights_XV, uniform_X = random_weights(where)
    tokens_X = Dense(weights_XV.to(where.device)).draw(uniform_X.to(where.device))[0].cpu()
    assert missed_by(weights_XV, uniform_X, tokens_X).max() <= MISSED


def missed_by(weights_XV: Tensor, uniform_X: Tensor, tokens_X: Tensor) -> Tensor:
    """Distance of each uniform from its token's interval, as a share of the total weight, in float64; 0 inside."""
    p_XV = weights_XV.double() / weights_XV.sum(-1, keepdim=True, dtype=torch.float64)
    end_X = p_XV.cumsum(-1).gather(-1, tokens_X[:, None]).squeeze(-1)
    start_X = end_X - p_XV.gather(-1, tokens_X[:, None]).squeeze(-1)
    return torch.maximum(start_X - uniform_X, uniform_X - end_X).clamp(min=0)


def test_draws_have_the_distribution_of_the_weights(where: Setting) -> None:
    """Many draws from one row: chi-squared divided by its degrees of freedom, expected to be about 1."""
    row_V = random_weights(where)[0][0, :50].to(where.device)
    uniforms_X = torch.rand(DRAWS, generator=torch.Generator().manual_seed(3)).to(where.device)
    tokens_X = Dense(row_V.expand(DRAWS, -1).clone()).draw(uniforms_X)[0]
    expected_V = row_V.double() / row_V.double().sum() * DRAWS
    enough_V = expected_V >= 5
    counted_V = tokens_X.bincount(minlength=len(row_V))
    chi = ((counted_V - expected_V).square() / expected_V)[enough_V].sum() / (enough_V.sum() - 1)
    assert chi <= 2


@by_precision
def test_the_norm_of_gradients_is_that_of_float64_and_infinite_with_one_infinity(
    where: Setting, dtype: torch.dtype
) -> None:
    """Gradient norm for a model's shapes on this device against float64 on the CPU; one infinity makes it infinite."""
    random = torch.Generator().manual_seed(4)
    values = [torch.randn(p.shape, generator=random).to(dtype) for p in new_model(where).parameters()]
    there = [value.to(where.device) for value in values]
    expected = torch.stack([value.double().square().sum() for value in values]).sum()
    found = squared_norm(there).cpu()
    there[-1].view(-1)[-1] = torch.inf
    assert squared_norm(there).isinf()
    assert off(found, expected) <= 1e-9


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
@pytest.mark.parametrize("config", ("zero0_fp32", "zero1_bf16", "zero1_fp16"))
def test_under_the_engine_cuda_graphs_give_the_bits_of_an_eager_step(
    gpu: Setting, config: str, backbone: str, dropout: float
) -> None:
    if "zero0" not in config:
        pytest.importorskip("deepspeed")
    gpu = setting("cuda", backbone)
    gpu = gpu._replace(run=with_overrides(gpu.run, [f"model.dropout={dropout}", f"model.attention_dropout={dropout}"]))
    batch, results = new_batch(gpu).to(gpu.device, counts=True), []
    for graphed in (False, True):
        engine = gentle_engine(gpu, new_model(gpu), config)
        if graphed:
            replay_micro_batches(engine, batch, MetricTotals(gpu.device).add)
        for step in range(ENGINE_STEPS):
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
