// The gated delta rule, token after token, with S in registers: as gated_delta, for key dimensions that divide by 32.
//
// Eight lanes share a column of S, so that a warp has 4 columns and a step needs three rounds of shuffles only: a step waits for itself, and with
// four lanes a column, and half the warps, it is longer. Lane part p has rows 32 i + 4 p … + 3: the eight read 128 consecutive bytes of shared memory. Units, gates and values of DF_TOKENS tokens are fetched at once
// while those before are at work (cp.async). Grid: (sequences * heads, blocks of DF_COLS columns).

#if HAS_DELTA && K_UNIT(13) && DELTA_DK % 32 == 0 && DELTA_DK <= 256
#define DF_LANES 8u /* a column */
#define DF_WARPS 4u
#define DF_TOKENS 16u
#define DF_COLS (DF_WARPS * 32u / DF_LANES)
#define DF_PARTS (DELTA_DK / (4 * DF_LANES))

typedef struct {
    float units[2][DF_TOKENS][2 * DELTA_DK]; /* q, then k */
    float gates[2][DF_TOKENS * 3];
} df_memory;

K_FUNC void df_fetch(float *to, const float *from, uint bytes)
{
    const uint address = (uint)__cvta_generic_to_shared(to);
    if (bytes == 16u)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from));
}

K_FUNC void df_fetch_tokens(df_memory *m, uint stage, const float *units, const float *gates, uint token, uint n, uint head, uint key_head,
                            const delta_args &a)
{
    for (uint i = threadIdx.x; i < n * (2 * DELTA_DK / 4); i += DF_WARPS * 32u) {
        const uint t = i / (2 * DELTA_DK / 4), c = i % (2 * DELTA_DK / 4) * 4u;
        df_fetch(&m->units[stage][t][c], units + ((ulong)(token + t) * a.n_key_heads + key_head) * (2 * DELTA_DK) + c, 16u);
    }
    for (uint i = threadIdx.x; i < n * 3u; i += DF_WARPS * 32u)
        df_fetch(&m->gates[stage][i], gates + ((ulong)(token + i / 3u) * a.n_heads + head) * 3u + i % 3u, 4u);
    asm volatile("cp.async.commit_group;");
}

extern "C" __global__ void __launch_bounds__(DF_WARPS * 32) delta_steps(const float *units, const float *gates, const ushort *v, const uint *seqs,
                                                            float *memory, ushort *o, const delta_args a)
{
    K_ADMIT_NEXT();
    K_WAIT();
    __shared__ __align__(16) df_memory m;
    const uint lane = threadIdx.x & 31u, part = lane % DF_LANES, s = blockIdx.x / a.n_heads, head = blockIdx.x % a.n_heads;
    const uint key_head = head / (a.n_heads / a.n_key_heads);
    const uint start = seqs[4u * s], length = seqs[4u * s + 1u], slot = seqs[4u * s + 2u], next = seqs[4u * s + 3u];
    const uint col = blockIdx.y * DF_COLS + (threadIdx.x >> 5u) * (32u / DF_LANES) + lane / DF_LANES;
    const bool live = col < a.dv;
    const uint column = live ? col : 0u;
    const ulong at = a.offset + (ulong)head * DELTA_DK * a.dv + column;
    float state[DF_PARTS][4];
#pragma unroll
    for (int i = 0; i < DF_PARTS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            state[i][j] = a.stateful && slot != ~0u ? memory[(ulong)slot * a.memory_size + at + (ulong)(4u * DF_LANES * i + 4u * part + j) * a.dv] : 0.0f;

    df_fetch_tokens(&m, 0u, units, gates, start, length < DF_TOKENS ? length : DF_TOKENS, head, key_head, a);
    const ulong v_at = (ulong)start * a.ld_x + head * a.v_stride + column;
    for (uint first = 0u, stage = 0u; first < length; first += DF_TOKENS, stage ^= 1u) {
        const uint n = length - first < DF_TOKENS ? length - first : DF_TOKENS, rest = length - first - n;
        float values[DF_TOKENS]; /* this column's, on their way while S is at work */
#pragma unroll
        for (uint t = 0u; t < DF_TOKENS; t++) values[t] = t < n ? load_as(v, v_at + (ulong)(first + t) * a.ld_x, a.x_type) : 0.0f;
        if (rest > 0u) {
            df_fetch_tokens(&m, stage ^ 1u, units, gates, start + first + n, rest < DF_TOKENS ? rest : DF_TOKENS, head, key_head, a);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_group 0;");
        }
        __syncthreads();
#pragma unroll
        for (uint t = 0u; t < DF_TOKENS; t++) {
            if (t < n) {
                const float decay = m.gates[stage][3u * t], beta = m.gates[stage][3u * t + 1u], kq = m.gates[stage][3u * t + 2u];
                const float4 *q4 = (const float4 *)m.units[stage][t], *k4 = (const float4 *)(m.units[stage][t] + DELTA_DK);
                float sk[4] = { 0.0f, 0.0f, 0.0f, 0.0f }, sq[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll
                for (int i = 0; i < DF_PARTS; i++) {
                    const float4 k_ = k4[DF_LANES * i + part], q_ = q4[DF_LANES * i + part];
                    sk[0] = fmaf(state[i][0], k_.x, sk[0]);
                    sk[1] = fmaf(state[i][1], k_.y, sk[1]);
                    sk[2] = fmaf(state[i][2], k_.z, sk[2]);
                    sk[3] = fmaf(state[i][3], k_.w, sk[3]);
                    sq[0] = fmaf(state[i][0], q_.x, sq[0]);
                    sq[1] = fmaf(state[i][1], q_.y, sq[1]);
                    sq[2] = fmaf(state[i][2], q_.z, sq[2]);
                    sq[3] = fmaf(state[i][3], q_.w, sq[3]);
                }
                float key = (sk[0] + sk[1]) + (sk[2] + sk[3]), query = (sq[0] + sq[1]) + (sq[2] + sq[3]);
#pragma unroll
                for (uint mask = 1u; mask < DF_LANES; mask *= 2u) {
                    key += __shfl_xor_sync(0xffffffffu, key, mask);
                    query += __shfl_xor_sync(0xffffffffu, query, mask);
                }
                const float delta = beta * fmaf(-decay, key, values[t]);
#pragma unroll
                for (int i = 0; i < DF_PARTS; i++) {
                    const float4 k_ = k4[DF_LANES * i + part];
                    state[i][0] = fmaf(k_.x, delta, decay * state[i][0]);
                    state[i][1] = fmaf(k_.y, delta, decay * state[i][1]);
                    state[i][2] = fmaf(k_.z, delta, decay * state[i][2]);
                    state[i][3] = fmaf(k_.w, delta, decay * state[i][3]);
                }
                if (live && part == 0u)
                    store_as(o, (ulong)(start + first + t) * a.ld_o + head * a.dv + col, a.o_type, fmaf(kq, delta, decay * query));
            }
        }
        __syncthreads(); /* before this stage is fetched into again */
    }
    if (a.stateful && live) {
#pragma unroll
        for (int i = 0; i < DF_PARTS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                memory[(ulong)next * a.memory_size + at + (ulong)(4u * DF_LANES * i + 4u * part + j) * a.dv] = state[i][j];
    }
}
#endif
