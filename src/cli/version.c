/* lattice version: version, build, instruction sets found and chosen, devices and why one is not used. */
#include <stdio.h>

#include "cli/cli.h"
#include "format/json.h"

typedef struct version_arguments {
    cli_common common;
} version_arguments;

static const cli_option options[] = {
    CLI_OPTIONS_JSON(version_arguments, "print one JSON object"),
    { 0 },
};

/* lattice_describe_system's object as lines for people. */
static lattice_status print_table(lt_str json, lt_buf *out, lattice_error *err)
{
    lt_json j;
    lt_json_open(&j, cli_memory, "version", json.data, json.len, err);
    lattice_status status = LATTICE_OK;
    LT_GO(lt_json_begin_object(&j));
    for (;;) {
        lt_str key, text;
        bool more;
        LT_GO(lt_json_next_member(&j, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "version")) {
            LT_GO(lt_json_string(&j, &text));
            lt_buf_printf(out, "lattice %.*s\n", LT_STR_ARG(text));
        } else if (lt_str_is(key, "build")) {
            LT_GO(lt_json_string(&j, &text));
            lt_buf_printf(out, "build               %.*s\n", LT_STR_ARG(text));
        } else if (lt_str_is(key, "isa")) {
            lt_buf_append_z(out, "instruction sets   ");
            LT_GO(lt_json_begin_array(&j));
            for (;;) {
                LT_GO(lt_json_next_element(&j, &more));
                if (!more) break;
                LT_GO(lt_json_string(&j, &text));
                lt_buf_printf(out, " %.*s", LT_STR_ARG(text));
            }
            lt_buf_byte(out, '\n');
        } else if (lt_str_is(key, "isa_chosen")) {
            LT_GO(lt_json_string(&j, &text));
            lt_buf_printf(out, "chosen              %.*s\n", LT_STR_ARG(text));
        } else if (lt_str_is(key, "devices")) {
            LT_GO(lt_json_begin_array(&j));
            for (;;) {
                LT_GO(lt_json_next_element(&j, &more));
                if (!more) break;
                char name[200] = "", reason[200] = "";
                bool used = false;
                LT_GO(lt_json_begin_object(&j));
                for (;;) {
                    LT_GO(lt_json_next_member(&j, &key, &more));
                    if (!more) break;
                    if (lt_str_is(key, "used")) {
                        LT_GO(lt_json_bool(&j, &used));
                    } else {
                        bool is_name = lt_str_is(key, "name");
                        LT_GO(lt_json_string(&j, &text));
                        snprintf(is_name ? name : reason, sizeof name, "%.*s", LT_STR_ARG(text));
                    }
                }
                lt_buf_printf(out, "device              %s: %s%s%s\n", name, used ? "used" : "not used", reason[0] ? ", " : "",
                              reason);
            }
        } else {
            LT_GO(lt_json_skip(&j));
        }
    }
done:
    lt_json_close(&j);
    return status;
}

static int run(void *opaque, char **operands, size_t n_operands)
{
    (void)operands;
    (void)n_operands;
    version_arguments *arguments = opaque;
    char system[4096];
    size_t length;
    lattice_error err = { 0 };
    lattice_status status = lattice_describe_system(system, sizeof system, &length);
    if (status != LATTICE_OK || length >= sizeof system) return cli_failf("%s", lattice_status_text(status));
    lt_buf out;
    lt_buf_init(&out, cli_memory);
    if (arguments->common.json)
        lt_buf_printf(&out, "%s\n", system);
    else
        status = print_table((lt_str){ system, length }, &out, &err);
    int code = CLI_DONE;
    if (status != LATTICE_OK)
        code = cli_fail(&err);
    else if (out.failed)
        code = cli_failf("out of memory");
    else if (!cli_print(lt_buf_str(&out)))
        code = CLI_FAILED;
    lt_buf_free(&out);
    return code;
}

const cli_command cli_version_command = {
    .name = "version",
    .operands = "",
    .summary = "version, build, instruction sets and devices found",
    .description = "Prints version and build, the instruction sets that this machine has and the one\n"
                   "that is chosen, and the devices found, with the reason why one is not used.",
    .options = options,
    .arguments_size = sizeof(version_arguments),
    .run = run,
};
