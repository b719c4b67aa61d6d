"""The Triton kernels of `triton_attention`, which describes the algorithm.

Scores are in units of ln 2, so that exp2 serves as exp. Each kernel walks through three zones of tiles:
before, within and after the distances whose bias differs. Only the zone within reads biases by distance.

Shape letters: M queries and K keys of a tile, D head size, G groups of 8 keys, S rows of partial sums, C diagonals.
"""

import os

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
ROUNDS = tl.constexpr(7)
"""Rounds of Philox: the fewest that pass BigCrush (Salmon et al. 2011)."""


@triton.jit
def forward(
    query, key, value, table, lengths, seed, output, log_sum, L, N, reach, half, dropped, factor,
    D: tl.constexpr, WIDTH: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    M: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Writes the output of M queries, and the log-sum-exp of their scores: infinite at padding."""
    first, head = tl.program_id(0) * M, tl.program_id(1)
    length = tl.load(lengths + head // N)
    start = _start(head, L, N, D)
    table += head % N * 2 * half
    row_M = first + tl.arange(0, M)
    q_MD = _load(query + start, row_M, L, N * D, D, WIDTH)
    total_MD = tl.zeros([M, WIDTH], tl.float32)
    sum_M = tl.zeros([M], tl.float32)
    peak_M = tl.full([M], float("-inf"), tl.float32)
    for zone in tl.static_range(3):
        begin, end = _zone(zone, first, M, K, length, reach)
        for tile in range(begin, end):
            column_K = tile * K + tl.arange(0, K)
            k_KD = _load(key + start, column_K, L, N * D, D, WIDTH)
            v_KD = _load(value + start, column_K, L, N * D, D, WIDTH)
            s_MK = _dot(q_MD, tl.trans(k_KD), PRECISION) * (D**-0.5 * LOG2E)
            if zone == 1:
                s_MK += tl.load(table + half + column_K[None, :] - row_M[:, None]).to(tl.float32) * LOG2E
            else:
                s_MK += tl.load(table + zone * half - zone // 2).to(tl.float32) * LOG2E
            s_MK = tl.where(column_K[None, :] < length, s_MK, float("-inf"))
            new_M = tl.maximum(peak_M, tl.max(s_MK, 1))
            p_MK = tl.exp2(s_MK - new_M[:, None])
            shrunk_M = tl.exp2(peak_M - new_M)
            sum_M = sum_M * shrunk_M + tl.sum(p_MK, 1)
            if DROPOUT:
                p_MK = tl.where(kept(seed, head, row_M, tile, K, dropped), p_MK, 0.0)
            total_MD = total_MD * shrunk_M[:, None] + _dot(p_MK.to(v_KD.dtype), v_KD, PRECISION)
            peak_M = new_M
    visible_M = row_M < length
    sum_M = tl.where(visible_M, sum_M, 1.0)
    total_MD *= tl.where(visible_M, factor / sum_M, 0.0)[:, None]
    _store(output + start, total_MD, row_M, L, N * D, D, WIDTH)
    log_M = tl.where(visible_M, peak_M + tl.log2(sum_M), float("inf"))
    tl.store(log_sum + head.to(tl.int64) * L + row_M, log_M, mask=row_M < L)


@triton.jit
def query_backward(
    query, key, value, table, lengths, seed, output, log_sum, gradient, mean, query_gradient, partial,
    L, N, reach, half, dropped, factor,
    D: tl.constexpr, WIDTH: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    M: tl.constexpr, LEARNS_BIAS: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of M queries, and the sums of the scores' gradient along the diagonals of each tile.

    Tiles are square. `mean` gets each row's mean of the probabilities' gradient, which `key_backward` needs.
    """
    first, head = tl.program_id(0) * M, tl.program_id(1)
    length = tl.load(lengths + head // N)
    start = _start(head, L, N, D)
    table += head % N * 2 * half
    span = (reach + M - 2) // M
    width = (2 * span + 1) * 2 * M + 2
    if LEARNS_BIAS:
        partial += (head.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * width
    row_M = first + tl.arange(0, M)
    q_MD = _load(query + start, row_M, L, N * D, D, WIDTH)
    gradient_MD = _load(gradient + start, row_M, L, N * D, D, WIDTH)
    o_MD = _load(output + start, row_M, L, N * D, D, WIDTH)
    mean_M = tl.sum(gradient_MD.to(tl.float32) * o_MD.to(tl.float32), 1)
    tl.store(mean + head.to(tl.int64) * L + row_M, mean_M, mask=row_M < L)
    log_M = tl.load(log_sum + head.to(tl.int64) * L + row_M, mask=row_M < L, other=float("inf"))
    total_MD = tl.zeros([M, WIDTH], tl.float32)
    before_M = tl.zeros([M], tl.float32)
    after_M = tl.zeros([M], tl.float32)
    place_M = tl.arange(0, M)
    for zone in tl.static_range(3):
        begin, end = _zone(zone, first, M, M, length, reach)
        for tile in range(begin, end):
            column_K = tile * M + place_M
            k_KD = _load(key + start, column_K, L, N * D, D, WIDTH)
            v_KD = _load(value + start, column_K, L, N * D, D, WIDTH)
            s_MK = _dot(q_MD, tl.trans(k_KD), PRECISION) * (D**-0.5 * LOG2E)
            if zone == 1:
                s_MK += tl.load(table + half + column_K[None, :] - row_M[:, None]).to(tl.float32) * LOG2E
            else:
                s_MK += tl.load(table + zone * half - zone // 2).to(tl.float32) * LOG2E
            s_MK = tl.where(column_K[None, :] < length, s_MK, float("-inf"))
            ds_MK = _dot(gradient_MD, tl.trans(v_KD), PRECISION)
            if DROPOUT:
                ds_MK = tl.where(kept(seed, head, row_M, tile, M, dropped), ds_MK * factor, 0.0)
            ds_MK = tl.exp2(s_MK - log_M[:, None]) * (ds_MK - mean_M[:, None])
            total_MD += _dot(ds_MK.to(k_KD.dtype), k_KD, PRECISION)
            if LEARNS_BIAS and zone == 0:
                before_M += tl.sum(ds_MK, 1)
            if LEARNS_BIAS and zone == 2:
                after_M += tl.sum(ds_MK, 1)
            if LEARNS_BIAS and zone == 1:
                shifted_MC = place_M[:, None] + place_M[None, :]
                ds_MC = tl.gather(ds_MK, shifted_MC % M, 1)  # diagonals are columns now; those below the main one wrap
                slot = partial + (tile - tl.program_id(0) + span) * 2 * M
                tl.store(slot + place_M, tl.sum(tl.where(shifted_MC < M, ds_MC, 0.0), 0))
                tl.store(slot + M + place_M, tl.sum(tl.where(shifted_MC < M, 0.0, ds_MC), 0))
    _store(query_gradient + start, total_MD * D**-0.5, row_M, L, N * D, D, WIDTH)
    if LEARNS_BIAS:
        tl.store(partial + width - 2, tl.sum(before_M, 0))
        tl.store(partial + width - 1, tl.sum(after_M, 0))


@triton.jit
def key_backward(
    query, key, value, table, lengths, seed, log_sum, gradient, mean, key_gradient, value_gradient,
    L, N, reach, half, dropped, factor,
    D: tl.constexpr, WIDTH: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    M: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Writes the gradients of K keys and of their values, from scores with keys as rows."""
    first, head = tl.program_id(0) * K, tl.program_id(1)
    length = tl.load(lengths + head // N)
    start = _start(head, L, N, D)
    table += head % N * 2 * half
    log_sum += head.to(tl.int64) * L
    mean += head.to(tl.int64) * L
    column_K = first + tl.arange(0, K)
    k_KD = _load(key + start, column_K, L, N * D, D, WIDTH)
    v_KD = _load(value + start, column_K, L, N * D, D, WIDTH)
    key_total_KD = tl.zeros([K, WIDTH], tl.float32)
    value_total_KD = tl.zeros([K, WIDTH], tl.float32)
    for zone in tl.static_range(3):  # the first queries are those that have these keys far to their right
        begin, end = _zone(zone, first, K, M, length, reach)
        for tile in range(begin, end):
            row_M = tile * M + tl.arange(0, M)
            q_MD = _load(query + start, row_M, L, N * D, D, WIDTH)
            gradient_MD = _load(gradient + start, row_M, L, N * D, D, WIDTH)
            log_M = tl.load(log_sum + row_M, mask=row_M < L, other=float("inf"))
            mean_M = tl.load(mean + row_M, mask=row_M < L, other=0.0)
            s_KM = _dot(k_KD, tl.trans(q_MD), PRECISION) * (D**-0.5 * LOG2E)
            if zone == 1:
                s_KM += tl.load(table + half + column_K[:, None] - row_M[None, :]).to(tl.float32) * LOG2E
            else:
                s_KM += tl.load(table + (2 - zone) * half - (2 - zone) // 2).to(tl.float32) * LOG2E
            s_KM = tl.where(column_K[:, None] < length, s_KM, float("-inf"))
            p_KM = tl.exp2(s_KM - log_M[None, :])
            ds_KM = _dot(v_KD, tl.trans(gradient_MD), PRECISION)
            if DROPOUT:
                kept_KM = tl.trans(kept(seed, head, row_M, first // K, K, dropped))
                ds_KM = tl.where(kept_KM, ds_KM * factor, 0.0)
                kept_p_KM = tl.where(kept_KM, p_KM, 0.0)
            else:
                kept_p_KM = p_KM
            ds_KM = p_KM * (ds_KM - mean_M[None, :])
            value_total_KD += _dot(kept_p_KM.to(gradient_MD.dtype), gradient_MD, PRECISION)
            key_total_KD += _dot(ds_KM.to(q_MD.dtype), q_MD, PRECISION)
    _store(key_gradient + start, key_total_KD * D**-0.5, column_K, L, N * D, D, WIDTH)
    _store(value_gradient + start, value_total_KD * factor, column_K, L, N * D, D, WIDTH)


@triton.jit
def table_backward(partial, lengths, table_gradient, B, N, tiles, reach, half, S: tl.constexpr, M: tl.constexpr):
    """Adds up the sums of `query_backward` over sequences and tiles, for M distances of one head, in a fixed order."""
    block, head = tl.program_id(0) - tl.cdiv(half, M), tl.program_id(1)
    span = (reach + M - 2) // M
    width = (2 * span + 1) * 2 * M + 2
    place_M = tl.arange(0, M)
    total_SM = tl.zeros([S, M], tl.float32)
    before_S = tl.zeros([S], tl.float32)
    after_S = tl.zeros([S], tl.float32)
    for start in range(0, B * tiles, S):
        number_S = start + tl.arange(0, S)
        exists_S = number_S < B * tiles
        sequence_S, tile_S = number_S // tiles, number_S % tiles
        length_S = tl.load(lengths + sequence_S, mask=exists_S, other=0)
        place_S = partial + ((sequence_S * N + head).to(tl.int64) * tiles + tile_S) * width
        before_S += tl.load(place_S + width - 2, mask=exists_S, other=0.0)
        after_S += tl.load(place_S + width - 1, mask=exists_S, other=0.0)
        for wrapped in tl.static_range(2):
            column_S = tile_S + block + wrapped
            slot_S = column_S - tile_S + span
            written_S = (tile_S * M < length_S) & (column_S >= 0) & (column_S * M < length_S)
            written_S = written_S & (slot_S >= 0) & (slot_S <= 2 * span)
            sums_SM = (place_S + (2 * slot_S + wrapped) * M)[:, None] + place_M[None, :]
            total_SM += tl.load(sums_SM, mask=written_S[:, None], other=0.0)
    index_M = half + block * M + place_M
    total_M = tl.sum(total_SM, 0)
    total_M += tl.where(index_M == 0, tl.sum(before_S, 0), 0.0)
    total_M += tl.where(index_M == 2 * half - 1, tl.sum(after_S, 0), 0.0)
    inside_M = (index_M >= 0) & (index_M < 2 * half)
    tl.store(table_gradient + head * 2 * half + index_M, total_M, mask=inside_M)


@triton.jit
def _start(head, L, N, D):
    """Offset of a head's first element in a tensor [B, L, N, D]."""
    return (head // N).to(tl.int64) * L * N * D + head % N * D


@triton.jit
def _zone(zone: tl.constexpr, first, SIZE: tl.constexpr, STEP: tl.constexpr, length, reach):
    """First tile and end of a zone: tiles of STEP positions that lie before, within or after the reach of SIZE
    positions from `first` on. All zones are empty where these positions are padding.
    """
    count = tl.where(first < length, tl.cdiv(length, STEP), 0)
    near = tl.minimum(tl.maximum(first - reach + 1, 0) // STEP, count)
    after = tl.minimum(tl.cdiv(first + SIZE - 1 + reach, STEP), count)
    if zone == 0:
        begin, end = 0, near
    elif zone == 1:
        begin, end = near, after
    else:
        begin, end = after, count
    return begin, end


@triton.jit
def kept(seed, head, row_M, tile, K: tl.constexpr, dropped):
    """True where dropout keeps a probability. Depends on the positions only, not on the size of the tile."""
    group_G = tile * (K // 8) + tl.arange(0, K // 8)
    zero_MG = row_M[:, None] * 0 + group_G[None, :] * 0
    a_MG, b_MG, c_MG, d_MG = tl.philox(
        tl.load(seed), zero_MG + row_M[:, None], zero_MG + group_G[None, :], zero_MG + head, zero_MG, ROUNDS
    )
    words_MG22 = tl.join(tl.join(a_MG, b_MG), tl.join(c_MG, d_MG))
    kept_MG222 = tl.join(
        (words_MG22 & 0xFFFF).to(tl.int32) >= dropped,
        (words_MG22 >> 16).to(tl.int32) >= dropped,
    )
    return kept_MG222.reshape(row_M.shape[0], K)


@triton.jit
def _load(start, row_X, L, stride, D: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of a head, [X, WIDTH]; zero beyond L and beyond D."""
    column_W = tl.arange(0, WIDTH)
    inside_XW = row_X[:, None] < L
    if D < WIDTH:
        inside_XW = inside_XW & (column_W[None, :] < D)
    return tl.load(start + row_X[:, None] * stride + column_W[None, :], mask=inside_XW, other=0.0)


@triton.jit
def _store(start, values_XW, row_X, L, stride, D: tl.constexpr, WIDTH: tl.constexpr):
    column_W = tl.arange(0, WIDTH)
    inside_XW = row_X[:, None] < L
    if D < WIDTH:
        inside_XW = inside_XW & (column_W[None, :] < D)
    tl.store(start + row_X[:, None] * stride + column_W[None, :], values_XW.to(start.dtype.element_ty), mask=inside_XW)


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr):
    """The product in fp32. Triton's interpreter cannot multiply bf16."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)
