/* Options that say how text is generated, for `generate` and `chat`. What is not given is as the checkpoint says. */
#ifndef CLI_SAMPLING_H
#define CLI_SAMPLING_H

#include "cli/cli.h"

typedef struct cli_sampling {
    size_t max_tokens;
    const char *temperature, *top_k, *top_p, *min_p, *repeat_penalty, *presence_penalty, *frequency_penalty, *seed;
    cli_strings stop;
} cli_sampling;

/* Rows for a command's table; `type` is its argument structure, which has a `cli_sampling sampling`. */
// clang-format off
#define CLI_OPTION_SAMPLING(type, name, field, value, help) \
    { name, 0, CLI_STRING, offsetof(type, sampling.field), value, NULL, NULL, 0, 0, help }
#define CLI_OPTIONS_SAMPLING(type) \
    { "max-tokens", 'n', CLI_SIZE, offsetof(type, sampling.max_tokens), "N", NULL, NULL, 1, 0, \
      "new tokens at most (default: until the model's context is full)" }, \
    CLI_OPTION_SAMPLING(type, "temperature", temperature, "T", \
      "divide logits by T; 0: always the most likely token (default: the checkpoint's)"), \
    CLI_OPTION_SAMPLING(type, "top-k", top_k, "K", "keep the K most likely tokens; 0: all (default: the checkpoint's)"), \
    CLI_OPTION_SAMPLING(type, "top-p", top_p, "P", \
      "keep the most likely tokens that together reach P (default: the checkpoint's)"), \
    CLI_OPTION_SAMPLING(type, "min-p", min_p, "P", \
      "keep tokens at least P times as likely as the first (default: the checkpoint's)"), \
    CLI_OPTION_SAMPLING(type, "repeat-penalty", repeat_penalty, "X", \
      "divide logits of tokens seen by X (default: the checkpoint's)"), \
    CLI_OPTION_SAMPLING(type, "presence-penalty", presence_penalty, "X", \
      "take X from logits of tokens generated (default: 0)"), \
    CLI_OPTION_SAMPLING(type, "frequency-penalty", frequency_penalty, "X", \
      "take X for each time they were generated (default: 0)"), \
    CLI_OPTION_SAMPLING(type, "seed", seed, "N", "the same seed gives the same text (default: another one each time)"), \
    { "stop", 0, CLI_STRINGS, offsetof(type, sampling.stop), "TEXT", NULL, NULL, 0, 0, "end before this text" }
// clang-format on

/* Are all values numbers? Prints its error and returns an exit status. */
int cli_check_sampling(const cli_command *command, const cli_sampling *sampling);
/* The options of a generation, from a checked cli_sampling. `stop` has room for sampling->stop.n texts. */
lattice_generate_options cli_generate_options(const cli_sampling *sampling, const lattice_model *model, lattice_text *stop);

#endif
