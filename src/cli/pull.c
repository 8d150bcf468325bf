/* lattice pull: a repository of a Hugging Face endpoint, as far as inference needs it, into the models folder.
 *
 * Files gather in FOLDER.partial, which is locked meanwhile and kept after an interruption, and the whole folder is renamed into
 * place at the end: FOLDER is complete or not there. A record beside the files says which commit they are of. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/hub.h"
#include "cli/progress.h"
#include "format/json.h"

#define RECORD "lattice-pull.json"
#define INDEX "model.safetensors.index.json"

typedef struct pull_arguments {
    cli_common common;
    const char *revision, *endpoint, *to;
} pull_arguments;

typedef struct pull {
    hub_client *hub;
    const char *repo, *revision;
    lt_buf target, staging, path; /* folders; the file at hand */
    hub_listing listing;
    bool *wanted; /* [listing.n] */
    size_t n_wanted;
    uint64_t total, done; /* bytes */
    int lock;             /* the staging folder */
} pull;

/* ------------------------------------------------------------------ which files */

/* Besides weights: what opening a model, its tokenizer, its chat and its poolings reads. */
static const char *const plain_files[] = {
    "config.json",
    "generation_config.json",
    "inference_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    INDEX,
};

/* "1_Pooling/config.json": the folder of a Sentence-Transformers module is a number, an underscore and a word. */
static bool is_module_file(const char *name)
{
    const char *c = name;
    while (*c >= '0' && *c <= '9') c++;
    if (c == name || *c++ != '_') return false;
    const char *word = c;
    while ((*c >= 'A' && *c <= 'Z') || (*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') || *c == '_') c++;
    if (c == word || *c++ != '/') return false;
    return strcmp(c, "config.json") == 0 || strcmp(c, "model.safetensors") == 0;
}

static void want(pull *p, const hub_file *file)
{
    size_t i = (size_t)(file - p->listing.files);
    if (p->wanted[i]) return;
    p->wanted[i] = true;
    p->n_wanted++;
    p->total += file->size;
}

/* Only names from our own list, or of the module pattern, are ever used as paths: whatever else a server lists is not fetched. */
static lattice_status choose_small_files(pull *p, lattice_error *err)
{
    p->wanted = lt_alloc_zero(cli_memory, p->listing.n + 1);
    if (!p->wanted) return lt_no_memory(err, p->listing.n, "the list of files");
    for (size_t i = 0; i < sizeof plain_files / sizeof *plain_files; i++) {
        const hub_file *file = hub_find(&p->listing, lt_str_of(plain_files[i]));
        if (file) want(p, file);
    }
    for (size_t i = 0; i < p->listing.n; i++)
        if (is_module_file(p->listing.files[i].name)) want(p, &p->listing.files[i]);

    if (!hub_find(&p->listing, LT_STR("config.json")))
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED, "%s: there is no config.json: not a model in the Hugging Face layout",
                       p->repo);
    if (!hub_find(&p->listing, LT_STR(INDEX)) && !hub_find(&p->listing, LT_STR("model.safetensors")))
        return lt_fail(err, LATTICE_ERR_UNSUPPORTED,
                       "%s: there is neither model.safetensors nor " INDEX "; other weight files are not read", p->repo);
    return LATTICE_OK;
}

static lattice_status choose_shard(pull *p, lt_str name, lattice_error *err)
{
    if (!lt_path_is_plain_name(name) || name.data[0] == '.' || !lt_str_ends(name, ".safetensors"))
        return lt_fail(err, LATTICE_ERR_FORMAT, "%s/" INDEX ": '%.*s' is not the name of a shard", p->repo, LT_STR_ARG(name));
    const hub_file *file = hub_find(&p->listing, name);
    if (!file)
        return lt_fail(err, LATTICE_ERR_NOT_FOUND, "%s/" INDEX ": names '%.*s', which the repository has not", p->repo,
                       LT_STR_ARG(name));
    want(p, file);
    return LATTICE_OK;
}

static lattice_status read_index(pull *p, lt_json *j, lattice_error *err)
{
    bool found = false;
    LT_TRY(lt_json_begin_object(j));
    for (lt_str key;;) {
        bool more;
        LT_TRY(lt_json_next_member(j, &key, &more));
        if (!more) break;
        if (!lt_str_is(key, "weight_map")) {
            LT_TRY(lt_json_skip(j));
            continue;
        }
        found = true;
        LT_TRY(lt_json_begin_object(j));
        for (;;) {
            LT_TRY(lt_json_next_member(j, &key, &more));
            if (!more) break;
            lt_str shard;
            LT_TRY(lt_json_string(j, &shard));
            LT_TRY(choose_shard(p, shard, err));
        }
    }
    return found ? lt_json_end(j) : lt_json_fail(j, "no 'weight_map'");
}

/* The shards that the index names, which has been fetched; else the single file. */
static lattice_status choose_weights(pull *p, lattice_error *err)
{
    if (!hub_find(&p->listing, LT_STR(INDEX))) {
        want(p, hub_find(&p->listing, LT_STR("model.safetensors")));
        return LATTICE_OK;
    }
    if (!lt_path_join(&p->path, p->staging.data, INDEX)) return lt_no_memory(err, p->staging.len, "a path");
    lt_file file;
    LT_TRY(lt_file_open(cli_memory, p->path.data, false, &file, err));
    lt_json json;
    lt_json_open(&json, cli_memory, INDEX, file.data, file.size, err);
    lattice_status status = read_index(p, &json, err);
    lt_json_close(&json);
    lt_file_close(&file);
    return status;
}

/* ------------------------------------------------------------------ the record */

/* The commit that FOLDER/lattice-pull.json speaks of; false when there is no such record of this repository. */
static bool read_record(pull *p, const char *folder, lt_buf *commit)
{
    lt_file file;
    lt_buf_clear(commit);
    if (!lt_path_join(&p->path, folder, RECORD) || lt_file_open(cli_memory, p->path.data, false, &file, NULL) != LATTICE_OK)
        return false;
    lt_json j;
    lt_json_open(&j, cli_memory, RECORD, file.data, file.size, NULL);
    bool ours = false, more = lt_json_begin_object(&j) == LATTICE_OK;
    for (lt_str key, value; more && lt_json_next_member(&j, &key, &more) == LATTICE_OK && more;) {
        bool is_repo = lt_str_is(key, "repository"), is_commit = lt_str_is(key, "commit");
        if (!is_repo && !is_commit) {
            more = lt_json_skip(&j) == LATTICE_OK;
        } else if (lt_json_string(&j, &value) != LATTICE_OK) {
            more = false;
        } else if (is_repo) {
            ours = lt_str_is(value, p->repo);
        } else {
            lt_buf_append(commit, value.data, value.len);
        }
    }
    lt_json_close(&j);
    lt_file_close(&file);
    return ours && !commit->failed;
}

static bool is_commit(const pull *p, const lt_buf *commit)
{
    return commit->len == strlen(p->listing.commit) &&
           memcmp(p->listing.commit, commit->data ? commit->data : "", commit->len) == 0;
}

static lattice_status write_record(pull *p, lattice_error *err)
{
    lt_buf text;
    lt_buf_init(&text, cli_memory);
    lt_json_writer w = lt_json_writer_on(&text);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "repository");
    lt_json_write_z(&w, p->repo);
    lt_json_write_key(&w, "revision");
    lt_json_write_z(&w, p->revision);
    lt_json_write_key(&w, "commit");
    lt_json_write_z(&w, p->listing.commit);
    lt_json_write_end(&w, '}');
    lt_buf_byte(&text, '\n');

    lattice_status status = LATTICE_OK;
    lt_replace file;
    if (text.failed || !lt_path_join(&p->path, p->staging.data, RECORD)) {
        status = lt_no_memory(err, text.len, RECORD);
    } else {
        status = lt_replace_begin(cli_memory, p->path.data, &file, err);
        if (status == LATTICE_OK) {
            status = lt_replace_write(&file, text.data, text.len, err);
            if (status == LATTICE_OK)
                status = lt_replace_commit(&file, err);
            else
                lt_replace_abort(&file);
        }
    }
    lt_buf_free(&text);
    return status;
}

