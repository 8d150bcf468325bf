/* attention: the micro-kernel of products.h twice a block of LT_KEYS keys, with the softmax between them online.
 *
 * Many queries: K becomes panels (transposed, where it comes from a batch), and so does V, whose rows are often a multiple of
 * 4096 bytes apart, which would put all of them into a few cache sets.
 *
 * One query, as when text is generated, is a matter of memory: the blocks of a state are read once for all heads that share them,
 * as they are stored, in the order of addresses. For that a block has its keys transposed: step p of 64 keys, then step p + 1.
 * Every sum has the order that it has among many queries, so the result has the same bits. */
#ifndef LT_BACKEND_CPU_ATTENTION_H
#define LT_BACKEND_CPU_ATTENTION_H

#include "backend/cpu/bodies.h"

LT_VECTOR size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Panels of keys [d][nr] · panels of values [LT_KEYS][nr] · weights [mr][LT_KEYS] · sums of values [queries][width] · sums of
 * weights [queries][vl] · largest score [queries]; with pairs, half the keys and values, and a tile of queries [mr][d / 2]. */
LT_VECTOR size_t attention_floats(size_t head_dim, bool pairs)
{
    const size_t width = round_up(head_dim, LT_NR), steps = pairs ? (head_dim + 1) / 2 : head_dim;
    const size_t inputs = LT_KEYS * steps + (pairs ? LT_KEYS / 2 * width + LT_MR * steps : LT_KEYS * width);
    return inputs + LT_MR * LT_KEYS + LT_QUERIES * (width + LT_VL) + LT_QUERIES;
}

static size_t attention_scratch(size_t head_dim)
{
    return attention_floats(head_dim, false);
}

/* The largest of n floats, or -infinity; NaNs are passed over. */
LT_VECTOR float row_max(const float *s, size_t n)
{
    const vf least = v_set1(-INFINITY);
    vf m[2] = { least, least };
    size_t j = 0;
    for (; j + 2 * LT_VL <= n; j += 2 * LT_VL) {
        m[0] = v_max(v_load(s + j), m[0]);
        m[1] = v_max(v_load(s + j + LT_VL), m[1]);
    }
    for (; j + LT_VL <= n; j += LT_VL) m[0] = v_max(v_load(s + j), m[0]);
    if (j < n) m[1] = v_max(v_keep_n(v_load_n(s + j, n - j), n - j, least), m[1]);
    return v_max_across(v_max(m[0], m[1]));
}

/* The weights of LT_VL scores, of which the first n count. */
LT_VECTOR vf weights_of(const float *scores, size_t n, vf factor, vf shift)
{
    if (n >= LT_VL) return v_exp2_weight(v_fma(v_load(scores), factor, shift));
    if (n == 0) return v_zero();
    return v_keep_n(v_exp2_weight(v_fma(v_load_n(scores, n), factor, shift)), n, v_zero());
}

/* A tile's scores s [rows][LT_KEYS] of one block of keys become weights 2^(factor (s - max)), in place, or with pairs in the
 * first half of each row; row i sees the first visible[i] keys, and the weights from there to n are zero. `max` [rows] is the
 * largest score of the blocks so far, `total` [rows][LT_VL] the sums of the weights: lane by lane down the keys, so that their
 * order depends on the keys' positions alone. Where a row's largest grows, the totals and the sums of values so far,
 * o [rows][width], are scaled down. */
