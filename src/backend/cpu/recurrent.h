/* What Qwen3.5's layers need besides products and attention: a causal depthwise convolution, the gated delta rule, its gated
 * norm, and the gate of attention's output.
 *
 * The gated delta rule (Yang et al., arXiv:2412.06464) keeps a matrix S [dk, dv] a head and takes token after token:
 *
 *     S ← e^g S;   δ = β (v − Sᵀk);   S ← S + k δᵀ;   o = Sᵀq
 *
 * Run that way it reads S twice a token, which is right for decode and waste for a long text. A chunk of C <= 64 tokens is the
 * same thing as matrix products. With G the running sums of g in the chunk and D[i, j] = e^(G_i − G_j) for j <= i, else 0,
 *
 *     A = strictly lower part of β_i (K Kᵀ) ⊙ D;   (I + A) Δ = β ⊙ (V − e^G ⊙ K S)
 *     O = e^G ⊙ Q S + ((Q Kᵀ) ⊙ D) Δ;              S ← e^(G_C) S + (e^(G_C − G) ⊙ K)ᵀ Δ
 *
 * where Δ comes by forward substitution. Columns of v, δ, o and S never mix, so all but A and D is done a panel of columns at a
 * time. Chunks end where positions are multiples of 64: a text that is cut there gives the same bits as in one piece. */
#ifndef LT_BACKEND_CPU_RECURRENT_H
#define LT_BACKEND_CPU_RECURRENT_H

#include "backend/cpu/bodies.h"

/* Shorter chunks are taken token by token: their products would not pay for copying S. */
#define DELTA_LEAST_CHUNK 8
/* Vectors of columns of S at a time: with registers for it whole rows, which is one stream of memory. */
#define DELTA_VECTORS (LT_MR * LT_NV >= 16 ? 8 : 4)

enum { DELTA_WIDTH = (LT_DELTA_CHUNK + LT_NR - 1) / LT_NR * LT_NR }; /* a chunk's tokens as columns of panels */

/* ---- convolution ---- */

/* Row t of the input, t < 0 in the history. */
LT_VECTOR const float *conv_row(const lt_conv *a, size_t t, size_t tap)
{
    const size_t at = t + tap, past = a->taps - 1;
    return at < past ? a->history + at * a->ldh : a->x + (at - past) * a->ldx;
}

static void conv(const lt_conv *a)
{
    for (size_t t = 0; t < a->m; t++) {
        float *y = a->y + t * a->ldy;
        for (size_t c = 0; c < a->n; c += LT_VL) {
            const size_t n = min_size(a->n - c, LT_VL);
            const bool full = n == LT_VL;
            vf s = v_zero();
            for (size_t j = 0; j < a->taps; j++) {
                const float *x = conv_row(a, t, j) + c, *w = a->weight + j * a->ldw + c;
                s = full ? v_fma(v_load(x), v_load(w), s) : v_fma(v_load_n(x, n), v_load_n(w, n), s);
            }
            s = v_activate(s, LT_ACT_SILU);
            if (full)
                v_store(y + c, s);
            else
                v_store_n(y + c, s, n);
        }
    }
}

/* ---- gates ---- */

static void gated_norm(const lt_gated_norm *a)
{
    const size_t d = a->head_dim;
    for (size_t row = 0; row < a->m; row++) {
        for (size_t head = 0; head < a->n_heads; head++) {
            const float *x = a->x + row * a->ldx + head * d, *z = a->z + row * a->ldz + head * d;
            float *y = a->y + row * a->ldy + head * d;
            const vf inverse = v_set1(1.0f / sqrtf(row_sum(x, d, 0, true) / (float)d + a->eps));
            for (size_t i = 0; i < d; i += LT_VL) {
                const size_t n = min_size(d - i, LT_VL);
                if (n == LT_VL) {
                    vf normal = v_mul(v_mul(v_load(x + i), inverse), v_load(a->gain + i));
                    v_store(y + i, v_mul(normal, v_activate(v_load(z + i), LT_ACT_SILU)));
                } else {
                    vf normal = v_mul(v_mul(v_load_n(x + i, n), inverse), v_load_n(a->gain + i, n));
                    v_store_n(y + i, v_mul(normal, v_activate(v_load_n(z + i, n), LT_ACT_SILU)), n);
                }
            }
        }
    }
}

