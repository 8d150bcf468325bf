/* What requests have in common: texts, lists of texts, ids, read from a body without copying where that can be.
 *
 * A string without escapes is a slice of the body, any other is copied into the arena; the body outlives both. */
#ifndef LT_SERVER_INPUTS_H
#define LT_SERVER_INPUTS_H

#include "format/json.h"

typedef struct lt_inputs {
    lt_arena arena;
    lattice_text *texts;
    size_t n, capacity; /* texts, or lists of ids */
    bool by_ids;
    bool single;   /* one text or one list of ids, not a list */
    uint32_t *ids; /* all lists, one after the other */
    size_t n_ids, ids_capacity;
    size_t *ends; /* [n] of each list in ids */
    size_t ends_capacity;
} lt_inputs;

void lt_inputs_init(lt_inputs *inputs, const lattice_allocator *mem);
void lt_inputs_free(lt_inputs *inputs);

/* A string that lives as long as the inputs. */
lattice_status lt_read_string(lt_json *json, lt_inputs *inputs, lt_str *out);
/* The same with a NUL behind it, for names; a NUL inside is an error. null: *out stays. */
lattice_status lt_read_name(lt_json *json, lt_inputs *inputs, const char **out);
/* Appends one text. */
lattice_status lt_read_text(lt_json *json, lt_inputs *inputs);
/* A text or a list of texts; with `ids`, a list of ids or a list of such lists as well. */
lattice_status lt_read_inputs(lt_json *json, lt_inputs *inputs, bool ids);
/* Like the typed readers of json.h, but null leaves *out as it is. */
lattice_status lt_read_bool(lt_json *json, bool *out);
lattice_status lt_read_size(lt_json *json, size_t *out);
lattice_status lt_read_double(lt_json *json, double *out);
/* An object: `member` reads the value of each of its members. */
typedef lattice_status lt_read_member_fn(lt_json *json, void *request, lt_str key);
lattice_status lt_read_members(lt_json *json, lt_read_member_fn *member, void *request);
/* At least 1; null leaves *out. */
lattice_status lt_read_dimensions(lt_json *json, size_t *out);

#endif
