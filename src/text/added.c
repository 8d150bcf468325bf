/* Added tokens. The longest spelling at the leftmost place wins and matches do not overlap, as in Hugging Face's automaton; here
 * a table of first bytes rejects nearly every position at once, and a small trie (children as a linked list) decides the rest.
 * There are two tries: contents matched in the raw text, and contents, normalised, matched in normalised text. */
#include "text/added.h"

#define NONE UINT32_MAX
#define MAX_TOKENS 131072 /* published files have a few thousand at most */

typedef struct node {
    uint32_t child, sibling, token; /* NONE: none */
    uint8_t byte;
} node;

typedef struct matcher {
    node *nodes;
    size_t n, capacity;
    uint32_t roots[256];
    uint8_t first[4]; /* the first bytes, if there are at most four of them */
    size_t n_first;   /* 0: no token at all; 5: more than four */
} matcher;

typedef struct id_slot {
    uint32_t id, token;
} id_slot;

struct lt_added {
    const lattice_allocator *mem;
    lt_arena arena;
    lt_added_token *tokens;
    size_t n, capacity;
    id_slot *by_id; /* sorted by id */
    size_t n_ids;
    uint32_t *by_content; /* tokens sorted by content, the one in force for each */
    size_t n_contents;
    matcher matchers[2]; /* [normalized] */
    bool local;
};

lattice_status lt_added_create(const lattice_allocator *mem, lt_added **added, lattice_error *err)
{
    lt_added *a = lt_alloc_zero(mem, sizeof *a);
    if (!a) return lt_no_memory(err, sizeof *a, "added tokens");
    a->mem = mem;
    lt_arena_init(&a->arena, mem);
    for (int k = 0; k < 2; k++) memset(a->matchers[k].roots, 0xFF, sizeof a->matchers[k].roots);
    *added = a;
    return LATTICE_OK;
}

void lt_added_free(lt_added *a)
{
    if (!a) return;
    for (int k = 0; k < 2; k++) lt_free(a->mem, a->matchers[k].nodes);
    lt_free(a->mem, a->tokens);
    lt_free(a->mem, a->by_id);
    lt_free(a->mem, a->by_content);
    lt_arena_free(&a->arena);
    lt_free(a->mem, a);
}

lattice_status lt_added_add(lt_added *a, const lt_added_token *token, lattice_error *err)
{
    if (token->content.len == 0) return LATTICE_OK; /* an empty one is ignored */
    if (a->n >= MAX_TOKENS) return lt_fail(err, LATTICE_ERR_FORMAT, "too many added tokens");
    if (a->n == a->capacity && !LT_GROW(a->mem, a->tokens, a->capacity, a->n + 1)) return lt_no_memory(err, a->n, "added tokens");
    lt_added_token *t = &a->tokens[a->n];
    *t = *token;
    char *copy = lt_arena_copy(&a->arena, token->content.data, token->content.len);
    if (!copy) return lt_no_memory(err, token->content.len, "an added token");
    t->content.data = copy;
    a->n++;
    return LATTICE_OK;
}

lattice_status lt_added_read(lt_added *a, lt_json *json, lattice_error *err)
{
    if (lt_json_peek(json) == LT_JSON_NULL) return lt_json_null(json);
    LT_TRY(lt_json_begin_array(json));
    for (;;) {
        bool more;
        LT_TRY(lt_json_next_element(json, &more));
        if (!more) return LATTICE_OK;
        lt_added_token t = { .normalized = true };
        bool has_content = false, has_id = false, said_normalized = false;
        LT_TRY(lt_json_begin_object(json));
        for (lt_str key;;) {
            LT_TRY(lt_json_next_member(json, &key, &more));
            if (!more) break;
            if (lt_str_is(key, "id")) {
                LT_TRY(lt_json_uint32(json, &t.id));
                has_id = true;
            } else if (lt_str_is(key, "content")) {
                lt_str content;
                LT_TRY(lt_json_string(json, &content));
                char *copy = lt_arena_copy(&a->arena, content.data, content.len);
                if (!copy) return lt_no_memory(err, content.len, "an added token");
                t.content = (lt_str){ copy, content.len };
                has_content = true;
            } else if (lt_str_is(key, "single_word")) {
                LT_TRY(lt_json_bool(json, &t.single_word));
            } else if (lt_str_is(key, "lstrip")) {
                LT_TRY(lt_json_bool(json, &t.lstrip));
            } else if (lt_str_is(key, "rstrip")) {
                LT_TRY(lt_json_bool(json, &t.rstrip));
            } else if (lt_str_is(key, "normalized")) {
                LT_TRY(lt_json_bool(json, &t.normalized));
                said_normalized = true;
            } else if (lt_str_is(key, "special")) {
                LT_TRY(lt_json_bool(json, &t.special));
            } else {
                LT_TRY(lt_json_skip(json));
            }
        }
        if (!has_content || !has_id) return lt_json_fail(json, "an added token needs an id and a content");
        if (!said_normalized) t.normalized = !t.special;
        LT_TRY(lt_added_add(a, &t, err));
    }
}

