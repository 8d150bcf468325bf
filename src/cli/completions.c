/* lattice completions (not listed): shell completions and the man page, written from the commands' own tables, so that they cannot
 * say anything else than --help does. The build runs it; `lattice completions bash` works anywhere. */
#include "cli/cli.h"

/* What a completion offers after an option. */
typedef enum value_kind { VALUE_NONE, VALUE_ANY, VALUE_CHOICES, VALUE_FILE, VALUE_FOLDER, VALUE_MODEL } value_kind;

static value_kind kind_of_value(const cli_option *o)
{
    if (o->kind == CLI_FLAG) return VALUE_NONE;
    if (o->choices) return VALUE_CHOICES;
    if (!o->value) return VALUE_ANY;
    if (strcmp(o->value, "MODEL") == 0) return VALUE_MODEL;
    if (strcmp(o->value, "FILE") == 0 || strcmp(o->value, "PATH") == 0) return VALUE_FILE;
    return strcmp(o->value, "DIR") == 0 ? VALUE_FOLDER : VALUE_ANY;
}

/* Does the command take a model as its operand, as `inspect M` does? */
static bool takes_model(const cli_command *command)
{
    return strstr(command->operands, "MODEL") != NULL;
}

/* The listed commands, one after the other. */
static const cli_command *next_command(size_t *i)
{
    size_t n;
    const cli_command *const *commands = cli_commands(&n);
    while (*i < n && commands[*i]->hidden) ++*i;
    return *i < n ? commands[(*i)++] : NULL;
}

/* "a|b|c" as "a b c". */
static void append_choices(lt_buf *out, const char *choices)
{
    for (const char *c = choices; *c; c++) lt_buf_byte(out, *c == '|' ? ' ' : *c);
}

/* Appends `text` with a backslash before every character of `special`, and single quotes as '\'' does them in a shell. */
static void append_quoted(lt_buf *out, const char *text, const char *special)
{
    for (const char *c = text; *c; c++) {
        if (*c == '\'')
            lt_buf_append_z(out, "'\\''");
        else
            lt_buf_printf(out, "%s%c", strchr(special, *c) ? "\\" : "", *c);
    }
}

static const char where_models_are[] = "${XDG_DATA_HOME:-$HOME/.local/share}/lattice/models";

/* ------------------------------------------------------------------ bash */

