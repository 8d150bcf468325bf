// Products of 2 to 8 rows of x in bfloat16 with W in bfloat16 on the tensor cores (mma.sync), on Hopper and later: y = act(x Wᵀ + b) + residual, or
// act(gate) * up + residual. As few_rows_8, but without a norm.
//
// A group has 64 rows of W, or 32 of gate and the same of up: two bands of 32, of four warps each, which share k. The sum over k may be taken in any order, so
// a lane reads 16 bytes of a row and has its numbers of two multiplications, of W as of x. Its first chunks of W are on their way before the launch waits for
// x, which the bulk copy engine then brings at once, a row's piece a lane. Of matrices of few rows the groups of a cluster share k, too; they add up their sums
// through one another's shared memory.
// Grid: tiles of rows of W * groups of a cluster; 256 threads. The launch asks for shared memory: FM_ROWS rows of x, each the group's chunks of 32 numbers
// and one more where they are even, or FM_PARTS * FM_ROWS * FM_LD floats where those are more.

#if FEW_BF16 && K_UNIT(19) && __CUDA_ARCH__ >= 900
#define FM_ROWS 8u  /* of x */
#define FM_AHEAD 3u /* chunks of 32 columns of W on their way */
#define FM_PARTS 4u /* warps that share k */
#define FM_LD 68u   /* floats from one row of x to the next: no two lanes write the same bank */

K_FUNC void fm_multiply(float (&c)[4], uint a0, uint a1, uint a2, uint a3, uint b0, uint b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

K_FUNC void fm_cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* A float of group `rank` of the cluster, from where p is in this one's shared memory. */
K_FUNC float fm_load(const float *p, uint rank)
{
    uint at;
    float v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((uint)__cvta_generic_to_shared(p)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}

extern "C" __global__ void __launch_bounds__(256, 2)
    few_mma(const ushort *x, const ushort *w, const ushort *up, const float *bias, const float *gain, const ushort *residual, ushort *y, const few_args a)
{
    K_ADMIT_NEXT();
    extern __shared__ __align__(128) float fm_sums[]; /* [FM_PARTS][FM_ROWS][FM_LD], when x is no longer needed */
    __shared__ ulong arrived[FM_PARTS];
    ushort *const xs = (ushort *)fm_sums;
    uint groups, rank;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(groups));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const uint tid = threadIdx.x, lane = tid % 32u, g = lane / 4u, t = lane % 4u, band = tid / 128u, part = tid / 32u % FM_PARTS;
    const uint tile = blockIdx.x / groups, first = a.has_glu ? 32u * tile : 64u * tile + 32u * band;
    const uint chunks = a.k / 32u, low = chunks * rank / groups, high = chunks * (rank + 1u) / groups; /* of this group */
    const uint begin = low + (high - low) * part / FM_PARTS, end = low + (high - low) * (part + 1u) / FM_PARTS;
    const uint ld = 32u * ((high - low) | 1u); /* odd, so that no two lanes read the same bank */
    if (tid == 0u) bulk_open(arrived, FM_PARTS, 64u);
    const ushort *const matrix = (a.has_glu && band ? up : w) + (ulong)(first < a.n ? first : 0u) * a.k;
    uint rows[4]; /* where a lane's rows of the two blocks of 16 begin */
#pragma unroll
    for (uint i = 0u; i < 4u; i++) rows[i] = (first < a.n ? k_min_uint(8u * i + g, a.n - 1u - first) : 0u) * a.k + 8u * t;
    uint4 ahead[FM_AHEAD][4];
    float sums[2][4] = {};
#pragma unroll
    for (uint u = 0u; u < FM_AHEAD; u++)
#pragma unroll
        for (uint i = 0u; i < 4u; i++)
            if (begin + u < end) ahead[u][i] = __ldcs((const uint4 *)(matrix + rows[i] + 32u * (begin + u)));
    __syncthreads();
    K_WAIT();
    const uint row = 32u * band + lane, bytes = row < a.m ? 64u * (end - begin) : 0u;
    bulk_expect(arrived + part, bytes);
    if (bytes > 0u) bulk_fetch(xs + row * ld + 32u * (begin - low), x + (ulong)row * a.ld_x + 32u * begin, bytes, arrived + part);
    bulk_wait(arrived + part, 0u);
    const ushort *const mine = xs + g * ld + 8u * t;
    for (uint base = begin; base < end; base += FM_AHEAD) {
#pragma unroll
        for (uint u = 0u; u < FM_AHEAD; u++) {
            const uint chunk = base + u;
            if (chunk >= end) break;
            uint4 q[4];
#pragma unroll
            for (uint i = 0u; i < 4u; i++) {
                q[i] = ahead[u][i];
                if (chunk + FM_AHEAD < end) ahead[u][i] = __ldcs((const uint4 *)(matrix + rows[i] + 32u * (chunk + FM_AHEAD)));
            }
            const uint4 b = *(const uint4 *)(mine + 32u * (chunk - low));
            fm_multiply(sums[0], q[0].x, q[1].x, q[0].y, q[1].y, b.x, b.y);
            fm_multiply(sums[1], q[2].x, q[3].x, q[2].y, q[3].y, b.x, b.y);
            fm_multiply(sums[0], q[0].z, q[1].z, q[0].w, q[1].w, b.z, b.w);
            fm_multiply(sums[1], q[2].z, q[3].z, q[2].w, q[3].w, b.z, b.w);
        }
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (uint i = 0u; i < 4u; i++)
            fm_sums[(part * FM_ROWS + 2u * t + i % 2u) * FM_LD + 32u * band + 16u * m + 8u * (i / 2u) + g] = sums[m][i];
    __syncthreads();
    for (uint i = tid; i < 64u * a.m; i += 256u) {
        float *const at = fm_sums + i / 64u * FM_LD + i % 64u;
        float sum = at[0];
#pragma unroll
        for (uint p = 1u; p < FM_PARTS; p++) sum += at[p * FM_ROWS * FM_LD];
        *at = sum;
    }
    fm_cluster_barrier();
    /* The rows of x are divided among the groups of the cluster. */
    const uint width = a.has_glu ? 32u : 64u, col = tid % width, place = (a.has_glu ? 32u : 64u) * tile + col;
    for (uint r = rank + groups * (tid / width); r < a.m; r += groups * (256u / width)) {
        float sum = 0.0f, second = 0.0f;
        for (uint from = 0u; from < groups; from++) {
            sum += fm_load(fm_sums + r * FM_LD + col, from);
            if (a.has_glu) second += fm_load(fm_sums + r * FM_LD + 32u + col, from);
        }
        if (place < a.n) few_store(bias, residual, y, a, r, place, sum, second);
    }
    fm_cluster_barrier(); /* nobody leaves while others read */
}
#endif
