// Decoding on Hopper and later: as delta_step, S of a head brought and taken away by the bulk copy engine, so that it needs no registers: the groups
// of the next launch are there too, and of many sequences' heads three at once.

#if K_UNIT(16) && DECODES && __CUDA_ARCH__ >= 900
/* Grid: sequences * heads; 4 * dv threads, dv rounded up to 32; DELTA_DK * dv floats of shared memory are asked for by the launch. */
extern "C" __global__ void __launch_bounds__(512, 3)
    delta_stream(const ushort *x, const float *taps, const float *log_rate, const float *dt_bias, const float *gain, const uint *seqs, float *memory,
                 ushort *y, const delta_step_args a)
{
    extern __shared__ __align__(128) float state[];
    __shared__ ulong arrived;
    K_SHARED float units[2 * DELTA_DK + STEP_MOST]; /* query, key, value */
    K_SHARED float key_sums[STEP_PARTS * STEP_MOST];
    K_SHARED float query_sums[STEP_PARTS * STEP_MOST];
    K_SHARED float squares[32];
    K_ENTER_EARLY
    const uint s = k_group.x / a.n_heads, head = k_group.x % a.n_heads, columns = k_threads / STEP_PARTS;
    const uint slot = seqs[4u * s + 2u], next = seqs[4u * s + 3u], bytes = DELTA_DK * a.dv * 4u;
    const uint part = k_tid / columns, col = k_tid % columns, first = part * STEP_ROWS, last = k_min_uint(first + STEP_ROWS, DELTA_DK);
    const bool live = col < a.dv, stores = live && part == 0u;
    const ulong row = (ulong)s * a.ld_x, at = a.offset + (ulong)head * DELTA_DK * a.dv;
    float held[STEP_TAPS], tap[STEP_TAPS], gates[2], scales[3];
    if (slot == ~0u) {
        for (uint i = k_tid; i < DELTA_DK * a.dv; i += k_threads) state[i] = 0.0f;
    } else if (k_tid == 0u) {
        bulk_open(&arrived, 1u, 1u);
        bulk_expect(&arrived, bytes);
        bulk_fetch(state, memory + (ulong)slot * a.memory_size + at, bytes, &arrived);
    }
    if (k_tid < 2u * DELTA_DK + a.dv) step_held(held, tap, taps, memory, a, slot, step_channel(a, head, head / (a.n_heads / a.n_key_heads), k_tid));
    const float rate = log_rate[head], bias = dt_bias[head], gain_ = stores ? gain[col] : 0.0f;
    K_WAIT();
    const uint raw_z = stores ? step_raw(x, row + a.z_column + head * a.z_stride + col, a.x_type) : 0u;
    const uint raw_b = step_raw(x, row + a.gates_column + head, a.x_type), raw_t = step_raw(x, row + a.gates_column + a.n_heads + head, a.x_type);
    step_units(units, held, tap, x, taps, memory, a, row, slot, next, head, k_tid, k_threads);
    step_gates(gates, raw_b, raw_t, rate, bias, a.x_type);
    __syncthreads();
    step_scales(scales, units, k_lane);
    float sk = 0.0f, sq = 0.0f;
    if (slot != ~0u) bulk_wait(&arrived, 0u);
    if (live) {
#pragma unroll 8
        for (uint i = first; i < last; i++) {
            const float v = state[i * a.dv + col];
            sk = fmaf(v, units[DELTA_DK + i], sk);
            sq = fmaf(v, units[i], sq);
        }
    }
    key_sums[part * columns + col] = sk;
    query_sums[part * columns + col] = sq;
    __syncthreads();
    sk = step_sum(key_sums, columns, col);
    sq = step_sum(query_sums, columns, col);
    const float delta = live ? gates[1] * (units[2u * DELTA_DK + (live ? col : 0u)] - gates[0] * sk * scales[1]) : 0.0f;
    const float o = fmaf(scales[2], delta, gates[0] * sq * scales[0]);
    const float square = k_simd_sum(live ? o * o : 0.0f);
    if (k_lane == 0u) squares[k_simd] = square;
    if (next != ~0u) {
        if (live) {
#pragma unroll 8
            for (uint i = first; i < last; i++)
                state[i * a.dv + col] = fmaf(units[DELTA_DK + i] * scales[1], delta, gates[0] * state[i * a.dv + col]);
        }
        bulk_written();
    }
    __syncthreads();
    if (next != ~0u && k_tid == 0u) bulk_store(memory + (ulong)next * a.memory_size + at, state, bytes);
    if (stores) store_as(y, (ulong)s * a.ld_y + head * a.dv + col, a.y_type, step_normed(o, squares, a, columns, gain_, raw_z));
    if (next != ~0u && k_tid == 0u) bulk_flush();
}
#endif
