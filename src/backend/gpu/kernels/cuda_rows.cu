// Row operations of bfloat16 models with 16-byte loads and stores. Each has the buffers and numbers of the template's kernel that it
// stands for; cuda_kernels.c says when it may.

/* 8 stored numbers as float32. */
K_FUNC void load8(float (&x)[8], const ushort *p, ulong i, uint type)
{
    if (type == STORED_F32) {
        const float4 a = *(const float4 *)((const float *)p + i), b = *(const float4 *)((const float *)p + i + 4);
        x[0] = a.x; x[1] = a.y; x[2] = a.z; x[3] = a.w;
        x[4] = b.x; x[5] = b.y; x[6] = b.z; x[7] = b.w;
    } else {
        const uint4 u = *(const uint4 *)(p + i);
        const uint w[4] = { u.x, u.y, u.z, u.w };
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x[2 * j] = __uint_as_float(w[j] << 16u);
            x[2 * j + 1] = __uint_as_float(w[j] & 0xffff0000u);
        }
    }
}

K_FUNC uint pack2(float low, float high)
{
    uint y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

K_FUNC void store8(const float (&x)[8], ushort *p, ulong i, uint type)
{
    if (type == STORED_F32) {
        *(float4 *)((float *)p + i) = make_float4(x[0], x[1], x[2], x[3]);
        *(float4 *)((float *)p + i + 4) = make_float4(x[4], x[5], x[6], x[7]);
    } else {
        *(uint4 *)(p + i) = make_uint4(pack2(x[0], x[1]), pack2(x[2], x[3]), pack2(x[4], x[5]), pack2(x[6], x[7]));
    }
}

/* As add_norm. A warp keeps its row in registers: width <= 256 * PARTS, divisible by 8. */
template <int PARTS>
static __device__ __forceinline__ void norm_row(const ushort *x, const ushort *residual, const float *gain, const float *bias, ushort *y,
                                                ushort *sum, const norm_args &a, uint row, uint lane)
{
    float v[PARTS][8];
    float total = 0.0f;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        const uint c = (p * 32u + lane) * 8u;
        if (c < a.width) {
            load8(v[p], x, (ulong)row * a.ld_x + c, a.x_type);
            if (a.has_residual) {
                float r[8];
                load8(r, residual, (ulong)row * a.ld_residual + c, a.residual_type);
#pragma unroll
                for (int j = 0; j < 8; j++) v[p][j] += r[j];
            }
            if (a.has_sum) store8(v[p], sum, (ulong)row * a.ld_sum + c, a.sum_type);
#pragma unroll
            for (int j = 0; j < 8; j++) total += a.has_bias ? v[p][j] : v[p][j] * v[p][j];
        }
    }
    if (!a.has_y) return;
    const float mean = k_simd_sum(total) / (float)a.width;
    float variance = mean;
    if (a.has_bias) {
        float squares = 0.0f;
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            if ((p * 32u + lane) * 8u < a.width)
#pragma unroll
                for (int j = 0; j < 8; j++) squares = fmaf(v[p][j] - mean, v[p][j] - mean, squares);
        variance = k_simd_sum(squares) / (float)a.width;
    }
    const float scale = rsqrtf(variance + a.eps);
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        const uint c = (p * 32u + lane) * 8u;
        if (c < a.width) {
            float g[8], b[8];
            load8(g, (const ushort *)gain, c, STORED_F32);
            if (a.has_bias) load8(b, (const ushort *)bias, c, STORED_F32);
#pragma unroll
            for (int j = 0; j < 8; j++) v[p][j] = a.has_bias ? (v[p][j] - mean) * scale * g[j] + b[j] : v[p][j] * scale * g[j];
            store8(v[p], y, (ulong)row * a.ld_y + c, a.y_type);
        }
    }
}

#define NORM_KERNEL(name, parts)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(128)                                                                                  \
        name(const ushort *x, const ushort *residual, const float *gain, const float *bias, ushort *y, ushort *sum, const norm_args a) \
    {                                                                                                                                  \
        K_ADMIT_NEXT();                                                                                                                \
        K_WAIT();                                                                                                                      \
        const uint row = blockIdx.x * 4u + (threadIdx.x >> 5u);                                                                        \
        if (row < a.rows) norm_row<parts>(x, residual, gain, bias, y, sum, a, row, threadIdx.x & 31u);                                 \
    }

#if K_UNIT(11)
NORM_KERNEL(add_norm_1024, 4)
#endif