LT_VECTOR void softmax(float *s, size_t rows, const size_t *visible, size_t n, float factor, float *max, float *total, float *o,
                       size_t width, bool pairs)
{
    float scale[LT_MR];
    bool grows = false;
    for (size_t i = 0; i < rows; i++) {
        const float before = max[i], largest = row_max(s + i * LT_KEYS, visible[i]);
        max[i] = largest > before ? largest : before;
        scale[i] = before > -INFINITY ? factor * before - factor * max[i] : 0;
        grows |= scale[i] < 0;
    }
    for (size_t i = 0; i < rows; i++) {
        float *row = s + i * LT_KEYS;
        const vf f = v_set1(factor), shift = v_set1(-(factor * max[i]));
        vf sum = v_load(total + i * LT_VL);
        if (grows) { /* by 1 where this row's did not: whether each has grown cannot be foretold */
            const vf down = v_exp2_weight(v_set1(scale[i]));
            sum = v_mul(sum, down);
            for (size_t j = 0; j < width; j += LT_VL) v_store(o + i * width + j, v_mul(v_load(o + i * width + j), down));
        }
        for (size_t j = 0; j < n; j += pairs ? 2 * LT_VL : LT_VL) { /* LT_KEYS is a multiple of both */
            const size_t left = visible[i] > j ? visible[i] - j : 0;
            const vf e = weights_of(row + j, left, f, shift);
            sum = v_add(sum, e);
            if (pairs) {
                const vf more = weights_of(row + j + LT_VL, left > LT_VL ? left - LT_VL : 0, f, shift);
                sum = v_add(sum, more);
                v_store(row + j / 2, v_pairs(e, more));
            } else {
                v_store(row + j, e);
            }
        }
        v_store(total + i * LT_VL, sum);
    }
}

static void softmax_tile(float *s, size_t rows, const size_t *visible, size_t n, float factor, float *max, float *total, float *o,
                         size_t width, bool pairs)
{
    if (pairs)
        softmax(s, rows, visible, n, factor, max, total, o, width, true);
    else
        softmax(s, rows, visible, n, factor, max, total, o, width, false);
}

/* out = o / Σ total */
LT_VECTOR void divide_row(const float *o, const float *total, size_t d, float *out)
{
    const vf inverse = v_set1(1.0f / v_sum(v_load(total)));
    size_t j = 0;
    for (; j + LT_VL <= d; j += LT_VL) v_store(out + j, v_mul(v_load(o + j), inverse));
    if (j < d) v_store_n(out + j, v_mul(v_load(o + j), inverse), d - j);
}

/* ---- keys and values: rows of a batch, or blocks of a state ---- */

/* Bytes of a value, and of a step of a key: a float, a half, or a pair of bfloat16. */
LT_VECTOR size_t value_size(lt_dtype dtype)
{
    return dtype == LT_F32 ? 4 : 2;
}

LT_VECTOR size_t step_size(lt_dtype dtype)
{
    return dtype == LT_F16 ? 2 : 4;
}

LT_VECTOR vf load_steps(const unsigned char *p, lt_dtype dtype)
{
    return dtype == LT_F16 ? v_load_f16(p) : v_load(p);
}

/* Step 0 of key `row` of a state; those of LT_VL keys lie side by side, the next step LT_BLOCK_ROWS steps behind. */
LT_VECTOR const unsigned char *block_keys(const lt_attention *a, size_t row, lt_dtype dtype)
{
    const unsigned char *block = a->blocks[row / LT_BLOCK_ROWS];
    return block + a->k_offset + row % LT_BLOCK_ROWS * step_size(dtype);
}

/* Value `row`, wherever it lies. */
LT_VECTOR const unsigned char *value_at(const lt_attention *a, size_t row, lt_dtype dtype)
{
    if (!a->blocks) return (const unsigned char *)(a->v + row * a->ldv);
    const unsigned char *block = a->blocks[row / LT_BLOCK_ROWS];
    return block + a->v_offset + row % LT_BLOCK_ROWS * a->head_dim * value_size(dtype);
}

/* LT_VL keys, of which `rows` count, into a panel: those of a batch are transposed, those of a block copied; there what does not
 * count is whatever the block holds. */
LT_VECTOR void pack_key_vector(const lt_attention *a, size_t row, size_t rows, float *panel, lt_dtype dtype, bool pairs)
{
    if (a->blocks) {
        const size_t steps = pairs ? (a->head_dim + 1) / 2 : a->head_dim;
        const unsigned char *k = block_keys(a, row, dtype);
        for (size_t p = 0; p < steps; p++, k += LT_BLOCK_ROWS * step_size(dtype))
            v_store(panel + p * LT_NR, load_steps(k, dtype));
        return;
    }
    const unsigned char *k = (const unsigned char *)(a->k + row * a->ldk);
    if (pairs)
        pack_row_pairs(k, LT_F32, a->ldk * sizeof(float), rows, a->head_dim, panel);
    else
        pack_rows(k, LT_F32, a->ldk * sizeof(float), rows, a->head_dim, panel);
}

