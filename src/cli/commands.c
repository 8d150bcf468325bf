/* The table of commands. */
#include <string.h>

#include "cli/cli.h"

static const cli_command *const commands[] = {
    &cli_embed_command,
    &cli_rerank_command,
    &cli_generate_command,
    &cli_chat_command,
    &cli_logits_command,
    &cli_perplexity_command,
    &cli_tokenize_command,
    &cli_inspect_command,
    &cli_quantize_command,
#ifdef LATTICE_SERVER
    &cli_serve_command,
#endif
#ifdef LATTICE_PULL
    &cli_pull_command,
#endif
    &cli_cache_command,
    &cli_bench_command,
    &cli_version_command,
    &cli_completions_command,
};

const cli_command *const *cli_commands(size_t *n)
{
    *n = sizeof commands / sizeof commands[0];
    return commands;
}

const cli_command *cli_find_command(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}
