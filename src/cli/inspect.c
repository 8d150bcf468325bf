/* lattice inspect: what a checkpoint is and what it will take. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "format/json.h"

typedef struct inspect_arguments {
    cli_common common;
    bool tensors, plan, check;
} inspect_arguments;

#define AT(field) offsetof(inspect_arguments, field)
// clang-format off
static const cli_option options[] = {
    { "model",   'm', CLI_STRING, AT(common.model), "MODEL", NULL, NULL, 0, 0, "the model, instead of the argument" },
    { "tensors", 0,   CLI_FLAG,   AT(tensors),      NULL, NULL, NULL, 0, 0, "list the tensors" },
    { "plan",    0,   CLI_FLAG,   AT(plan),         NULL, NULL, NULL, 0, 0, "list the recorded operations" },
    { "check",   0,   CLI_FLAG,   AT(check),        NULL, NULL, NULL, 0, 0, "read every weight: one that is not finite, or a wrong checksum, is an error" },
    CLI_OPTIONS_RUN(inspect_arguments),
    CLI_OPTIONS_JSON(inspect_arguments, "print one JSON object"),
    CLI_OPTIONS_LOG(inspect_arguments),
    { 0 },
};
// clang-format on
#undef AT

/* ------------------------------------------------------------------ the object as a table */

enum { KEY_WIDTH = 20 };

static void append_bytes(lt_buf *out, uint64_t bytes)
{
    if (bytes < 10000)
        lt_buf_printf(out, "%llu bytes", (unsigned long long)bytes);
    else if (bytes < 10000000000u)
        lt_buf_printf(out, "%.1f MB", (double)bytes / 1e6);
    else
        lt_buf_printf(out, "%.1f GB", (double)bytes / 1e9);
}

static lattice_status append_value(lt_json *j, lt_buf *out, const char *key, int indent);

/* Control characters and line ends of prompts are shown as JSON shows them. */
static lattice_status append_scalar(lt_json *j, lt_buf *out, const char *key)
{
    lt_str text;
    bool flag;
    switch (lt_json_peek(j)) {
    case LT_JSON_STRING: {
        bool quoted = strcmp(key, "prompts") == 0;
        LT_TRY(lt_json_string(j, &text));
        if (quoted) {
            lt_json_writer w = lt_json_writer_on(out);
            lt_json_write_str(&w, text);
        } else {
            lt_buf_append(out, text.data, text.len);
        }
        return LATTICE_OK;
    }
    case LT_JSON_BOOL:
        LT_TRY(lt_json_bool(j, &flag));
        lt_buf_append_z(out, flag ? "yes" : "no");
        return LATTICE_OK;
    case LT_JSON_NULL: lt_buf_append_z(out, "none"); return lt_json_null(j);
    default: {
        size_t value;
        LT_TRY(lt_json_size(j, &value));
        if (lt_str_ends(lt_str_of(key), "bytes"))
            append_bytes(out, value);
        else if (strcmp(key, "parameters") == 0)
            lt_buf_printf(out, "%zu (%.1f million)", value, (double)value / 1e6);
        else
            lt_buf_printf(out, "%zu", value);
        return LATTICE_OK;
    }
    }
}

/* An array of objects or strings: one a line; of numbers: joined. */
static lattice_status append_array(lt_json *j, lt_buf *out, const char *key, int indent)
{
    size_t n = 0;
    bool lines = strcmp(key, "tensors") == 0 || strcmp(key, "plan") == 0;
    LT_TRY(lt_json_begin_array(j));
    for (;; n++) {
        bool more;
        LT_TRY(lt_json_next_element(j, &more));
        if (!more) break;
        if (lines)
            lt_buf_printf(out, "\n%*s", indent, "");
        else if (n)
            lt_buf_append_z(out, ", ");
        LT_TRY(append_value(j, out, "", -1));
    }
    if (n == 0) lt_buf_append_z(out, "none");
    return LATTICE_OK;
}

/* indent < 0: all on one line. */
static lattice_status append_object(lt_json *j, lt_buf *out, const char *parent, int indent)
{
    size_t n = 0;
    LT_TRY(lt_json_begin_object(j));
    for (;; n++) {
        lt_str name;
        bool more;
        LT_TRY(lt_json_next_member(j, &name, &more));
        if (!more) break;
        char key[128];
        snprintf(key, sizeof key, "%.*s", LT_STR_ARG(name));
        char shown[128];
        snprintf(shown, sizeof shown, "%s", key);
        size_t length = strlen(shown);
        if (length > 6 && strcmp(shown + length - 6, "_bytes") == 0) shown[length - 6] = 0;
        for (char *c = shown; *c; c++)
            if (*c == '_') *c = ' ';
        if (indent >= 0) {
            lt_buf_printf(out, "%s%*s%-*s", n || indent ? "\n" : "", indent, "", KEY_WIDTH - (indent ? 2 : 0), shown);
        } else if (strcmp(key, "name") != 0) {
            lt_buf_printf(out, "%s%s ", n ? "  " : "", shown);
        }
        /* The prompts' names are the user's words: only their values are quoted. */
        LT_TRY(append_value(j, out, strcmp(parent, "prompts") == 0 ? parent : key, indent));
    }
    if (n == 0) lt_buf_append_z(out, "none");
    return LATTICE_OK;
}

