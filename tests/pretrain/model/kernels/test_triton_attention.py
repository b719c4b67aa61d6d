"""Claims about attention in Triton, whose kernels run interpreted on the CPU and compiled on a GPU, against float64."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pretrain.model.encoder import ElectraEncoder
from pretrain.model.modern import ModernConfig, ModernEncoder
from pretrain.model.sizes import EncoderConfig

pytest.importorskip("triton")

from pretrain.model.kernels import attention_kernels, cuda_ops, triton_attention
from pretrain.model.kernels.triton_attention import TableBias, attention_bias

FULL, HALF, BF16 = torch.float32, torch.float16, torch.bfloat16
EXACT = {FULL: 1e-5, HALF: 2e-3, BF16: 2e-2}
"""Norm of the error allowed, relative to the norm of the result."""
EVERYWHERE = torch.tensor(True)
Cases = Sequence[tuple[object, ...]]


def on_both(in_fp32: Cases, in_half: Cases) -> list[Any]:
    """Cases for the interpreter, and for a GPU those in half precision, the only one for which it takes the kernels."""
    on_gpu = [pytest.param("cuda", *case, marks=pytest.mark.gpu) for case in in_half]
    return [*(("cpu", *case) for case in (*in_fp32, *in_half)), *on_gpu]


@pytest.fixture(autouse=True)
def kernels_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted, the kernels compute in fp32 too, which shows errors that rounding would hide."""
    monkeypatch.setattr(triton_attention, "DTYPES", tuple(EXACT))


class Case(NamedTuple):
    """Shapes of one call; biases differ up to a distance of `reach`."""

    heads: int
    length: int
    head_size: int
    reach: int
    lengths: tuple[int, ...]