/* A panel of keys `row` to row + n, row a multiple of LT_VL. So many rows lie in one block whenever they are packed at once. */
LT_VECTOR void pack_keys_as(const lt_attention *a, size_t row, size_t n, float *panel, lt_dtype dtype, bool pairs)
{
    const size_t steps = pairs ? (a->head_dim + 1) / 2 : a->head_dim;
    for (size_t g = 0; g < LT_NR; g += LT_VL) {
        const size_t rows = g < n ? min_size(LT_VL, n - g) : 0;
        if (rows) {
            pack_key_vector(a, row + g, rows, panel + g, dtype, pairs);
        } else {
            for (size_t p = 0; p < steps; p++) v_store(panel + p * LT_NR + g, v_zero());
        }
    }
}

/* Columns [column, column + LT_NR) of values `row` to row + n as a panel: rows as they are or, with pairs, two and two. */
LT_VECTOR void pack_values_as(const lt_attention *a, size_t row, size_t n, size_t column, float *panel, lt_dtype dtype,
                              bool pairs)
{
    const size_t cols = min_size(LT_NR, a->head_dim - column), size = value_size(dtype);
    for (size_t j = 0; j < n; j += pairs ? 2 : 1, panel += LT_NR) {
        const unsigned char *v = value_at(a, row + j, dtype) + column * size, *next = NULL;
        if (pairs && j + 1 < n) next = value_at(a, row + j + 1, dtype) + column * size;
        LT_UNROLL
        for (size_t i = 0; i < LT_NR; i += LT_VL) {
            const size_t rest = i < cols ? min_size(LT_VL, cols - i) : 0;
            vf x = rest == LT_VL ? load_as(v + i * size, dtype) : rest ? load_as_n(v + i * size, dtype, rest) : v_zero();
            if (pairs) {
                vf y = v_zero();
                if (next && rest) y = rest == LT_VL ? load_as(next + i * size, dtype) : load_as_n(next + i * size, dtype, rest);
                x = v_zip(x, y);
            }
            v_store(panel + i, x);
        }
    }
}

/* Rows of bfloat16 are for pairs only, and those of a batch are floats. */
static void pack_keys(const lt_attention *a, size_t row, size_t n, float *panel)
{
    if (a->blocks && a->row_type == LT_F16)
        pack_keys_as(a, row, n, panel, LT_F16, false);
    else
        pack_keys_as(a, row, n, panel, LT_F32, false);
}

static void pack_values(const lt_attention *a, size_t row, size_t n, size_t column, float *panel)
{
    if (a->blocks && a->row_type == LT_F16)
        pack_values_as(a, row, n, column, panel, LT_F16, false);
    else
        pack_values_as(a, row, n, column, panel, LT_F32, false);
}

#ifdef LT_HAS_PAIRS
static void pack_key_pairs(const lt_attention *a, size_t row, size_t n, float *panel)
{
    pack_keys_as(a, row, n, panel, a->blocks ? LT_BF16 : LT_F32, true);
}

static void pack_value_pairs(const lt_attention *a, size_t row, size_t n, size_t column, float *panel)
{
    if (a->blocks)
        pack_values_as(a, row, n, column, panel, LT_BF16, true);
    else
        pack_values_as(a, row, n, column, panel, LT_F32, true);
}
#else
#define pack_key_pairs pack_keys
#define pack_value_pairs pack_values
#endif

/* ---- many queries ---- */

