/* Reading packs: the header, checked like any foreign file, and whether it belongs to a model. */
#include "model/pack.h"

#include <string.h>
#include <xxhash.h>

#include "model/gguf_parts.h"
#include "model/pack_parts.h"

typedef unsigned long long ull;

_Static_assert(RG_PACK_HEAD + RG_LAYERS_MAX * RG_PACK_RECORD + RG_PACK_ITEMS_MAX * 8u <
                   RG_PACK_HEADER_MAX,
               "the largest table fits the largest header");

/* ---- object --------------------------------------------------------------------------------- */

rg_code rg_pack_alloc(rg_pack **out, uint32_t n_group, uint32_t n_item, rg_status *st) {
    *out = NULL;
    RG_ASSERT(n_group > 0 && n_group <= RG_LAYERS_MAX);
    RG_ASSERT(n_item > 0 && n_item <= RG_PACK_ITEMS_MAX);
    rg_pack *p = rg_alloc(1, sizeof *p, st);
    if (!p) return RG_NOMEM;
    p->n_group = n_group;
    p->n_item = n_item;
    p->groups = rg_alloc(n_group, sizeof *p->groups, st);
    p->sums = rg_alloc(n_item, sizeof *p->sums, st);
    if (!p->groups || !p->sums) {
        rg_pack_close(p);
        return RG_NOMEM;
    }
    *out = p;
    return RG_OK;
}

void rg_pack_close(rg_pack *p) {
    if (!p) return;
    rg_free(p->path);
    rg_free(p->groups);
    rg_free(p->sums);
    rg_free(p);
}

const char *rg_pack_path(const rg_pack *p) {
    return p->path ? p->path : "";
}
uint32_t rg_pack_group_count(const rg_pack *p) {
    return p->n_group;
}
const rg_pack_group *rg_pack_group_at(const rg_pack *p, uint32_t group) {
    RG_ASSERT(group < p->n_group);
    return &p->groups[group];
}
uint32_t rg_pack_item_count(const rg_pack *p) {
    return p->n_item;
}
uint64_t rg_pack_file_bytes(const rg_pack *p) {
    return p->file_bytes;
}
size_t rg_pack_header_bytes(const rg_pack *p) {
    return (size_t)p->header_bytes;
}

/* ---- header --------------------------------------------------------------------------------- */

uint64_t rg_pack_header_sum(const uint8_t *header, size_t len) {
    RG_ASSERT(len >= RG_PACK_HEAD);
    /* The field lies at the end of the head: the hash of the rest is seeded with that of the front,
     * which needs no state. */
    const uint64_t front = XXH3_64bits(header, RG_PACK_AT_SUM);
    return XXH3_64bits_withSeed(header + RG_PACK_HEAD, len - RG_PACK_HEAD, front);
}

typedef struct head {
    uint32_t version, n_group;
    uint64_t header_bytes, file_bytes, n_item, sum;
    rg_hash128 identity;
} head;

/* The first RG_PACK_HEAD bytes. */
static rg_code take_head(rg_cursor *c, head *h, rg_status *st) {
    const uint8_t *magic = NULL;
    RG_TRY(rg_cursor_bytes(c, &magic, RG_PACK_MAGIC_BYTES, "magic", st));
    if (memcmp(magic, RG_PACK_MAGIC_BEGUN, RG_PACK_MAGIC_BYTES) == 0) {
        return rg_fail(st, RG_FORMAT, "an expert pack that was not finished; make it again");
    }
    if (memcmp(magic, RG_PACK_MAGIC, RG_PACK_MAGIC_BYTES) != 0) {
        return rg_fail(st, RG_FORMAT, "no expert pack: it begins with %02x %02x %02x %02x",
                       magic[0], magic[1], magic[2], magic[3]);
    }
    RG_TRY(rg_cursor_u32(c, &h->version, "version", st));
    if (h->version != RG_PACK_VERSION) {
        return rg_fail(st, RG_UNSUPPORTED, "pack version %u, this program knows %u", h->version,
                       RG_PACK_VERSION);
    }
    RG_TRY(rg_cursor_u32(c, &h->n_group, "number of groups", st));
    RG_TRY(rg_cursor_u64(c, &h->header_bytes, "size of the header", st));
    RG_TRY(rg_cursor_u64(c, &h->file_bytes, "size of the file", st));
    RG_TRY(rg_cursor_u64(c, &h->identity.low, "identity", st));
    RG_TRY(rg_cursor_u64(c, &h->identity.high, "identity", st));
    RG_TRY(rg_cursor_u64(c, &h->n_item, "number of experts", st));
    return rg_cursor_u64(c, &h->sum, "checksum of the header", st);
}