static void write_bash(lt_buf *out)
{
    lt_buf_printf(out,
                  "# bash completion for lattice, made by `lattice completions bash`.\n"
                  "\n"
                  "_lattice_models() {\n"
                  "    local root=\"%s\" config\n"
                  "    for config in \"$root\"/*/config.json \"$root\"/*/*/config.json; do\n"
                  "        [ -e \"$config\" ] || continue\n"
                  "        config=${config#\"$root\"/}\n"
                  "        printf '%%s\\n' \"${config%%/config.json}\"\n"
                  "    done\n"
                  "}\n"
                  "\n"
                  "_lattice() {\n"
                  "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words=\n"
                  "    # --name=value comes as three words.\n"
                  "    if [ \"$current\" = = ]; then current=\n"
                  "    elif [ \"$before\" = = ]; then before=${COMP_WORDS[COMP_CWORD - 2]}\n"
                  "    fi\n"
                  "    if [ \"$COMP_CWORD\" -eq 1 ] || { [ \"$COMP_CWORD\" -eq 2 ] && [ \"${COMP_WORDS[1]}\" = help ]; }; then\n"
                  "        COMPREPLY=($(compgen -W '",
                  where_models_are);
    for (size_t i = 0;;) {
        const cli_command *command = next_command(&i);
        if (!command) break;
        lt_buf_printf(out, "%s ", command->name);
    }
    lt_buf_append_z(out, "help' -- \"$current\"))\n"
                         "        return\n"
                         "    fi\n"
                         "    case \"${COMP_WORDS[1]} $before\" in\n");
    for (size_t i = 0;;) {
        const cli_command *command = next_command(&i);
        if (!command) break;
        for (const cli_option *o = command->options; o->name; o++) {
            value_kind kind = kind_of_value(o);
            if (kind == VALUE_NONE) continue;
            lt_buf_printf(out, "    '%s --%s'", command->name, o->name);
            if (o->letter) lt_buf_printf(out, " | '%s -%c'", command->name, o->letter);
            lt_buf_append_z(out, ") ");
            switch (kind) {
            case VALUE_CHOICES:
                lt_buf_append_z(out, "COMPREPLY=($(compgen -W '");
                append_choices(out, o->choices);
                lt_buf_append_z(out, "' -- \"$current\"))");
                break;
            case VALUE_FILE: lt_buf_append_z(out, "COMPREPLY=($(compgen -f -- \"$current\"))"); break;
            case VALUE_FOLDER: lt_buf_append_z(out, "COMPREPLY=($(compgen -d -- \"$current\"))"); break;
            case VALUE_MODEL: lt_buf_append_z(out, "COMPREPLY=($(compgen -d -W \"$(_lattice_models)\" -- \"$current\"))"); break;
            default: lt_buf_append_z(out, "COMPREPLY=()"); break;
            }
            lt_buf_append_z(out, "; return ;;\n");
        }
    }
    lt_buf_append_z(out, "    esac\n"
                         "    case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0;;) {
        const cli_command *command = next_command(&i);
        if (!command) break;
        lt_buf_printf(out, "    %s) words='", command->name);
        for (const cli_option *o = command->options; o->name; o++) lt_buf_printf(out, "--%s ", o->name);
        lt_buf_printf(out, "--help'%s ;;\n", takes_model(command) ? "; [[ $current = -* ]] || words=$(_lattice_models)" : "");
    }
    lt_buf_append_z(out, "    esac\n"
                         "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                         "    [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- \"$current\"))\n"
                         "}\n"
                         "complete -o filenames -F _lattice lattice\n");
}

/* ------------------------------------------------------------------ zsh */

static void write_zsh_action(lt_buf *out, const cli_option *o)
{
    switch (kind_of_value(o)) {
    case VALUE_NONE: return;
    case VALUE_CHOICES:
        lt_buf_printf(out, ":%s:(", o->value ? o->value : "value");
        append_choices(out, o->choices);
        lt_buf_byte(out, ')');
        return;
    case VALUE_FILE: lt_buf_printf(out, ":%s:_files", o->value); return;
    case VALUE_FOLDER: lt_buf_printf(out, ":%s:_files -/", o->value); return;
    case VALUE_MODEL: lt_buf_append_z(out, ":MODEL:_lattice_models"); return;
    default:
        lt_buf_byte(out, ':');
        append_quoted(out, o->value ? o->value : "value", ":\\");
        lt_buf_append_z(out, ": ");
        return;
    }
}

static void write_zsh(lt_buf *out)
{
    lt_buf_printf(out,
                  "#compdef lattice\n"
                  "# zsh completion for lattice, made by `lattice completions zsh`.\n"
                  "\n"
                  "_lattice_models() {\n"
                  "  local root=%s\n"
                  "  local -a models=($root/*/config.json(N) $root/*/*/config.json(N))\n"
                  "  models=(${${models#$root/}%%/config.json})\n"
                  "  compadd -a models\n"
                  "  _files -/\n"
                  "}\n"
                  "\n"
                  "_lattice() {\n"
                  "  local -a commands=(\n",
                  where_models_are);
    for (size_t i = 0;;) {
        const cli_command *command = next_command(&i);
        if (!command) break;
        lt_buf_printf(out, "    '%s:", command->name);
        append_quoted(out, command->summary, "\\");
        lt_buf_append_z(out, "'\n");
    }
    lt_buf_append_z(out, "    'help:the commands, or the options of one'\n"
                         "  )\n"
                         "  if (( CURRENT == 2 )) || [[ CURRENT -eq 3 && $words[2] = help ]]; then\n"
                         "    _describe command commands\n"
                         "    return\n"
                         "  fi\n"
                         "  local command=$words[2]\n"
                         "  shift words\n"
                         "  (( CURRENT-- ))\n"
                         "  case $command in\n");
    for (size_t i = 0;;) {
        const cli_command *command = next_command(&i);
        if (!command) break;
        lt_buf_printf(out, "  %s)\n    _arguments -s -S \\\n", command->name);
        for (const cli_option *o = command->options; o->name; o++) {
            const char *repeat = o->kind == CLI_STRINGS ? "*" : "";
            for (int letter = 0; letter <= (o->letter != 0); letter++) {
                if (letter)
                    lt_buf_printf(out, "      '%s-%c%s[", repeat, o->letter, o->kind == CLI_FLAG ? "" : "+");
                else
                    lt_buf_printf(out, "      '%s--%s%s[", repeat, o->name, o->kind == CLI_FLAG ? "" : "=");
                append_quoted(out, o->help, "[]\\");
                lt_buf_byte(out, ']');
                write_zsh_action(out, o);
                lt_buf_append_z(out, "' \\\n");
            }
        }
        lt_buf_printf(out, "      '(- *)'{-h,--help}'[print the options]' \\\n      '*:operand:%s'\n    ;;\n",
                      takes_model(command) ? "_lattice_models" : "_files");
    }
    lt_buf_append_z(out, "  esac\n}\n\n_lattice \"$@\"\n");
}

/* ------------------------------------------------------------------ fish */

static void write_fish(lt_buf *out)
{
    lt_buf_append_z(out, "# fish completion for lattice, made by `lattice completions fish`.\n"
                         "\n"
                         "function __lattice_models\n"
                         "    set -l root $HOME/.local/share/lattice/models\n"
                         "    set -q XDG_DATA_HOME; and set root $XDG_DATA_HOME/lattice/models\n"
                         "    for config in $root/*/config.json $root/*/*/config.json\n"
                         "        string replace -- $root/ '' $config | string replace -- /config.json ''\n"
                         "    end\n"
                         "    __fish_complete_directories\n"
                         "end\n"
                         "\n"
                         "complete -c lattice -n __fish_use_subcommand -f\n"
                         "complete -c lattice -n __fish_use_subcommand -a help -d 'the commands, or the options of one'\n");
    for (size_t i = 0;;) {
        const cli_command *command = next_command(&i);
        if (!command) break;
        lt_buf_printf(out, "\ncomplete -c lattice -n __fish_use_subcommand -a %s -d '", command->name);
        append_quoted(out, command->summary, "");
        lt_buf_append_z(out, "'\n");
        if (takes_model(command))
            lt_buf_printf(out, "complete -c lattice -n '__fish_seen_subcommand_from %s' -f -a '(__lattice_models)'\n",
                          command->name);
        for (const cli_option *o = command->options; o->name; o++) {
            lt_buf_printf(out, "complete -c lattice -n '__fish_seen_subcommand_from %s' -l %s", command->name, o->name);
            if (o->letter) lt_buf_printf(out, " -s %c", o->letter);
            switch (kind_of_value(o)) {
            case VALUE_NONE: break;
            case VALUE_CHOICES:
                lt_buf_append_z(out, " -x -a '");
                append_choices(out, o->choices);
                lt_buf_byte(out, '\'');
                break;
            case VALUE_FILE: lt_buf_append_z(out, " -r"); break;
            case VALUE_FOLDER: lt_buf_append_z(out, " -x -a '(__fish_complete_directories)'"); break;
            case VALUE_MODEL: lt_buf_append_z(out, " -x -a '(__lattice_models)'"); break;
            default: lt_buf_append_z(out, " -x"); break;
            }
            lt_buf_append_z(out, " -d '");
            append_quoted(out, o->help, "");
            lt_buf_append_z(out, "'\n");
        }
        lt_buf_printf(out, "complete -c lattice -n '__fish_seen_subcommand_from %s' -l help -s h -d 'print the options'\n",
                      command->name);
    }
}

/* ------------------------------------------------------------------ man page */

/* Plain text as roff shows it: backslashes and dashes kept, no line mistaken for a request. */
static void append_roff(lt_buf *out, const char *text)
{
    bool line_start = out->len == 0 || out->data[out->len - 1] == '\n';
    for (const char *c = text; *c; c++) {
        if (line_start && (*c == '.' || *c == '\'')) lt_buf_append_z(out, "\\&");
        line_start = *c == '\n';
        if (*c == '\\')
            lt_buf_append_z(out, "\\e");
        else if (*c == '-')
            lt_buf_append_z(out, "\\-");
        else if (*c == '\'')
            lt_buf_append_z(out, "\\(aq");
        else if (*c == '"')
            lt_buf_append_z(out, "\\(dq");
        else if (line_start && c != text && c[-1] == '\n') /* an empty line parts paragraphs */
            lt_buf_append_z(out, ".PP\n");
        else
            lt_buf_byte(out, *c);
    }
}

static void write_man_option(lt_buf *out, const cli_option *o)
{
    lt_buf_append_z(out, ".TP\n");
    if (o->letter) lt_buf_printf(out, "\\fB\\-%c\\fR, ", o->letter);
    lt_buf_append_z(out, "\\fB\\-\\-");
    append_roff(out, o->name);
    lt_buf_append_z(out, "\\fR");
    if (o->kind != CLI_FLAG) {
        lt_buf_append_z(out, " \\fI");
        append_roff(out, o->value ? o->value : "VALUE");
        lt_buf_append_z(out, "\\fR");
    }
    lt_buf_byte(out, '\n');
    append_roff(out, o->help);
    if (o->kind == CLI_CHOICE) {
        lt_buf_append_z(out, ": ");
        for (const char *c = o->choices; *c; c++) {
            char one[2] = { *c, '\0' };
            append_roff(out, *c == '|' ? ", " : one);
        }
    }
    if (o->kind == CLI_STRINGS) lt_buf_append_z(out, "; may be repeated");
    if (o->fallback) {
        lt_buf_append_z(out, " (default: ");
        append_roff(out, o->fallback);
        lt_buf_byte(out, ')');
    }
    lt_buf_byte(out, '\n');
}

static void write_man_command(lt_buf *out, const cli_command *command)
{
    lt_buf_printf(out, ".SS lattice %s", command->name);
    if (command->options[0].name) lt_buf_append_z(out, " [OPTIONS]");
    lt_buf_byte(out, ' ');
    append_roff(out, command->operands);
    lt_buf_byte(out, '\n');
    append_roff(out, command->description);
    lt_buf_byte(out, '\n');
    for (const cli_option *o = command->options; o->name; o++) write_man_option(out, o);
    if (command->examples) {
        lt_buf_append_z(out, ".PP\nExamples:\n.PP\n.nf\n");
        append_roff(out, command->examples);
        lt_buf_append_z(out, "\n.fi\n");
    }
}

static void write_man(lt_buf *out)
{
    lt_buf_append_z(out, ".\\\" made by `lattice completions man`\n"
                         ".TH LATTICE 1 \"\" \"lattice " LATTICE_VERSION "\" \"User commands\"\n"
                         ".SH NAME\n"
                         "lattice \\- embeddings from Hugging Face checkpoints\n"
                         ".SH SYNOPSIS\n");
    for (size_t i = 0;;) {
        const cli_command *command = next_command(&i);
        if (!command) break;
        lt_buf_printf(out, ".B lattice %s\n[\\fIOPTIONS\\fR] ", command->name);
        append_roff(out, command->operands);
        lt_buf_append_z(out, "\n.br\n");
    }
    lt_buf_append_z(
        out, ".B lattice help\n[\\fICOMMAND\\fR]\n"
             ".SH DESCRIPTION\n"
             "Results go to standard output, everything else to standard error. A progress bar appears on a terminal for work\n"
             "that takes over a second, and never elsewhere. Every command knows \\fB\\-\\-help\\fR.\n"
             ".PP\n"
             "A model is a folder in the Hugging Face layout, or the name of one in the models folder.\n"
             ".SH COMMANDS\n");
    for (size_t i = 0;;) {
        const cli_command *command = next_command(&i);
        if (!command) break;
        write_man_command(out, command);
    }
    lt_buf_append_z(
        out, ".SH EXIT STATUS\n"
             "0: done. 1: failed; one line \\(oqlattice: error: ...\\(cq on standard error says why. 2: wrong usage.\n"
             ".SH ENVIRONMENT\n"
             ".TP\n\\fBXDG_DATA_HOME\\fR\nmodels are kept in its lattice/models; without it, in ~/.local/share/lattice/models\n"
             ".TP\n\\fBHF_ENDPOINT\\fR, \\fBHF_TOKEN\\fR\nwhere \\fBlattice pull\\fR fetches from, and what it shows there\n"
             ".SH FILES\n"
             ".TP\n\\fI~/.local/share/lattice/models\\fR\nthe models folder: NAME or ORG/NAME in it serves as a model\n");
}

/* ------------------------------------------------------------------ the command */

static const struct {
    const char *name;
    void (*write)(lt_buf *out);
} forms[] = { { "bash", write_bash }, { "zsh", write_zsh }, { "fish", write_fish }, { "man", write_man } };

static int run(void *arguments, char **operands, size_t n_operands)
{
    (void)arguments, (void)n_operands;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(operands[0], forms[i].name) != 0) continue;
        lt_buf out;
        lt_buf_init(&out, cli_memory);
        forms[i].write(&out);
        int code = out.failed ? cli_failf("out of memory") : cli_print(lt_buf_str(&out)) ? CLI_DONE : CLI_FAILED;
        lt_buf_free(&out);
        return code;
    }
    return cli_usage(&cli_completions_command, "'%s' is none of bash, zsh, fish, man", operands[0]);
}

static const cli_option options[] = { { 0 } };

const cli_command cli_completions_command = {
    .name = "completions",
    .operands = "bash|zsh|fish|man",
    .summary = "shell completions and the man page",
    .description = "Prints the completions for a shell, or the man page.",
    .options = options,
    .min_operands = 1,
    .max_operands = 1,
    .run = run,
    .hidden = true,
};
