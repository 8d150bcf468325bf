/* Products by the tiles of AMX (TILE, BF16, INT8): 16 rows by 64 bytes each, of which one instruction multiplies two.
 *
 * A word is what a lane of the other sets' products takes at once: a pair of bfloat16 or four bytes. A tile of x has up to 16
 * rows by 16 words; a tile of W 16 words of k, one a row, by 16 columns, which is how panels lie for the vectors, too. A block of
 * two tiles of rows by two of columns keeps its sums in tiles 0 to 3 while k passes through 4, 5 (x) and 6, 7 (W):
 *
 *   c[32, 32] = x[32, k] · W[32, k]ᵀ
 *
 * Sums go to memory when k is through, and what follows them is done by vectors: an activation in bfloat16 while the next block
 * is multiplied, a few rows after each step. Rows beyond a multiple of 16 are a tile that
 * overlaps the one before it, so that every tile of a call has the same number of rows, one configuration: a row's sum never
 * depends on its neighbours. Words beyond a multiple of 16 are copied and filled up by zeros, which add nothing.
 *
 * Compilers do not know the tiles, nor, some of them, that a tile is read from memory: `settle` stands where vectors have just
 * written what a tile loads. */
#if (defined(__AMX_INT8__) || defined(__AMXINT8__)) && defined(__AVX512BW__) && defined(__AVX512VL__) /* gcc, clang */

#include "backend/cpu/amx.h"

#include <string.h>

#include "backend/cpu/vec_avx512.h"

#define LT_NR LT_AMX_ROWS /* columns of a block */

#include "backend/cpu/vec_math.h"

LT_VECTOR size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

#include "backend/cpu/finish.h"
#include "backend/cpu/int8_finish.h"
#include "backend/cpu/sets.h"

enum { TILE = 16, WORD = 4 }; /* rows, words and columns of a tile; bytes of a word */

/* What ldtilecfg reads. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

_Static_assert(sizeof(tile_config) == 64, "the format of the instruction");

/* Tiles of sums and of x with `r` rows. */
#define CONFIG(r)                                                                                                                \
    {                                                                                                                            \
        .palette = 1, .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 }, .rows = { r, r, r, r, r, r, TILE, TILE }                  \
    }

static const tile_config configs[TILE] = { CONFIG(1),  CONFIG(2),  CONFIG(3),  CONFIG(4),  CONFIG(5),  CONFIG(6),
                                           CONFIG(7),  CONFIG(8),  CONFIG(9),  CONFIG(10), CONFIG(11), CONFIG(12),
                                           CONFIG(13), CONFIG(14), CONFIG(15), CONFIG(16) };

LT_VECTOR void settle(void)
{
    __asm__ volatile("" ::: "memory");
}

/* How a block is multiplied; a constant wherever it is a parameter. */
enum {
    TWO_ROWS = 1, /* tiles of rows, and of columns */
    TWO_COLUMNS = 2,
    BYTES = 4,   /* else pairs */
    PASSING = 8, /* x comes from L2, a panel of W is in L1 */
};

/* sums += x · w, three tiles; of bytes signed x, unsigned w. */
#define DOT(sums, x, w)                                                                                                          \
    do {                                                                                                                         \
        if (how & BYTES)                                                                                                         \
            _tile_dpbsud(sums, x, w);                                                                                            \
        else                                                                                                                     \
            _tile_dpbf16ps(sums, x, w);                                                                                          \
    } while (0)

/* A tile of x; one that passes does not push the panel out of L1, which is a tenth of a short product. */
#define LOAD_X(tile, x, ldx)                                                                                                     \
    do {                                                                                                                         \
        if (how & PASSING)                                                                                                       \
            _tile_stream_loadd(tile, x, ldx);                                                                                    \
        else                                                                                                                     \
            _tile_loadd(tile, x, ldx);                                                                                           \
    } while (0)

/* Rows [row, row + rows) of a block whose sums lie in c[rows][LT_NR] and are still to become outputs. */
typedef struct unfinished {
    const lt_linear *product;
    const float *c;
    size_t row, rows, column, cols;
} unfinished;

/* The first n of them, or all. */
static void finish_some(unfinished *u, size_t n)
{
    n = min_size(n, u->rows);
    if (!n) return;
    finish_tile(u->product, u->c, u->row, n, u->column, u->cols);
    u->c += n * LT_NR;
    u->row += n;
    u->rows -= n;
}