static void gate(const float *x, const float *z, size_t n, float *y)
{
    size_t i = 0;
    for (; i + LT_VL <= n; i += LT_VL) v_store(y + i, v_mul(v_load(x + i), v_sigmoid(v_load(z + i))));
    if (i < n) v_store_n(y + i, v_mul(v_load_n(x + i, n - i), v_sigmoid(v_load_n(z + i, n - i))), n - i);
}

/* ---- delta rule ---- */

typedef struct delta_scratch {
    float *q, *k;       /* [64][dk] normalised; q times 1 / √dk too */
    float *keys;        /* [DELTA_WIDTH / nr][dk][nr] the keys as panels */
    float *scores;      /* [64][DELTA_WIDTH] K Kᵀ, then A */
    float *weights;     /* [64][DELTA_WIDTH] Q Kᵀ, then (Q Kᵀ) ⊙ D */
    float *decayed;     /* [dk][64] (e^(G_C − G) ⊙ K)ᵀ */
    float *state;       /* [dk][nr] a panel of S */
    float *delta;       /* [64][nr] a panel of Δ */
    float *out;         /* [64][nr] a panel of O */
    float *beta, *grow; /* [64] β, e^G */
} delta_scratch;

static size_t delta_scratch_floats(size_t dk)
{
    const size_t c = LT_DELTA_CHUNK;
    return 3 * c * dk + DELTA_WIDTH * dk + 2 * c * DELTA_WIDTH + dk * LT_NR + 2 * c * LT_NR + 2 * c;
}

static delta_scratch delta_scratch_at(float *next, size_t dk)
{
    const size_t c = LT_DELTA_CHUNK;
    delta_scratch s;
    s.keys = next, next += DELTA_WIDTH * dk;
    s.state = next, next += dk * LT_NR;
    s.delta = next, next += c * LT_NR;
    s.out = next, next += c * LT_NR;
    s.scores = next, next += c * DELTA_WIDTH;
    s.weights = next, next += c * DELTA_WIDTH;
    s.q = next, next += c * dk;
    s.k = next, next += c * dk;
    s.decayed = next, next += c * dk;
    s.beta = next, next += c;
    s.grow = next;
    return s;
}

/* y = x scale / √(Σx² + 1e-6) */
LT_VECTOR void unit_row(const float *x, size_t n, float scale, float *y)
{
    const vf inverse = v_set1(scale / sqrtf(row_sum(x, n, 0, true) + 1e-6f));
    size_t i = 0;
    for (; i + LT_VL <= n; i += LT_VL) v_store(y + i, v_mul(v_load(x + i), inverse));
    if (i < n) v_store_n(y + i, v_mul(v_load_n(x + i, n - i), inverse), n - i);
}

/* g of one token. The softplus of a large number is that number. */
LT_VECTOR float delta_decay(const lt_delta *a, size_t row)
{
    const float x = a->a[row * a->ldg] + a->dt_bias;
    return -a->rate * (x > 20 ? x : log1pf(expf(x)));
}

LT_VECTOR float delta_beta(const lt_delta *a, size_t row)
{
    return 1 / (1 + expf(-a->b[row * a->ldg]));
}

/* `vectors` vectors of columns, or, below one, the first n of it, of one token: from [dk] rows at s to the same at t, which may
 * be s; s NULL: zeros. past: t is written past the caches. ahead: what is read next, fetched meanwhile; or NULL. */
