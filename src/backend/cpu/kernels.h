/* The hot loops of the CPU, listed once; each instruction set fills a table of them.
 *
 * The numerics contract binds every entry: an output is summed in one order that depends on the inner dimension and the
 * instruction set, never on the number of rows, the neighbours, the tile or the thread. Products add k ascending into one
 * accumulator an output. Results of two sets agree within rounding; tests/unit/test_kernels.c compares each with the scalar set.
 * A set that multiplies bfloat16 has a second table for that arithmetic, in which operands of products are rounded to it, to
 * nearest even, and summed in float32: k in ascending pairs into the same one accumulator.
 * Matrices are row-major float32 with a leading dimension in floats; nothing is aligned unless said. */
#ifndef LT_BACKEND_CPU_KERNELS_H
#define LT_BACKEND_CPU_KERNELS_H

#include "backend/state.h"
#include "format/checkpoint.h"
#include "format/config.h"
#include "lattice.h"

/* y[m, n] = act(x[m, k] · Wᵀ + bias) · gate + residual for the columns of panels [panel_begin, panel_end).
 * A panel holds nr consecutive rows of W [n, k] (outputs) as [k][nr], zero where n ends inside it. In bfloat16 both x and the
 * panels hold pairs of neighbours in k instead of floats, k / 2 of them rounded up: x as round_rows leaves it, panels [k /
 * 2][nr], and ldx counts pairs. */
typedef struct lt_linear {
    const float *x;
    size_t ldx;
    size_t m, k, n;
    const float *panels; /* of panel_begin onwards, 64-byte aligned */
    size_t panel_begin, panel_end;
    const float *bias; /* [n], or NULL */
    lt_activation activation;
    const float *gate; /* [m, n], or NULL; may be y itself */
    size_t ldg;
    const float *residual; /* [m, n], or NULL; may be y itself */
    size_t ldr;
    float *y;
    size_t ldy;
    /* linear_few alone, instead of panels: the row of W that panel_begin starts with, as stored; ldw in elements. */
    const void *w;
    lt_dtype dtype;
    size_t ldw;
    const void *next; /* next_size bytes that are wanted after this product: fetched meanwhile. NULL: the panel behind the last */
    size_t next_size;
    bool self_fetching; /* of the processor, lt_cpu_self_fetching() */
} lt_linear;

/* Up to so many rows are multiplied from the stored rows of a matrix rather than from a panel that is packed for them. */
#define LT_FEW_ROWS 8

/* One head of one sequence, a tile of its queries:
 *   out[i] = Σ_j softmax_j(scale q[i]·k[j]) v[j],   j < n_keys, and j <= first_position + i when causal.
 * Online softmax over blocks of keys that start at key 0, so that a row's result depends on its own position only.
 * n_queries <= query_tile, n_keys >= 1, scale > 0; out may be q itself, which is read to its end before,
 * and overlaps nothing else. */
typedef struct lt_attention {
    const float *q, *k, *v; /* first query of the tile; key and value 0; this head's columns */
    size_t ldq, ldk, ldv;
    /* Keys and values of a state, in blocks of LT_BLOCK_ROWS, each with this head's keys at k_offset bytes and its values at
     * v_offset. Of type F32 or, in bfloat16, BF16 (F16 in any other arithmetic). Keys are [step][LT_BLOCK_ROWS], a step being a
     * dimension or, in bfloat16, a pair of them; values [LT_BLOCK_ROWS][head_dim]. NULL: the two matrices k and v, which are not
     * read else. */
    const unsigned char *const *blocks;
    size_t k_offset, v_offset;
    lt_dtype row_type;
    float *out;
    size_t ldo;
    size_t n_queries, n_keys, head_dim;
    float scale;
    bool causal;
    size_t first_position;
    /* Of one query and blocks alone: heads, query_tile at most, that share keys and values; head i is i strides further. */
    size_t n_heads, head_stride, out_stride;
    float *scratch; /* attention_scratch(head_dim) floats, 64-byte aligned */
} lt_attention;

/* y = norm(x + residual):  layer norm  (x - mean)/sqrt(var + eps) * gain + bias;  bias NULL: RMS norm x/sqrt(mean x² + eps) *
 * gain. sum, if not NULL, receives x + residual. y may be x or residual. */
typedef struct lt_norm {
    const float *x, *residual; /* residual may be NULL */
    size_t ldx, ldr;
    size_t m, n;
    const float *gain, *bias;
    float eps;
    float *y, *sum; /* sum may be NULL */
    size_t ldy, lds;
} lt_norm;