typedef struct block {
    const unsigned char *x[2]; /* first row of either tile of rows, ldx bytes apart */
    size_t ldx, tile_rows;
    const unsigned char *w[2]; /* first word of either tile of columns; words ldw bytes apart */
    size_t ldw, words;
    float *c[2];        /* where the sums of either tile of rows go, [tile_rows][ldc] */
    size_t ldc;         /* in floats */
    uintptr_t prefetch; /* `lines` cache lines every 16 words, from here on, are wanted next; any address is harmless */
    size_t lines;
    unfinished *before; /* of the block before: `share` rows are finished every 16 words, vectors beside the tiles. Or NULL */
    size_t share;
} block;

LT_VECTOR void multiply_tiles(const unsigned char *const x[2], size_t ldx, const unsigned char *const w[2], size_t ldw,
                              unsigned how)
{
    _tile_loadd(6, w[0], ldw);
    LOAD_X(4, x[0], ldx);
    DOT(0, 4, 6);
    if (how & TWO_COLUMNS) {
        _tile_loadd(7, w[1], ldw);
        DOT(1, 4, 7);
    }
    if (how & TWO_ROWS) {
        LOAD_X(5, x[1], ldx);
        DOT(2, 5, 6);
        if (how & TWO_COLUMNS) DOT(3, 5, 7);
    }
}

/* The last words, fewer than 16, from copies. */
LT_VECTOR void multiply_rest(const block *b, size_t done, unsigned how)
{
    _Alignas(64) float x[2][TILE][TILE], w[2][TILE][TILE];
    const size_t n = b->words - done;
    for (size_t t = 0; t < 2; t++) {
        if (t > 0 && !(how & TWO_ROWS)) break;
        for (size_t i = 0; i < b->tile_rows; i++) v_store(x[t][i], v_load_n(b->x[t] + i * b->ldx + done * WORD, n));
    }
    for (size_t t = 0; t < 2; t++) {
        if (t > 0 && !(how & TWO_COLUMNS)) break;
        for (size_t i = 0; i < TILE; i++) v_store(w[t][i], i < n ? v_load(b->w[t] + (done + i) * b->ldw) : v_zero());
    }
    settle();
    const unsigned char *const xs[2] = { (const unsigned char *)x[0], (const unsigned char *)x[1] };
    const unsigned char *const ws[2] = { (const unsigned char *)w[0], (const unsigned char *)w[1] };
    multiply_tiles(xs, TILE * WORD, ws, TILE * WORD, how);
}

/* The sums in tiles 0 to 3 += x · w. */
LT_VECTOR void multiply_words(const block *b, unsigned how)
{
    const unsigned char *x[2] = { b->x[0], b->x[1] }, *w[2] = { b->w[0], b->w[1] };
    uintptr_t prefetch = b->prefetch;
    size_t done = 0;
    for (; done + TILE <= b->words; done += TILE) {
        for (size_t i = 0; i < b->lines; i++, prefetch += 64) __builtin_prefetch((const void *)prefetch, 0, 2);
        multiply_tiles(x, b->ldx, w, b->ldw, how);
        if (b->before && b->before->rows) finish_some(b->before, b->share);
        for (size_t t = 0; t < 2; t++) {
            x[t] += TILE * WORD;
            w[t] += TILE * b->ldw;
        }
    }
    if (done < b->words) multiply_rest(b, done, how);
}

LT_VECTOR void zero_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

LT_VECTOR void load_sums(const block *b, unsigned how)
{
    const size_t ldc = b->ldc * sizeof(float);
    _tile_loadd(0, b->c[0], ldc);
    _tile_loadd(1, b->c[0] + TILE, ldc);
    if (!(how & TWO_ROWS)) return;
    _tile_loadd(2, b->c[1], ldc);
    _tile_loadd(3, b->c[1] + TILE, ldc);
}

LT_VECTOR void store_sums(const block *b, unsigned how)
{
    const size_t ldc = b->ldc * sizeof(float);
    _tile_stored(0, b->c[0], ldc);
    if (how & TWO_COLUMNS) _tile_stored(1, b->c[0] + TILE, ldc);
    if (!(how & TWO_ROWS)) return;
    _tile_stored(2, b->c[1], ldc);
    if (how & TWO_COLUMNS) _tile_stored(3, b->c[1] + TILE, ldc);
}