LT_VECTOR void delta_columns(const float *s, float *t, size_t ld, size_t dk, const float *q, const float *k, const float *v,
                             float decay, float beta, float *o, size_t vectors, size_t n, bool past, const float *ahead)
{
    const bool full = n == LT_VL;
    const vf e = v_set1(decay);
    vf sum[DELTA_VECTORS], delta[DELTA_VECTORS], out[DELTA_VECTORS];
    LT_UNROLL
    for (size_t j = 0; j < vectors; j++) sum[j] = out[j] = v_zero();
    for (size_t i = 0; s && i < dk; i++) {
        const vf ki = v_set1(k[i]);
        LT_UNROLL
        for (size_t j = 0; j < vectors; j++) {
            const float *at = s + i * ld + j * LT_VL;
            sum[j] = v_fma(ki, full ? v_load(at) : v_load_n(at, n), sum[j]);
        }
    }
    LT_UNROLL
    for (size_t j = 0; j < vectors; j++) {
        const vf value = full ? v_load(v + j * LT_VL) : v_load_n(v + j * LT_VL, n);
        delta[j] = v_mul(v_set1(beta), v_fnma(e, sum[j], value));
    }
    for (size_t i = 0; i < dk; i++) {
        const vf ki = v_set1(k[i]), qi = v_set1(q[i]);
        for (size_t j = 0; ahead && j < vectors * LT_VL; j += 16) __builtin_prefetch(ahead + i * ld + j, 0, 2);
        LT_UNROLL
        for (size_t j = 0; j < vectors; j++) {
            vf x = v_zero();
            if (s) x = full ? v_load(s + i * ld + j * LT_VL) : v_load_n(s + i * ld + j * LT_VL, n);
            x = v_fma(ki, delta[j], v_mul(e, x));
            out[j] = v_fma(qi, x, out[j]);
            if (past)
                v_store_past(t + i * ld + j * LT_VL, x);
            else if (full)
                v_store(t + i * ld + j * LT_VL, x);
            else
                v_store_n(t + i * ld + j * LT_VL, x, n);
        }
    }
    LT_UNROLL
    for (size_t j = 0; j < vectors; j++) {
        if (full)
            v_store(o + j * LT_VL, out[j]);
        else
            v_store_n(o + j * LT_VL, out[j], n);
    }
}

/* One token after the other, from S at `state` (NULL: zeros) to S at a->next. That of a single token is not read before all
 * weights have been: written past the caches, it need not be fetched first, and four sessions decode 5% faster. */
static void delta_steps(const lt_delta *a, const delta_scratch *s, const float *state, size_t begin, size_t n)
{
    const size_t dk = a->dk, dv = a->dv;
    const bool past = a->m == 1 && state && state != a->next && (uintptr_t)a->next % 64 == 0 && dv % 16 == 0;
    for (size_t row = begin; row < begin + n; row++) {
        const float *v = a->v + row * a->ld;
        float *o = a->o + row * a->ldo;
        const float decay = expf(delta_decay(a, row)), beta = delta_beta(a, row);
        unit_row(a->q + row * a->ld, dk, 1.0f / sqrtf((float)dk), s->q);
        unit_row(a->k + row * a->ld, dk, 1, s->k);
        size_t c = 0;
        for (; c + DELTA_VECTORS * LT_VL <= dv; c += DELTA_VECTORS * LT_VL) {
            const float *from = state ? state + c : NULL, *ahead = a->ahead ? a->ahead + c : NULL;
            if (past)
                delta_columns(from, a->next + c, dv, dk, s->q, s->k, v + c, decay, beta, o + c, DELTA_VECTORS, LT_VL, true,
                              ahead);
            else
                delta_columns(from, a->next + c, dv, dk, s->q, s->k, v + c, decay, beta, o + c, DELTA_VECTORS, LT_VL, false,
                              NULL);
        }
        for (; c < dv; c += LT_VL) {
            const float *from = state ? state + c : NULL;
            if (c + LT_VL <= dv)
                delta_columns(from, a->next + c, dv, dk, s->q, s->k, v + c, decay, beta, o + c, 1, LT_VL, false, NULL);
            else
                delta_columns(from, a->next + c, dv, dk, s->q, s->k, v + c, decay, beta, o + c, 1, dv - c, false, NULL);
        }
        state = a->next;
    }
    if (past) v_past_done();
}