/* Sizes that everything else is bounded by. */
static rg_code check_head(const head *h, uint64_t file_bytes, rg_status *st) {
    if (h->n_group == 0 || h->n_group > RG_LAYERS_MAX) {
        return rg_fail(st, RG_FORMAT, "%u groups, 1 to %u can be", h->n_group, RG_LAYERS_MAX);
    }
    if (h->n_item == 0 || h->n_item > RG_PACK_ITEMS_MAX) {
        return rg_fail(st, RG_FORMAT, "%llu experts, 1 to %u can be", (ull)h->n_item,
                       RG_PACK_ITEMS_MAX);
    }
    const uint64_t want = rg_pack_align_up(rg_pack_table_bytes(h->n_group, (uint32_t)h->n_item));
    if (h->header_bytes != want) {
        return rg_fail(st, RG_FORMAT, "a header of %llu bytes, %u groups of %llu experts take %llu",
                       (ull)h->header_bytes, h->n_group, (ull)h->n_item, (ull)want);
    }
    if (file_bytes != h->file_bytes) {
        return rg_fail(st, RG_FORMAT, "the file has %llu bytes, its header says %llu: %s",
                       (ull)file_bytes, (ull)h->file_bytes,
                       file_bytes < h->file_bytes ? "it is truncated" : "bytes were appended");
    }
    if (h->header_bytes > file_bytes) {
        return rg_fail(st, RG_FORMAT, "a header of %llu bytes in a file of %llu",
                       (ull)h->header_bytes, (ull)file_bytes);
    }
    return RG_OK;
}

static rg_code take_sizes(rg_cursor *c, rg_pack_group *g, uint32_t index, rg_status *st) {
    uint32_t spare = 0;
    uint64_t sum = 0;
    RG_TRY(rg_cursor_u32(c, &g->n_item, "experts of a group", st));
    RG_TRY(rg_cursor_u32(c, &g->n_part, "parts of a group", st));
    if (g->n_item == 0 || g->n_item > RG_EXPERT_MAX) {
        return rg_fail(st, RG_FORMAT, "layer %u: %u experts, 1 to %u can be", index, g->n_item,
                       RG_EXPERT_MAX);
    }
    if (g->n_part < 2 || g->n_part > RG_PACK_PARTS_MAX) {
        return rg_fail(st, RG_FORMAT, "layer %u: experts of %u parts, 2 to %u can be", index,
                       g->n_part, RG_PACK_PARTS_MAX);
    }
    for (uint32_t i = 0; i < RG_PACK_PARTS_MAX; i++) {
        RG_TRY(rg_cursor_u32(c, &g->part_bytes[i], "bytes of a part", st));
        const uint32_t least = i < g->n_part ? 1 : 0, most = least * RG_PACK_EXPERT_MAX;
        if (g->part_bytes[i] < least || g->part_bytes[i] > most) {
            return rg_fail(st, RG_FORMAT, "layer %u: part %u of %u bytes, %u to %u can be", index,
                           i, g->part_bytes[i], least, most);
        }
        sum += g->part_bytes[i];
    }
    if (sum > RG_PACK_EXPERT_MAX) {
        return rg_fail(st, RG_FORMAT, "layer %u: experts of %llu bytes, up to %u can be", index,
                       (ull)sum, RG_PACK_EXPERT_MAX);
    }
    g->item_bytes = (uint32_t)sum;
    RG_TRY(rg_cursor_u32(c, &spare, "spare", st));
    if (spare != 0) return rg_fail(st, RG_FORMAT, "layer %u: %u where 0 stands", index, spare);
    return RG_OK;
}

/* The record of a group that begins at *at, which moves behind it. */
static rg_code take_group(rg_cursor *c, rg_pack_group *g, uint32_t index, uint64_t *at,
                          rg_status *st) {
    RG_TRY(take_sizes(c, g, index, st));
    RG_TRY(rg_cursor_u64(c, &g->stride, "stride", st));
    RG_TRY(rg_cursor_u64(c, &g->offset, "offset", st));
    const uint64_t stride = rg_pack_align_up(g->item_bytes);
    if (g->stride != stride) {
        return rg_fail(st, RG_FORMAT, "layer %u: stride %llu, %u bytes take %llu", index,
                       (ull)g->stride, g->item_bytes, (ull)stride);
    }
    if (g->offset != *at) {
        return rg_fail(st, RG_FORMAT, "layer %u begins at %llu, should at %llu", index,
                       (ull)g->offset, (ull)*at);
    }
    *at += (uint64_t)g->n_item * stride; /* below 2^44 a group, 2^54 in all */
    return RG_OK;
}