LT_VECTOR void multiply_block(const block *b, unsigned how)
{
    zero_sums();
    multiply_words(b, how);
    store_sums(b, how);
}

/* Of a call's m rows, [row, row + rows) are those that a block finishes; it computes those from `first` on, in one tile or two.
 */
typedef struct block_rows {
    size_t row, rows, first;
    bool two;
} block_rows;

static block_rows rows_at(size_t row, size_t m)
{
    const size_t rows = min_size(LT_AMX_ROWS, m - row);
    if (rows > TILE) return (block_rows){ row, rows, row, true };
    return (block_rows){ row, rows, m >= TILE ? row + rows - TILE : row, false };
}

/* The block's rows of x and of c, where row `first` is c's row 0. */
LT_VECTOR void place_rows(block *b, const block_rows *r, const void *x, float *c)
{
    const size_t second = r->two ? r->rows - TILE : 0;
    b->x[0] = (const unsigned char *)x + r->first * b->ldx;
    b->x[1] = b->x[0] + second * b->ldx;
    b->c[0] = c;
    b->c[1] = c + second * LT_NR;
    b->ldc = LT_NR;
    b->share = b->words < 2 * TILE ? LT_AMX_ROWS : (LT_AMX_ROWS + b->words / TILE - 1) / (b->words / TILE);
}

/* What the blocks of a panel fetch of the next one together: `size` bytes from `next` on. */
LT_VECTOR void place_prefetch(block *b, uintptr_t next, size_t size, size_t index, size_t n_blocks)
{
    const size_t steps = b->words / TILE, lines = size / 64;
    if (!steps) return;
    b->lines = (lines + steps * n_blocks - 1) / (steps * n_blocks);
    b->prefetch = next + index * b->lines * steps * 64;
    if (index * b->lines * steps >= lines) b->lines = 0;
}

/* ---- bfloat16 ---- */

void lt_amx_linear(const lt_linear *a)
{
    _Alignas(64) float c[2][LT_AMX_ROWS * LT_NR];
    const size_t m = a->m, words = (a->k + 1) / 2, panel_size = words * LT_NR, n_blocks = (m + LT_AMX_ROWS - 1) / LT_AMX_ROWS;
    if (!m) return;
    const float *panel = a->panels;
    unfinished before = { 0 };
    size_t turn = 0;
    _tile_loadconfig(&configs[min_size(m, TILE) - 1]);
    for (size_t index = a->panel_begin; index < a->panel_end; index++, panel += panel_size) {
        const bool last = a->next && index + 1 == a->panel_end;
        const uintptr_t next = last ? (uintptr_t)a->next : (uintptr_t)panel + panel_size * sizeof(float);
        const unsigned char *w = (const unsigned char *)panel;
        for (size_t i = 0; i < n_blocks; i++) {
            const block_rows r = rows_at(i * LT_AMX_ROWS, m);
            float *sums = c[turn ^= 1];
            block b = { .ldx = a->ldx * sizeof(float),
                        .tile_rows = min_size(m, TILE),
                        .w = { w, w + TILE * WORD },
                        .ldw = LT_NR * WORD,
                        .words = words,
                        .before = &before };
            place_rows(&b, &r, a->x, sums);
            place_prefetch(&b, next, last ? a->next_size : panel_size * sizeof(float), i, n_blocks);
            if (r.two)
                multiply_block(&b, TWO_ROWS | TWO_COLUMNS | PASSING);
            else
                multiply_block(&b, TWO_COLUMNS | PASSING);
            finish_some(&before, before.rows);
            before = (unfinished){ .product = a,
                                   .c = sums + (r.row - r.first) * LT_NR,
                                   .row = r.row,
                                   .rows = r.rows,
                                   .column = index * LT_NR,
                                   .cols = min_size(LT_NR, a->n - index * LT_NR) };
            /* Without an activation there is too little to do: at once, then, while the sums are in L1. */
            if (a->activation == LT_ACT_NONE) finish_some(&before, before.rows);
        }
    }
    finish_some(&before, before.rows);
    _tile_release();
}

/* Rows [row, row + rows) of x, one tile. Some columns of k at a time become a part of a panel in L1, while the same columns of
 * the next panel are fetched; the sums stay in their tiles. */