/* c[rows, nr] (+)= x[rows, k] · b[k, nr] for any number of rows. */
static void delta_product(const float *x, size_t ldx, size_t rows, size_t k, const float *b, float *c, size_t ldc, bool add)
{
    for (size_t row = 0; row < rows; row += LT_MR) {
        const tile_args t = { .k = k, .x = x + row * ldx, .ldx = ldx, .b = b, .c = c + row * ldc, .ldc = ldc, .add = add };
        tiles[min_size(LT_MR, rows - row)](&t);
    }
}

/* What a chunk's columns share: normalised q and k, A, (Q Kᵀ) ⊙ D, β, e^G and the decayed keys. Returns e^(G_C). */
static float delta_chunk_begin(const lt_delta *a, const delta_scratch *s, size_t begin, size_t n)
{
    const size_t dk = a->dk;
    double sums[LT_DELTA_CHUNK], total = 0; /* differences of large sums stay exact enough in double precision */
    for (size_t i = 0; i < n; i++) {
        unit_row(a->q + (begin + i) * a->ld, dk, 1.0f / sqrtf((float)dk), s->q + i * dk);
        unit_row(a->k + (begin + i) * a->ld, dk, 1, s->k + i * dk);
        s->beta[i] = delta_beta(a, begin + i);
        sums[i] = total += (double)delta_decay(a, begin + i);
        s->grow[i] = expf((float)total);
    }
    for (size_t j = 0; j < n; j += LT_NR) {
        float *panel = s->keys + j * dk;
        for (size_t g = 0; g < LT_NR; g += LT_VL) {
            if (j + g < n) {
                pack_rows((const unsigned char *)(s->k + (j + g) * dk), LT_F32, dk * sizeof(float), min_size(LT_VL, n - j - g),
                          dk, panel + g);
            } else {
                for (size_t kk = 0; kk < dk; kk++) v_store(panel + kk * LT_NR + g, v_zero());
            }
        }
        delta_product(s->k, dk, n, dk, panel, s->scores + j, DELTA_WIDTH, false);
        delta_product(s->q, dk, n, dk, panel, s->weights + j, DELTA_WIDTH, false);
    }
    for (size_t i = 0; i < n; i++) {
        float *scores = s->scores + i * DELTA_WIDTH, *weights = s->weights + i * DELTA_WIDTH;
        float decays[LT_DELTA_CHUNK + LT_VL] = { 0 };
        for (size_t j = 0; j <= i; j++) decays[j] = (float)(sums[i] - sums[j]);
        for (size_t j = i + 1; j < n; j++) weights[j] = 0;
        for (size_t j = 0; j <= i; j += LT_VL) v_store(decays + j, v_exp(v_load(decays + j)));
        for (size_t j = 0; j <= i; j++) {
            scores[j] *= s->beta[i] * decays[j];
            weights[j] *= decays[j];
        }
    }
    for (size_t i = 0; i < n; i++) {
        const float decay = expf((float)(sums[n - 1] - sums[i]));
        for (size_t kk = 0; kk < dk; kk++) s->decayed[kk * LT_DELTA_CHUNK + i] = s->k[i * dk + kk] * decay;
    }
    return expf((float)total);
}

/* Copies `rows` rows of `cols` columns; beyond them, zeros up to the panel's width. */
LT_VECTOR void panel_from(const float *x, size_t ldx, size_t rows, size_t cols, float *panel)
{
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < LT_NR; j += LT_VL) {
            const float *at = x + i * ldx + j;
            v_store(panel + i * LT_NR + j, j + LT_VL <= cols ? v_load(at) : j < cols ? v_load_n(at, cols - j) : v_zero());
        }
    }
}

LT_VECTOR void panel_to(const float *panel, size_t rows, size_t cols, float *x, size_t ldx)
{
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < cols; j += LT_VL) {
            const vf v = v_load(panel + i * LT_NR + j);
            if (j + LT_VL <= cols)
                v_store(x + i * ldx + j, v);
            else
                v_store_n(x + i * ldx + j, v, cols - j);
        }
    }
}