/* A step of k is a dimension of the head, then a key; with pairs, two. */
LT_VECTOR void attend(const lt_attention *a, tile_fn *const *by_rows, bool pairs)
{
    const size_t d = a->head_dim, width = round_up(d, LT_NR), group = pairs ? 2 : 1, steps = (d + group - 1) / group;
    float *keys = a->scratch, *values = keys + LT_KEYS * steps, *s = values + LT_KEYS / group * width;
    float *sums = s + LT_MR * LT_KEYS, *total = sums + LT_QUERIES * width, *max = total + LT_QUERIES * LT_VL;
    float *rounded = max + LT_QUERIES; /* queries of a tile, as pairs */
    const float factor = a->scale * 1.44269504f;
    /* Keys that the last query sees. */
    const size_t n_keys = a->causal ? min_size(a->n_keys, a->first_position + a->n_queries) : a->n_keys;
    for (size_t i = 0; i < a->n_queries; i++) {
        max[i] = -INFINITY;
        v_store(total + i * LT_VL, v_zero());
    }

    for (size_t begin = 0; begin < n_keys; begin += LT_KEYS) {
        const size_t n = min_size(LT_KEYS, n_keys - begin);
        for (size_t j = 0; j < n; j += LT_NR) {
            (pairs ? pack_key_pairs : pack_keys)(a, begin + j, min_size(LT_NR, n - j), keys + j * steps);
        }
        for (size_t c = 0; c < width; c += LT_NR)
            (pairs ? pack_value_pairs : pack_values)(a, begin, n, c, values + c * (LT_KEYS / group));
        for (size_t row = 0; row < a->n_queries; row += LT_MR) {
            const size_t rows = min_size(LT_MR, a->n_queries - row);
            size_t seen = n, visible[LT_MR]; /* keys of this block that the tile's last query sees; that each sees */
            if (a->causal) {
                const size_t end = a->first_position + row + 1; /* the first query sees keys [0, end) */
                if (end + rows - 1 <= begin) continue;
                seen = min_size(n, end + rows - 1 - begin);
                for (size_t i = 0; i < rows; i++) visible[i] = end + i <= begin ? 0 : min_size(seen, end + i - begin);
            } else {
                for (size_t i = 0; i < rows; i++) visible[i] = n;
            }
            const float *q = a->q + row * a->ldq;
            size_t ldq = a->ldq;
            if (pairs) {
                for (size_t i = 0; i < rows; i++) round_row(q + i * ldq, d, rounded + i * steps);
                q = rounded;
                ldq = steps;
            }
            for (size_t j = 0; j < seen; j += LT_NR) {
                const tile_args t = { .k = steps, .x = q, .ldx = ldq, .b = keys + j * steps, .c = s + j, .ldc = LT_KEYS };
                by_rows[rows](&t);
            }
            const size_t used = round_up(seen, group); /* a pair's second key may be one that nobody sees: weight 0 */
            softmax_tile(s, rows, visible, used, factor, max + row, total + row * LT_VL, sums + row * width, width, pairs);
            for (size_t c = 0; c < width; c += LT_NR) {
                const tile_args t = { .k = used / group,
                                      .x = s,
                                      .ldx = LT_KEYS,
                                      .b = values + c * (LT_KEYS / group),
                                      .c = sums + row * width + c,
                                      .ldc = width,
                                      .add = begin > 0 };
                by_rows[rows](&t);
            }
        }
    }
    for (size_t i = 0; i < a->n_queries; i++) divide_row(sums + i * width, total + i * LT_VL, d, a->out + i * a->ldo);
}

/* ---- one query of several heads ---- */

enum {
    ONE_HEADS = 4, /* heads that share what is loaded */
    ONE_VECTORS = LT_MR * LT_NV >= 16 ? 4 : 2,
    ONE_KEYS = ONE_VECTORS * LT_VL
};
_Static_assert(LT_BLOCK_ROWS % ONE_KEYS == 0 && LT_KEYS % ONE_KEYS == 0, "keys that are scored together lie in one block");

/* A block of keys [begin, begin + n) and ONE_HEADS heads or fewer. */
typedef struct one_block {
    const lt_attention *a;
    const float *q; /* of the first head, floats or pairs */
    size_t ldq, begin, n, n_keys, width;
    float factor;
    float *s, *sums, *total, *max;
} one_block;

