/* linear for few rows, straight from the rows of W as they are stored: what a matrix that is packed when touched is multiplied by
 * at every step of decoding. There memory is the limit, and a panel written and read again would cost more than the product.
 *
 * A square of LT_VL outputs by LT_VL of k (of bfloat16, twice as many in the same registers) is transposed in registers and
 * multiplied at once, so that k ascends in one accumulator an output: the same steps as over a panel, and the same bits. Narrow
 * vectors take blocks of squares. While one is computed, the rows that follow are fetched: so many streams are too many for a
 * prefetcher to follow. */
#ifndef LT_BACKEND_CPU_FEW_H
#define LT_BACKEND_CPU_FEW_H

#define FEW_ROWS 4 /* accumulators beside a square; more rows take a panel's rows of W from L2 again */

#define FEW_REACH (LT_VL < 4 ? LT_VL : 4) /* rows of a square reached from one address */

/* Squares of a block, one below the other and side by side: of 8 lanes, one chain of multiply-adds reads no more than 12 GB/s on
 * a Zen 3, for its latency, two 13–22. */
#define FEW_DOWN (LT_VL == 8 ? 2 : 1)
#define FEW_ACROSS (LT_VL == 8 ? 2 : 1)

/* acc[i] += x[i][p] · b for every row; x points at step p. */
LT_VECTOR void few_step(size_t m, vf acc[FEW_ROWS][FEW_DOWN], const float *x, size_t ldx, const vf b[FEW_DOWN], bool pairs)
{
    LT_UNROLL
    for (size_t i = 0; i < m; i++) {
        LT_UNROLL
        for (size_t g = 0; g < FEW_DOWN; g++) {
            acc[i][g] = pairs ? v_dot_broadcast(x + i * ldx, b[g], acc[i][g]) : v_fma_broadcast(x + i * ldx, b[g], acc[i][g]);
        }
    }
}

/* A row of a block is a cache line: each line is read once then, whole, for the lines of LT_VL rows that lie a power of two
 * apart have no room in L1 to be read again (rows of 4 KiB: 22 instead of 13 GB/s from memory). */
#define FEW_LINES (FEW_ACROSS * LT_VL * sizeof(float) == 64)

/* What is fetched to L2 while a block is computed: its share of the rows that follow, in this many streams of equal length: one
 * alone has too few lines under way (four read 4% more tokens a second than one, two 3%). Of its own rows, lines go on to L1 two
 * lines ahead, but not of blocks two squares down: twice the lines would drive each other out before they are read (15 instead of
 * 20 tokens a second on a Zen 3 whose memory gives 46 GB/s). */
#define FEW_STREAMS(bytes) ((bytes) >= 256 ? 4 : 1)
LT_VECTOR void few_fetch(const unsigned char *next, size_t bytes, const unsigned char *w, size_t row_bytes)
{
    const size_t streams = FEW_STREAMS(bytes);
    LT_UNROLL
    for (size_t s = 0; s < streams; s++, next = v_address(next + FEW_DOWN * LT_VL / streams * row_bytes)) {
        LT_UNROLL
        for (size_t i = 0; i < bytes / streams; i += 64) __builtin_prefetch(next + i, 0, 2);
    }
    LT_UNROLL
    for (size_t r = 0; FEW_LINES && FEW_DOWN == 1 && r < LT_VL; r += FEW_REACH, w = v_address(w + FEW_REACH * row_bytes)) {
        LT_UNROLL
        for (size_t i = 0; i < FEW_REACH; i++) __builtin_prefetch(w + i * row_bytes + 128, 0, 3);
    }
}

/* Elements of a row before the first cache line that begins in it, where all rows are alike and pairs stay together; else 0. */
LT_VECTOR size_t few_head(const unsigned char *w, size_t size, size_t row_bytes, size_t k, bool pairs)
{
    const size_t bytes = -(uintptr_t)w % 64, head = bytes / size;
    return !FEW_LINES || row_bytes % 64 || bytes % size || (pairs && head % 2) ? 0 : min_size(head, k);
}

