#include "kernels/gpu/gpu_tiles.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define ACCUMULATORS   32u /* rows of a lane times columns that are worth a try */

static const char *const op_names[RG_GPU_OP_COUNT] = {"rows", "slots", "tiles", "experts"};

const char *rg_gpu_tile_op_name(rg_gpu_tile_op op) {
    return op_names[op];
}

static bool in_tiles(rg_gpu_tile_op op) {
    return op == RG_GPU_OP_TILES || op == RG_GPU_OP_EXPERTS;
}

/* ---- keys ----------------------------------------------------------------------------------- */

rg_gpu_tile_key rg_gpu_tile_key_of(rg_gpu_tile_op op, const rg_gpu_product *p,
                                   const rg_gpu_product_way *way) {
    uint32_t n = 1;
    while (op == RG_GPU_OP_ROWS && n < p->n && n < RG_GPU_ROWS_MAX)
        n *= 2;
    return (rg_gpu_tile_key){.op = op,
                             .type = way->type,
                             .fused = way->fused,
                             .coding = way->coding,
                             .n_in = p->n_in,
                             .n_out = p->n_out,
                             .n = in_tiles(op) ? p->n : n,
                             .n_out2 = p->n_out2};
}

static bool same_product(const rg_gpu_tile_key *a, const rg_gpu_tile_key *b) {
    return a->op == b->op && a->type == b->type && a->fused == b->fused && a->coding == b->coding &&
           a->n_in == b->n_in && a->n_out == b->n_out && a->n_out2 == b->n_out2;
}

bool rg_gpu_tile_same(const rg_gpu_tile_key *a, const rg_gpu_tile_key *b) {
    return same_product(a, b) && a->n == b->n;
}

void rg_gpu_tile_put(const rg_gpu_tile *t, rg_gpu_product_way *way) {
    if (!way->group_rows) way->group_rows = t->group_rows;
    if (!way->side) way->side = t->side;
    if (!way->depth) way->depth = t->depth;
    way->loop = way->loop || t->loop;
    way->no_matrix = way->no_matrix || t->no_matrix;
}

const rg_gpu_tile *rg_gpu_tiles_find(const rg_gpu_tiles *tiles, const rg_gpu_tile_key *key) {
    const rg_gpu_tile *best = NULL;
    for (uint32_t i = 0; i < tiles->n; i++) {
        const rg_gpu_tile *t = &tiles->all[i];
        if (!same_product(&t->key, key)) continue;
        if (in_tiles(key->op) ? t->key.n > key->n : t->key.n != key->n) continue;
        if (!best || t->key.n > best->key.n) best = t;
    }
    return best;
}

bool rg_gpu_tiles_choose(const rg_gpu_tiles *tiles, rg_gpu_tile_op op, const rg_gpu_product *p,
                         rg_gpu_product_way *way) {
    const rg_gpu_tile_key key = rg_gpu_tile_key_of(op, p, way);
    const rg_gpu_tile *best = rg_gpu_tiles_find(tiles, &key);
    if (best) rg_gpu_tile_put(best, way);
    return best != NULL;
}

/* ---- candidates ----------------------------------------------------------------------------- */

static uint32_t tile_candidates(rg_gpu_tile *out, uint32_t n, const rg_gpu_tile_key *key,
                                const rg_gpu_info *info) {
    const bool matrix = rg_gpu_has_matrix(info, key->type);
    for (uint32_t side = 1; side <= (matrix ? 8u : RG_GPU_SIDE_MAX); side *= 2) {
        for (uint32_t depth = 0; depth <= (matrix ? 4u : 0u); depth += 2)
            out[n++] = (rg_gpu_tile){.key = *key, .side = side, .depth = depth};
        if (matrix && side <= RG_GPU_SIDE_MAX)
            out[n++] = (rg_gpu_tile){.key = *key, .side = side, .no_matrix = true};
    }
    return n;
}

uint32_t rg_gpu_tile_candidates(rg_gpu_tile out[RG_GPU_CANDIDATES_MAX], const rg_gpu_tile_key *key,
                                const rg_gpu_info *info) {
    uint32_t n = 0;
    out[n++] = (rg_gpu_tile){.key = *key};
    if (in_tiles(key->op)) return tile_candidates(out, n, key, info);
    for (uint32_t group = 1; group <= 4 && group * key->n <= ACCUMULATORS; group *= 2) {
        out[n++] = (rg_gpu_tile){.key = *key, .group_rows = group};
        out[n++] = (rg_gpu_tile){.key = *key, .group_rows = group, .loop = true};
    }
    return n;
}

