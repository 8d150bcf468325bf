/* Reading model.safetensors.index.json. Shards are numbered in the order of their names, so that two checkpoints with the same
 * files number them alike whatever the order of the map. */
#include "format/index.h"

#include "base/file.h"
#include "format/json.h"
#include "format/safetensors.h"

static lattice_status read_weight_map(lt_json *json, lt_index *index, lattice_error *err)
{
    LT_TRY(lt_json_begin_object(json));
    for (lt_str key, value;;) {
        bool more;
        LT_TRY(lt_json_next_member(json, &key, &more));
        if (!more) return LATTICE_OK;
        if (!LT_GROW(index->mem, index->entries, index->capacity, index->n + 1))
            return lt_no_memory(err, (index->n + 1) * sizeof *index->entries, "the index of shards");
        lt_index_entry *entry = &index->entries[index->n];
        *entry = (lt_index_entry){ .tensor = { lt_arena_copy(&index->arena, key.data, key.len), key.len } };
        if (!entry->tensor.data) return lt_no_memory(err, key.len, "a tensor's name");
        LT_TRY(lt_json_string(json, &value));
        if (!lt_path_is_plain_name(value))
            return lt_fail(err, LATTICE_ERR_FORMAT, "%s: tensor '%.*s' is said to be in '%.*s', which is not a plain file name",
                           json->name, LT_STR_ARG(entry->tensor), LT_STR_ARG(value));
        /* Neighbours mostly share a shard: one copy of the name serves a run of them. */
        if (index->n > 0 && lt_str_eq(entry[-1].file, value))
            entry->file = entry[-1].file;
        else
            entry->file = (lt_str){ lt_arena_copy(&index->arena, value.data, value.len), value.len };
        if (!entry->file.data) return lt_no_memory(err, value.len, "a shard's name");
        index->n++;
    }
}

static int by_file(const void *a, const void *b)
{
    return lt_name_compare(((const lt_index_entry *)a)->file, ((const lt_index_entry *)b)->file);
}

static lattice_status number_files(lt_index *index, lattice_error *err)
{
    lt_index_entry **order = lt_alloc_array(index->mem, index->n + 1, sizeof *order);
    index->files = lt_alloc_array(index->mem, index->n + 1, sizeof *index->files);
    if (!order || !index->files) {
        lt_free(index->mem, order);
        return lt_no_memory(err, (index->n + 1) * sizeof *order, "the list of shards");
    }
    for (size_t i = 0; i < index->n; i++) order[i] = &index->entries[i];
    lt_sort_pointers((const void **)order, index->n, by_file);
    for (size_t i = 0; i < index->n; i++) {
        if (index->n_files == 0 || !lt_str_eq(index->files[index->n_files - 1], order[i]->file))
            index->files[index->n_files++] = order[i]->file;
        order[i]->shard = (uint32_t)(index->n_files - 1);
    }
    lt_free(index->mem, order);
    return LATTICE_OK;
}

lattice_status lt_index_parse(const lattice_allocator *mem, const char *name, const void *text, size_t size, lt_index *index,
                              lattice_error *err)
{
    *index = (lt_index){ .mem = mem };
    lt_arena_init(&index->arena, mem);
    lattice_status status;
    bool found = false;
    lt_json json;
    lt_json_open(&json, mem, name, text, size, err);
    LT_GO(lt_json_begin_object(&json));
    for (lt_str key;;) {
        bool more;
        LT_GO(lt_json_next_member(&json, &key, &more));
        if (!more) break;
        if (lt_str_is(key, "weight_map")) {
            LT_GO(read_weight_map(&json, index, err));
            found = true;
        } else {
            LT_GO(lt_json_skip(&json));
        }
    }
    LT_GO(lt_json_end(&json));
    if (!found || index->n == 0) {
        status = lt_fail(err, LATTICE_ERR_FORMAT, "%s: %s", name, found ? "weight_map is empty" : "no weight_map");
        goto done;
    }
    if (index->n > UINT32_MAX) {
        status = lt_fail(err, LATTICE_ERR_FORMAT, "%s: too many tensors", name);
        goto done;
    }
    LT_GO(number_files(index, err));
done:
    lt_json_close(&json);
    return status;
}

void lt_index_free(lt_index *index)
{
    if (!index->mem) return;
    lt_free(index->mem, index->entries);
    lt_free(index->mem, index->files);
    lt_arena_free(&index->arena);
    *index = (lt_index){ 0 };
}
