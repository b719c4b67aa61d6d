"""Triton's kernels for scores h W^T + b that exist a tile at a time: [Q rows, a block of S tokens].

Called by `triton_vocabulary`. No sum depends on the order in which the GPU runs its blocks.

Shape letters: R rows, E embedding size, N blocks per row, S tokens per block, C tokens per chunk, T tiles of rows,
Q rows per tile, D columns per product.
"""

import triton
import triton.language as tl


@triton.jit
def scores(hidden, table, bias, row_Q, token_S, rows, tokens, E: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr):
    """Returns a tile of scores in fp32, [Q, S]: 0 beyond the last row, -inf beyond the last token."""
    score_QS = tl.zeros([row_Q.shape[0], token_S.shape[0]], tl.float32)
    for start in range(0, E, DEPTH):
        column = start + tl.arange(0, DEPTH)
        inside_Q = (row_Q[:, None] < rows) & (column[None, :] < E)
        inside_S = (token_S[None, :] < tokens) & (column[:, None] < E)
        hidden_QD = tl.load(hidden + row_Q[:, None] * E + column[None, :], mask=inside_Q, other=0.0)
        table_DS = tl.load(table + token_S[None, :] * E + column[:, None], mask=inside_S, other=0.0)
        if WIDE:
            hidden_QD, table_DS = hidden_QD.to(tl.float32), table_DS.to(tl.float32)
        score_QS = tl.dot(hidden_QD, table_DS, score_QS, input_precision="ieee")
    return score_QS + tl.load(bias + token_S, mask=token_S < tokens, other=-float("inf"))[None, :]