/* Whether the kernels take such a shape. */
static bool is_sound(const rg_gpu_tile *t, const rg_gpu_info *info) {
    const rg_gpu_tile_key *k = &t->key;
    if (!rg_gpu_computes(k->type) || !k->n_in || !k->n_out || !k->n) return false;
    if (k->n_out2 && (k->op != RG_GPU_OP_ROWS || k->fused)) return false;
    if (in_tiles(k->op)) {
        const bool matrix = rg_gpu_has_matrix(info, k->type) && !t->no_matrix;
        const uint32_t most = matrix ? 8 : RG_GPU_SIDE_MAX;
        const bool power = (t->side & (t->side - 1)) == 0;
        return !t->group_rows && power && t->side <= most && t->depth <= 4 && !t->loop;
    }
    const bool rows = t->group_rows <= 2 || t->group_rows == 4;
    return rows && !t->side && !t->depth && !t->no_matrix && k->n <= RG_GPU_ROWS_MAX &&
           t->group_rows * k->n <= ACCUMULATORS;
}

/* ---- the file ------------------------------------------------------------------------------- */

char *rg_gpu_tiles_path(const char *cache_path, const rg_gpu_info *info, rg_status *st) {
    const char *slash = strrchr(cache_path, '/');
    const int folder = slash ? (int)(slash - cache_path) + 1 : 0;
    rg_buf b;
    rg_buf_init(&b, 0);
    if (rg_buf_printf(&b, st, "%.*sgpu-tiles-%04x-%04x.txt", folder, cache_path, info->vendor_id,
                      info->device_id) == RG_OK)
        return b.data;
    rg_buf_deinit(&b);
    return NULL;
}

#define MARK "regolith-gpu-tiles 2 "

/* The next line without its end; NULL at the end. The text is changed. */
static char *next_line(char **text) {
    char *line = *text, *end = strchr(line, '\n');
    if (!end) return NULL;
    *end = 0;
    *text = end + 1;
    return line;
}

/* The next word of a line, which a space or the end ends; NULL when there is none. */
static char *next_word(char **line) {
    char *word = *line, *end = strchr(word, ' ');
    if (!*word) return NULL;
    *line = end ? end + 1 : word + strlen(word);
    if (end) *end = 0;
    return word;
}

static bool next_number(char **line, int base, uint64_t max, uint64_t *out) {
    const char *word = next_word(line);
    char *end = NULL;
    if (!word || *word == '-' || *word == '+') return false;
    errno = 0;
    *out = strtoull(word, &end, base);
    return errno == 0 && end != word && *end == 0 && *out <= max;
}

static bool parse_key(char **line, rg_gpu_tile_key *key) {
    uint32_t op = 0, type = 0;
    const char *op_name = next_word(line), *type_name = next_word(line);
    if (!op_name || !type_name) return false;
    while (op < RG_GPU_OP_COUNT && strcmp(op_names[op], op_name) != 0)
        op++;
    while (type < RG_TYPE_COUNT &&
           (!rg_type_get(type) || strcmp(rg_type_get(type)->name, type_name) != 0))
        type++;
    uint64_t fused, coding, n_in, n_out, n, n_out2;
    if (op == RG_GPU_OP_COUNT || type == RG_TYPE_COUNT || !next_number(line, 10, 1, &fused) ||
        !next_number(line, 10, 1, &coding) || !next_number(line, 10, UINT32_MAX, &n_in) ||
        !next_number(line, 10, UINT32_MAX, &n_out) || !next_number(line, 10, UINT32_MAX, &n) ||
        !next_number(line, 10, UINT32_MAX, &n_out2)) {
        return false;
    }
    *key = (rg_gpu_tile_key){.op = (rg_gpu_tile_op)op,
                             .type = (rg_type)type,
                             .fused = fused,
                             .coding = coding,
                             .n_in = (uint32_t)n_in,
                             .n_out = (uint32_t)n_out,
                             .n = (uint32_t)n,
                             .n_out2 = (uint32_t)n_out2};
    return true;
}

static bool parse_line(char *line, rg_gpu_tile *t) {
    uint64_t group, side, depth, loop, no_matrix;
    *t = (rg_gpu_tile){0};
    if (!parse_key(&line, &t->key) || !next_number(&line, 10, 8, &group) ||
        !next_number(&line, 10, 8, &side) || !next_number(&line, 10, 8, &depth) ||
        !next_number(&line, 10, 1, &loop) || !next_number(&line, 10, 1, &no_matrix) || *line) {
        return false;
    }
    t->group_rows = (uint32_t)group;
    t->side = (uint32_t)side;
    t->depth = (uint32_t)depth;
    t->loop = loop;
    t->no_matrix = no_matrix;
    return true;
}

/* Cuts the last line off if it has the hash of all before it. */
static bool is_whole(char *text, size_t bytes) {
    uint64_t hash = 0;
    if (bytes == 0 || strlen(text) != bytes || text[bytes - 1] != '\n') return false;
    text[bytes - 1] = 0;
    char *last = strrchr(text, '\n');
    if (!last) return false;
    char *line = last + 1;
    const char *word = next_word(&line);
    if (!word || strcmp(word, "hash") != 0 || !next_number(&line, 16, UINT64_MAX, &hash) || *line)
        return false;
    last[1] = 0;
    return hash == XXH3_64bits(text, (size_t)(last + 1 - text));
}