/* ------------------------------------------------------------------ folders */

static bool is_empty_folder(const char *path)
{
    DIR *folder = opendir(path);
    if (!folder) return false;
    bool empty = true;
    for (struct dirent *entry; empty && (entry = readdir(folder));)
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    closedir(folder);
    return empty;
}

/* *done: the commit is there already. A folder that this command did not make, or of another commit, is not touched. */
static lattice_status look_at_target(pull *p, bool *done, lattice_error *err)
{
    *done = false;
    if (!lt_path_exists(p->target.data) || is_empty_folder(p->target.data)) return LATTICE_OK;
    if (!lt_path_is_folder(p->target.data)) return lt_fail(err, LATTICE_ERR_IO, "%s: is not a folder", p->target.data);
    lt_buf commit;
    lt_buf_init(&commit, cli_memory);
    lattice_status status = LATTICE_OK;
    if (!read_record(p, p->target.data, &commit))
        status = lt_fail(err, LATTICE_ERR_IO,
                         "%s: there is something else already; move it away, or name another folder with --to", p->target.data);
    else if (is_commit(p, &commit))
        *done = true;
    else
        status = lt_fail(err, LATTICE_ERR_IO,
                         "%s: holds commit %.*s, not %s; move it away to fetch that one, or name another folder with --to",
                         p->target.data, LT_STR_ARG(lt_buf_str(&commit)), p->listing.commit);
    lt_buf_free(&commit);
    return status;
}