@triton.jit
def probabilities(
    hidden, table, bias, normalizer_R, row_Q, token_S, rows, tokens,
    E: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Returns the softmax of a tile of scores, [Q, S], given each row's normalizer."""
    score_QS = scores(hidden, table, bias, row_Q, token_S, rows, tokens, E, DEPTH, WIDE)
    return tl.exp(score_QS - tl.load(normalizer_R + row_Q, mask=row_Q < rows, other=0.0)[:, None])


@triton.jit
def row_scores(hidden, table, bias, row, token_S, tokens, E: tl.constexpr, DEPTH: tl.constexpr):
    """Returns one row's scores of some tokens in fp32, [S]."""
    score_S = tl.load(bias + token_S, mask=token_S < tokens, other=-float("inf"))
    for start in range(0, E, DEPTH):
        column = start + tl.arange(0, DEPTH)
        inside = (token_S[:, None] < tokens) & (column[None, :] < E)
        hidden_D = tl.load(hidden + row * E + column, mask=column < E, other=0.0).to(tl.float32)
        table_SD = tl.load(table + token_S[:, None] * E + column[None, :], mask=inside, other=0.0).to(tl.float32)
        score_S += tl.sum(table_SD * hidden_D[None, :], 1)
    return score_S


@triton.jit
def powered_loss(z, is_original, least, EXPONENT: tl.constexpr):
    """Returns the estimated loss to the power EXPONENT: softplus(-z) for the original token, else softplus(z)."""
    signed = tl.where(is_original, -z, z)
    small = tl.exp(-tl.abs(signed))
    one_more = 1.0 + small
    excess = one_more - 1.0  # log(1 + small) = log(one_more) small / excess loses no digits
    log1p = tl.where(excess == 0.0, small, tl.log(one_more) * (small / tl.where(excess == 0.0, 1.0, excess)))
    loss = tl.maximum(tl.maximum(signed, 0.0) + log1p, least)
    if EXPONENT != 1.0:
        loss = tl.exp(EXPONENT * tl.log(loss))
    return loss


@triton.jit
def peaks(
    hidden,
    table,
    bias,
    peak_RN,
    sum_RN,
    place_RN,
    spread_RN,
    rows,
    tokens,
    E: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDE: tl.constexpr,
    ENTROPY: tl.constexpr,
):
    """Stores for each row and block the largest score, its place, the sum of exp(score - largest) and, for the entropy,
    sum(exp(score - largest) * (score - largest)).
    """
    row_Q = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token_S = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    score_QS = scores(hidden, table, bias, row_Q, token_S, rows, tokens, E, DEPTH, WIDE)
    peak_Q = tl.max(score_QS, 1)
    below_QS = score_QS - peak_Q[:, None]
    weight_QS = tl.exp(below_QS)
    at_Q = row_Q * tl.num_programs(1) + tl.program_id(1)
    tl.store(peak_RN + at_Q, peak_Q, mask=row_Q < rows)
    tl.store(sum_RN + at_Q, tl.sum(weight_QS, 1), mask=row_Q < rows)
    number_QS = tl.where(score_QS == score_QS, score_QS, -float("inf"))  # of NaN, the place is arbitrary
    tl.store(place_RN + at_Q, tl.argmax(number_QS, 1), mask=row_Q < rows)
    if ENTROPY:
        spread_QS = weight_QS * tl.where(weight_QS > 0.0, below_QS, 0.0)
        tl.store(spread_RN + at_Q, tl.sum(spread_QS, 1), mask=row_Q < rows)


@triton.jit
def weigh(
    hidden,
    other,
    table,
    bias,
    other_bias,
    normalizer_R,
    original_R,
    sum_RN,
    largest_RN,
    spread_RN,
    rows,
    tokens,
    least,
    E: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDE: tl.constexpr,
    EXPONENT: tl.constexpr,
    ENTROPY: tl.constexpr,
):
    """Stores for each row and block the sum and maximum of w = p L_hat^EXPONENT and, for the entropy, sum(w log w)."""
    row_Q = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token_S = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside_Q = row_Q < rows
    p_QS = probabilities(hidden, table, bias, normalizer_R, row_Q, token_S, rows, tokens, E, DEPTH, WIDE)
    z_QS = scores(other, table, other_bias, row_Q, token_S, rows, tokens, E, DEPTH, WIDE)
    original_Q = tl.load(original_R + row_Q, mask=inside_Q, other=0)
    z_QS = tl.where(token_S[None, :] < tokens, z_QS, 0.0)
    weight_QS = p_QS * powered_loss(z_QS, token_S[None, :] == original_Q[:, None], least, EXPONENT)
    at_Q = row_Q * tl.num_programs(1) + tl.program_id(1)
    tl.store(sum_RN + at_Q, tl.sum(weight_QS, 1), mask=inside_Q)
    tl.store(largest_RN + at_Q, tl.max(weight_QS, 1), mask=inside_Q)
    if ENTROPY:
        spread_QS = weight_QS * tl.log(tl.where(weight_QS > 0.0, weight_QS, 1.0))
        tl.store(spread_RN + at_Q, tl.sum(spread_QS, 1), mask=inside_Q)


@triton.jit
def weights_of_block(
    hidden,
    other,
    table,
    bias,
    other_bias,
    normalizer_R,
    original_R,
    block_R,
    weight_RS,
    tokens,
    least,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
    EXPONENT: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """Stores the weights of one block of each row: p, or p L_hat^EXPONENT; 0 beyond the last token."""
    row = tl.program_id(0)
    token_S = tl.load(block_R + row) * BLOCK + tl.arange(0, BLOCK)
    score_S = row_scores(hidden, table, bias, row, token_S, tokens, E, DEPTH)
    weight_S = tl.exp(score_S - tl.load(normalizer_R + row))
    if WEIGHTED:
        z_S = row_scores(other, table, other_bias, row, token_S, tokens, E, DEPTH)
        z_S = tl.where(token_S < tokens, z_S, 0.0)
        weight_S *= powered_loss(z_S, token_S == tl.load(original_R + row), least, EXPONENT)
    tl.store(weight_RS + row * BLOCK + tl.arange(0, BLOCK), weight_S)


@triton.jit
def slopes(
    hidden,
    table,
    bias,
    normalizer_R,
    id_R,
    gradient_R,
    slope_RC,
    sum_TC,
    first,
    rows,
    tokens,
    chunk,
    E: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Stores (one_hot(ids) - p) times the incoming gradient for a chunk of tokens, and its sums over tiles of rows."""
    row_Q = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place_S = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token_S = first + place_S
    inside_Q = row_Q < rows
    p_QS = probabilities(hidden, table, bias, normalizer_R, row_Q, token_S, rows, tokens, E, DEPTH, WIDE)
    is_id_QS = token_S[None, :] == tl.load(id_R + row_Q, mask=inside_Q, other=-1)[:, None]
    gradient_Q = tl.load(gradient_R + row_Q, mask=inside_Q, other=0.0)
    slope_QS = (tl.where(is_id_QS, 1.0, 0.0) - p_QS) * gradient_Q[:, None]
    inside_QS = inside_Q[:, None] & (place_S[None, :] < chunk)
    at_QS = row_Q[:, None].to(tl.int64) * chunk + place_S[None, :]
    tl.store(slope_RC + at_QS, slope_QS.to(slope_RC.dtype.element_ty), mask=inside_QS)
    tl.store(sum_TC + tl.program_id(0) * chunk + place_S, tl.sum(slope_QS, 0), mask=place_S < chunk)