/* s[head][j] = q[head] · k[j]. The values of these keys, which are as many bytes, are fetched meanwhile. */
LT_VECTOR void one_scores(const one_block *o, size_t heads, lt_dtype dtype, bool pairs)
{
    const size_t steps = pairs ? (o->a->head_dim + 1) / 2 : o->a->head_dim, size = step_size(dtype);
    for (size_t j = 0; j < o->n; j += ONE_KEYS) {
        const unsigned char *k = block_keys(o->a, o->begin + j, dtype), *v = value_at(o->a, o->begin + j, dtype);
        vf acc[ONE_HEADS][ONE_VECTORS];
        LT_UNROLL
        for (size_t i = 0; i < heads; i++) {
            LT_UNROLL
            for (size_t c = 0; c < ONE_VECTORS; c++) acc[i][c] = v_zero();
        }
        for (size_t p = 0; p < steps; p++, k += LT_BLOCK_ROWS * size, v += ONE_KEYS * size) {
            vf key[ONE_VECTORS];
            for (size_t c = 0; c < ONE_KEYS * size; c += 64) __builtin_prefetch(v + c, 0, 2);
            LT_UNROLL
            for (size_t c = 0; c < ONE_VECTORS; c++) key[c] = load_steps(k + c * LT_VL * size, dtype);
            LT_UNROLL
            for (size_t i = 0; i < heads; i++) {
                const vf x = v_set1(o->q[i * o->ldq + p]);
                LT_UNROLL
                for (size_t c = 0; c < ONE_VECTORS; c++)
                    acc[i][c] = pairs ? v_dot(x, key[c], acc[i][c]) : v_fma(x, key[c], acc[i][c]);
            }
        }
        LT_UNROLL
        for (size_t i = 0; i < heads; i++) {
            LT_UNROLL
            for (size_t c = 0; c < ONE_VECTORS; c++) v_store(o->s + i * LT_KEYS + j + c * LT_VL, acc[i][c]);
        }
    }
}

/* sums[head][column …] += Σ_j s[head][j] v[j][column …], `vectors` of columns, or below one the first n of it. Keys of the next
 * block are fetched meanwhile. */
LT_VECTOR void one_columns(const one_block *o, size_t heads, size_t column, size_t vectors, size_t n, lt_dtype dtype, bool pairs)
{
    const size_t size = value_size(dtype), row_bytes = o->a->head_dim * size, group = pairs ? 2 : 1;
    vf acc[ONE_HEADS][ONE_VECTORS];
    LT_UNROLL
    for (size_t i = 0; i < heads; i++) {
        LT_UNROLL
        for (size_t c = 0; c < vectors; c++)
            acc[i][c] = o->begin > 0 ? v_load(o->sums + i * o->width + column + c * LT_VL) : v_zero();
    }
    for (size_t j = 0, run; j < o->n; j += run) {
        const size_t row = o->begin + j;
        run = min_size(LT_BLOCK_ROWS - row % LT_BLOCK_ROWS, o->n - j);
        const unsigned char *v = value_at(o->a, row, dtype) + column * size, *next = v;
        if (row + LT_KEYS < o->n_keys) {
            next = o->a->blocks[(row + LT_KEYS) / LT_BLOCK_ROWS];
            next += o->a->k_offset + row % LT_BLOCK_ROWS * row_bytes + column * size;
        }
        for (size_t i = 0; i < run; i += group, v += group * row_bytes) {
            vf x[ONE_VECTORS];
            for (size_t r = 0; r < group; r++, next += row_bytes) {
                for (size_t c = 0; c < vectors * LT_VL * size; c += 64) __builtin_prefetch(next + c, 0, 2);
            }
            LT_UNROLL
            for (size_t c = 0; c < vectors; c++) {
                const unsigned char *at = v + c * LT_VL * size;
                x[c] = n == LT_VL ? load_as(at, dtype) : load_as_n(at, dtype, n);
                if (pairs) {
                    vf y = v_zero();
                    if (i + 1 < run) y = n == LT_VL ? load_as(at + row_bytes, dtype) : load_as_n(at + row_bytes, dtype, n);
                    x[c] = v_zip(x[c], y);
                }
            }
            LT_UNROLL
            for (size_t h = 0; h < heads; h++) {
                const vf w = v_set1(o->s[h * LT_KEYS + (j + i) / group]);
                LT_UNROLL
                for (size_t c = 0; c < vectors; c++) acc[h][c] = pairs ? v_dot(w, x[c], acc[h][c]) : v_fma(w, x[c], acc[h][c]);
            }
        }
    }
    LT_UNROLL
    for (size_t i = 0; i < heads; i++) {
        LT_UNROLL
        for (size_t c = 0; c < vectors; c++) v_store(o->sums + i * o->width + column + c * LT_VL, acc[i][c]);
    }
}

