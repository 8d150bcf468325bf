/* Choosing the next token from a session's logits.
 *
 * Penalised logits lie in an array of candidates. Whatever keeps the most likely tokens only pops them from a heap, so that a
 * large vocabulary is never sorted; equal logits are ordered by id. The random number is a function of seed and position: a
 * choice can be repeated, and a conversation that is taken up again goes on as it would have. Where nothing but the most likely
 * token is asked for, the logits are looked at as they are. */
#include <math.h>
#include <string.h>

#include "engine/session.h"

lattice_sampling lattice_sampling_default(const lattice_model *model)
{
    const lt_config *c = &model->config;
    lattice_sampling s = { .top_p = 1, .repetition_penalty = (double)c->generation.repetition_penalty };
    if (c->generation.do_sample) {
        s.temperature = (double)c->generation.temperature;
        s.top_k = c->generation.top_k;
        s.top_p = (double)c->generation.top_p;
        s.min_p = (double)c->generation.min_p;
    }
    return s;
}

/* Logits divided by less could not be told apart from the most likely alone. */
#define LEAST_TEMPERATURE 1e-6

static lattice_status check_logits(const lattice_session *s, lattice_error *err)
{
    if (s->has_logits) return LATTICE_OK;
    if (s->n == 0) return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "the session is empty: nothing follows");
    return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "the session has no logits: they were not asked for");
}

lattice_status lt_sampling_check(const lattice_sampling *s, lattice_error *err)
{
    if (!(s->temperature >= 0 && s->temperature <= 1e6))
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "temperature %g is not between 0 and 1000000", s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "top_p %g is not in (0, 1]", s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "min_p %g is not in [0, 1]", s->min_p);
    if (!(s->repetition_penalty > 0 && s->repetition_penalty <= 1e6))
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "repetition_penalty %g is not above 0", s->repetition_penalty);
    if (!(fabs(s->presence_penalty) <= 1e6) || !(fabs(s->frequency_penalty) <= 1e6))
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "a presence or frequency penalty is out of range");
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ penalties */

static void fill_candidates(const lattice_session *s, const lattice_sampling *o, lt_stepper *t)
{
    const size_t width = s->model->config.vocab_size;
    lt_candidate *list = t->candidates;
    for (size_t i = 0; i < width; i++) list[i] = (lt_candidate){ s->logits[i], (uint32_t)i };
    if (o->repetition_penalty != 1) {
        memset(t->counts, 0, width * sizeof *t->counts);
        const float penalty = (float)o->repetition_penalty;
        for (size_t i = 0; i < s->n; i++) {
            lt_candidate *c = &list[s->ids[i]];
            if (t->counts[s->ids[i]]++ == 0) c->logit = c->logit > 0 ? c->logit / penalty : c->logit * penalty;
        }
    }
    if (o->presence_penalty != 0 || o->frequency_penalty != 0) {
        memset(t->counts, 0, width * sizeof *t->counts);
        for (size_t i = s->n_prompt; i < s->n; i++) {
            double penalty = o->frequency_penalty + (t->counts[s->ids[i]]++ == 0 ? o->presence_penalty : 0);
            list[s->ids[i]].logit -= (float)penalty;
        }
    }
}

/* ------------------------------------------------------------------ the most likely */

static bool is_before(lt_candidate a, lt_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(lt_candidate *heap, size_t n, size_t i)
{
    for (;;) {
        size_t best = i, left = 2 * i + 1, right = left + 1;
        if (left < n && is_before(heap[left], heap[best])) best = left;
        if (right < n && is_before(heap[right], heap[best])) best = right;
        if (best == i) return;
        lt_candidate moved = heap[i];
        heap[i] = heap[best];
        heap[best] = moved;
        i = best;
    }
}

/* Puts the first of n to the end: there the popped ones gather, the latest first. */
static void pop(lt_candidate *heap, size_t n)
{
    lt_candidate top = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = top;
    sift_down(heap, n - 1, 0);
}

/* ------------------------------------------------------------------ chance */

/* Uniform in [0, 1): splitmix64 (Steele, Lea and Flood, 2014) of seed and position. */
static double uniform(uint64_t seed, uint64_t position)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
    for (int round = 0; round < 2; round++) {
        x += round == 0 ? 0x9e3779b97f4a7c15u : position;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return (double)(x >> 11) * 0x1p-53;
}

static uint32_t most_likely(const lt_candidate *list, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (is_before(list[i], list[best])) best = i;
    return list[best].id;
}

/* All tokens, in the order of their ids. */
static uint32_t draw_from_all(const lt_candidate *list, size_t n, const lattice_sampling *o, double chance)
{
    const float largest = list[most_likely(list, n)].logit; /* id and place are still the same */
    double total = 0, sum = 0;
    uint32_t last = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < n; i++) {
            double weight = exp(((double)list[i].logit - (double)largest) / o->temperature);
            if (weight < o->min_p || weight == 0) continue;
            if (pass == 0) {
                total += weight;
            } else {
                sum += weight;
                last = list[i].id;
                if (sum > chance * total) return last;
            }
        }
    }
    return last;
}

