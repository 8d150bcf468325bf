/* A Hugging Face endpoint: the list of a repository's files, and the files, over HTTP.
 *
 * Two paths of it are spoken: GET {endpoint}/api/models/{repo}/revision/{revision}?blobs=true and
 * GET {endpoint}/{repo}/resolve/{revision}/{file}. Everything that a server sends is hostile until checked. */
#ifndef CLI_HUB_H
#define CLI_HUB_H

#include "base/bytes.h"
#include "base/sha256.h"

typedef struct hub_file {
    const char *name; /* as the server spells it: may be anything but hold a NUL */
    uint64_t size;
    bool has_size;
    bool has_sha256; /* of large files; small ones are checked by size alone */
    uint8_t sha256[LT_SHA256_SIZE];
} hub_file;

typedef struct hub_listing {
    lt_arena arena;
    const char *commit; /* hexadecimal, "" when the server does not say */
    hub_file *files;
    size_t n, capacity;
} hub_listing;

typedef struct hub_client hub_client;

/* `endpoint` is an http or https URL; `token` (NULL or "": none) goes to that origin only, never to where it redirects. */
lattice_status hub_open(const char *endpoint, const char *token, hub_client **out, lattice_error *err);
void hub_close(hub_client *hub);

/* `repo` is ORG/NAME. The listing is released by hub_listing_free, after a failure too. */
lattice_status hub_list(hub_client *hub, const char *repo, const char *revision, hub_listing *listing, lattice_error *err);
void hub_listing_free(hub_listing *listing);
const hub_file *hub_find(const hub_listing *listing, lt_str name); /* NULL: not listed */

/* Fetches `file` to `path`, whose folder exists. A file that is there and is right is left; PATH.part, left by an earlier
 * attempt, is gone on with. A transfer that breaks is taken up again some times. Size and sha256 are checked, the file is synced
 * and renamed into place. `progress` (may be NULL) hears the bytes of this file done so far. */
lattice_status hub_fetch(hub_client *hub, const char *repo, const char *revision, const hub_listing *listing,
                         const hub_file *file, const char *path, void (*progress)(void *user, uint64_t done), void *user,
                         lattice_error *err);

#endif