/* ------------------------------------------------------------------ preparing */

static int compare(lt_str a, lt_str b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int order = n ? memcmp(a.data, b.data, n) : 0;
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

/* Index into by_content of the first entry not before `content`. */
static size_t lower_bound(const lt_added *a, lt_str content)
{
    size_t low = 0, high = a->n_contents;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (compare(a->tokens[a->by_content[middle]].content, content) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const lt_added_token *lt_added_by_content(const lt_added *a, lt_str content)
{
    size_t k = lower_bound(a, content);
    if (k == a->n_contents || compare(a->tokens[a->by_content[k]].content, content) != 0) return NULL;
    return &a->tokens[a->by_content[k]];
}

const lt_added_token *lt_added_by_id(const lt_added *a, uint32_t id)
{
    size_t low = 0, high = a->n_ids;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (a->by_id[middle].id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < a->n_ids && a->by_id[low].id == id ? &a->tokens[a->by_id[low].token] : NULL;
}

size_t lt_added_size(const lt_added *a)
{
    return a->n_ids ? (size_t)a->by_id[a->n_ids - 1].id + 1 : 0;
}

bool lt_added_is_local(const lt_added *a)
{
    return a->local;
}

static bool insert(lt_added *a, matcher *m, lt_str content, uint32_t token)
{
    uint32_t at = NONE;
    for (size_t i = 0; i < content.len; i++) {
        uint8_t byte = (uint8_t)content.data[i];
        uint32_t k = at == NONE ? m->roots[byte] : m->nodes[at].child;
        while (k != NONE && m->nodes[k].byte != byte) k = m->nodes[k].sibling;
        if (k == NONE) {
            if (m->n == m->capacity && !LT_GROW(a->mem, m->nodes, m->capacity, m->n + 1)) return false;
            k = (uint32_t)m->n++;
            uint32_t *head = at == NONE ? &m->roots[byte] : &m->nodes[at].child;
            m->nodes[k] = (node){ NONE, *head, NONE, byte };
            *head = k;
        }
        at = k;
    }
    if (m->nodes[at].token == NONE) m->nodes[at].token = token; /* of equal ones the first */
    return true;
}

static void find_first_bytes(matcher *m)
{
    for (size_t byte = 0; byte < 256; byte++) {
        if (m->roots[byte] == NONE) continue;
        if (m->n_first < 4) m->first[m->n_first] = (uint8_t)byte;
        m->n_first++;
    }
    if (m->n_first > 5) m->n_first = 5;
}

/* Number of tokens of the model, which is what Hugging Face counts new ids from. */
static size_t count_tokens(const lt_subword *model)
{
    size_t n = 0;
    for (size_t id = 0; id < lt_subword_size(model); id++) n += lt_subword_token(model, (uint32_t)id).data != NULL;
    return n;
}

/* Ids in the order of the file; of several tokens with one content the last is in force. */
static lattice_status number(lt_added *a, const lt_subword *model, lattice_error *err)
{
    a->by_content = lt_alloc_array(a->mem, a->n + 1, sizeof *a->by_content);
    a->by_id = lt_alloc_array(a->mem, a->n + 1, sizeof *a->by_id);
    if (!a->by_content || !a->by_id) return lt_no_memory(err, a->n, "added tokens");
    size_t size = SIZE_MAX; /* counted when it is first needed */
    uint32_t largest = 0;
    bool any = false;
    for (uint32_t i = 0; i < a->n; i++) {
        lt_added_token *t = &a->tokens[i];
        size_t k = lower_bound(a, t->content);
        bool again = k < a->n_contents && compare(a->tokens[a->by_content[k]].content, t->content) == 0;
        if (again) {
            t->id = a->tokens[a->by_content[k]].id;
        } else {
            if (!lt_subword_find(model, t->content, &t->id)) {
                if (size == SIZE_MAX) size = count_tokens(model);
                if (size >= UINT32_MAX || largest == UINT32_MAX) return lt_fail(err, LATTICE_ERR_FORMAT, "too many tokens");
                t->id = any && largest >= size ? largest + 1 : (uint32_t)size;
            }
            memmove(a->by_content + k + 1, a->by_content + k, (a->n_contents - k) * sizeof *a->by_content);
            a->n_contents++;
        }
        a->by_content[k] = i;
        if (!any || t->id > largest) largest = t->id;
        any = true;
        /* by_id is kept sorted, too; two contents can share an id only if the vocabulary says so, and then the last counts */
        size_t j = a->n_ids;
        while (j > 0 && a->by_id[j - 1].id > t->id) j--;
        if (j > 0 && a->by_id[j - 1].id == t->id) {
            a->by_id[j - 1].token = i;
        } else {
            memmove(a->by_id + j + 1, a->by_id + j, (a->n_ids - j) * sizeof *a->by_id);
            a->by_id[j] = (id_slot){ t->id, i };
            a->n_ids++;
        }
    }
    return LATTICE_OK;
}

/* Whether a token with this content could reach over a cut before a space, or see what is behind it. U+2581 stands for a space
 * once normalised. */
static bool sees_cuts(const lt_added_token *t, lt_str content)
{
    uint32_t c = 0;
    for (size_t i = 0, size; i < content.len; i += size) {
        c = lt_utf8_at((const uint8_t *)content.data, i, &size);
        if (c == 0x2581 || (lt_unicode(c) & LT_U_WHITE)) return true;
    }
    return t->rstrip && c < 0x80; /* it takes the spaces behind it */
}

lattice_status lt_added_prepare(lt_added *a, const lt_subword *model, const lt_normalizer *normalizer,
                                lt_normalizer_scratch *scratch, lattice_error *err)
{
    LT_TRY(number(a, model, err));
    a->local = true;
    /* Special ones come first, then the others; a content that is special somewhere is special alone. */
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < a->n; i++) {
            const lt_added_token *t = &a->tokens[i];
            if (t->special != (pass == 0)) continue;
            if (pass == 1 && lt_added_by_content(a, t->content)->special) continue;
            lt_str content = t->content;
            if (t->normalized) {
                lt_view view = { (const uint8_t *)content.data, content.len, NULL, 0 };
                LT_TRY(lt_normalize(normalizer, scratch, &view, false, err));
                content = (lt_str){ (const char *)view.data, view.n };
                if (content.len == 0) continue;
            }
            if (sees_cuts(t, t->content) || sees_cuts(t, content)) a->local = false;
            /* the entry in force decides on stripping and single words */
            uint32_t force = a->by_content[lower_bound(a, t->content)];
            if (!insert(a, &a->matchers[t->normalized], content, force)) return lt_no_memory(err, content.len, "added tokens");
        }
    }
    for (int k = 0; k < 2; k++) find_first_bytes(&a->matchers[k]);
    return LATTICE_OK;
}

/* ------------------------------------------------------------------ matching */

lt_added_matches lt_added_begin(const lt_added *a, bool normalized, bool literal, const uint8_t *text, size_t n)
{
    return (lt_added_matches){ a, text, n, 0, 0, normalized, literal };
}

/* The first offset from i on whose byte begins some token, n if there is none. */
static size_t candidate(const matcher *m, const uint8_t *s, size_t i, size_t n)
{
    if (m->n_first == 0) return n;
    if (m->n_first == 1) {
        const uint8_t *hit = i < n ? memchr(s + i, m->first[0], n - i) : NULL;
        return hit ? (size_t)(hit - s) : n;
    }
    while (i < n && m->roots[s[i]] == NONE) i++;
    return i;
}

/* The longest token at s[i]; *end is behind it. */
static uint32_t longest(const matcher *m, const uint8_t *s, size_t i, size_t n, size_t *end)
{
    uint32_t found = NONE;
    for (uint32_t k = m->roots[s[i]]; k != NONE;) {
        while (k != NONE && m->nodes[k].byte != s[i]) k = m->nodes[k].sibling;
        if (k == NONE) break;
        i++;
        if (m->nodes[k].token != NONE) {
            found = m->nodes[k].token;
            *end = i;
        }
        if (i == n) break;
        k = m->nodes[k].child;
    }
    return found;
}

static uint32_t flags_before(const uint8_t *s, size_t i)
{
    size_t size;
    return lt_unicode(lt_utf8_at(s, lt_utf8_before(s, i), &size));
}

static uint32_t flags_at(const uint8_t *s, size_t i)
{
    size_t size;
    return lt_unicode(lt_utf8_at(s, i, &size));
}

const lt_added_token *lt_added_next(lt_added_matches *m, size_t *before, size_t *start, size_t *end)
{
    const lt_added *a = m->added;
    const matcher *finder = &a->matchers[m->normalized];
    const uint8_t *s = m->text;
    *before = m->done;
    while (m->at < m->n) {
        size_t i = candidate(finder, s, m->at, m->n), stop = 0;
        if (i == m->n) break;
        uint32_t token = longest(finder, s, i, m->n, &stop);
        if (token == NONE) {
            m->at = i + 1;
            continue;
        }
        m->at = stop;
        const lt_added_token *t = &a->tokens[token];
        if (m->literal && t->special) continue;
        if (t->single_word && ((i > 0 && (flags_before(s, i) & LT_U_WORD)) || (stop < m->n && (flags_at(s, stop) & LT_U_WORD))))
            continue;
        if (t->lstrip) {
            while (i > 0 && (flags_before(s, i) & LT_U_WHITE)) i = lt_utf8_before(s, i);
            if (i < m->done) i = m->done;
        }
        if (t->rstrip) {
            for (size_t size; stop < m->n && (flags_at(s, stop) & LT_U_WHITE); stop += size) lt_utf8_at(s, stop, &size);
        }
        *start = i;
        *end = m->done = stop;
        return t;
    }
    m->at = m->n;
    return NULL;
}