static lattice_status append_value(lt_json *j, lt_buf *out, const char *key, int indent)
{
    switch (lt_json_peek(j)) {
    case LT_JSON_OBJECT: return append_object(j, out, key, indent < 0 ? indent : indent + 2);
    case LT_JSON_ARRAY: return append_array(j, out, key, 2);
    default: return append_scalar(j, out, key);
    }
}

static lattice_status append_table(lt_str json, lt_buf *out, lattice_error *err)
{
    lt_json j;
    lt_json_open(&j, cli_memory, "description", json.data, json.len, err);
    lattice_status status = append_object(&j, out, "", 0);
    lt_json_close(&j);
    lt_buf_byte(out, '\n');
    return status;
}

/* ------------------------------------------------------------------ the command */

static lattice_status describe(const inspect_arguments *arguments, const lattice_model *model, lt_buf *out, lattice_error *err)
{
    size_t length;
    LT_TRY(lattice_model_describe(model, arguments->tensors, arguments->plan, NULL, 0, &length, err));
    char *json = lt_alloc(cli_memory, length + 1);
    if (!json) return lt_no_memory(err, length, "a description");
    lattice_status status = lattice_model_describe(model, arguments->tensors, arguments->plan, json, length + 1, &length, err);
    if (status == LATTICE_OK && arguments->common.json)
        lt_buf_printf(out, "%s\n", json);
    else if (status == LATTICE_OK)
        status = append_table((lt_str){ json, length }, out, err);
    lt_free(cli_memory, json);
    return status;
}

static lattice_status inspect(const inspect_arguments *arguments, lattice_runtime *runtime, const char *folder, lt_buf *out,
                              lattice_error *err)
{
    lattice_model_options model_options = cli_model_options(&arguments->common);
    model_options.tokenizer_optional = true;
    lattice_model *model;
    LT_TRY(lattice_model_open(runtime, folder, &model_options, &model, err));
    lattice_status status = describe(arguments, model, out, err);
    if (status == LATTICE_OK && arguments->check) {
        status = lattice_model_check(model, err);
        if (status == LATTICE_OK && !arguments->common.json)
            lt_buf_printf(out, "%-*severy value is finite\n", KEY_WIDTH, "check");
    }
    lattice_model_close(model);
    return status;
}

static int run(void *opaque, char **operands, size_t n_operands)
{
    inspect_arguments *arguments = opaque;
    const char *name = n_operands ? operands[0] : arguments->common.model;
    if (!name) return cli_usage(&cli_inspect_command, "no model given");
    if (n_operands && arguments->common.model) return cli_usage(&cli_inspect_command, "the model is given twice");
    lattice_runtime *runtime = NULL;
    lattice_error err = { 0 };
    lt_buf folder, out;
    lt_buf_init(&folder, cli_memory);
    lt_buf_init(&out, cli_memory);
    lattice_status status = cli_find_model(name, &folder, &err);
    if (status == LATTICE_OK) status = cli_runtime(&arguments->common, &runtime, &err);
    if (status == LATTICE_OK) status = inspect(arguments, runtime, folder.data, &out, &err);
    if (status == LATTICE_OK && out.failed) status = lt_no_memory(&err, out.len, "output");
    /* What was found out is printed even when the check then fails. */
    int code = out.len && !out.failed && !cli_print(lt_buf_str(&out)) ? CLI_FAILED : CLI_DONE;
    if (status != LATTICE_OK) code = cli_fail(&err);
    lattice_runtime_free(runtime);
    lt_buf_free(&folder);
    lt_buf_free(&out);
    return code;
}

const cli_command cli_inspect_command = {
    .name = "inspect",
    .operands = "MODEL",
    .summary = "what a checkpoint is and what it will take",
    .description = "Prints a model's family, sizes, tensor types, the memory it will take, tokenizer,\n"
                   "pooling, prompts, and whether a GPU admits its shape.",
    .examples = "  lattice inspect all-minilm-l6-v2\n"
                "  lattice inspect ./model --check --json",
    .options = options,
    .arguments_size = sizeof(inspect_arguments),
    .max_operands = 1,
    .run = run,
};