static uint32_t draw_from_few(lt_candidate *list, size_t n, const lattice_sampling *o, double chance)
{
    for (size_t i = n / 2; i-- > 0;) sift_down(list, n, i);
    const float largest = list[0].logit;
    const size_t most = o->top_k > 0 && o->top_k < n ? o->top_k : n;
    double total = 0, kept = 0, sum = 0;
    size_t popped = 0, n_kept = 0;
    if (most < n) { /* probabilities are among these alone */
        for (; popped < most; popped++) {
            pop(list, n - popped);
            total += exp(((double)list[n - popped - 1].logit - (double)largest) / o->temperature);
        }
    } else {
        for (size_t i = 0; i < n; i++) total += exp(((double)list[i].logit - (double)largest) / o->temperature);
    }
    while (n_kept < most) {
        if (n_kept == popped) pop(list, n - popped++);
        double weight = exp(((double)list[n - n_kept - 1].logit - (double)largest) / o->temperature);
        if (n_kept > 0 && (weight < o->min_p || weight == 0)) break;
        kept += weight;
        n_kept++;
        if (kept >= o->top_p * total) break;
    }
    for (size_t i = 0; i < n_kept; i++) {
        sum += exp(((double)list[n - i - 1].logit - (double)largest) / o->temperature);
        if (sum > chance * kept) return list[n - i - 1].id;
    }
    return list[n - n_kept].id;
}

static lattice_status sample(const lattice_session *s, const lattice_sampling *o, lt_stepper *t, uint32_t *id, lattice_error *err)
{
    const size_t width = s->model->config.vocab_size;
    if (!LT_GROW(s->mem, t->candidates, t->candidates_capacity, width) || !LT_GROW(s->mem, t->counts, t->counts_capacity, width))
        return lt_no_memory(err, width * sizeof *t->candidates, "sampling");
    fill_candidates(s, o, t);
    if (o->temperature < LEAST_TEMPERATURE) {
        *id = most_likely(t->candidates, width);
        return LATTICE_OK;
    }
    const double chance = uniform(o->seed, s->n);
    const bool few = (o->top_k > 0 && o->top_k < width) || o->top_p < 1;
    *id = few ? draw_from_few(t->candidates, width, o, chance) : draw_from_all(t->candidates, width, o, chance);
    return LATTICE_OK;
}

size_t lt_sampling_top(const lattice_sampling *o)
{
    if (o->repetition_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0) return 0;
    if (o->temperature < LEAST_TEMPERATURE) return 1;
    return o->top_k <= LT_TOP_MOST ? o->top_k : 0;
}

lattice_status lattice_session_sample(const lattice_session *s, const lattice_sampling *sampling, uint32_t *id,
                                      lattice_error *err)
{
    LT_TRY(check_logits(s, err));
    LT_TRY(lt_sampling_check(sampling, err));
    const size_t n_top = lt_sampling_top(sampling);
    if (n_top > 0 && n_top <= s->top.n) { /* popped from all of them, these would come in this order */
        lt_candidate list[LT_TOP_MOST];
        memcpy(list, s->top.list, n_top * sizeof *list);
        *id = n_top == 1 ? list[0].id : draw_from_few(list, n_top, sampling, uniform(sampling->seed, s->n));
        return LATTICE_OK;
    }
    LT_TRY(lt_rows_fetch(s, err));
    const bool penalised =
        sampling->repetition_penalty != 1 || sampling->presence_penalty != 0 || sampling->frequency_penalty != 0;
    if (sampling->temperature < LEAST_TEMPERATURE && !penalised) {
        size_t best = 0;
        for (size_t i = 1; i < s->model->config.vocab_size; i++)
            if (s->logits[i] > s->logits[best]) best = i;
        *id = (uint32_t)best;
        return LATTICE_OK;
    }
    lt_stepper *stepper;
    LT_TRY(lt_stepper_take(s->model, &stepper, err));
    lattice_status status = sample(s, sampling, stepper, id, err);
    lt_stepper_give_back(s->model, stepper);
    return status;
}

/* ------------------------------------------------------------------ probabilities */

/* Keeps the likeliest of top[n] in order: the first of equals stays before. */
static void take_candidate(lattice_logprob *top, size_t *n, size_t most, lattice_logprob next)
{
    size_t at = *n < most ? (*n)++ : most - 1;
    for (; at > 0 && top[at - 1].logprob < next.logprob; at--) top[at] = top[at - 1];
    top[at] = next;
}

lattice_status lattice_session_logprobs(const lattice_session *s, uint32_t id, float *logprob, lattice_logprob *top, size_t n_top,
                                        lattice_error *err)
{
    const size_t width = s->model->config.vocab_size;
    LT_TRY(check_logits(s, err));
    LT_TRY(lt_rows_fetch(s, err));
    if (id >= width || n_top > width)
        return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "token id %u or %zu alternatives are outside the vocabulary of %zu",
                       (unsigned)id, n_top, width);
    float largest = s->logits[0];
    double sum = 0;
    for (size_t i = 1; i < width; i++)
        if (s->logits[i] > largest) largest = s->logits[i];
    for (size_t i = 0; i < width; i++) sum += exp((double)s->logits[i] - (double)largest);
    const double shift = (double)largest + log(sum);
    if (logprob) *logprob = (float)((double)s->logits[id] - shift);
    if (!top || n_top == 0) return LATTICE_OK;
    size_t n = 0;
    for (size_t i = 0; i < width; i++) {
        if (n < n_top || s->logits[i] > top[n_top - 1].logprob)
            take_candidate(top, &n, n_top, (lattice_logprob){ (uint32_t)i, s->logits[i] });
    }
    for (size_t i = 0; i < n; i++) top[i].logprob = (float)((double)top[i].logprob - shift);
    return LATTICE_OK;
}