class Example(NamedTuple):
    """Query, key, value [B, N, L, D], biases by distance from -reach to reach, lengths and the output's gradient."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias_XN: Tensor
    lengths_B: Tensor
    gradient: Tensor

    @property
    def reach(self) -> int:
        return len(self.bias_XN) // 2

    @property
    def visible_BL(self) -> Tensor:
        return torch.arange(self.query.shape[2]) < self.lengths_B[:, None]

    def leaves(self) -> tuple[Tensor, ...]:
        return self.query, self.key, self.value, self.bias_XN

    def relative(self, distance_X: Tensor) -> Tensor:
        return self.bias_XN[distance_X.clamp(-self.reach, self.reach) + self.reach]


def example(case: Case, dtype: torch.dtype, sharpness: float = 1.0) -> Example:
    torch.manual_seed(0)
    shape = (len(case.lengths), case.heads, case.length, case.head_size)
    query, key, value, gradient = (torch.randn(shape).to(dtype) for _ in range(4))
    bias_XN = torch.randn(2 * case.reach + 1, case.heads).to(dtype).float()  # exact in each precision
    leaves = (query * sharpness, key * sharpness, value, bias_XN)
    return Example._make((*(leaf.requires_grad_() for leaf in leaves), torch.tensor(case.lengths), gradient))


def in_triton(given: Example, dropout: float = 0.0) -> tuple[Tensor, ...]:
    """Output, and the gradients of query, key, value and biases."""
    bias = attention_bias(given.visible_BL, given.relative, given.reach, given.query.shape[-1], given.query.dtype)
    output = bias.attend(given.query, given.key, given.value, dropout)
    return output.detach(), *torch.autograd.grad(output, given.leaves(), given.gradient)


def without_a_bias(given: Example, radius: int) -> tuple[Tensor, ...]:
    """Output, and the gradients of query, key and value, where tokens see what is within this distance."""
    bias = attention_bias(given.visible_BL, None, radius, given.query.shape[-1], given.query.dtype)
    output = bias.attend(given.query, given.key, given.value, 0.0)
    return output.detach(), *torch.autograd.grad(output, given.leaves()[:3], given.gradient)


def by_hand(given: Example, factor_BNLL: Tensor | float = 1.0, near_LL: Tensor = EVERYWHERE) -> tuple[Tensor, ...]:
    """The results in float64, from the formula; rows of padding are zero."""
    exact = Example._make(
        (
            *(leaf.detach().double().requires_grad_() for leaf in given.leaves()),
            given.lengths_B,
            given.gradient.double(),
        )
    )
    position_L = torch.arange(exact.query.shape[2])
    bias_NLL = exact.relative(position_L - position_L[:, None]).permute(2, 0, 1)
    s_BNLL = exact.query @ exact.key.mT * exact.query.shape[-1] ** -0.5 + bias_NLL
    p_BNLL = s_BNLL.masked_fill(~(given.visible_BL[:, None, None] & near_LL), -1e300).softmax(-1)
    output = ((p_BNLL * factor_BNLL) @ exact.value).where(given.visible_BL[:, None, :, None], 0.0)
    return output.detach(), *torch.autograd.grad(output, exact.leaves(), exact.gradient)


def assert_close(ours: tuple[Tensor, ...], exact: tuple[Tensor, ...], allowed: float) -> None:
    names = ("output", "query", "key", "value", "bias")[: len(exact)]
    for name, own, reference in zip(names, ours, exact, strict=True):
        assert own.isfinite().all(), name
        assert (own.double() - reference).norm() <= allowed * reference.norm(), name


IN_FP32 = [(Case(2, 70, 32, 10, (70, 33)), FULL), (Case(1, 96, 128, 1, (90,)), FULL), (Case(1, 20, 8, 3, (20,)), FULL)]
IN_HALF = [
    (Case(1, 256, 64, 40, (256,)), HALF),
    (Case(1, 130, 64, 16, (129, 64)), BF16),
    (Case(3, 33, 48, 128, (33,)), HALF),
]


LONG = [
    pytest.param("cpu", Case(2, length, 64, 128, (length - 7,)), dtype, marks=pytest.mark.long)
    for length in (512, 1024, 2048)
    for dtype in (FULL, HALF)
]


@pytest.mark.parametrize(("device", "case", "dtype"), [*on_both(IN_FP32, IN_HALF), *LONG], indirect=["device"], ids=str)
def test_output_and_gradients_are_those_of_float64(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    given = example(case, dtype)
    assert_close(in_triton(given), by_hand(given), EXACT[dtype])


def test_query_key_and_value_side_by_side_have_the_same_bits_and_gradients_side_by_side() -> None:
    """As `linears` gives them, and takes their gradients without a copy."""
    given = example(Case(2, 70, 32, 10, (70, 33)), FULL)
    beside_BL3ND = torch.stack([part.detach().transpose(1, 2) for part in given[:3]], 2).requires_grad_()
    query, key, value = parts = [part.transpose(1, 2) for part in beside_BL3ND.unbind(2)]
    bias = attention_bias(given.visible_BL, given.relative, given.reach, given.query.shape[-1], given.query.dtype)
    output = bias.attend(query, key, value, 0.0)
    gradients = torch.autograd.grad(output, (*parts, given.bias_XN), given.gradient)
    assert all(torch.equal(ours, apart) for ours, apart in zip((output, *gradients), in_triton(given), strict=True))
    places = [part.storage_offset() for part in gradients[:3]]
    assert [part.stride() for part in gradients[:3]] == [part.stride() for part in parts] and places == [0, 64, 128]


@pytest.mark.long
def test_they_are_for_random_shapes() -> None:
    random = torch.Generator().manual_seed(1)

    def up_to(most: int) -> int:
        return int(torch.randint(1, most + 1, (), generator=random))

    for _ in range(20):
        length = up_to(300)
        case = Case(up_to(3), length, 8 * up_to(16), up_to(200), (up_to(length), up_to(length)))
        for dtype in EXACT:
            given = example(case, dtype)
            assert_close(in_triton(given), by_hand(given), EXACT[dtype])


@pytest.mark.parametrize("dtype", [FULL, HALF], ids=str)
def test_extreme_scores_give_finite_gradients(dtype: torch.dtype) -> None:
    """Scores of thousands: the softmax is one-hot in most rows."""
    given = example(Case(1, 70, 32, 10, (70,)), dtype, sharpness=30.0)
    assert_close(in_triton(given), by_hand(given), 20 * EXACT[dtype])


def test_padding_has_no_effect_and_its_rows_are_zero() -> None:
    given = example(Case(1, 70, 32, 10, (33, 0)), FULL)
    noisy = [torch.where(given.visible_BL[:, None, :, None], part, 1e4) for part in (*given[:3], given.gradient)]
    other = Example._make((*(part.detach().requires_grad_() for part in noisy[:3]), *given[3:5], noisy[3]))
    for own, again in zip(in_triton(given), in_triton(other), strict=True):
        assert torch.equal(own, again)
    for part in in_triton(given)[:4]:
        assert not part[0, :, 33:].any() and not part[1].any()


def test_without_relative_position_only_padding_is_hidden() -> None:
    given = example(Case(2, 70, 32, 0, (70, 33)), FULL)
    exact = by_hand(given)  # one bias per head, which changes nothing
    assert_close(without_a_bias(given, 70), exact[:4], 1e-5)


@pytest.mark.parametrize(
    ("device", "radius", "dtype"),
    on_both([(1, FULL), (65, FULL)], [(31, HALF), (64, BF16), (130, HALF)]),
    indirect=["device"],
    ids=str,
)
def test_in_a_window_tokens_see_what_is_near(radius: int, dtype: torch.dtype, device: torch.device) -> None:
    """A window narrower than a tile of 64, as wide, wider, and up to all but the ends of the sequence."""
    given = example(Case(1, 200, 64, 0, (200, 130, 64, 3)), dtype)
    position_L = torch.arange(200)
    exact = by_hand(given, near_LL=(position_L - position_L[:, None]).abs() <= radius)
    assert_close(without_a_bias(given, radius), exact[:4], EXACT[dtype])


def test_tiles_outside_of_the_window_are_not_read() -> None:
    """Numbers there would spoil every sum. The window of 8 needs a tile's neighbors."""
    given = example(Case(1, 320, 64, 0, (320,)), FULL)
    given.key.data[:, :, 192:], given.value.data[:, :, 192:] = torch.nan, torch.nan
    output = without_a_bias(given, 8)[0]
    assert output[:, :, :128].isfinite().all() and output[:, :, 192:].isnan().all()