/* The heads of q or of k of m rows, in place, before attention: each is normalised, then its first rotary_dim values are rotated
 * in pairs (i, i + r), r = rotary_dim / 2:
 *   h = x / sqrt(mean x² + eps) * gain;   h[i], h[i + r] = h[i] cos - h[i + r] sin, h[i + r] cos + h[i] sin
 * Row t has the angles of positions[t]: cos and sin [position][r]. */
typedef struct lt_norm_rope {
    float *x; /* head 0 of the first row */
    size_t ldx, head_stride;
    size_t m, n_heads, head_dim, rotary_dim;
    const float *gain; /* [head_dim] */
    float eps;
    const float *cos, *sin;
    const uint32_t *positions; /* [m] */
} lt_norm_rope;

/* A causal depthwise convolution and its activation: y[t, c] = silu(Σ_j weight[j, c] x[t − (taps − 1) + j, c]), j ascending, over
 * n channels of m rows. Rows before the first are those of the history, the last taps − 1 inputs, oldest first. */
typedef struct lt_conv {
    const float *x, *history; /* this part's first channel */
    size_t ldx, ldh;
    const float *weight; /* [taps][ldw] */
    size_t ldw;
    size_t m, n, taps;
    float *y;
    size_t ldy;
} lt_conv;

/* One head's gated delta rule over m rows, S [dk, dv]:
 *   q = x_q / √(Σx_q² + 1e-6) / √dk,  k = x_k / √(Σx_k² + 1e-6),  β = σ(b),  g = −rate · softplus(a + dt_bias)
 *   S ← e^g S;   δ = β (v − Sᵀk);   S ← S + k δᵀ;   o = Sᵀq
 * Runs of rows that end where positions are multiples of LT_DELTA_CHUNK are computed as matrix products, short ones row by row;
 * `form` is for tests, which compare the two. */
#define LT_DELTA_CHUNK 64

typedef enum lt_delta_form { LT_DELTA_AUTO, LT_DELTA_RECURRENT, LT_DELTA_CHUNKED } lt_delta_form;

typedef struct lt_delta {
    const float *q, *k, *v; /* this head's columns of the first row */
    size_t ld;
    const float *b, *a; /* this head's column */
    size_t ldg;
    float rate, dt_bias;
    size_t m, dk, dv, first_position;
    const float *state; /* S [dk][dv] before the first row; NULL: zeros */
    float *next;        /* S behind the last one; apart from state, or state itself */
    const float *ahead; /* the S that is read next, to fetch meanwhile; or NULL */
    float *o;
    size_t ldo;
    float *scratch; /* delta_scratch(dk) floats, 64-byte aligned */
    lt_delta_form form;
} lt_delta;

/* y = RMS(x) · gain · silu(z) for every head of m rows; y may be x. */
typedef struct lt_gated_norm {
    const float *x, *z;
    size_t ldx, ldz;
    size_t m, n_heads, head_dim;
    const float *gain; /* [head_dim] */
    float eps;
    float *y;
    size_t ldy;
} lt_gated_norm;