static void few_rows(const lt_linear *a, size_t row, size_t rows)
{
    enum { COLUMNS = 128 };
    _Alignas(64) float c[TILE * LT_NR], part[COLUMNS / 2 * LT_NR];
    const size_t size = a->dtype == LT_F32 ? 4 : 2, row_bytes = a->ldw * size;
    const unsigned char *w = a->w;
    block b = { .ldx = a->ldx * sizeof(float),
                .tile_rows = rows,
                .w = { (const unsigned char *)part, (const unsigned char *)(part + TILE) },
                .ldw = LT_NR * WORD,
                .c = { c },
                .ldc = LT_NR };
    _tile_loadconfig(&configs[rows - 1]);
    for (size_t index = a->panel_begin; index < a->panel_end; index++, w += LT_NR * row_bytes) {
        zero_sums();
        for (size_t k = 0; k < a->k; k += COLUMNS) {
            const size_t n = min_size(COLUMNS, a->k - k);
            const uintptr_t next = (uintptr_t)w + LT_NR * row_bytes + k * size;
            for (size_t i = 0; i < LT_NR; i++) {
                for (size_t j = 0; j < n * size; j += 64) __builtin_prefetch((const void *)(next + i * row_bytes + j), 0, 2);
            }
            lt_kernels_avx512bf16.bf16->pack_panel(w + k * size, a->dtype, a->ldw, LT_NR, n, part);
            settle();
            b.words = (n + 1) / 2;
            b.x[0] = (const unsigned char *)(a->x + row * a->ldx + k / 2);
            multiply_words(&b, TWO_COLUMNS);
        }
        store_sums(&b, TWO_COLUMNS);
        finish_tile(a, c, row, rows, index * LT_NR, LT_NR);
    }
    _tile_release();
}

/* For so few rows memory is the limit, and vectors keep nearer to it than tiles, which weights reach through L1 only (of a
 * Qwen3-0.6B, one row: 12 tokens a second, where vectors of avx512bf16 gave 20). They take a tile's steps, which gives its bits:
 * the first halves of 16 pairs in one sum from zero on, the second halves in another, both together added to what was before;
 * subnormals count as zeros.
 */
enum { VECTOR_ROWS = 4 };

/* 16 pairs of each of 16 rows from w on, `n` elements of a row, as columns. */
LT_VECTOR void load_pairs_square(vf square[TILE], const unsigned char *w, size_t row_bytes, size_t n)
{
    if (n >= 2 * TILE) {
        v_load_square(square, w, row_bytes);
        return;
    }
    const __mmask32 mask = (__mmask32)((1u << n) - 1u);
    LT_UNROLL
    for (size_t r = 0; r < TILE; r++) square[r] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, w + r * row_bytes));
    v_transpose(square);
}

/* c[m][16] from the rows of W at w; the rows that follow are fetched at the same columns. */
LT_VECTOR void vector_outputs(size_t m, const lt_linear *a, const float *x, const unsigned char *w, float *c)
{
    const size_t row_bytes = a->ldw * 2;
    vf acc[VECTOR_ROWS];
    LT_UNROLL
    for (size_t i = 0; i < m; i++) acc[i] = v_zero();
    for (size_t k = 0; k < a->k; k += 2 * TILE, w += 4 * TILE, x += TILE) {
        const size_t n = a->k - k, pairs = min_size(TILE, (n + 1) / 2);
        const uintptr_t next = (uintptr_t)w + TILE * row_bytes;
        _Alignas(64) float first[VECTOR_ROWS][TILE], second[VECTOR_ROWS][TILE];
        vf square[TILE], sum[VECTOR_ROWS][2];
        for (size_t i = 0; i < TILE; i++) __builtin_prefetch((const void *)(next + i * row_bytes), 0, 2);
        LT_UNROLL
        for (size_t i = 0; i < m; i++) {
            const vf p = v_load_n(x + i * a->ldx, pairs);
            v_store(first[i], v_low_bf16(p));
            v_store(second[i], v_high_bf16(p));
            sum[i][0] = sum[i][1] = v_zero();
        }
        load_pairs_square(square, w, row_bytes, n);
        LT_UNROLL
        for (size_t j = 0; j < TILE; j++) {
            const vf low = v_low_bf16(square[j]), high = v_high_bf16(square[j]);
            LT_UNROLL
            for (size_t i = 0; i < m; i++) {
                sum[i][0] = v_fma_broadcast(&first[i][j], low, sum[i][0]);
                sum[i][1] = v_fma_broadcast(&second[i][j], high, sum[i][1]);
            }
        }
        LT_UNROLL
        for (size_t i = 0; i < m; i++) acc[i] = v_add(acc[i], v_add(sum[i][0], sum[i][1]));
    }
    LT_UNROLL
    for (size_t i = 0; i < m; i++) v_store(c + i * LT_NR, acc[i]);
}