# Dropout


def kept(case: Case, dropout: float) -> Tensor:
    """The factors of dropout that the kernel draws from PyTorch's current seed, [B, N, L, L].

    With equal scores, each output is the mean of the values kept, and the values are columns of the unit matrix.
    """
    size, state = case.head_size, torch.get_rng_state()
    given = example(case._replace(reach=0, lengths=(case.length,) * len(case.lengths)), FULL, sharpness=0.0)
    bias = attention_bias(given.visible_BL, None, case.length, size, FULL)
    parts = []
    for first in range(0, case.length, size):
        torch.set_rng_state(state)
        value = torch.eye(case.length)[:, first : first + size].expand_as(given.value[..., : case.length - first])
        value = torch.nn.functional.pad(value, (0, size - value.shape[-1]))
        parts.append(bias.attend(given.query, given.key, value, dropout) * case.length)
    torch.set_rng_state(state)
    return torch.cat(parts, -1)[..., : case.length].detach()


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(Case(2, 70, 32, 10, (70, 33)), FULL), (Case(1, 130, 64, 16, (129,)), HALF)],
    ids=str,
)
def test_with_dropout_forward_and_backward_use_the_same_factors(case: Case, dtype: torch.dtype) -> None:
    given = example(case, dtype)
    factor_BNLL = kept(case, 0.3)
    assert_close(in_triton(given, 0.3), by_hand(given, factor_BNLL.double()), EXACT[dtype])


def test_dropout_keeps_the_right_share_and_heads_and_sequences_differ() -> None:
    torch.manual_seed(0)
    dropped = kept(Case(2, 128, 128, 0, (128, 128)), 0.1) == 0
    assert abs(dropped.double().mean().item() - 0.1) < 4 * (0.09 / dropped.numel()) ** 0.5
    correlation_44 = torch.corrcoef(dropped.flatten(0, 1).flatten(1).double()) - torch.eye(4)
    assert correlation_44.abs().max().item() < 4 / 128
    lane_88 = torch.corrcoef(dropped.reshape(-1, 8).T.double()) - torch.eye(8)
    assert lane_88.abs().max().item() < 4 / (dropped.numel() / 8) ** 0.5