/* Opens and locks the staging folder. What an earlier attempt at another commit left there is kept only where a sha256 will tell
 * whether it is right. */
static lattice_status open_staging(pull *p, lattice_error *err)
{
    LT_TRY(lt_make_folders(p->staging.data, err));
    p->lock = open(p->staging.data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->lock < 0) return lt_fail(err, LATTICE_ERR_IO, "%s: cannot open: %s", p->staging.data, strerror(errno));
    if (flock(p->lock, LOCK_EX | LOCK_NB) != 0)
        return lt_fail(err, LATTICE_ERR_IO, "%s: another pull is at work on it", p->staging.data);

    lt_buf commit;
    lt_buf_init(&commit, cli_memory);
    bool same = read_record(p, p->staging.data, &commit) && is_commit(p, &commit) && commit.len > 0;
    lt_buf_free(&commit);
    if (!same) {
        for (size_t i = 0; i < p->listing.n; i++) {
            const hub_file *file = &p->listing.files[i];
            if (file->has_sha256 || !p->wanted[i]) continue;
            if (!lt_path_join(&p->path, p->staging.data, file->name)) return lt_no_memory(err, p->staging.len, "a path");
            unlink(p->path.data);
            lt_buf_append_z(&p->path, ".part");
            if (p->path.failed) return lt_no_memory(err, p->path.len, "a path");
            unlink(p->path.data);
        }
    }
    return write_record(p, err);
}

/* Removes what an attempt at another commit has left: shards that are no longer named. */
static void sweep_staging(pull *p)
{
    DIR *folder = opendir(p->staging.data);
    if (!folder) return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        const hub_file *file = hub_find(&p->listing, lt_str_of(entry->d_name));
        bool wanted = file && p->wanted[file - p->listing.files];
        if (!wanted && strcmp(entry->d_name, RECORD) != 0 && lt_path_join(&p->path, p->staging.data, entry->d_name))
            unlink(p->path.data); /* fails for the modules' folders, which stay */
    }
    closedir(folder);
}

static lattice_status sync_folder(const char *path, lattice_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool synced = fd >= 0 && fsync(fd) == 0;
    int error = errno;
    if (fd >= 0) close(fd);
    return synced ? LATTICE_OK : lt_fail(err, LATTICE_ERR_IO, "%s: cannot sync: %s", path, strerror(error));
}

/* FOLDER/.. as a path of its own; "." for a plain name. */
static lattice_status sync_parent(pull *p, lattice_error *err)
{
    lt_buf_clear(&p->path);
    lt_buf_append(&p->path, p->target.data, p->target.len);
    if (p->path.failed) return lt_no_memory(err, p->target.len, "a path");
    char *slash = strrchr(p->path.data, '/');
    if (slash && slash != p->path.data) *slash = '\0';
    return sync_folder(!slash ? "." : slash == p->path.data ? "/" : p->path.data, err);
}