/* A panel of outputs. Not inlined: its sums must not leave the region where subnormals are zeros. */
#define VECTOR_PANEL(m)                                                                                                          \
    static __attribute__((noinline)) void vector_panel_##m(const lt_linear *a, const float *x, const unsigned char *w, float *c) \
    {                                                                                                                            \
        for (size_t g = 0; g < LT_NR; g += TILE) vector_outputs(m, a, x, w + g * a->ldw * 2, c + g);                             \
    }
VECTOR_PANEL(1)
VECTOR_PANEL(2)
VECTOR_PANEL(3)
VECTOR_PANEL(4)

static void vector_rows(const lt_linear *a)
{
    static void (*const panels[])(const lt_linear *, const float *, const unsigned char *,
                                  float *) = { vector_panel_1, vector_panel_2, vector_panel_3, vector_panel_4 };
    enum { SUBNORMALS_ARE_ZERO = 0x8040 }; /* FTZ and DAZ */
    _Alignas(64) float c[VECTOR_ROWS * LT_NR];
    const unsigned char *w = a->w;
    for (size_t index = a->panel_begin; index < a->panel_end; index++, w += LT_NR * a->ldw * 2) {
        const unsigned before = _mm_getcsr();
        _mm_setcsr(before | SUBNORMALS_ARE_ZERO);
        panels[a->m - 1](a, a->x, w, c);
        _mm_setcsr(before);
        finish_tile(a, c, 0, a->m, index * LT_NR, LT_NR);
    }
}

void lt_amx_linear_few(const lt_linear *a)
{
    if (a->m - 1 < VECTOR_ROWS && a->dtype == LT_BF16) {
        vector_rows(a);
        return;
    }
    for (size_t row = 0; row < a->m; row += TILE) few_rows(a, row, min_size(TILE, a->m - row));
}

/* For attention. */

void lt_amx_begin(void)
{
    _tile_loadconfig(&configs[TILE - 1]);
}

void lt_amx_end(void)
{
    _tile_release();
}

LT_VECTOR void multiply_pairs(const block *b, bool add, unsigned how)
{
    settle();
    if (add)
        load_sums(b, how);
    else
        zero_sums();
    multiply_words(b, how);
    store_sums(b, how);
}

void lt_amx_tile(bool two, const float *x, size_t ldx, const float *w, size_t words, float *c, size_t ldc, bool add)
{
    const block b = { .x = { (const unsigned char *)x, (const unsigned char *)(x + TILE * ldx) },
                      .ldx = ldx * sizeof(float),
                      .tile_rows = TILE,
                      .w = { (const unsigned char *)w, (const unsigned char *)(w + TILE) },
                      .ldw = LT_NR * WORD,
                      .words = words,
                      .c = { c, c + TILE * ldc },
                      .ldc = ldc };
    if (two)
        multiply_pairs(&b, add, TWO_ROWS | TWO_COLUMNS);
    else
        multiply_pairs(&b, add, TWO_COLUMNS);
}

/* ---- int8 by rows ---- */

/* Floats of the integer sums of rows [row, row + rows), in place, by the steps of int8_body.h. */
LT_VECTOR void scale_sums(const lt_int8_linear *a, float *c, size_t row, size_t rows, size_t panel, size_t panels)
{
    const size_t k = lt_int8_padded(a->out.k), row_bytes = lt_int8_row_bytes(a->out.k), column = panel * LT_INT8_PANEL;
    const unsigned char *numbers = (const unsigned char *)a->x + row * row_bytes + k;
    vf d[2], sum[2];
    LT_UNROLL
    for (size_t v = 0; v < panels; v++) {
        d[v] = v_load(a->scales + (column + v * LT_VL) * sizeof(float));
        sum[v] = v_load(a->sums + (column + v * LT_VL) * sizeof(float));
    }
    for (size_t i = 0; i < rows; i++, numbers += row_bytes, c += LT_NR) {
        float s, center;
        int correction;
        memcpy(&s, numbers, 4);
        memcpy(&center, numbers + 4, 4);
        memcpy(&correction, numbers + 8, 4);
        LT_UNROLL
        for (size_t v = 0; v < panels; v++) {
            const __m512i exact = _mm512_add_epi32(_mm512_load_si512(c + v * LT_VL), _mm512_set1_epi32(correction));
            const vf offset = v_mul(sum[v], v_set1(center));
            v_store(c + v * LT_VL, v_fma(_mm512_cvtepi32_ps(exact), v_mul(d[v], v_set1(s)), offset));
        }
    }
}