static rg_code take_tables(rg_pack *p, rg_cursor *c, rg_status *st) {
    uint64_t at = p->header_bytes, n_item = 0;
    for (uint32_t i = 0; i < p->n_group; i++) {
        RG_TRY(take_group(c, &p->groups[i], i, &at, st));
        n_item += p->groups[i].n_item;
        if (n_item > p->n_item) break;
        p->groups[i].checksums = p->sums + (n_item - p->groups[i].n_item);
    }
    if (n_item != p->n_item) {
        return rg_fail(st, RG_FORMAT, "the layers have %llu experts, the header says %u",
                       (ull)n_item, p->n_item);
    }
    if (at != p->file_bytes) {
        return rg_fail(st, RG_FORMAT, "the layers end at %llu, the file at %llu", (ull)at,
                       (ull)p->file_bytes);
    }
    for (uint32_t i = 0; i < p->n_item; i++)
        RG_TRY(rg_cursor_u64(c, &p->sums[i], "checksum", st));
    return RG_OK;
}

rg_code rg_pack_parse(rg_pack **out, const void *header, size_t len, uint64_t file_bytes,
                      rg_status *st) {
    *out = NULL;
    rg_cursor c = {.data = header, .size = len};
    head h = {0};
    RG_TRY(take_head(&c, &h, st));
    RG_TRY(check_head(&h, file_bytes, st));
    if (h.header_bytes > len) {
        return rg_fail(st, RG_FORMAT, "a header of %llu bytes, %zu are there", (ull)h.header_bytes,
                       len);
    }
    const uint64_t sum = rg_pack_header_sum(header, (size_t)h.header_bytes);
    if (sum != h.sum) {
        return rg_fail(st, RG_FORMAT, "damaged: checksum of the header %016llx, should be %016llx",
                       (ull)sum, (ull)h.sum);
    }
    rg_pack *p = NULL;
    RG_TRY(rg_pack_alloc(&p, h.n_group, (uint32_t)h.n_item, st));
    p->identity = h.identity;
    p->header_bytes = h.header_bytes;
    p->file_bytes = h.file_bytes;
    const rg_code rc = take_tables(p, &c, st);
    if (rc != RG_OK) {
        rg_pack_close(p);
        return rc;
    }
    *out = p;
    return RG_OK;
}

/* The header of an open file; its first bytes say how long it is. */
static rg_code read_header(rg_pack **out, const rg_file *file, const char *name, rg_status *st) {
    uint8_t first[RG_PACK_HEAD];
    head h = {0};
    if (file->size_bytes < sizeof first) {
        return rg_fail(st, RG_FORMAT, "the file has %llu bytes, a pack at least %u",
                       (ull)file->size_bytes, RG_PACK_HEAD);
    }
    RG_TRY(rg_file_read_at(file, first, sizeof first, 0, name, st));
    rg_cursor c = {.data = first, .size = sizeof first};
    RG_TRY(take_head(&c, &h, st));
    RG_TRY(check_head(&h, file->size_bytes, st));
    uint8_t *header = rg_alloc((size_t)h.header_bytes, 1, st);
    if (!header) return RG_NOMEM;
    rg_code rc = rg_file_read_at(file, header, (size_t)h.header_bytes, 0, name, st);
    if (rc == RG_OK) rc = rg_pack_parse(out, header, (size_t)h.header_bytes, file->size_bytes, st);
    rg_free(header);
    return rc;
}

rg_code rg_pack_open(rg_pack **out, const char *path, rg_status *st) {
    *out = NULL;
    rg_file file;
    rg_pack *p = NULL;
    const char *name = rg_gguf_base_name(path);
    RG_TRY(rg_file_open(&file, path, st));
    rg_code rc = read_header(&p, &file, name, st);
    rg_file_close(&file);
    if (rc != RG_OK) return rg_context(st, rc, "%.*s", RG_GGUF_SHOWN_MAX, name);
    RG_ASSERT(p);
    p->path = rg_strndup(path, strlen(path), st);
    if (!p->path) {
        rg_pack_close(p);
        return RG_NOMEM;
    }
    *out = p;
    return RG_OK;
}

/* ---- whose pack ----------------------------------------------------------------------------- */