/* A row of a square: `n` elements, or as many as there can be (`full`). */
LT_VECTOR vf few_row(const unsigned char *p, lt_dtype dtype, size_t n, bool full, bool split, bool pairs)
{
    if (split) return full ? v_load(p) : v_load_n(p, n / 2);
    if (pairs) return load_pairs(p, dtype, n);
    return full ? load_as(p, dtype) : load_as_n(p, dtype, n);
}

/* One square whose rows begin at w, `n` elements of each: LT_VL, of pairs and where bfloat16 is split twice as many (`full`), or
 * fewer, where it is split an even number. */
LT_VECTOR void few_square(size_t m, vf square[LT_VL], const unsigned char *w, lt_dtype dtype, size_t row_bytes, size_t n,
                          bool full, bool split, bool pairs)
{
    if ((LT_VL * sizeof(float) < 64 || m > 2) && full && (split || dtype == (pairs ? LT_BF16 : LT_F32))) {
        v_load_square(square, w, row_bytes);
    } else {
        LT_UNROLL
        for (size_t r = 0; r < LT_VL; r += FEW_REACH, w = v_address(w + FEW_REACH * row_bytes)) {
            LT_UNROLL
            for (size_t i = 0; i < FEW_REACH; i++) square[r + i] = few_row(w + i * row_bytes, dtype, n, full, split, pairs);
        }
        v_transpose(square);
    }
}

/* FEW_DOWN squares by `across`, `n` elements of each of their rows as above. */
LT_VECTOR void few_block(size_t m, size_t across, vf acc[FEW_ROWS][FEW_DOWN], const unsigned char *w, lt_dtype dtype,
                         size_t row_bytes, size_t n, bool full, const float *x, size_t ldx, bool split, bool pairs)
{
    vf block[FEW_ACROSS * LT_VL][FEW_DOWN]; /* two by two are more than registers, and then on the stack */
    LT_UNROLL
    for (size_t g = 0; g < FEW_DOWN; g++, w = v_address(w + LT_VL * row_bytes)) {
        LT_UNROLL
        for (size_t s = 0; s < across; s++) {
            vf square[LT_VL];
            few_square(m, square, w + s * n * (dtype == LT_F32 ? 4 : 2), dtype, row_bytes, n, full, split, pairs);
            LT_UNROLL
            for (size_t j = 0; j < LT_VL; j++) block[s * LT_VL + j][g] = square[j];
        }
    }
    LT_UNROLL
    for (size_t j = 0; j < across * LT_VL; j++) {
        if (!full && (split || pairs ? 2 * j : j) >= n) continue;
        if (split) {
            vf half[FEW_DOWN];
            LT_UNROLL
            for (size_t g = 0; g < FEW_DOWN; g++) half[g] = v_low_bf16(block[j][g]);
            few_step(m, acc, x + 2 * j, ldx, half, false);
            LT_UNROLL
            for (size_t g = 0; g < FEW_DOWN; g++) half[g] = v_high_bf16(block[j][g]);
            few_step(m, acc, x + 2 * j + 1, ldx, half, false);
        } else {
            few_step(m, acc, x + j, ldx, block[j], pairs);
        }
    }
}

/* FEW_DOWN times LT_VL outputs of m rows: c[i][0...], rows of W at w. */
LT_VECTOR void few_outputs(size_t m, const lt_linear *a, const float *x, const unsigned char *w, lt_dtype dtype, float *c,
                           bool pairs)
{
    const size_t size = dtype == LT_F32 ? 4 : 2, row_bytes = a->ldw * size, k = a->k, ldx = a->ldx;
    const bool split = dtype == LT_BF16 && !pairs;
    const size_t narrow = pairs || split ? 2 * LT_VL : LT_VL, wide = FEW_ACROSS * narrow;
    const size_t fetched = wide * size * FEW_DOWN * LT_VL;
    const unsigned char *next = v_address(w + FEW_DOWN * LT_VL * row_bytes);
    vf acc[FEW_ROWS][FEW_DOWN];
    LT_UNROLL
    for (size_t i = 0; i < m; i++) {
        LT_UNROLL
        for (size_t g = 0; g < FEW_DOWN; g++) acc[i][g] = v_zero();
    }
    for (size_t kk = 0, end = few_head(w, size, row_bytes, k, pairs); kk < k; end = k) {
        for (; kk + wide <= end; kk += wide, w += wide * size, x += pairs ? wide / 2 : wide) {
            few_fetch(next, fetched, w, row_bytes);
            next = v_address(next + fetched / FEW_STREAMS(fetched));
            few_block(m, FEW_ACROSS, acc, w, dtype, row_bytes, narrow, true, x, ldx, split, pairs);
        }
        for (; FEW_ACROSS > 1 && kk + narrow <= end; kk += narrow, w += narrow * size, x += pairs ? LT_VL : narrow)
            few_block(m, 1, acc, w, dtype, row_bytes, narrow, true, x, ldx, split, pairs);
        for (size_t n; kk < end; kk += n, w += n * size, x += pairs ? (n + 1) / 2 : n) {
            n = end - kk;
            if (split && n > 1) {
                n -= n % 2;
                few_block(m, 1, acc, w, dtype, row_bytes, n, false, x, ldx, true, false);
            } else {
                few_block(m, 1, acc, w, dtype, row_bytes, n, false, x, ldx, false, pairs);
            }
        }
    }
    LT_UNROLL
    for (size_t i = 0; i < m; i++) {
        LT_UNROLL
        for (size_t g = 0; g < FEW_DOWN; g++) v_store(c + i * LT_NR + g * LT_VL, acc[i][g]);
    }
}