LT_VECTOR void block_rows_int8(const lt_int8_linear *a, const block *b, const block_rows *r, float *c, size_t panel,
                               size_t panels)
{
    if (r->two)
        multiply_block(b, TWO_ROWS | (panels == 2 ? TWO_COLUMNS : 0) | BYTES);
    else
        multiply_block(b, (panels == 2 ? TWO_COLUMNS : 0) | BYTES);
    scale_sums(a, c + (r->row - r->first) * LT_NR, r->row, r->rows, panel, panels);
}

void lt_amx_linear_rows(const lt_int8_linear *a)
{
    _Alignas(64) float c[LT_AMX_ROWS * LT_NR];
    const size_t m = a->out.m, k = lt_int8_padded(a->out.k), panel_size = LT_INT8_PANEL * k;
    const size_t n_blocks = (m + LT_AMX_ROWS - 1) / LT_AMX_ROWS;
    if (m <= VECTOR_ROWS) {
        lt_q8_kernels_avx512vnni.linear_rows(a);
        return;
    }
    _tile_loadconfig(&configs[min_size(m, TILE) - 1]);
    for (size_t panel = a->out.panel_begin; panel < a->out.panel_end;) {
        const size_t panels = min_size(2, a->out.panel_end - panel), column = panel * LT_INT8_PANEL;
        const uint8_t *w = a->quants + panel * panel_size;
        for (size_t i = 0; i < n_blocks; i++) {
            const block_rows r = rows_at(i * LT_AMX_ROWS, m);
            block b = { .ldx = lt_int8_row_bytes(a->out.k),
                        .tile_rows = min_size(m, TILE),
                        .w = { w, w + (panels - 1) * panel_size },
                        .ldw = LT_INT8_PANEL * WORD,
                        .words = k / WORD };
            place_rows(&b, &r, a->x, c);
            place_prefetch(&b, (uintptr_t)w + panels * panel_size, 2 * panel_size, i, n_blocks);
            if (panels == 2)
                block_rows_int8(a, &b, &r, c, panel, 2);
            else
                block_rows_int8(a, &b, &r, c, panel, 1);
            int8_finish(&a->out, c + (r.row - r.first) * LT_NR, r.row, r.rows, column,
                        min_size(panels * LT_INT8_PANEL, a->out.n - column));
        }
        panel += panels;
    }
    _tile_release();
}

/* ---- measuring ---- */

/* Four sums cover the latency. Operations done, two a product. */
LT_VECTOR double peak(size_t iterations, unsigned how)
{
    _Alignas(64) float source[TILE * TILE];
    for (size_t i = 0; i < TILE * TILE; i += LT_VL) v_store(source + i, v_set1(0x1.007fp0f)); /* pairs of 1 */
    settle();
    _tile_loadconfig(&configs[TILE - 1]);
    zero_sums();
    _tile_loadd(4, source, TILE * WORD);
    _tile_loadd(5, source, TILE * WORD);
    _tile_loadd(6, source, TILE * WORD);
    _tile_loadd(7, source, TILE * WORD);
    for (size_t i = 0; i < iterations; i++) {
        DOT(0, 4, 6);
        DOT(1, 4, 7);
        DOT(2, 5, 6);
        DOT(3, 5, 7);
    }
    _tile_release();
    return 4.0 * TILE * TILE * TILE * (how & BYTES ? 4 : 2) * 2 * (double)iterations;
}

double lt_amx_peak_bf16(size_t iterations)
{
    return peak(iterations, 0);
}

double lt_amx_peak_int8(size_t iterations)
{
    return peak(iterations, BYTES);
}

#else
typedef int lt_no_amx; /* a translation unit is never empty */
#endif
