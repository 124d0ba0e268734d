#include "engine/usage.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAGIC       "RGPROF01"
#define MAGIC_BYTES 8u
#define BYTES_MAX   ((size_t)64 << 20)

rg_code rg_profile_init(rg_profile *out, const uint8_t identity[RG_IDENTITY_BYTES],
                        uint32_t n_group, const uint32_t *n_item, rg_status *st) {
    *out = (rg_profile){.n_group = n_group};
    memcpy(out->identity, identity, RG_IDENTITY_BYTES);
    out->n_item = rg_alloc(n_group, sizeof *out->n_item, st);
    if (!out->n_item) return RG_NOMEM;
    for (uint32_t g = 0; g < n_group; g++) {
        out->n_item[g] = n_item[g];
        out->n_total += n_item[g]; /* checked by the callers: at most RG_STREAM_ITEMS_MAX */
    }
    out->uses = rg_alloc(out->n_total, sizeof *out->uses, st);
    if (out->uses) return RG_OK;
    rg_profile_deinit(out);
    return RG_NOMEM;
}

void rg_profile_deinit(rg_profile *p) {
    rg_free(p->n_item);
    rg_free(p->uses);
    *p = (rg_profile){0};
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Sizes of the groups, without their uses. */
static rg_code get_sizes(rg_cursor c, uint32_t n_group, uint32_t *n_item, const char *name,
                         rg_status *st) {
    uint64_t total = 0;
    for (uint32_t g = 0; g < n_group; g++) {
        const uint8_t *skip = NULL;
        RG_TRY(rg_cursor_u32(&c, &n_item[g], "experts of a layer", st));
        total += n_item[g];
        if (total > RG_STREAM_ITEMS_MAX) {
            return rg_fail(st, RG_FORMAT, "%s: %llu experts up to layer %u, the limit is %u", name,
                           (unsigned long long)total, g, RG_STREAM_ITEMS_MAX);
        }
        RG_TRY(rg_cursor_bytes(&c, &skip, (uint64_t)n_item[g] * 4, "uses of a layer", st));
    }
    if (rg_cursor_remaining(&c) == 0) return RG_OK;
    return rg_fail(st, RG_FORMAT, "%s: %zu bytes behind layer %u, the last", name,
                   rg_cursor_remaining(&c), n_group - 1);
}

static rg_code get_uses(rg_profile *p, rg_cursor *c, rg_status *st) {
    uint32_t item = 0;
    for (uint32_t g = 0; g < p->n_group; g++) {
        uint32_t n;
        RG_TRY(rg_cursor_u32(c, &n, "experts of a layer", st));
        for (uint32_t i = 0; i < n; i++)
            RG_TRY(rg_cursor_u32(c, &p->uses[item++], "uses of an expert", st));
    }
    return RG_OK;
}

rg_code rg_profile_parse(rg_profile *out, const void *data, size_t size, const char *name,
                         rg_status *st) {
    *out = (rg_profile){0};
    rg_cursor c = {.data = data, .size = size};
    const uint8_t *magic = NULL, *identity = NULL;
    uint32_t n_group;
    RG_TRY(rg_cursor_bytes(&c, &magic, MAGIC_BYTES, "magic of a profile", st));
    if (memcmp(magic, MAGIC, MAGIC_BYTES) != 0) {
        return rg_fail(st, RG_FORMAT, "%s is no profile: it begins with %02x%02x%02x%02x, not %s",
                       name, magic[0], magic[1], magic[2], magic[3], MAGIC);
    }
    RG_TRY(rg_cursor_bytes(&c, &identity, RG_IDENTITY_BYTES, "identity of a profile", st));
    RG_TRY(rg_cursor_u32(&c, &n_group, "layers of a profile", st));
    if (n_group == 0 || n_group > RG_STREAM_GROUPS_MAX) {
        return rg_fail(st, RG_FORMAT, "%s: %u layers, 1 to %u can be", name, n_group,
                       RG_STREAM_GROUPS_MAX);
    }
    uint32_t n_item[RG_STREAM_GROUPS_MAX] = {0};
    RG_TRY(get_sizes(c, n_group, n_item, name, st));
    RG_TRY(rg_profile_init(out, identity, n_group, n_item, st));
    const rg_code rc = get_uses(out, &c, st);
    if (rc != RG_OK) rg_profile_deinit(out);
    return rc;
}

rg_code rg_profile_read(rg_profile *out, const char *path, rg_status *st) {
    *out = (rg_profile){0};
    char *data = NULL;
    size_t size = 0;
    RG_TRY(rg_file_slurp(&data, &size, path, BYTES_MAX, st));
    const rg_code rc = rg_profile_parse(out, data, size, path, st);
    rg_free(data);
    return rc;
}

/* ---- writing -------------------------------------------------------------------------------- */

static rg_code put_u32(rg_buf *b, uint32_t x, rg_status *st) {
    const uint8_t raw[4] = {(uint8_t)x, (uint8_t)(x >> 8), (uint8_t)(x >> 16), (uint8_t)(x >> 24)};
    return rg_buf_append(b, raw, sizeof raw, st);
}

static rg_code put_all(rg_buf *b, const rg_profile *p, rg_status *st) {
    uint32_t item = 0;
    RG_TRY(rg_buf_append(b, MAGIC, MAGIC_BYTES, st));
    RG_TRY(rg_buf_append(b, p->identity, RG_IDENTITY_BYTES, st));
    RG_TRY(put_u32(b, p->n_group, st));
    for (uint32_t g = 0; g < p->n_group; g++) {
        RG_TRY(put_u32(b, p->n_item[g], st));
        for (uint32_t i = 0; i < p->n_item[g]; i++)
            RG_TRY(put_u32(b, p->uses[item++], st));
    }
    return RG_OK;
}

rg_code rg_profile_write(const rg_profile *p, const char *path, rg_status *st) {
    rg_buf b;
    rg_buf_init(&b, 0);
    rg_code rc = put_all(&b, p, st);
    FILE *file = rc == RG_OK ? fopen(path, "wbe") : NULL;
    if (rc == RG_OK && !file) rc = rg_fail_errno(st, RG_IO, errno, "cannot write %s", path);
    if (rc == RG_OK && fwrite(b.data, 1, b.len, file) != b.len) {
        rc = rg_fail_errno(st, RG_IO, errno, "writing %s", path);
    }
    if (file && fclose(file) != 0 && rc == RG_OK) {
        rc = rg_fail_errno(st, RG_IO, errno, "writing %s", path);
    }
    rg_buf_deinit(&b);
    return rc;
}

/* ---- ranking -------------------------------------------------------------------------------- */

static bool ranks_above(const rg_profile *p, uint32_t a, uint32_t b) {
    if (p->uses[a] != p->uses[b]) return p->uses[a] > p->uses[b];
    return a < b;
}

/* Heap with the last of the ranking at the root. */
static void sift_down(const rg_profile *p, uint32_t *x, uint32_t n, uint32_t i) {
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= n) return;
        if (c + 1 < n && ranks_above(p, x[c], x[c + 1])) c++;
        if (!ranks_above(p, x[i], x[c])) return;
        const uint32_t swap = x[i];
        x[i] = x[c];
        x[c] = swap;
        i = c;
    }
}

uint32_t rg_profile_rank(const rg_profile *p, uint32_t first, uint32_t n, uint32_t *items) {
    RG_ASSERT(first + n <= p->n_total);
    uint32_t count = 0;
    for (uint32_t i = first; i < first + n; i++)
        if (p->uses[i]) items[count++] = i;
    for (uint32_t i = count / 2; i-- > 0;)
        sift_down(p, items, count, i);
    for (uint32_t left = count; left > 1; left--) {
        const uint32_t last = items[0];
        items[0] = items[left - 1];
        items[left - 1] = last;
        sift_down(p, items, left - 1, 0);
    }
    return count;
}
