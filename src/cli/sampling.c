/* Options that say how text is generated. See sampling.h. */
#include "cli/sampling.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

static bool read_number(const char *text, double *value)
{
    char *end;
    errno = 0;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value);
}

static bool read_whole(const char *text, unsigned long long *value)
{
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
}

int cli_check_sampling(const cli_command *command, const cli_sampling *s)
{
    const struct {
        const char *name, *text;
        double min, max; /* open at neither end */
    } numbers[] = {
        { "temperature", s->temperature, 0, 1e6 },
        { "top-p", s->top_p, 1e-9, 1 },
        { "min-p", s->min_p, 0, 1 },
        { "repeat-penalty", s->repeat_penalty, 1e-6, 1e6 },
        { "presence-penalty", s->presence_penalty, -1e6, 1e6 },
        { "frequency-penalty", s->frequency_penalty, -1e6, 1e6 },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double value;
        if (numbers[i].text && (!read_number(numbers[i].text, &value) || value < numbers[i].min || value > numbers[i].max))
            return cli_usage(command, "--%s must be a number from %g to %g, not '%s'", numbers[i].name, numbers[i].min,
                             numbers[i].max, numbers[i].text);
    }
    unsigned long long whole;
    if (s->top_k && (!read_whole(s->top_k, &whole) || whole > SIZE_MAX))
        return cli_usage(command, "--top-k must be a whole number, not '%s'", s->top_k);
    if (s->seed && !read_whole(s->seed, &whole)) return cli_usage(command, "--seed must be a whole number, not '%s'", s->seed);
    for (size_t i = 0; i < s->stop.n; i++)
        if (s->stop.items[i][0] == '\0') return cli_usage(command, "--stop must not be empty");
    return CLI_DONE;
}

static void take_number(const char *text, double *value)
{
    if (text) *value = strtod(text, NULL);
}

lattice_generate_options cli_generate_options(const cli_sampling *s, const lattice_model *model, lattice_text *stop)
{
    lattice_generate_options options = lattice_generate_options_default(model);
    lattice_sampling *o = &options.sampling;
    take_number(s->temperature, &o->temperature);
    take_number(s->top_p, &o->top_p);
    take_number(s->min_p, &o->min_p);
    take_number(s->repeat_penalty, &o->repetition_penalty);
    take_number(s->presence_penalty, &o->presence_penalty);
    take_number(s->frequency_penalty, &o->frequency_penalty);
    if (s->top_k) o->top_k = (size_t)strtoull(s->top_k, NULL, 10);
    struct timespec now = { 0 };
    clock_gettime(CLOCK_REALTIME, &now);
    o->seed = s->seed ? strtoull(s->seed, NULL, 10) : (uint64_t)now.tv_sec * 1000000007u + (uint64_t)now.tv_nsec;
    options.max_tokens = s->max_tokens;
    for (size_t i = 0; i < s->stop.n; i++) stop[i] = (lattice_text){ s->stop.items[i], strlen(s->stop.items[i]) };
    options.stop = stop;
    options.n_stop = s->stop.n;
    return options;
}