#if K_UNIT(12)
/* 8 stored numbers as they are: what is loaded within a branch on the type is not on its way together with what follows. */
struct raw8 {
    uint4 low, high;
};

K_FUNC raw8 fetch8(const ushort *p, ulong i, uint type)
{
    const uint4 *at = (const uint4 *)(type == STORED_F32 ? p + 2u * i : p + i);
    return { at[0], type == STORED_F32 ? at[1] : make_uint4(0u, 0u, 0u, 0u) };
}

K_FUNC void unpack8(float (&x)[8], raw8 raw, uint type)
{
    const uint w[8] = { raw.low.x, raw.low.y, raw.low.z, raw.low.w, raw.high.x, raw.high.y, raw.high.z, raw.high.w };
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = __uint_as_float(type == STORED_F32 ? w[j] : j % 2 ? w[j / 2] & 0xffff0000u : w[j / 2] << 16u);
}

/* The sum over a group of four warps. */
K_FUNC float group_sum(float x, float (&sums)[4])
{
    x = k_simd_sum(x);
    if (threadIdx.x % 32u == 0u) sums[threadIdx.x / 32u] = x;
    __syncthreads();
    return sums[0] + sums[1] + sums[2] + sums[3];
}

/* As add_norm, for rows that are long or few: a group has one, a thread 8 of each 1024 columns, all of which are on their way at once.
 * width <= 4096, divisible by 8. */
extern "C" __global__ void __launch_bounds__(128)
    add_norm_group(const ushort *x, const ushort *residual, const float *gain, const float *bias, ushort *y, ushort *sum, const norm_args a)
{
    K_ADMIT_NEXT();
    __shared__ float totals[4], squares[4];
    const uint row = blockIdx.x;
    raw8 v_[4], r_[4], g_[4];
    float v[4][8], total = 0.0f;
#pragma unroll
    for (int p = 0; p < 4; p++)
        if (const uint c = p * 1024u + threadIdx.x * 8u; a.has_y && c < a.width) g_[p] = fetch8((const ushort *)gain, c, STORED_F32);
    K_WAIT();
#pragma unroll
    for (int p = 0; p < 4; p++) {
        const uint c = p * 1024u + threadIdx.x * 8u;
        if (c < a.width) v_[p] = fetch8(x, (ulong)row * a.ld_x + c, a.x_type);
        if (c < a.width && a.has_residual) r_[p] = fetch8(residual, (ulong)row * a.ld_residual + c, a.residual_type);
    }
#pragma unroll
    for (int p = 0; p < 4; p++) {
        const uint c = p * 1024u + threadIdx.x * 8u;
        if (c < a.width) {
            unpack8(v[p], v_[p], a.x_type);
            if (a.has_residual) {
                float r[8];
                unpack8(r, r_[p], a.residual_type);
#pragma unroll
                for (int j = 0; j < 8; j++) v[p][j] += r[j];
            }
            if (a.has_sum) store8(v[p], sum, (ulong)row * a.ld_sum + c, a.sum_type);
#pragma unroll
            for (int j = 0; j < 8; j++) total += a.has_bias ? v[p][j] : v[p][j] * v[p][j];
        }
    }
    if (!a.has_y) return;
    const float mean = group_sum(total, totals) / (float)a.width;
    float variance = mean;
    if (a.has_bias) {
        float differences = 0.0f;
#pragma unroll
        for (int p = 0; p < 4; p++)
            if (p * 1024u + threadIdx.x * 8u < a.width)
#pragma unroll
                for (int j = 0; j < 8; j++) differences = fmaf(v[p][j] - mean, v[p][j] - mean, differences);
        variance = group_sum(differences, squares) / (float)a.width;
    }
    const float scale = rsqrtf(variance + a.eps);
#pragma unroll
    for (int p = 0; p < 4; p++) {
        const uint c = p * 1024u + threadIdx.x * 8u;
        if (c < a.width) {
            float g[8], b[8];
            unpack8(g, g_[p], STORED_F32);
            if (a.has_bias) load8(b, (const ushort *)bias, c, STORED_F32);
#pragma unroll
            for (int j = 0; j < 8; j++) v[p][j] = a.has_bias ? (v[p][j] - mean) * scale * g[j] + b[j] : v[p][j] * scale * g[j];
            store8(v[p], y, (ulong)row * a.ld_y + c, a.y_type);
        }
    }
}
#endif