/* Δ of a panel of columns, in the place of K S: (I + A) Δ = β ⊙ (V − e^G ⊙ K S). */
LT_VECTOR void delta_substitute(const lt_delta *a, const delta_scratch *s, size_t begin, size_t n, size_t column, size_t cols)
{
    for (size_t i = 0; i < n; i++) {
        const float *v = a->v + (begin + i) * a->ld + column, *scores = s->scores + i * DELTA_WIDTH;
        float *row = s->delta + i * LT_NR;
        const vf beta = v_set1(s->beta[i]), grow = v_set1(s->grow[i]);
        vf acc[LT_NV];
        LT_UNROLL
        for (size_t j = 0; j < LT_NV; j++) {
            const size_t at = j * LT_VL;
            const vf value = at + LT_VL <= cols ? v_load(v + at) : at < cols ? v_load_n(v + at, cols - at) : v_zero();
            acc[j] = v_mul(beta, v_fnma(grow, v_load(row + at), value));
        }
        for (size_t p = 0; p < i; p++) {
            const vf x = v_set1(scores[p]);
            LT_UNROLL
            for (size_t j = 0; j < LT_NV; j++) acc[j] = v_fnma(x, v_load(s->delta + p * LT_NR + j * LT_VL), acc[j]);
        }
        LT_UNROLL
        for (size_t j = 0; j < LT_NV; j++) v_store(row + j * LT_VL, acc[j]);
    }
}

/* Tokens [begin, begin + n) as products, n <= 64. */
static void delta_chunk(const lt_delta *a, const delta_scratch *s, const float *state, size_t begin, size_t n)
{
    const size_t dk = a->dk;
    const vf total = v_set1(delta_chunk_begin(a, s, begin, n));
    for (size_t column = 0; column < a->dv; column += LT_NR) {
        const size_t cols = min_size(LT_NR, a->dv - column);
        if (state) {
            panel_from(state + column, a->dv, dk, cols, s->state);
            delta_product(s->k, dk, n, dk, s->state, s->delta, LT_NR, false);
            delta_product(s->q, dk, n, dk, s->state, s->out, LT_NR, false);
        } else {
            memset(s->state, 0, dk * LT_NR * sizeof(float));
            memset(s->delta, 0, n * LT_NR * sizeof(float));
            memset(s->out, 0, n * LT_NR * sizeof(float));
        }
        delta_substitute(a, s, begin, n, column, cols);
        for (size_t i = 0; i < n; i++) {
            for (size_t j = 0; j < LT_NR; j += LT_VL)
                v_store(s->out + i * LT_NR + j, v_mul(v_set1(s->grow[i]), v_load(s->out + i * LT_NR + j)));
        }
        delta_product(s->weights, DELTA_WIDTH, n, n, s->delta, s->out, LT_NR, true);
        panel_to(s->out, n, cols, a->o + begin * a->ldo + column, a->ldo);
        for (size_t i = 0; i < dk * LT_NR; i += LT_VL) v_store(s->state + i, v_mul(total, v_load(s->state + i)));
        delta_product(s->decayed, LT_DELTA_CHUNK, dk, n, s->delta, s->state, LT_NR, true);
        panel_to(s->state, dk, cols, a->next + column, a->dv);
    }
}

static void delta(const lt_delta *a)
{
    const delta_scratch s = delta_scratch_at(a->scratch, a->dk);
    const float *state = a->state;
    for (size_t begin = 0, n; begin < a->m; begin += n) {
        n = min_size(a->m - begin, LT_DELTA_CHUNK - (a->first_position + begin) % LT_DELTA_CHUNK);
        if (a->form == LT_DELTA_RECURRENT || (a->form == LT_DELTA_AUTO && n < DELTA_LEAST_CHUNK))
            delta_steps(a, &s, state, begin, n);
        else
            delta_chunk(a, &s, state, begin, n);
        state = a->next;
    }
}

#endif