/* ------------------------------------------------------------------ fetching */

static void on_progress(void *user, uint64_t done)
{
    const pull *p = user;
    cli_progress_update(p->done + done);
}

/* Fetches the wanted files among [0, n) that are, or are not, weights. */
static lattice_status fetch_wanted(pull *p, bool weights, lattice_error *err)
{
    for (size_t i = 0; i < p->listing.n; i++) {
        const hub_file *file = &p->listing.files[i];
        if (!p->wanted[i] || lt_str_ends(lt_str_of(file->name), ".safetensors") != weights) continue;
        if (!lt_path_join(&p->path, p->staging.data, file->name)) return lt_no_memory(err, p->staging.len, "a path");
        char *slash = strchr(p->path.data + p->staging.len + 1, '/');
        if (slash) {
            *slash = '\0';
            LT_TRY(lt_make_folders(p->path.data, err));
            *slash = '/';
        }
        lattice_status status = hub_fetch(p->hub, p->repo, p->revision, &p->listing, file, p->path.data, on_progress, p, err);
        if (status != LATTICE_OK) return status;
        p->done += file->size;
        if (slash) {
            *slash = '\0';
            LT_TRY(sync_folder(p->path.data, err));
        }
    }
    return LATTICE_OK;
}

static lattice_status pull_into_target(pull *p, bool *fetched, lattice_error *err)
{
    bool done;
    LT_TRY(hub_list(p->hub, p->repo, p->revision, &p->listing, err));
    LT_TRY(choose_small_files(p, err));
    LT_TRY(look_at_target(p, &done, err));
    if (done) return LATTICE_OK;
    LT_TRY(open_staging(p, err));

    char label[80];
    snprintf(label, sizeof label, "%s", p->repo);
    cli_progress_begin(label, NULL, 0);
    lattice_status status = fetch_wanted(p, false, err);
    cli_progress_end();
    LT_TRY(status);
    LT_TRY(choose_weights(p, err));
    cli_progress_begin(label, NULL, p->total);
    status = fetch_wanted(p, true, err);
    cli_progress_end();
    LT_TRY(status);

    sweep_staging(p);
    LT_TRY(sync_folder(p->staging.data, err));
    if (rename(p->staging.data, p->target.data) != 0)
        return lt_fail(err, LATTICE_ERR_IO, "%s: cannot rename to %s: %s", p->staging.data, p->target.data, strerror(errno));
    *fetched = true;
    return sync_parent(p, err);
}

/* ------------------------------------------------------------------ the command */

