// Products of one row of x with W in bfloat16: as few_rows_1, on Hopper and later.
//
// A group a multiprocessor, with registers for two: the groups of the launch behind are there too, and have their first pieces of W, which does not depend
// on x, on their way while this launch is at work. A group has consecutive pairs of rows of W (neighbours, or gate and up); their chunks of 256 columns,
// one pair after the other, are divided evenly among its warps, each of which keeps FS_AHEAD of them on their way. A warp's sum of each pair that it has a
// part of goes to shared memory, where they are added up in the order of the warps.
// Grid: at most a group a pair. The launch asks for shared memory: x in float32, whole chunks of it, and FS_WARPS * 2 and a group's pairs places of 8 bytes.

#if K_UNIT(16) && FEW_BF16 && __CUDA_ARCH__ >= 900
#define FS_WARPS 16u
#define FS_THREADS (32u * FS_WARPS)
#define FS_AHEAD 4u

/* A place among a group's chunks. */
typedef struct { uint pair, chunk; } fs_place;

K_FUNC void fs_next(fs_place &p, uint chunks)
{
    if (++p.chunk == chunks) {
        p.chunk = 0u;
        p.pair++;
    }
}

/* Where four columns from c of x lie, in fours: a lane's 8 columns of 256 are two fours, each beside its neighbours', so that no two lanes read
 * the same bank. */
K_FUNC uint fs_four(uint c)
{
    return c / 256u * 64u + c / 4u % 2u * 32u + c / 8u % 32u;
}

K_FUNC void fs_gains(float4 g[2], const float *gain, uint c, uint k)
{
#pragma unroll
    for (uint u = 0u; u < 2u; u++) {
        if (c + 4u * FS_THREADS * u < k) g[u] = *(const float4 *)(gain + c + 4u * FS_THREADS * u);
    }
}

/* x, times its gains where there is a norm, into shared memory; this thread's part of the sum of squares. g: its first gains. */
K_FUNC float fs_stage(float4 *xs, const ushort *x, const float *gain, float4 g[2], const uint type, const bool norm, uint k, uint tid)
{
    float squares = 0.0f;
    for (uint base = 4u * tid; base < k; base += 8u * FS_THREADS) {
        float v[8];
#pragma unroll
        for (uint u = 0u; u < 2u; u++) {
            const uint c = base + 4u * FS_THREADS * u;
            if (c < k) load4(v + 4u * u, x, c, type);
        }
        if (norm && base != 4u * tid) fs_gains(g, gain, base, k);
#pragma unroll
        for (uint u = 0u; u < 2u; u++) {
            const uint c = base + 4u * FS_THREADS * u;
            if (c < k) {
                float4 q = make_float4(v[4u * u], v[4u * u + 1u], v[4u * u + 2u], v[4u * u + 3u]);
                if (norm) {
                    squares = fmaf(q.x, q.x, fmaf(q.y, q.y, fmaf(q.z, q.z, fmaf(q.w, q.w, squares))));
                    q = make_float4(q.x * g[u].x, q.y * g[u].y, q.z * g[u].z, q.w * g[u].w);
                }
                xs[fs_four(c)] = q;
            }
        }
    }
    return squares;
}

K_FUNC float fs_dot(float acc, uint4 w, float4 low, float4 high)
{
    float v[8];
    unpack2(v, w.x);
    unpack2(v + 2, w.y);
    unpack2(v + 4, w.z);
    unpack2(v + 6, w.w);
    acc = fmaf(v[0], low.x, fmaf(v[1], low.y, fmaf(v[2], low.z, fmaf(v[3], low.w, acc))));
    return fmaf(v[4], high.x, fmaf(v[5], high.y, fmaf(v[6], high.z, fmaf(v[7], high.w, acc))));
}

/* A lane's 8 columns of a chunk of both rows. */
K_FUNC void fs_fetch(uint4 &row0, uint4 &row1, const ushort *w, const ushort *up, const few_args &a, fs_place p, uint lane)
{
    const uint c = 256u * p.chunk + 8u * lane;
    const ulong at = (ulong)(a.has_glu ? p.pair : 2u * p.pair) * a.k + c;
    const ushort *second = a.has_glu ? up + at : w + at + (2u * p.pair + 1u < a.n ? a.k : 0u);
    if (c < a.k) {
        row0 = __ldcs((const uint4 *)(w + at));
        row1 = __ldcs((const uint4 *)second);
    }
}

