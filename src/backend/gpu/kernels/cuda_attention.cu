// Attention on tensor cores (mma.sync, compute capability 8.0 and later), for bfloat16 values and head dimensions that divide by 16.
//
// After Dao's FlashAttention-2 (arXiv:2307.08691), with the query heads that share a key/value head laid side by side as rows: row r of
// a tile is token r / FA_GROUPS and head r % FA_GROUPS, so that K and V are read once for all of them. Four warps of AM_BLOCKS blocks of
// 16 rows; keys come in tiles of AM_KEYS through two stages of shared memory (cp.async). A row of shared memory is 16 bytes longer than
// the head, an odd number of 16-byte units, so that ldmatrix meets no bank twice.
//
// Same buffers and numbers as fused_attention, but for its tiles. Grid: (tiles, key/value heads), 128 threads.

#if K_UNIT(10) && FA_DIM % 16 == 0 && FA_DIM <= 256 && FA_GROUPS <= 16
#define AM_BLOCKS (FA_DIM <= 128 ? 2 : 1)
#define AM_ROWS (64 * AM_BLOCKS)
#define AM_KEYS (FA_DIM <= 128 ? 64 : 32)
#define AM_LD (FA_DIM + 8)
#define AM_TOKENS (AM_ROWS / FA_GROUPS)

K_FUNC uint am_address(const void *p)
{
    return (uint)__cvta_generic_to_shared(p);
}

/* 16 bytes into shared memory, zeros where nothing is to be read. */
K_FUNC void am_copy(ushort *to, const ushort *from, bool reads)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(am_address(to)), "l"(from), "r"(reads ? 16 : 0));
}

K_FUNC void am_load(uint (&r)[4], const ushort *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(am_address(p)));
}

K_FUNC void am_load_turned(uint (&r)[4], const ushort *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(am_address(p)));
}

