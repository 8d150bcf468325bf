/* lattice: the program. Finds the command, parses its options, runs it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static void append_overview(lt_buf *out)
{
    lt_buf_append_z(out, "lattice " LATTICE_VERSION ": embeddings from Hugging Face checkpoints.\n\n"
                         "Usage: lattice COMMAND [OPTIONS] …\n\nCommands:\n");
    size_t n;
    const cli_command *const *commands = cli_commands(&n);
    for (size_t i = 0; i < n; i++)
        if (!commands[i]->hidden) lt_buf_printf(out, "  %-12s%s\n", commands[i]->name, commands[i]->summary);
    lt_buf_append_z(out, "  help        this list, or the options of one command\n\n"
                         "lattice COMMAND --help prints a command's options with their defaults.\n");
}

static int print_and_free(lt_buf *out)
{
    bool printed = out->failed ? (cli_failf("out of memory"), false) : cli_print(lt_buf_str(out));
    lt_buf_free(out);
    return printed ? CLI_DONE : CLI_FAILED;
}

static int help(const cli_command *command)
{
    lt_buf out;
    lt_buf_init(&out, cli_memory);
    if (command)
        cli_options_help(command, &out);
    else
        append_overview(&out);
    return print_and_free(&out);
}

static int unknown_command(const char *name)
{
    size_t n;
    const cli_command *const *commands = cli_commands(&n);
    const char *names[64];
    size_t n_names = 0;
    for (size_t i = 0; i < n && n_names < 63; i++)
        if (!commands[i]->hidden) names[n_names++] = commands[i]->name;
    names[n_names++] = "help";
    const char *nearest = cli_nearest(name, names, n_names);
    if (nearest) return cli_usage(NULL, "unknown command '%s'; did you mean '%s'?", name, nearest);
    return cli_usage(NULL, "unknown command '%s'", name);
}

static int run(const cli_command *command, int argc, char **argv)
{
    void *arguments = lt_alloc_zero(cli_memory, command->arguments_size ? command->arguments_size : 1);
    if (!arguments) return cli_failf("out of memory");
    size_t n_operands;
    bool wants_help;
    int code = cli_options_parse(command, argc, argv, arguments, &n_operands, &wants_help);
    if (wants_help)
        code = help(command);
    else if (code == 0)
        code = command->run(arguments, argv, n_operands);
    cli_options_free(command, arguments);
    lt_free(cli_memory, arguments);
    return code;
}

int main(int argc, char **argv)
{
    if (argc < 2) return cli_usage(NULL, "no command given");
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0) name = "version";
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        if (argc == 2) return help(NULL);
        const cli_command *command = cli_find_command(argv[2]);
        return command ? help(command) : unknown_command(argv[2]);
    }
    const cli_command *command = cli_find_command(name);
    return command ? run(command, argc - 2, argv + 2) : unknown_command(name);
}
