"""The Triton kernels of `triton_attention`, which describes the algorithm.

Each kernel walks through three zones of tiles: FAR, whose distances all have one bias; NEAR, where a tile of scores has
a tile of biases; LAST, the sequence's last tile if it has padding, the only one with masked scores. The distance
between two tiles is in tiles. Scores are the products q k, before scaling.

Shape letters: M queries and K keys of a tile (SIDE of each), W head size padded to a power of two, G groups of 8 keys,
S rows of partial sums, C diagonals, P elements of a tile.
"""

import os

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
ROUNDS = tl.constexpr(7)
"""Rounds of Philox: the fewest that pass BigCrush (Salmon et al. 2011)."""
FAR, NEAR, LAST = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def forward(
    query, key, value, biases, lengths, seed, output, log_sum, L, N, stride, span, dropped, factor,
    D: tl.constexpr, WIDTH: tl.constexpr, DROPOUT: tl.constexpr, LOCAL: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Writes the output of a tile's queries, and the log2-sum-exp of their scores: infinite at padding."""
    row, head = tl.program_id(0) % tl.cdiv(L, SIDE), tl.program_id(0) // tl.cdiv(L, SIDE)
    length = tl.load(lengths + head // N)
    start, wide = _start(head, L, N, N * D, D), _start(head, L, N, stride, D)
    biases += _middle(head, N, span, SIDE)
    row_M = row * SIDE + tl.arange(0, SIDE)
    q_MW = _load(query + wide, row_M, length, stride, D, WIDTH)
    total_MW = tl.zeros([SIDE, WIDTH], tl.float32)
    sum_M = tl.zeros([SIDE], tl.float32)
    peak_M = tl.full([SIDE], float("-inf"), tl.float32)
    for zone in tl.static_range(3):
        begin, end, near, gap = _zone(zone, row, length, length // SIDE, span, LOCAL, SIDE)
        for step in range(begin, end):
            column = step + tl.where(step < near, 0, gap)
            column_K = column * SIDE + tl.arange(0, SIDE)
            k_KW = _load(key + wide, column_K, length, stride, D, WIDTH)
            v_KW = _load(value + wide, column_K, length, stride, D, WIDTH)
            s_MK, bias = _scores(q_MW, k_KW, biases, column - row, span, length - column * SIDE, zone, D, SIDE)
            new_M = tl.maximum(peak_M, tl.max(s_MK, 1) * (D**-0.5 * LOG2E) + bias)
            p_MK = tl.exp2(s_MK * (D**-0.5 * LOG2E) - (new_M - bias)[:, None])
            shrunk_M = tl.exp2(peak_M - new_M)
            sum_M = sum_M * shrunk_M + tl.sum(p_MK, 1)
            if DROPOUT:
                p_MK = tl.where(_kept(seed, head, row_M, column, SIDE, dropped), p_MK, 0.0)
            total_MW = _dot(p_MK.to(v_KW.dtype), v_KW, total_MW * shrunk_M[:, None])
            peak_M = new_M
    visible_M = row_M < length
    sum_M = tl.where(visible_M, sum_M, 1.0)
    total_MW *= tl.where(visible_M, factor / sum_M, 0.0)[:, None]
    _store(output + start, total_MW, row_M, L, N * D, D, WIDTH)
    log_M = tl.where(visible_M, peak_M + tl.log2(sum_M), float("inf"))
    tl.store(log_sum + head.to(tl.int64) * L + row_M, log_M, mask=row_M < L)


@triton.jit
def query_backward(
    query, key, value, biases, lengths, seed, output, log_sum, gradient, mean, query_gradient, partial,
    L, N, stride, span, dropped, factor,
    D: tl.constexpr, WIDTH: tl.constexpr, DROPOUT: tl.constexpr, LOCAL: tl.constexpr, SIDE: tl.constexpr,
    LEARNS_BIAS: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of a tile's queries, and the sums of the scores' gradient along the diagonals of near tiles
    and over far ones.

    `mean` gets each row's mean of the probabilities' gradient, which `key_backward` needs.
    """
    row, head = tl.program_id(0) % tl.cdiv(L, SIDE), tl.program_id(0) // tl.cdiv(L, SIDE)
    length = tl.load(lengths + head // N)
    start, wide = _start(head, L, N, N * D, D), _start(head, L, N, stride, D)
    biases += _middle(head, N, span, SIDE)
    width = (2 * span + 1) * 2 * SIDE + 2
    if LEARNS_BIAS:
        partial += tl.program_id(0).to(tl.int64) * width
    place_M = tl.arange(0, SIDE)
    row_M = row * SIDE + place_M
    q_MW = _load(query + wide, row_M, length, stride, D, WIDTH)
    gradient_MW = _load(gradient + start, row_M, length, N * D, D, WIDTH)
    o_MW = _load(output + start, row_M, length, N * D, D, WIDTH)
    mean_M = tl.sum(gradient_MW.to(tl.float32) * o_MW.to(tl.float32), 1)
    tl.store(mean + head.to(tl.int64) * L + row_M, mean_M, mask=row_M < L)
    log_M = tl.load(log_sum + head.to(tl.int64) * L + row_M, mask=row_M < L, other=float("inf"))
    total_MW = tl.zeros([SIDE, WIDTH], tl.float32)
    before_M = tl.zeros([SIDE], tl.float32)
    after_M = tl.zeros([SIDE], tl.float32)
    for zone in tl.static_range(3):
        begin, end, near, gap = _zone(zone, row, length, length // SIDE, span, LOCAL, SIDE)
        for step in range(begin, end):
            column = step + tl.where(step < near, 0, gap)
            column_K = column * SIDE + place_M
            k_KW = _load(key + wide, column_K, length, stride, D, WIDTH)
            v_KW = _load(value + wide, column_K, length, stride, D, WIDTH)
            s_MK, bias = _scores(q_MW, k_KW, biases, column - row, span, length - column * SIDE, zone, D, SIDE)
            p_MK = tl.exp2(s_MK * (D**-0.5 * LOG2E) - (log_M - bias)[:, None])
            slope_MK = _dot(gradient_MW, tl.trans(v_KW), tl.zeros([SIDE, SIDE], tl.float32))
            slope_MK = slope_MK * factor - mean_M[:, None]
            if DROPOUT:
                kept_MK = _kept(seed, head, row_M, column, SIDE, dropped)
                slope_MK = tl.where(kept_MK, slope_MK, -mean_M[:, None])
            ds_MK = p_MK * slope_MK
            total_MW = _dot(ds_MK.to(k_KW.dtype), k_KW, total_MW)
            if LEARNS_BIAS:
                if zone == FAR:
                    before_M += tl.where(column < row, tl.sum(ds_MK, 1), 0.0)
                if zone != NEAR:
                    after_M += tl.where(column > row + span, tl.sum(ds_MK, 1), 0.0)
                if zone != FAR:
                    slot_M = partial + (column - row + span) * 2 * SIDE + place_M
                    upper_M, lower_M = _diagonals(ds_MK, SIDE)
                    tl.store(slot_M, upper_M, mask=column + 0 * place_M <= row + span)
                    tl.store(slot_M + SIDE, lower_M, mask=column + 0 * place_M <= row + span)
    _store(query_gradient + wide, total_MW * D**-0.5, row_M, L, stride, D, WIDTH)
    if LEARNS_BIAS:
        tl.store(partial + width - 2, tl.sum(before_M, 0))
        tl.store(partial + width - 1, tl.sum(after_M, 0))


@triton.jit
def key_backward(
    query, key, value, biases, lengths, seed, log_sum, gradient, mean, key_gradient, value_gradient,
    L, N, stride, span, dropped, factor,
    D: tl.constexpr, WIDTH: tl.constexpr, DROPOUT: tl.constexpr, LOCAL: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Writes the gradients of one tile of keys and of their values; at padding it writes zeros."""
    column, head = tl.program_id(0) % tl.cdiv(L, SIDE), tl.program_id(0) // tl.cdiv(L, SIDE)
    length = tl.load(lengths + head // N)
    start, wide = _start(head, L, N, N * D, D), _start(head, L, N, stride, D)
    biases += _middle(head, N, span, SIDE)
    log_sum += head.to(tl.int64) * L
    mean += head.to(tl.int64) * L
    column_K = column * SIDE + tl.arange(0, SIDE)
    k_KW = _load(key + wide, column_K, length, stride, D, WIDTH)
    v_KW = _load(value + wide, column_K, length, stride, D, WIDTH)
    key_total_KW = tl.zeros([SIDE, WIDTH], tl.float32)
    value_total_KW = tl.zeros([SIDE, WIDTH], tl.float32)
    for zone in tl.static_range(2):
        begin, end, near, gap = _zone(zone, column, length, tl.cdiv(length, SIDE), span, LOCAL, SIDE)
        for step in range(begin, end):
            row = step + tl.where(step < near, 0, gap)
            row_M = row * SIDE + tl.arange(0, SIDE)
            q_MW = _load(query + wide, row_M, length, stride, D, WIDTH)
            gradient_MW = _load(gradient + start, row_M, length, N * D, D, WIDTH)
            log_M = tl.load(log_sum + row_M, mask=row_M < L, other=float("inf"))
            mean_M = tl.load(mean + row_M, mask=row_M < L, other=0.0)
            s_MK, bias = _scores(q_MW, k_KW, biases, column - row, span, length, zone, D, SIDE)
            p_MK = tl.exp2(s_MK * (D**-0.5 * LOG2E) - (log_M - bias)[:, None])
            slope_MK = _dot(gradient_MW, tl.trans(v_KW), tl.zeros([SIDE, SIDE], tl.float32))
            slope_MK = slope_MK * factor - mean_M[:, None]
            kept_p_MK = p_MK
            if DROPOUT:
                kept_MK = _kept(seed, head, row_M, column, SIDE, dropped)
                slope_MK = tl.where(kept_MK, slope_MK, -mean_M[:, None])
                kept_p_MK = tl.where(kept_MK, p_MK, 0.0)
            value_total_KW = _dot(tl.trans(kept_p_MK.to(gradient_MW.dtype)), gradient_MW, value_total_KW)
            key_total_KW = _dot(tl.trans((p_MK * slope_MK).to(q_MW.dtype)), q_MW, key_total_KW)
    visible_K1 = (column_K < length)[:, None]
    _store(key_gradient + wide, tl.where(visible_K1, key_total_KW * D**-0.5, 0.0), column_K, L, stride, D, WIDTH)
    _store(value_gradient + wide, tl.where(visible_K1, value_total_KW * factor, 0.0), column_K, L, stride, D, WIDTH)


@triton.jit
def table_backward(partial, lengths, table_gradient, B, N, tiles, span, S: tl.constexpr, SIDE: tl.constexpr):
    """Adds up the sums of `query_backward` over sequences and tiles for SIDE distances of a head, in a fixed order."""
    block, head = tl.program_id(0) - span - 1, tl.program_id(1)
    width = (2 * span + 1) * 2 * SIDE + 2
    place_M = tl.arange(0, SIDE)
    total_SM = tl.zeros([S, SIDE], tl.float32)
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
            written_S = (tile_S * SIDE < length_S) & (column_S >= 0) & (column_S * SIDE < length_S)
            written_S = written_S & (slot_S >= 0) & (slot_S <= 2 * span)
            sums_SM = (place_S + (2 * slot_S + wrapped) * SIDE)[:, None] + place_M[None, :]
            total_SM += tl.load(sums_SM, mask=written_S[:, None], other=0.0)
    index_M = tl.program_id(0) * SIDE + place_M
    total_M = tl.sum(total_SM, 0)
    total_M += tl.where(index_M == 0, tl.sum(before_S, 0), 0.0)
    total_M += tl.where(index_M == 2 * (span + 1) * SIDE - 1, tl.sum(after_S, 0), 0.0)
    tl.store(table_gradient + head * 2 * (span + 1) * SIDE + index_M, total_M)


@triton.jit
def _start(head, L, N, stride, D):
    """Returns the offset of a head's first element in a tensor [B, L, N, D] with so many elements from row to row."""
    return (head // N).to(tl.int64) * L * stride + head % N * D


@triton.jit
def _middle(head, N, span, SIDE: tl.constexpr):
    """Returns the offset of a head's tile of biases at distance 0 in a tensor [N, 2 span + 3, M, K]."""
    return (head % N * (2 * span + 3) + span + 1) * SIDE * SIDE


@triton.jit
def _zone(zone: tl.constexpr, tile, length, whole, span, LOCAL: tl.constexpr, SIDE: tl.constexpr):
    """Returns the loop's range over one zone, for one tile: (begin, end, first step that skips tiles, tiles skipped).

    The sequence has `whole` full tiles, then perhaps a partial one. All zones are empty if this tile is all padding;
    with LOCAL, so are those beyond `span`.
    """
    is_empty = tile * SIDE >= length
    near = tl.minimum(tl.maximum(tile - span, 0), whole)
    after = tl.minimum(tile + span + 1, whole)
    gap = after - near
    if zone == FAR:
        begin, end = 0, 0 if LOCAL else whole - gap
    elif zone == NEAR:
        begin, end, gap = near, after, 0
    else:
        begin, end, gap = whole, tl.cdiv(length, SIDE), 0
        if LOCAL:
            is_empty |= whole > tile + span
    return begin, tl.where(is_empty, begin, end), near, gap


@triton.jit
def _scores(
    q_MW, k_KW, biases, distance, span, visible, zone: tl.constexpr, D: tl.constexpr, SIDE: tl.constexpr
):  # fmt: skip
    """Returns a tile of scores q k + bias sqrt(D), and 0; of a far tile, q k alone, and its one bias times log2(e).

    In the last tile, keys are visible up to `visible`.
    """
    biases += tl.minimum(tl.maximum(distance, -span - 1), span + 1) * SIDE * SIDE
    if zone == FAR:
        bias = tl.load(biases).to(tl.float32) * LOG2E
        s_MK = _dot(q_MW, tl.trans(k_KW), tl.zeros([SIDE, SIDE], tl.float32))
    else:
        bias = 0.0
        place_M = tl.arange(0, SIDE)
        b_MK = tl.load(biases + place_M[:, None] * SIDE + place_M[None, :])
        s_MK = _dot(q_MW, tl.trans(k_KW), b_MK.to(tl.float32) * D**0.5)
    if zone == LAST:
        s_MK = tl.where(tl.arange(0, SIDE)[None, :] < visible, s_MK, float("-inf"))
    return s_MK, bias


@triton.jit
def _diagonals(values_MK, SIDE: tl.constexpr):
    """Returns the sums along a tile's diagonals: first the main one and the ones above it, then the ones below."""
    row_P, column_P = tl.arange(0, SIDE * SIDE) // SIDE, tl.arange(0, SIDE * SIDE) % SIDE
    turned_P = tl.gather(values_MK.reshape(SIDE * SIDE), row_P * SIDE + (row_P + column_P) % SIDE, 0)
    upper_P = tl.where(row_P + column_P < SIDE, turned_P, 0.0)  # columns are diagonals now
    upper_C = tl.sum(upper_P.reshape(SIDE, SIDE), 0)
    return upper_C, tl.sum(turned_P.reshape(SIDE, SIDE), 0) - upper_C


@triton.jit
def kept(seed, head, row_M, tile, K: tl.constexpr, dropped):
    """Returns a mask, true where dropout keeps a value; it depends on row and column only, not on the tile's size."""
    a_MG, b_MG, c_MG, d_MG = _draw(seed, head, row_M, tile * (K // 8) + tl.arange(0, K // 8))
    words_MG22 = tl.join(tl.join(a_MG, b_MG), tl.join(c_MG, d_MG))
    kept_MG222 = tl.join(
        (words_MG22 & 0xFFFF).to(tl.int32) >= dropped,
        words_MG22 >= tl.cast(dropped, tl.uint32) << 16,
    )
    return kept_MG222.reshape(row_M.shape[0], K)


@triton.jit
def _kept(seed, head, row_M, column, SIDE: tl.constexpr, dropped):
    """Returns a mask of a tile of probabilities, true where dropout keeps one, from one random byte each.

    The four threads that share a row in the layout of tensor cores hold two neighbors of each group of 8 columns: each
    draws once for all of its columns, so no value moves between threads. A tile of 32 uses half of a draw.
    """
    a_MG, b_MG, c_MG, d_MG = _draw(seed, head, row_M, column * 4 + tl.arange(0, 4))
    words = tl.join(a_MG, b_MG)
    if SIDE == 64:
        words = tl.join(words, tl.join(c_MG, d_MG))
    least = tl.cast(dropped, tl.uint32)
    low = tl.join((words & 0xFF) >= least, (words & 0xFFFF) >= least << 8)
    high = tl.join((words & 0xFFFFFF) >= least << 16, words >= least << 24)
    return tl.join(low, high).reshape(SIDE, 4, SIDE // 8, 2).permute(0, 2, 1, 3).reshape(SIDE, SIDE)


@triton.jit
def _draw(seed, head, row_M, group_G):
    """Returns four random words for each row and group of columns of a head, [M, G] each."""
    zero_MG = row_M[:, None] * 0 + group_G[None, :] * 0
    return tl.philox(
        tl.load(seed), zero_MG + row_M[:, None], zero_MG + group_G[None, :], zero_MG + head, zero_MG, ROUNDS
    )


@triton.jit
def _load(start, row_X, L, stride, D: tl.constexpr, WIDTH: tl.constexpr):
    """Returns rows of a head, [X, WIDTH]; zero beyond L and beyond D."""
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
def _dot(a, b, total):
    """Returns `total` plus the product of a and b in fp32; Triton's interpreter cannot multiply bf16."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total)
