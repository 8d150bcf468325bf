/* The original's flat file of vectors. See cache_flat.h. */
#include "engine/cache_flat.h"

#include <math.h>
#include <string.h>

static uint32_t u32_le(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static float float_at(const uint8_t *p)
{
    uint32_t bits = u32_le(p);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint64_t lt_flat_hash(const void *ids, size_t n)
{
    const char *bytes = ids;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) {
        uint32_t id;
        memcpy(&id, bytes + i * sizeof id, sizeof id);
        for (int b = 0; b < 4; b++) hash = (hash ^ ((id >> (8 * b)) & 0xff)) * 0x100000001b3u;
    }
    return hash;
}

lattice_status lt_flat_check(const char *name, const uint8_t *data, size_t size, uint64_t *n, lattice_error *err)
{
    *n = 0;
    for (size_t at = 0; at < size; ++*n) {
        if (size - at < LT_FLAT_HEADER)
            return lt_fail(err, LATTICE_ERR_FORMAT, "%s: an entry's head is cut short at byte %zu", name, at);
        size_t dim = u32_le(data + at + 8);
        if (dim < 1 || dim > LT_FLAT_MAX_DIM)
            return lt_fail(err, LATTICE_ERR_FORMAT, "%s: %zu dimensions at byte %zu are not in 1 to %d", name, dim, at + 8,
                           LT_FLAT_MAX_DIM);
        at += LT_FLAT_HEADER;
        if ((size - at) / 4 < dim)
            return lt_fail(err, LATTICE_ERR_FORMAT, "%s: a vector of %zu values is cut short at byte %zu", name, dim, at);
        for (size_t i = 0; i < dim; i++)
            if (!isfinite(float_at(data + at + i * 4)))
                return lt_fail(err, LATTICE_ERR_FORMAT, "%s: the value at byte %zu is not finite", name, at + i * 4);
        at += dim * 4;
    }
    return LATTICE_OK;
}

bool lt_flat_next(void *reader, uint64_t *hash, const void **vector, uint32_t *dim)
{
    lt_flat_reader *r = reader;
    if (r->at == r->size) return false;
    const uint8_t *p = r->data + r->at;
    *hash = u32_le(p) | (uint64_t)u32_le(p + 4) << 32;
    *dim = u32_le(p + 8);
    *vector = p + LT_FLAT_HEADER;
    r->at += LT_FLAT_HEADER + (size_t)*dim * 4;
    return true;
}

void lt_flat_append(lt_buf *out, uint64_t hash, const void *vector, uint32_t dim)
{
    uint8_t head[LT_FLAT_HEADER];
    for (int i = 0; i < 8; i++) head[i] = (uint8_t)(hash >> (8 * i));
    for (int i = 0; i < 4; i++) head[8 + i] = (uint8_t)(dim >> (8 * i));
    lt_buf_append(out, head, sizeof head);
    lt_buf_append(out, vector, (size_t)dim * 4); /* as they lie in memory: little-endian machines are all that this runs on */
}