/* X(return type, name, parameters) */
#define LT_KERNEL_LIST(X)                                                                                                        \
    /* Panel of W's rows [row, row + nr) ∩ [0, rows): w points at row `row`, dtype F32, F16 or BF16, ldw in elements; writes   \
     * lt_panel_rows() times nr floats or pairs, zero beyond `n` rows. w may be unaligned. */                                    \
    X(void, pack_panel, (const void *w, lt_dtype dtype, size_t ldw, size_t n, size_t k, float *panel))                           \
    /* bfloat16 only, else NULL: out[m][lt_panel_rows(k)] are the rows of x[m, k] as pairs. */                                   \
    X(void, round_rows, (const float *x, size_t ldx, size_t m, size_t k, float *out, size_t ldo))                                \
    X(void, linear, (const lt_linear *args))                                                                                     \
    /* The same bits from rows of W as they are stored, dtype F32, F16 or BF16, whole panels of them: for few rows of x, up to   \
     * LT_FEW_ROWS or so. */                                                                                                     \
    X(void, linear_few, (const lt_linear *args))                                                                                 \
    /* float32 only, else NULL, and for an even k: panels that keep bfloat16 as [k / 2][nr] pairs of neighbours in k. Made of    \
     * rows as by pack_panel; made into a panel of floats; and linear from them as they are: the same bits, for few rows. */     \
    X(void, pack_pairs, (const void *w, size_t ldw, size_t n, size_t k, float *panel))                                           \
    X(void, widen_pairs, (const float *pairs, size_t k, float *panel))                                                           \
    X(void, linear_by_pairs, (const lt_linear *args))                                                                            \
    X(void, attention, (const lt_attention *args))                                                                               \
    X(void, norm, (const lt_norm *args))                                                                                         \
    X(void, norm_rope, (const lt_norm_rope *args))                                                                               \
    X(void, conv, (const lt_conv *args))                                                                                         \
    X(void, delta, (const lt_delta *args))                                                                                       \
    X(void, gated_norm, (const lt_gated_norm *args))                                                                             \
    /* y[i] = x[i] σ(z[i]); y may be x. */                                                                                      \
    X(void, gate, (const float *x, const float *z, size_t n, float *y))                                                          \
    /* x[i] = act(x[i]) */                                                                                                       \
    X(void, activate, (float *x, size_t n, lt_activation activation))                                                            \
    /* dst[i] = float(src[i]) and dst[i] += float(src[i]); dtype F32, F16, BF16; src may be unaligned */                         \
    X(void, convert, (float *dst, const void *src, lt_dtype dtype, size_t n))                                                    \
    X(void, accumulate, (float *dst, const void *src, lt_dtype dtype, size_t n))                                                 \
    /* out[i] = half(x[i]), to nearest even */                                                                                   \
    X(void, to_half, (const float *x, size_t n, uint16_t *out))                                                                  \
    /* Over rows [0, m) of x[m, n]: out[j] = scale · Σ_i x[i, j] in row order;                                                 \
     * weighted: scale · Σ_i (first + i + 1) x[i, j]; max: NaN where a NaN is. */                                              \
    X(void, pool_sum, (const float *x, size_t ldx, size_t m, size_t n, float scale, float *out))                                 \
    X(void, pool_weighted, (const float *x, size_t ldx, size_t m, size_t n, size_t first, float scale, float *out))              \
    X(void, pool_max, (const float *x, size_t ldx, size_t m, size_t n, float *out))                                              \
    /* True when every value is finite. */                                                                                       \
    X(bool, all_finite, (const float *x, size_t n))                                                                              \
    /* Measuring: runs `iterations` rounds of independent multiply-adds and returns the FLOP done; sums n floats. */             \
    X(double, peak_flop, (size_t iterations))                                                                                    \
    X(float, peak_read, (const float *x, size_t n))

typedef struct lt_kernels lt_kernels;
struct lt_kernels {
    const char *isa;         /* "scalar", "avx2", "avx512", "avx512bf16", "avx512amx", "neon", "neonbf16" */
    lattice_compute compute; /* F32 or BF16 */
    const lt_kernels *bf16;  /* of the F32 table: the same set's kernels for bfloat16, or NULL */
    bool preferred;          /* of a bfloat16 table: measured to be faster than float32 where weights are bfloat16 */
    size_t nr;               /* columns of a panel */
    size_t mr;               /* rows of a micro-tile */
    bool pads;               /* a micro-tile of fewer rows takes as long as a whole one */
    size_t tile_rows;        /* rows that a thread takes through a group of row operations, measured best; multiple of mr */
    size_t query_tile;       /* queries of an attention work item at most */
    size_t (*attention_scratch)(size_t head_dim); /* floats */
    size_t (*delta_scratch)(size_t dk);           /* floats */
#define X(type, name, parameters) type(*name) parameters;
    LT_KERNEL_LIST(X)
#undef X
};

/* Floats, or pairs of bfloat16, in a column of a panel. */
static inline size_t lt_panel_rows(const lt_kernels *kernels, size_t k)
{
    return kernels->compute == LATTICE_COMPUTE_BF16 ? k / 2 + k % 2 : k;
}

/* The sets that this build has and this CPU (cpuid) and operating system (xgetbv) allow, best first; *n receives their number.
 * The scalar set is always there, last. All are the float32 tables. */
const lt_kernels *const *lt_kernels_available(size_t *n);
/* Whether a thread reads one stream of memory faster than the rows that a product takes at a time: AMD's since Zen 3. There BF16
 * in panels of pairs, which are one, with nothing to transpose either, takes 0.84 of the bandwidth, by rows 0.71 (medians of four
 * rounds in turns on a busy machine; DESIGN.md, KC-12). */
bool lt_cpu_one_stream(void);
/* Whether such a stream is read fastest when nothing is fetched ahead by instructions: AMD's with AVX512_BF16. Of 62 GB/s
 * that two threads of a Zen 4 get, they get 60 so, 57 where the stream is fetched to L1, 44 where to L2; on a Xeon of 2023
 * fetching to L2 gives a third more than not fetching. */
bool lt_cpu_self_fetching(void);
/* By name; NULL or "auto": the best; NULL returned: not built in or not available. */
const lt_kernels *lt_kernels_find(const char *isa);

#endif