extern "C" __global__ void __launch_bounds__(512, 2)
    few_stream(const ushort *x, const ushort *w, const ushort *up, const float *bias, const float *gain, const ushort *residual, ushort *y,
               const few_args a)
{
    K_ADMIT_NEXT();
    extern __shared__ __align__(16) float4 fs_memory[];
    __shared__ float squares[FS_WARPS];
    const uint tid = threadIdx.x, lane = tid & 31u, warp = tid >> 5u, k = a.k, chunks = (k + 255u) / 256u;
    const uint all = a.has_glu ? a.n : (a.n + 1u) / 2u;
    const uint first = (uint)((ulong)all * blockIdx.x / gridDim.x), pairs = (uint)((ulong)all * (blockIdx.x + 1u) / gridDim.x) - first;
    const uint begin = pairs * chunks * warp / FS_WARPS, end = pairs * chunks * (warp + 1u) / FS_WARPS;
    float2 *sums = (float2 *)(fs_memory + 64u * chunks); /* of warp w from 2 w + its first pair */
    fs_place use = { begin / chunks, begin % chunks }, fetch = { first + use.pair, use.chunk };
    uint4 row0[FS_AHEAD], row1[FS_AHEAD];
#pragma unroll
    for (uint u = 0u; u < FS_AHEAD; u++) {
        if (begin + u < end) fs_fetch(row0[u], row1[u], w, up, a, fetch, lane);
        fs_next(fetch, chunks);
    }
    float4 g[2];
    if (a.has_norm) fs_gains(g, gain, 4u * tid, k);
    K_WAIT();
    float square = 0.0f;
    if (a.x_type == STORED_F32)
        square = a.has_norm ? fs_stage(fs_memory, x, gain, g, STORED_F32, true, k, tid) : fs_stage(fs_memory, x, gain, g, STORED_F32, false, k, tid);
    else
        square = a.has_norm ? fs_stage(fs_memory, x, gain, g, STORED_BF16, true, k, tid) : fs_stage(fs_memory, x, gain, g, STORED_BF16, false, k, tid);
    if (a.has_norm) {
        square = k_simd_sum(square);
        if (lane == 0u) squares[warp] = square;
    }
    /* Of the first column that this thread stores. */
    const uint col0 = a.has_glu ? first : 2u * first, n_cols = a.has_glu ? pairs : k_min_uint(2u * pairs, a.n - col0);
    const float residual0 = a.has_residual && tid < n_cols ? load_as(residual, col0 + tid, a.residual_type) : 0.0f;
    __syncthreads();
    float acc0 = 0.0f, acc1 = 0.0f;
    for (uint base = begin; base < end; base += FS_AHEAD) {
#pragma unroll
        for (uint u = 0u; u < FS_AHEAD; u++) {
            if (base + u < end) {
                if (256u * use.chunk + 8u * lane < k) {
                    const float4 low = fs_memory[64u * use.chunk + lane], high = fs_memory[64u * use.chunk + 32u + lane];
                    acc0 = fs_dot(acc0, row0[u], low, high);
                    acc1 = fs_dot(acc1, row1[u], low, high);
                }
                if (base + u + FS_AHEAD < end) {
                    fs_fetch(row0[u], row1[u], w, up, a, fetch, lane);
                    fs_next(fetch, chunks);
                }
                if (use.chunk + 1u == chunks || base + u + 1u == end) { /* lanes below 16 go on with the first sum, the others with the second */
                    float mine = lane < 16u ? acc0 : acc1;
                    mine += __shfl_xor_sync(0xffffffffu, lane < 16u ? acc1 : acc0, 16);
                    for (int o = 8; o > 0; o >>= 1) mine += __shfl_xor_sync(0xffffffffu, mine, o);
                    if (lane % 16u == 0u) ((float *)(sums + 2u * warp + use.pair))[lane / 16u] = mine;
                    acc0 = acc1 = 0.0f;
                }
                fs_next(use, chunks);
            }
        }
    }
    __syncthreads();
    float scale = 1.0f;
    if (a.has_norm) {
        square = 0.0f;
#pragma unroll
        for (uint i = 0u; i < FS_WARPS; i++) square += squares[i];
        scale = 1.0f / sqrtf(square / (float)k + a.eps);
    }
    for (uint i = tid; i < n_cols; i += FS_THREADS) {
        const uint pair = a.has_glu ? i : i / 2u, side = a.has_glu ? 0u : i % 2u;
        float sum = 0.0f, second = 0.0f;
        for (uint n = 0u; n < FS_WARPS; n++) {
            const uint from = pairs * chunks * n / FS_WARPS, to = pairs * chunks * (n + 1u) / FS_WARPS;
            if (from < to && from < (pair + 1u) * chunks && to > pair * chunks) {
                const float2 part = sums[2u * n + pair];
                sum += side ? part.y : part.x;
                second += part.y;
            }
        }
        float v = activate(a.has_bias ? sum * scale + bias[col0 + i] : sum * scale, a.activation);
        if (a.has_glu) v *= second * scale;
        v += i == tid ? residual0 : a.has_residual ? load_as(residual, col0 + i, a.residual_type) : 0.0f;
        store_as(y, col0 + i, a.y_type, v);
    }
}
#endif