LT_VECTOR void one_heads(const one_block *o, size_t heads, lt_dtype dtype, bool pairs)
{
    const size_t d = o->a->head_dim, used = round_up(o->n, pairs ? 2 : 1), visible[ONE_HEADS] = { o->n, o->n, o->n, o->n };
    one_scores(o, heads, dtype, pairs);
    softmax_tile(o->s, heads, visible, used, o->factor, o->max, o->total, o->sums, o->width, pairs);
    size_t c = 0;
    for (; c + ONE_KEYS <= d; c += ONE_KEYS) one_columns(o, heads, c, ONE_VECTORS, LT_VL, dtype, pairs);
    for (; c + LT_VL <= d; c += LT_VL) one_columns(o, heads, c, 1, LT_VL, dtype, pairs);
    if (c < d) one_columns(o, heads, c, 1, d - c, dtype, pairs);
}

#define ONE(heads, name, type, pairs)                                                                                            \
    static void one_##name##_##heads(const one_block *o)                                                                         \
    {                                                                                                                            \
        one_heads(o, heads, type, pairs);                                                                                        \
    }
#define ONE_EACH(name, type, pairs)                                                                                              \
    ONE(1, name, type, pairs)                                                                                                    \
    ONE(2, name, type, pairs)                                                                                                    \
    ONE(3, name, type, pairs)                                                                                                    \
    ONE(4, name, type, pairs)                                                                                                    \
    static void (*const one_##name[])(const one_block *) = { one_##name##_1, one_##name##_2, one_##name##_3, one_##name##_4 };
ONE_EACH(floats, LT_F32, false)
ONE_EACH(halves, LT_F16, false)
#ifdef LT_HAS_PAIRS
ONE_EACH(pairs, LT_BF16, true)
#endif

/* Streams over the blocks: keys and values are read once for all heads, as they are stored, and every sum is in the order that
 * many queries have. */
LT_VECTOR void attend_one(const lt_attention *a, void (*const *by_heads)(const one_block *), bool pairs)
{
    const size_t d = a->head_dim, width = round_up(d, LT_NR), steps = pairs ? (d + 1) / 2 : d;
    float *s = a->scratch, *sums = s + LT_MR * LT_KEYS, *total = sums + LT_QUERIES * width, *max = total + LT_QUERIES * LT_VL;
    float *rounded = max + LT_QUERIES;
    one_block o = { .a = a, .width = width, .factor = a->scale * 1.44269504f, .s = s };
    o.n_keys = a->causal ? min_size(a->n_keys, a->first_position + 1) : a->n_keys;
    for (size_t i = 0; i < a->n_heads; i++) {
        max[i] = -INFINITY;
        v_store(total + i * LT_VL, v_zero());
    }
    for (o.begin = 0; o.begin < o.n_keys; o.begin += LT_KEYS) {
        o.n = min_size(LT_KEYS, o.n_keys - o.begin);
        for (size_t head = 0; head < a->n_heads; head += ONE_HEADS) {
            const size_t heads = min_size(ONE_HEADS, a->n_heads - head);
            o.q = a->q + head * a->head_stride;
            o.ldq = a->head_stride;
            if (pairs) {
                for (size_t i = 0; i < heads; i++) round_row(o.q + i * a->head_stride, d, rounded + i * steps);
                o.q = rounded;
                o.ldq = steps;
            }
            o.sums = sums + head * width;
            o.total = total + head * LT_VL;
            o.max = max + head;
            by_heads[heads - 1](&o);
        }
    }
    for (size_t i = 0; i < a->n_heads; i++) divide_row(sums + i * width, total + i * LT_VL, d, a->out + i * a->out_stride);
}

static void attention(const lt_attention *a)
{
    if (!a->blocks || a->n_queries > 1)
        attend(a, tiles, false);
    else
        attend_one(a, a->row_type == LT_F16 ? one_halves : one_floats, false);
}

#ifdef LT_HAS_PAIRS
static void attention_pairs(const lt_attention *a)
{
    if (!a->blocks || a->n_queries > 1)
        attend(a, pair_tiles, true);
    else
        attend_one(a, one_pairs, true);
}
#endif

#endif