/* ORG/NAME of letters, digits, '-', '_' and '.', neither part beginning with '.' or '-': also a safe path. */
static bool is_repository(const char *repo)
{
    size_t slashes = 0;
    for (const char *c = repo; *c; c++) {
        bool plain = (*c >= 'A' && *c <= 'Z') || (*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') || *c == '_';
        bool first = c == repo || c[-1] == '/';
        if (*c == '/' && !first && c[1])
            slashes++;
        else if (!plain && (first || (*c != '.' && *c != '-')))
            return false;
    }
    return slashes == 1;
}

static void print_result(const pull *p, bool json, lt_buf *out)
{
    if (!json) {
        lt_buf_printf(out, "%s\n", p->target.data);
        return;
    }
    lt_json_writer w = lt_json_writer_on(out);
    lt_json_write_begin(&w, '{');
    lt_json_write_key(&w, "folder");
    lt_json_write_z(&w, p->target.data);
    lt_json_write_key(&w, "repository");
    lt_json_write_z(&w, p->repo);
    lt_json_write_key(&w, "revision");
    lt_json_write_z(&w, p->revision);
    lt_json_write_key(&w, "commit");
    lt_json_write_z(&w, p->listing.commit);
    lt_json_write_end(&w, '}');
    lt_buf_byte(out, '\n');
}

static lattice_status find_folders(pull *p, const char *to, lattice_error *err)
{
    if (to) {
        lt_buf_append_z(&p->target, to);
    } else {
        LT_TRY(cli_models_folder(&p->target, err));
        lt_buf_printf(&p->target, "/%s", p->repo);
    }
    while (!p->target.failed && p->target.len > 1 && p->target.data[p->target.len - 1] == '/')
        p->target.data[--p->target.len] = '\0';
    lt_buf_printf(&p->staging, "%s.partial", p->target.data ? p->target.data : "");
    return p->target.failed || p->staging.failed ? lt_no_memory(err, p->target.len, "a path") : LATTICE_OK;
}

static int run(void *arguments, char **operands, size_t n_operands)
{
    const pull_arguments *a = arguments;
    (void)n_operands;
    if (!is_repository(operands[0])) return cli_usage(&cli_pull_command, "'%s' is not ORG/NAME", operands[0]);
    if (a->to && !*a->to) return cli_usage(&cli_pull_command, "--to needs a folder");
    const char *endpoint = a->endpoint ? a->endpoint : getenv("HF_ENDPOINT");
    if (!endpoint || !*endpoint) endpoint = "https://huggingface.co";
    cli_catch_interrupts();

    lattice_error err = { 0 };
    pull p = { .repo = operands[0], .revision = a->revision, .lock = -1 };
    lt_buf_init(&p.target, cli_memory);
    lt_buf_init(&p.staging, cli_memory);
    lt_buf_init(&p.path, cli_memory);
    lt_buf out;
    lt_buf_init(&out, cli_memory);
    lt_arena_init(&p.listing.arena, cli_memory);

    bool fetched = false;
    lattice_status status;
    LT_GO(find_folders(&p, a->to, &err));
    LT_GO(hub_open(endpoint, getenv("HF_TOKEN"), &p.hub, &err));
    LT_GO(pull_into_target(&p, &fetched, &err));
    print_result(&p, a->common.json, &out);
    if (fetched) cli_note("%zu files, %.1f MB", p.n_wanted, (double)p.done / 1e6);

done:;
    int code = status != LATTICE_OK          ? cli_fail(&err)
               : out.failed                  ? cli_failf("out of memory")
               : cli_print(lt_buf_str(&out)) ? CLI_DONE
                                             : CLI_FAILED;
    if (p.lock >= 0) close(p.lock);
    hub_close(p.hub);
    hub_listing_free(&p.listing);
    lt_free(cli_memory, p.wanted);
    lt_buf_free(&p.target);
    lt_buf_free(&p.staging);
    lt_buf_free(&p.path);
    lt_buf_free(&out);
    return code;
}

// clang-format off
static const cli_option options[] = {
    { "revision", 0, CLI_STRING, offsetof(pull_arguments, revision), "REVISION", NULL, "main", 0, 0,
      "a branch, a tag or a commit" },
    { "endpoint", 0, CLI_STRING, offsetof(pull_arguments, endpoint), "URL", NULL, NULL, 0, 0,
      "where to fetch from (default: HF_ENDPOINT, else https://huggingface.co)" },
    { "to", 0, CLI_STRING, offsetof(pull_arguments, to), "DIR", NULL, NULL, 0, 0,
      "the folder to make (default: ORG/NAME in the models folder, where -m ORG/NAME finds it)" },
    CLI_OPTIONS_JSON(pull_arguments, "print folder, repository, revision and commit as one JSON object"),
    { 0 },
};
// clang-format on

const cli_command cli_pull_command = {
    .name = "pull",
    .operands = "ORG/NAME",
    .summary = "fetch a model from a Hugging Face repository",
    .description = "Fetches what inference needs of a repository: weights in safetensors (one file or\n"
                   "shards), configuration, tokenizer, Sentence-Transformers modules. Sizes and sha256\n"
                   "are checked; the folder appears when it is complete. An interrupted pull goes on\n"
                   "where it was when the same command is given again. Prints the folder.\n"
                   "\n"
                   "HF_TOKEN, if set, is sent to the endpoint, and never to where it redirects.",
    .examples = "  lattice pull sentence-transformers/all-MiniLM-L6-v2\n"
                "  lattice embed -m sentence-transformers/all-MiniLM-L6-v2 'Hello, world'",
    .options = options,
    .arguments_size = sizeof(pull_arguments),
    .min_operands = 1,
    .max_operands = 1,
    .run = run,
};