#if K_UNIT(11)
/* As glu_rows. Grid: (rows, blocks of 8 * 128 columns). */
extern "C" __global__ void __launch_bounds__(128) glu_rows_wide(const ushort *x, ushort *y, const glu_args a)
{
    K_ADMIT_NEXT();
    K_WAIT();
    const uint c = (blockIdx.y * 128u + threadIdx.x) * 8u;
    if (c >= a.width) return;
    float gate[8], up[8];
    load8(gate, x, (ulong)blockIdx.x * a.ld_x + c, a.x_type);
    load8(up, x, (ulong)blockIdx.x * a.ld_x + a.width + c, a.x_type);
#pragma unroll
    for (int j = 0; j < 8; j++)
        gate[j] = (a.activation == 4u ? __fdividef(gate[j], 1.0f + __expf(-gate[j])) : activate(gate[j], a.activation)) * up[j];
    store8(gate, y, (ulong)blockIdx.x * a.ld_y + c, a.y_type);
}

/* As activate_rows. */
extern "C" __global__ void __launch_bounds__(128) activate_rows_wide(const ushort *x, const float *bias, const ushort *residual, ushort *y,
                                                                    const activate_args a)
{
    K_ADMIT_NEXT();
    K_WAIT();
    const uint c = (blockIdx.y * 128u + threadIdx.x) * 8u;
    if (c >= a.width) return;
    float v[8], b[8];
    load8(v, x, (ulong)blockIdx.x * a.ld_x + c, a.x_type);
    if (a.has_bias) {
        load8(b, (const ushort *)bias, c, STORED_F32);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] += b[j];
    }
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = activate(v[j], a.activation);
    if (a.has_residual) {
        load8(b, residual, (ulong)blockIdx.x * a.ld_residual + c, a.residual_type);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] += b[j];
    }
    store8(v, y, (ulong)blockIdx.x * a.ld_y + c, a.y_type);
}

/* As fused_qk_norm_rope where the whole head is rotated and the rotated half divides by 8: a thread has 8 numbers of the head's lower
 * half and the 8 that they are turned with; ROPE_HALF / 8 threads a head. */
#if ROPE_DIM == 2 * ROPE_HALF && (ROPE_HALF == 16 || ROPE_HALF == 32 || ROPE_HALF == 64 || ROPE_HALF == 128)
#define ROPE_LANES (ROPE_HALF / 8)
extern "C" __global__ void __launch_bounds__(128) rope_wide(ushort *q, ushort *k, const float *q_gain, const float *k_gain,
                                                           const float *cosines, const float *sines, const uint *positions, const rope_args a)
{
    K_ADMIT_NEXT();
    K_WAIT();
    const uint heads = a.n_heads + a.n_kv_heads, item = threadIdx.x / ROPE_LANES, i = threadIdx.x % ROPE_LANES * 8u;
    const uint t = blockIdx.x, h = blockIdx.y * (128u / ROPE_LANES) + item;
    const bool works = h < heads, is_q = h < a.n_heads;
    ushort *x = is_q ? q : k;
    const float *gain = is_q ? q_gain : k_gain;
    const ulong at = (ulong)t * a.ld + (is_q ? h * a.q_stride : (h - a.n_heads) * a.k_stride) + i;
    float low[8], high[8], squares = 0.0f;
    if (works) {
        load8(low, x, at, a.type);
        load8(high, x, at + ROPE_HALF, a.type);
#pragma unroll
        for (int j = 0; j < 8; j++) squares = fmaf(low[j], low[j], fmaf(high[j], high[j], squares));
    }
#pragma unroll
    for (int m = ROPE_LANES / 2; m > 0; m >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, m);
    if (!works) return;
    const float scale = rsqrtf(squares / (float)ROPE_DIM + a.eps);
    float c[8], s[8], g[8];
    const ulong angle = (ulong)positions[t] * ROPE_HALF + i;
    load8(c, (const ushort *)cosines, angle, STORED_F32);
    load8(s, (const ushort *)sines, angle, STORED_F32);
    load8(g, (const ushort *)gain, i, STORED_F32);
#pragma unroll
    for (int j = 0; j < 8; j++) low[j] *= scale * g[j];
    load8(g, (const ushort *)gain, i + ROPE_HALF, STORED_F32);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float x1 = high[j] * scale * g[j], x0 = low[j];
        low[j] = x0 * c[j] - x1 * s[j];
        high[j] = x1 * c[j] + x0 * s[j];
    }
    store8(low, x, at, a.type);
    store8(high, x, at + ROPE_HALF, a.type);
}
#endif
#endif