/* Panel `index` of m rows, of which the first is `row`. */
LT_VECTOR void few_panel(size_t m, const lt_linear *a, size_t row, size_t index, lt_dtype dtype, bool pairs)
{
    _Alignas(64) float c[FEW_ROWS * LT_NR];
    const size_t row_bytes = a->ldw * (dtype == LT_F32 ? 4 : 2);
    const unsigned char *w = (const unsigned char *)a->w + (index - a->panel_begin) * LT_NR * row_bytes;
    for (size_t g = 0; g < LT_NR; g += FEW_DOWN * LT_VL)
        few_outputs(m, a, a->x + row * a->ldx, w + g * row_bytes, dtype, c + g, pairs);
    finish_tile(a, c, row, m, index * LT_NR, LT_NR);
}

/* One function a number of rows and type: the loops above are written out in each. */
typedef void few_fn(const lt_linear *a, size_t row, size_t index);

#define FEW_TABLE(name, pairs)                                                                                                   \
    FEW_TYPES(name, 1, pairs)                                                                                                    \
    FEW_TYPES(name, 2, pairs)                                                                                                    \
    FEW_TYPES(name, 4, pairs)                                                                                                    \
    static few_fn *const name[3][3] = { FEW_NAMES(name, LT_F32), FEW_NAMES(name, LT_F16), FEW_NAMES(name, LT_BF16) };
#define FEW_NAMES(name, dtype)                                                                                                   \
    {                                                                                                                            \
        name##_##dtype##_1, name##_##dtype##_2, name##_##dtype##_4                                                               \
    }
#define FEW_TYPES(name, m, pairs) FEW(name, LT_F32, m, pairs) FEW(name, LT_F16, m, pairs) FEW(name, LT_BF16, m, pairs)
#define FEW(name, dtype, m, pairs)                                                                                               \
    static void name##_##dtype##_##m(const lt_linear *a, size_t row, size_t index)                                               \
    {                                                                                                                            \
        few_panel(m, a, row, index, dtype, pairs);                                                                               \
    }

FEW_TABLE(few, false)
#ifdef LT_HAS_PAIRS
FEW_TABLE(few_pairs, true)
#endif

LT_VECTOR void by_few(const lt_linear *a, few_fn *const table[3][3])
{
    few_fn *const *by_rows = table[a->dtype == LT_F32 ? 0 : a->dtype == LT_F16 ? 1 : 2];
    for (size_t index = a->panel_begin; index < a->panel_end; index++) {
        for (size_t row = 0; row < a->m;) { /* by fours, twos, ones */
            const size_t power = a->m - row >= 4 ? 2 : a->m - row >= 2 ? 1 : 0;
            by_rows[power](a, row, index);
            row += (size_t)1 << power;
        }
    }
}

static void linear_few(const lt_linear *a)
{
    by_few(a, few);
}

#ifdef LT_HAS_PAIRS
static void linear_few_pairs(const lt_linear *a)
{
    by_few(a, few_pairs);
}
#endif

#endif