static rg_code check_shape(const rg_pack *p, const rg_model *m, rg_status *st) {
    /* A pack made of the whole model also serves the trunk alone. */
    const uint32_t least = m->hp.n_layer + m->hp.n_mtp, most = m->hp.n_layer + 1;
    if (p->n_group < least || p->n_group > most) {
        return rg_fail(st, RG_INVALID, "another model's pack: %u layers, the model has %u",
                       p->n_group, least);
    }
    for (uint32_t i = 0; i < least; i++) {
        const rg_pack_group *g = &p->groups[i];
        const rg_tensor *parts[RG_PACK_PARTS_MAX];
        rg_pack_parts_of(rg_model_moe(m, i), parts);
        if (g->n_item != m->hp.n_expert) {
            return rg_fail(st, RG_INVALID,
                           "another model's pack: layer %u has %u experts, in the model %u", i,
                           g->n_item, m->hp.n_expert);
        }
        for (uint32_t k = 0; k < RG_PACK_PARTS_MAX; k++) {
            const uint64_t bytes = parts[k] ? parts[k]->size_bytes / m->hp.n_expert : 0;
            if (g->part_bytes[k] == bytes) continue;
            return rg_fail(
                st, RG_INVALID,
                "another model's pack: layer %u, part %u of an expert: %u bytes, in the model %llu",
                i, k, g->part_bytes[k], (ull)bytes);
        }
    }
    return RG_OK;
}

static rg_code check_fixed(const rg_pack *p, const rg_gguf *g, const rg_model *m, rg_status *st) {
    const uint32_t X = m->hp.n_expert, n = m->hp.n_layer * X; /* the trunk is always there */
    const uint32_t count = n < RG_PACK_FIXED ? n : RG_PACK_FIXED;
    rg_pack_mover mover;
    RG_TRY(rg_pack_mover_init(&mover, st));
    rg_code rc = RG_OK;
    for (uint32_t i = 0; i < count && rc == RG_OK; i++) {
        /* One in each of `count` equal ranges, the same at every open. */
        const uint32_t begin = (uint32_t)((uint64_t)n * i / count);
        const uint32_t end = (uint32_t)((uint64_t)n * (i + 1) / count);
        const uint32_t at = begin + (uint32_t)(rg_random_u64(p->n_item, i) % (end - begin));
        uint64_t sum = 0;
        rc = rg_pack_mover_model(&mover, g, m, at / X, at % X, NULL, NULL, &sum, st);
        const uint64_t want = p->groups[at / X].checksums[at % X];
        if (rc != RG_OK || sum == want) continue;
        rc = rg_fail(st, RG_INVALID,
                     "another model's pack: layer %u expert %u has checksum %016llx, in the model "
                     "%016llx",
                     at / X, at % X, (ull)want, (ull)sum);
    }
    rg_pack_mover_deinit(&mover);
    return rc;
}

rg_code rg_pack_check(const rg_pack *p, const rg_gguf *g, const rg_model *m, rg_status *st) {
    rg_hash128 id;
    rg_code rc = check_shape(p, m, st);
    if (rc == RG_OK) rc = rg_model_identity(g, m, &id, st);
    if (rc == RG_OK && !rg_hash128_equal(id, p->identity)) {
        rc = rg_fail(st, RG_INVALID,
                     "another model's pack: identity %016llx%016llx, the model's is "
                     "%016llx%016llx",
                     (ull)p->identity.high, (ull)p->identity.low, (ull)id.high, (ull)id.low);
    }
    if (rc == RG_OK) rc = check_fixed(p, g, m, st);
    if (rc == RG_OK) return RG_OK;
    return rg_context(st, rc, "%.*s", RG_GGUF_SHOWN_MAX, rg_gguf_base_name(rg_pack_path(p)));
}

/* ---- name ----------------------------------------------------------------------------------- */

static bool ends_in(const char *s, size_t len, const char *tail) {
    const size_t n = strlen(tail);
    return len > n && memcmp(s + len - n, tail, n) == 0;
}

/* Length of `s` without "-00001-of-00003" at its end. */
static size_t without_part(const char *s, size_t len) {
    static const char form[] = "-ddddd-of-ddddd";
    const size_t n = sizeof form - 1;
    if (len <= n) return len;
    for (size_t i = 0; i < n; i++) {
        const char c = s[len - n + i];
        if (form[i] == 'd' ? c < '0' || c > '9' : c != form[i]) return len;
    }
    return len - n;
}

rg_code rg_pack_default_path(char **out, const char *model_path, rg_status *st) {
    size_t len = strlen(model_path);
    *out = NULL;
    if (ends_in(model_path, len, ".gguf")) len = without_part(model_path, len - strlen(".gguf"));
    rg_buf b;
    rg_buf_init(&b, 0);
    rg_code rc = rg_buf_append(&b, model_path, len, st);
    if (rc == RG_OK) rc = rg_buf_puts(&b, ".rgpack", st);
    if (rc != RG_OK) {
        rg_buf_deinit(&b);
        return rc;
    }
    *out = b.data;
    return RG_OK;
}
