/* Calibration by random ids. See calibrate.h. */
#include "engine/calibrate.h"

#include <math.h>
#include <string.h>

enum { SEQUENCES = 16, LENGTH = 64 };

static size_t vocabulary(const lt_plan *plan)
{
    for (size_t i = 0; i < plan->n_ops; i++) {
        if (plan->ops[i].code == LT_OP_EMBED) return plan->weights[plan->ops[i].weight[0]].rows;
    }
    return 0;
}

lattice_status lt_calibrate(lattice_model *model, float *largest, lattice_error *err)
{
    const lt_plan *plan = &model->plan;
    const size_t hidden = plan->values[plan->hidden].width, n_ids = vocabulary(plan);
    size_t length = LENGTH, floats;
    if (length > model->max_positions) length = model->max_positions;
    if (length > model->max_tokens) length = model->max_tokens;
    uint32_t ids[LENGTH], positions[LENGTH];
    const size_t starts[2] = { 0, length };
    if (!lt_mul(plan->n_trace + 1, LENGTH, &floats) || !lt_mul(floats, hidden, &floats) || n_ids == 0)
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "there is nothing to calibrate by");
    float *out = lt_alloc_array(model->mem, floats, sizeof *out), *trace = out + length * hidden;
    if (!out) return lt_no_memory(err, floats * sizeof *out, "calibrating");
    memset(largest, 0, plan->n_trace * hidden * sizeof *largest);
    lattice_status status = LATTICE_OK;
    uint64_t random = 88172645463325252u;
    for (size_t s = 0; s < SEQUENCES && status == LATTICE_OK; s++) {
        for (size_t i = 0; i < length; i++) {
            random ^= random << 13; /* xorshift64 */
            random ^= random >> 7;
            random ^= random << 17;
            ids[i] = (uint32_t)((random >> 32) % n_ids);
            positions[i] = (uint32_t)i;
        }
        const lt_batch batch = {
            .n_tokens = length, .n_seqs = 1, .ids = ids, .positions = positions, .seq_starts = starts, .trace = trace
        };
        status = model->backend->run(model->program, &batch, LT_TAIL_TOKENS, out, NULL, err);
        for (size_t t = 0; t < plan->n_trace && status == LATTICE_OK; t++) {
            for (size_t i = 0; i < length * hidden; i++) {
                float *most = &largest[t * hidden + i % hidden];
                *most = fmaxf(*most, fabsf(trace[t * length * hidden + i]));
            }
        }
    }
    lt_free(model->mem, out);
    return status;
}