/* The first line: whose table this is, and of how many tiles. */
static rg_code parse_head(char *line, uint32_t *n, const char *path, const rg_gpu_info *info,
                          rg_status *st) {
    uint64_t vendor, device, driver, count;
    if (!line || strncmp(line, MARK, strlen(MARK)) != 0)
        return rg_fail(st, RG_FORMAT, "%s is no table of GPU tiles", path);
    line += strlen(MARK);
    if (!next_number(&line, 16, UINT32_MAX, &vendor) ||
        !next_number(&line, 16, UINT32_MAX, &device) ||
        !next_number(&line, 16, UINT32_MAX, &driver) ||
        !next_number(&line, 10, RG_GPU_TILES_MAX, &count) || *line) {
        return rg_fail(st, RG_FORMAT, "%s is no table of GPU tiles", path);
    }
    if (vendor != info->vendor_id || device != info->device_id || driver != info->driver_version)
        return rg_fail(st, RG_UNSUPPORTED, "%s is of another device or driver", path);
    *n = (uint32_t)count;
    return RG_OK;
}

static rg_code parse(rg_gpu_tiles *out, char *text, size_t bytes, const char *path,
                     const rg_gpu_info *info, rg_status *st) {
    uint32_t n = 0;
    if (!is_whole(text, bytes)) return rg_fail(st, RG_FORMAT, "%s is damaged", path);
    RG_TRY(parse_head(next_line(&text), &n, path, info, st));
    out->all = rg_alloc(n ? n : 1, sizeof *out->all, st);
    if (!out->all) return RG_NOMEM;
    for (char *line = next_line(&text); line; line = next_line(&text)) {
        if (out->n == n || !parse_line(line, &out->all[out->n]) ||
            !is_sound(&out->all[out->n], info))
            return rg_fail(st, RG_FORMAT, "%s: tile %u is wrong", path, out->n + 1);
        out->n++;
    }
    if (out->n != n) return rg_fail(st, RG_FORMAT, "%s: %u tiles of %u", path, out->n, n);
    return RG_OK;
}

rg_code rg_gpu_tiles_read(rg_gpu_tiles *out, const char *path, const rg_gpu_info *info,
                          rg_status *st) {
    char *text = NULL;
    size_t bytes = 0;
    *out = (rg_gpu_tiles){0};
    RG_TRY(rg_file_slurp(&text, &bytes, path, FILE_BYTES_MAX, st));
    const rg_code rc = parse(out, text, bytes, path, info, st);
    rg_free(text);
    if (rc != RG_OK) rg_gpu_tiles_deinit(out);
    return rc;
}

static rg_code render(const rg_gpu_tiles *tiles, const rg_gpu_info *info, rg_buf *b,
                      rg_status *st) {
    RG_TRY(rg_buf_printf(b, st, MARK "%08x %08x %08x %u\n", info->vendor_id, info->device_id,
                         info->driver_version, tiles->n));
    for (uint32_t i = 0; i < tiles->n; i++) {
        const rg_gpu_tile *t = &tiles->all[i];
        const rg_gpu_tile_key *k = &t->key;
        RG_TRY(rg_buf_printf(b, st, "%s %s %d %d %u %u %u %u %u %u %u %d %d\n", op_names[k->op],
                             rg_type_get((uint32_t)k->type)->name, k->fused, k->coding, k->n_in,
                             k->n_out, k->n, k->n_out2, t->group_rows, t->side, t->depth, t->loop,
                             t->no_matrix));
    }
    return rg_buf_printf(b, st, "hash %016" PRIx64 "\n", XXH3_64bits(b->data, b->len));
}

/* Written beside, then moved: a reader never sees half a table. */
static rg_code replace(const char *path, const char *beside, const rg_buf *b, rg_status *st) {
    FILE *f = fopen(beside, "wb");
    if (!f) return rg_fail_errno(st, RG_IO, errno, "%s", beside);
    const bool written = fwrite(b->data, 1, b->len, f) == b->len;
    const bool closed = fclose(f) == 0;
    if (written && closed && rename(beside, path) == 0) return RG_OK;
    const int error = errno;
    remove(beside);
    return rg_fail_errno(st, RG_IO, error, "%s", path);
}

rg_code rg_gpu_tiles_write(const rg_gpu_tiles *tiles, const char *path, const rg_gpu_info *info,
                           rg_status *st) {
    rg_buf text, beside;
    rg_buf_init(&text, FILE_BYTES_MAX);
    rg_buf_init(&beside, 0);
    rg_code rc = render(tiles, info, &text, st);
    if (rc == RG_OK) rc = rg_buf_printf(&beside, st, "%s.new", path);
    if (rc == RG_OK) rc = replace(path, beside.data, &text, st);
    rg_buf_deinit(&text);
    rg_buf_deinit(&beside);
    return rc;
}

void rg_gpu_tiles_deinit(rg_gpu_tiles *tiles) {
    rg_free(tiles->all);
    *tiles = (rg_gpu_tiles){0};
}
