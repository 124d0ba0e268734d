/* Brings the header of one file into memory: bounded steps, never the whole file. A step is at
 * least four times the one before, or what the parser says the header needs.
 */
#include "model/gguf_load.h"

#include <string.h>

const char *rg_gguf_base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

void rg_gguf_shard_deinit(rg_gguf_shard *s) {
    rg_gguf_shard_clear(s);
    rg_free(s->header);
    rg_free(s->path);
    rg_file_close(&s->file);
    *s = (rg_gguf_shard){.file.fd = -1};
}

static uint64_t header_limit(uint64_t file_size) {
    return file_size < RG_GGUF_HEADER_MAX ? file_size : RG_GGUF_HEADER_MAX;
}

/* Header bytes [header_bytes, want) from the file. */
static rg_code load_to(rg_gguf_shard *s, size_t want, rg_status *st) {
    RG_ASSERT(want > s->header_bytes);
    uint8_t *more = rg_realloc(s->header, want, 1, st);
    if (!more) return RG_NOMEM;
    s->header = more;
    RG_TRY(rg_file_read_at(&s->file, s->header + s->header_bytes, want - s->header_bytes,
                           s->header_bytes, rg_gguf_base_name(s->path), st));
    s->header_bytes = want;
    return RG_OK;
}

static rg_code parse_in_steps(rg_gguf_shard *s, rg_status *st) {
    const uint64_t limit = header_limit(s->file.size_bytes);
    uint64_t want = limit < RG_GGUF_STEP_FIRST ? limit : RG_GGUF_STEP_FIRST;
    if (want == 0) return rg_fail(st, RG_FORMAT, "the file has 0 bytes, a GGUF header has 24");
    for (;;) { /* ends: each turn brings more bytes, at most `limit` */
        RG_TRY(load_to(s, (size_t)want, st));
        rg_gguf_parser p = {.c = {.data = s->header, .size = s->header_bytes},
                            .limit = limit,
                            .file_size = s->file.size_bytes};
        const rg_code rc = rg_gguf_parse_shard(s, &p, st);
        if (rc != RG_BUSY) return rc;
        RG_ASSERT(p.wanted > s->header_bytes && p.wanted <= limit);
        rg_gguf_shard_clear(s);
        want = 4 * (uint64_t)s->header_bytes;
        if (want < p.wanted) want = p.wanted;
        if (want > limit) want = limit;
    }
}

rg_code rg_gguf_shard_open(rg_gguf_shard *s, const char *path, rg_status *st) {
    *s = (rg_gguf_shard){.file.fd = -1};
    s->path = rg_strndup(path, strlen(path), st);
    if (!s->path) return RG_NOMEM;
    rg_code rc = rg_file_open(&s->file, path, st);
    if (rc == RG_OK) {
        rc = parse_in_steps(s, st);
        if (rc != RG_OK) {
            rc = rg_context(st, rc, "%.*s", RG_GGUF_SHOWN_MAX, rg_gguf_base_name(path));
        }
    }
    if (rc != RG_OK) rg_gguf_shard_deinit(s);
    return rc;
}

rg_code rg_gguf_shard_parse(rg_gguf_shard *s, const void *header, size_t header_bytes,
                            uint64_t file_size, rg_status *st) {
    static const char name[] = "(memory)";
    *s = (rg_gguf_shard){.file = {.fd = -1, .size_bytes = file_size}};
    if (header_bytes > file_size) {
        return rg_fail(st, RG_INVALID, "%s: %zu header bytes of a file of %llu", name, header_bytes,
                       (unsigned long long)file_size);
    }
    rg_code rc = RG_OK;
    s->path = rg_strndup(name, sizeof name - 1, st);
    s->header = rg_alloc(header_bytes, 1, st);
    if (!s->path || !s->header) {
        rc = RG_NOMEM;
        goto cleanup;
    }
    if (header_bytes) memcpy(s->header, header, header_bytes);
    s->header_bytes = header_bytes;
    rg_gguf_parser p = {.c = {.data = s->header, .size = header_bytes},
                        .limit = header_limit(file_size),
                        .file_size = file_size};
    rc = rg_gguf_parse_shard(s, &p, st);
    if (rc == RG_BUSY) {
        rc = rg_fail(st, RG_FORMAT, "the header has at least %llu bytes, %zu are in memory",
                     (unsigned long long)p.wanted, header_bytes);
    }
    if (rc != RG_OK) rc = rg_context(st, rc, "%s", name);
cleanup:
    if (rc != RG_OK) rg_gguf_shard_deinit(s);
    return rc;
}