def test_dropout_follows_pytorchs_seed_and_with_it_the_bits_are_the_same() -> None:
    given = example(Case(1, 70, 32, 10, (70, 33)), HALF)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(in_triton(given, 0.1))
    assert all(torch.equal(*pair) for pair in zip(*results[:2], strict=True))
    assert not torch.equal(results[0][0], results[2][0])


# The programs, and the gradient of the biases


def test_programs_lie_on_the_axis_that_may_be_longer_than_65535(monkeypatch: pytest.MonkeyPatch) -> None:
    grids = []
    for name in ("forward", "query_backward", "key_backward"):
        kernel = getattr(attention_kernels, name)

        def launch(self: object, grid: tuple[int, ...], kernel: Any = kernel) -> Any:
            grids.append(grid)
            return kernel[grid]

        monkeypatch.setattr(attention_kernels, name, type("Launched", (), {"__getitem__": launch})())
    query, key, value = (torch.randn(3, 2, 40, 16, requires_grad=True) for _ in range(3))
    bias = attention_bias(torch.ones(3, 40, dtype=torch.bool), None, 40, 16, FULL)
    bias.attend(query, key, value, 0.0).sum().backward()
    assert len(grids) == 3 and all(len(grid) == 1 for grid in grids)


def test_the_gradients_of_a_heads_biases_sum_to_zero() -> None:
    given = example(Case(2, 130, 32, 10, (130,)), FULL)
    gradient_XN = in_triton(given, 0.1)[4]
    assert (gradient_XN.sum(0).abs() < 1e-5 * gradient_XN.abs().sum(0)).all()


def test_the_table_by_distance_has_no_size_of_length_squared() -> None:
    visible_BL = torch.ones(2, 2048, dtype=torch.bool)
    bias = attention_bias(visible_BL, lambda d_X: torch.ones(len(d_X), 3), 128, 64, torch.half)
    assert isinstance(bias, TableBias) and bias.table_NR is not None and bias.tiles_NTMK is not None
    assert bias.table_NR.shape == (3, 2 * 3 * 64) and bias.tiles_NTMK.shape == (3, 7, 64, 64)


# The encoder


@pytest.fixture
def in_use(plain_ops: None) -> Callable[[], None]:
    return lambda: cuda_ops.use((9, 0))


SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "embedding_size": 16,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@pytest.mark.parametrize(
    ("build", "recompute"),
    [
        (lambda: ElectraEncoder(EncoderConfig(**SIZES, relative_attention_max_distance=16)), True),
        (lambda: ElectraEncoder(EncoderConfig(**SIZES, relative_position=False)), False),
        (lambda: ModernEncoder(ModernConfig(**SIZES, window=40)), False),
    ],
    ids=["relative position", "absolute position", "all tokens, then a window"],
)
def test_an_encoder_is_that_of_plain_pytorch(
    build: Callable[[], ElectraEncoder | ModernEncoder], recompute: bool, in_use: Callable[[], None]
) -> None:
    torch.manual_seed(0)
    plain = build()
    ours = copy.deepcopy(plain)
    ours.encoder.recompute = recompute
    ids_BL, gradient_BLH = torch.randint(50, (2, 70)), torch.randn(2, 70, 64)
    visible_BL = torch.arange(70) < torch.tensor([[70], [45]])
    hidden = []
    for encoder in (plain, ours):
        hidden_BLH = encoder(ids_BL, visible_BL, 0 * ids_BL)
        hidden_BLH.backward(gradient_BLH.where(visible_BL[..., None], 0.0))
        hidden.append(hidden_BLH[visible_BL].detach())
        in_use()
    torch.testing.assert_close(hidden[1], hidden[0], rtol=1e-5, atol=1e-5)
    for (name, theirs), own in zip(plain.named_parameters(), ours.parameters(), strict=True):
        assert theirs.grad is not None and own.grad is not None
        if not name.endswith("key.bias"):  # a key bias changes no attention, so its gradient is zero
            assert (own.grad - theirs.grad).norm() <= 1e-4 * theirs.grad.norm(), name