K_FUNC void am_multiply(float (&c)[4], const uint (&a)[4], uint b0, uint b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

K_FUNC float am_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

K_FUNC uint am_pack(float low, float high)
{
    uint y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/* AM_KEYS rows of K and of V from row key0 on. */
K_FUNC void am_load_keys(ushort *ks, ushort *vs, const ushort *k, const ushort *v, const uint *table, uint start, uint table_start,
                         uint key0, uint n_keys, uint head, const attention_args &a)
{
    const ushort *from_k, *from_v;
    ulong step_k = a.ld_k, step_v = a.ld_v;
    if (a.paged) { /* a tile never spans two blocks of 64 */
        const ulong at = key0 < n_keys ? (ulong)table[table_start + key0 / 64u] * a.block_size + (head * 64u + key0 % 64u) * (uint)FA_DIM : 0u;
        from_k = k + at;
        from_v = v + at + a.v_offset;
        step_k = step_v = FA_DIM;
    } else {
        from_k = k + (ulong)(start + key0) * a.ld_k + head * a.k_stride;
        from_v = v + (ulong)(start + key0) * a.ld_v + head * a.v_stride;
    }
#pragma unroll
    for (uint i = threadIdx.x; i < AM_KEYS * FA_DIM / 8; i += 128u) {
        const uint row = i / (FA_DIM / 8), c = i % (FA_DIM / 8) * 8u;
        const bool reads = key0 + row < n_keys;
        am_copy(ks + row * AM_LD + c, reads ? from_k + row * step_k + c : k, reads);
        am_copy(vs + row * AM_LD + c, reads ? from_v + row * step_v + c : v, reads);
    }
    asm volatile("cp.async.commit_group;");
}

extern "C" __global__ void __launch_bounds__(128) attention_mma(const ushort *q, const ushort *k, const ushort *v, ushort *o, const uint *seqs,
                                                                  const uint *tiles, const uint *table, const attention_args a)
{
    K_ADMIT_NEXT();
    K_WAIT();
    extern __shared__ uint4 am_memory[];
    ushort *const qs = (ushort *)am_memory, *const ks = qs + AM_ROWS * AM_LD, *const vs = ks + 2 * AM_KEYS * AM_LD;
    const uint tid = threadIdx.x, lane = tid & 31u, warp = tid >> 5u;
    const uint s = tiles[2u * blockIdx.x], first = tiles[2u * blockIdx.x + 1u], head = blockIdx.y;
    const uint start = seqs[4u * s], length = seqs[4u * s + 1u], past = seqs[4u * s + 2u], table_start = seqs[4u * s + 3u];
    const uint n_tokens = length - first < AM_TOKENS ? length - first : AM_TOKENS, n_rows = n_tokens * FA_GROUPS;
    const uint n_keys = past + length, end = a.causal ? past + first + n_tokens : n_keys, n_tiles = (end + AM_KEYS - 1u) / AM_KEYS;

    for (uint i = tid; i < AM_ROWS * FA_DIM / 8; i += 128u) {
        const uint row = i / (FA_DIM / 8), c = i % (FA_DIM / 8) * 8u;
        const bool reads = row < n_rows;
        const ushort *from = q + (ulong)(start + first + row / FA_GROUPS) * a.ld_q + (head * FA_GROUPS + row % FA_GROUPS) * a.q_stride + c;
        am_copy(qs + row * AM_LD + c, reads ? from : q, reads);
    }
    am_load_keys(ks, vs, k, v, table, start, table_start, 0u, n_keys, head, a);

    /* A lane holds, of each block of 16 rows, rows lane / 4 and lane / 4 + 8, and two columns of each 8. */
    float acc[AM_BLOCKS][FA_DIM / 8][4], largest[AM_BLOCKS][2], sum[AM_BLOCKS][2];
    uint sees[AM_BLOCKS][2]; /* keys that the row may look at */
    uint least = n_keys;     /* that all rows of the tile may look at */
    if (a.causal) least = past + first + 1u;
#pragma unroll
    for (int m = 0; m < AM_BLOCKS; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint row = (warp * AM_BLOCKS + m) * 16u + lane / 4u + 8u * h;
            largest[m][h] = -1.0e30f;
            sum[m][h] = 0.0f;
            sees[m][h] = a.causal ? past + first + row / FA_GROUPS + 1u : n_keys;
        }
#pragma unroll
        for (int n = 0; n < FA_DIM / 8; n++) acc[m][n][0] = acc[m][n][1] = acc[m][n][2] = acc[m][n][3] = 0.0f;
    }
    const float scale = a.scale * 1.44269504f; /* powers of two instead of e */
    const ushort *const q_at = qs + (warp * AM_BLOCKS * 16u + lane % 16u) * AM_LD + lane / 16u * 8u;
    const uint k_offset = (lane % 8u + lane / 16u * 8u) * AM_LD + lane / 8u % 2u * 8u;
    const uint v_offset = (lane % 16u) * AM_LD + lane / 16u * 8u;

    for (uint t = 0; t < n_tiles; t++) {
        const uint stage = t & 1u;
        if (t + 1u < n_tiles) {
            am_load_keys(ks + (stage ^ 1u) * AM_KEYS * AM_LD, vs + (stage ^ 1u) * AM_KEYS * AM_LD, k, v, table, start, table_start,
                         (t + 1u) * AM_KEYS, n_keys, head, a);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_group 0;");
        }
        __syncthreads();
        const ushort *const k_at = ks + stage * AM_KEYS * AM_LD + k_offset, *const v_at = vs + stage * AM_KEYS * AM_LD + v_offset;

        float score[AM_BLOCKS][AM_KEYS / 8][4];
#pragma unroll
        for (int m = 0; m < AM_BLOCKS; m++)
#pragma unroll
            for (int n = 0; n < AM_KEYS / 8; n++) score[m][n][0] = score[m][n][1] = score[m][n][2] = score[m][n][3] = 0.0f;
#pragma unroll 4 /* all of it takes the compiler seconds at head dimension 256 */
        for (int d = 0; d < FA_DIM / 16; d++) {
            uint rows[AM_BLOCKS][4];
#pragma unroll
            for (int m = 0; m < AM_BLOCKS; m++) am_load(rows[m], q_at + m * 16 * AM_LD + d * 16);
#pragma unroll
            for (int n = 0; n < AM_KEYS / 16; n++) {
                uint keys[4];
                am_load(keys, k_at + n * 16 * AM_LD + d * 16);
#pragma unroll
                for (int m = 0; m < AM_BLOCKS; m++) {
                    am_multiply(score[m][2 * n], rows[m], keys[0], keys[1]);
                    am_multiply(score[m][2 * n + 1], rows[m], keys[2], keys[3]);
                }
            }
        }
        const uint key0 = t * AM_KEYS;
        if (key0 + AM_KEYS > least) {
#pragma unroll
            for (int m = 0; m < AM_BLOCKS; m++)
#pragma unroll
                for (int n = 0; n < AM_KEYS / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const uint key = key0 + n * 8u + lane % 4u * 2u + (i & 1u);
                        if (key >= sees[m][i / 2] || key >= n_keys) score[m][n][i] = -1.0e30f;
                    }
        }
#pragma unroll
        for (int m = 0; m < AM_BLOCKS; m++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float most = largest[m][h];
#pragma unroll
                for (int n = 0; n < AM_KEYS / 8; n++) most = fmaxf(most, fmaxf(score[m][n][2 * h], score[m][n][2 * h + 1]));
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
                const float shrink = am_exp2((largest[m][h] - most) * scale), shift = most * scale;
                largest[m][h] = most;
                float total = 0.0f;
#pragma unroll
                for (int n = 0; n < AM_KEYS / 8; n++) {
#pragma unroll
                    for (int i = 2 * h; i < 2 * h + 2; i++) {
                        score[m][n][i] = am_exp2(fmaf(score[m][n][i], scale, -shift));
                        total += score[m][n][i];
                    }
                }
                sum[m][h] = fmaf(sum[m][h], shrink, total);
                if (shrink != 1.0f) {
#pragma unroll
                    for (int n = 0; n < FA_DIM / 8; n++) {
                        acc[m][n][2 * h] *= shrink;
                        acc[m][n][2 * h + 1] *= shrink;
                    }
                }
            }
        }
#pragma unroll
        for (int j = 0; j < AM_KEYS / 16; j++) {
            uint weights[AM_BLOCKS][4];
#pragma unroll
            for (int m = 0; m < AM_BLOCKS; m++) {
                weights[m][0] = am_pack(score[m][2 * j][0], score[m][2 * j][1]);
                weights[m][1] = am_pack(score[m][2 * j][2], score[m][2 * j][3]);
                weights[m][2] = am_pack(score[m][2 * j + 1][0], score[m][2 * j + 1][1]);
                weights[m][3] = am_pack(score[m][2 * j + 1][2], score[m][2 * j + 1][3]);
            }
#pragma unroll
            for (int d = 0; d < FA_DIM / 16; d++) {
                uint values[4];
                am_load_turned(values, v_at + j * 16 * AM_LD + d * 16);
#pragma unroll
                for (int m = 0; m < AM_BLOCKS; m++) {
                    am_multiply(acc[m][2 * d], weights[m], values[0], values[1]);
                    am_multiply(acc[m][2 * d + 1], weights[m], values[2], values[3]);
                }
            }
        }
        __syncthreads(); /* before the next keys take this stage */
    }

    /* Through this warp's own rows of qs, so that rows are written 16 bytes a lane. */
#pragma unroll
    for (int m = 0; m < AM_BLOCKS; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float total = sum[m][h];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            const float inverse = 1.0f / total;
            ushort *to = qs + ((warp * AM_BLOCKS + m) * 16u + lane / 4u + 8u * h) * AM_LD + lane % 4u * 2u;
#pragma unroll
            for (int n = 0; n < FA_DIM / 8; n++) *(uint *)(to + n * 8) = am_pack(acc[m][n][2 * h] * inverse, acc[m][n][2 * h + 1] * inverse);
        }
    }
    __syncwarp();
    for (uint i = lane; i < AM_BLOCKS * 16u * (FA_DIM / 8); i += 32u) {
        const uint row = warp * AM_BLOCKS * 16u + i / (FA_DIM / 8), c = i % (FA_DIM / 8) * 8u;
        if (row < n_rows) {
            ushort *to = o + (ulong)(start + first + row / FA_GROUPS) * a.ld_o + (head * FA_GROUPS + row % FA_GROUPS) * a.o_stride + c;
            *(uint4 *)to = *(const uint4 *)(qs + row * AM_LD + c);
        }
    }
}
#endif
