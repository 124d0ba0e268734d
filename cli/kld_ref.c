/* Reference logits: reading raw and saved ones, writing saved ones. The layout is in kld.h. */
#include "cli/kld.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#define HEADER_BYTES 64u
#define HASHED_BYTES 40u
#define CHUNK_BYTES  ((size_t)128 << 10)
#define LEVEL        1
#define VOCAB_MAX    (1u << 24)

static const char magic[8] = {'R', 'G', 'K', 'L', 'R', 'E', 'F', '1'};

_Static_assert(sizeof(float) == 4, "rows are f32");

/* ---- header --------------------------------------------------------------------------------- */

static void put_le(uint8_t *at, uint64_t value, size_t n) {
    for (size_t i = 0; i < n; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_le(const uint8_t *at, size_t n) {
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static void hash_ids(const kld_identity *id, uint8_t out[16]) {
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(id->ids, id->n_token * sizeof *id->ids));
    memcpy(out, digest.digest, sizeof digest.digest);
}

static void hash_header(const uint8_t *header, uint8_t out[8]) {
    XXH64_canonical_t digest;
    XXH64_canonicalFromHash(&digest, XXH3_64bits(header, HASHED_BYTES));
    memcpy(out, digest.digest, sizeof digest.digest);
}

static void fill_header(uint8_t header[HEADER_BYTES], const kld_identity *id) {
    memset(header, 0, HEADER_BYTES);
    memcpy(header, magic, sizeof magic);
    put_le(header + 8, id->n_vocab, 4);
    put_le(header + 12, id->window, 4);
    put_le(header + 16, id->n_token, 8);
    hash_ids(id, header + 24);
    hash_header(header, header + HASHED_BYTES);
}

/* Byte planes of a row and back. */
static void split_row(const float *row, uint32_t n, uint8_t *planes) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        memcpy(&bits, row + i, sizeof bits);
        for (size_t p = 0; p < 4; p++)
            planes[p * n + i] = (uint8_t)(bits >> (8 * p));
    }
}

static void join_row(const uint8_t *planes, uint32_t n, float *row) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        for (size_t p = 0; p < 4; p++)
            bits |= (uint32_t)planes[p * n + i] << (8 * p);
        memcpy(row + i, &bits, sizeof bits);
    }
}

/* ---- reading -------------------------------------------------------------------------------- */

struct kld_ref {
    char *path;
    FILE *file;
    uint64_t file_bytes;
    bool saved; /* false: raw */
    uint8_t header[HEADER_BYTES];
    uint32_t n_vocab;
    uint64_t n_token, n_read;
    ZSTD_DStream *zstd;
    ZSTD_inBuffer in;
    size_t frame_left; /* what zstd said last: 0 = the frame is complete */
    uint8_t *chunk;    /* [CHUNK_BYTES] behind in.src */
    uint8_t *planes;   /* [4][n_vocab] */
};

static rg_code read_header(kld_ref *ref, rg_status *st) {
    struct stat facts;
    if (fstat(fileno(ref->file), &facts) != 0) {
        return rg_fail_errno(st, RG_IO, errno, "cannot look at %s", ref->path);
    }
    if (!S_ISREG(facts.st_mode)) return rg_fail(st, RG_INVALID, "%s is not a file", ref->path);
    ref->file_bytes = (uint64_t)facts.st_size;
    const size_t n = fread(ref->header, 1, HEADER_BYTES, ref->file);
    if (ferror(ref->file)) return rg_fail_errno(st, RG_IO, errno, "reading %s", ref->path);
    if (n < sizeof magic || memcmp(ref->header, magic, sizeof magic) != 0) {
        rewind(ref->file);
        return RG_OK;
    }
    uint8_t sum[8];
    hash_header(ref->header, sum);
    if (n < HEADER_BYTES || memcmp(sum, ref->header + HASHED_BYTES, sizeof sum) != 0) {
        return rg_fail(st, RG_FORMAT, "%s: the header of the reference is damaged", ref->path);
    }
    ref->saved = true;
    return RG_OK;
}

static rg_code open_zstd(kld_ref *ref, rg_status *st) {
    ref->zstd = ZSTD_createDStream();
    if (!ref->zstd) return rg_fail(st, RG_NOMEM, "no memory to unpack %s", ref->path);
    ref->frame_left = ZSTD_initDStream(ref->zstd);
    ref->chunk = rg_alloc(CHUNK_BYTES, 1, st);
    if (!ref->chunk) return RG_NOMEM;
    ref->in.src = ref->chunk;
    return RG_OK;
}

rg_code kld_ref_open(kld_ref **out, const char *path, rg_status *st) {
    rg_code rc = RG_OK;
    *out = NULL;
    kld_ref *ref = rg_alloc(1, sizeof *ref, st);
    if (!ref) return RG_NOMEM;
    ref->path = rg_strndup(path, strlen(path), st);
    if (!ref->path) RG_GO(RG_NOMEM);
    ref->file = fopen(path, "rbe");
    if (!ref->file) RG_GO(rg_fail_errno(st, RG_IO, errno, "cannot open %s", path));
    RG_GO(read_header(ref, st));
    if (ref->saved) RG_GO(open_zstd(ref, st));
    *out = ref;
    return RG_OK;
cleanup:
    kld_ref_close(ref);
    return rc;
}

void kld_ref_close(kld_ref *ref) {
    if (!ref) return;
    if (ref->file) fclose(ref->file);
    ZSTD_freeDStream(ref->zstd);
    rg_free(ref->chunk);
    rg_free(ref->planes);
    rg_free(ref->path);
    rg_free(ref);
}

uint32_t kld_ref_window(const kld_ref *ref) {
    return ref->saved ? (uint32_t)get_le(ref->header + 12, 4) : 0;
}

static rg_code check_raw(const kld_ref *ref, const kld_identity *id, rg_status *st) {
    const uint64_t want = (uint64_t)id->n_token * id->n_vocab * sizeof(float);
    if (ref->file_bytes == want) return RG_OK;
    return rg_fail(st, RG_INVALID,
                   "%s is no saved reference, and raw logits of %zu tokens and a vocabulary of %u "
                   "take %llu bytes, not %llu",
                   ref->path, id->n_token, id->n_vocab, (unsigned long long)want,
                   (unsigned long long)ref->file_bytes);
}

static rg_code check_saved(const kld_ref *ref, const kld_identity *id, rg_status *st) {
    const uint64_t n_vocab = get_le(ref->header + 8, 4), window = get_le(ref->header + 12, 4);
    const uint64_t n_token = get_le(ref->header + 16, 8);
    if (n_vocab != id->n_vocab) {
        return rg_fail(st, RG_INVALID, "%s has a vocabulary of %llu tokens, the model one of %u",
                       ref->path, (unsigned long long)n_vocab, id->n_vocab);
    }
    if (n_token != id->n_token) {
        return rg_fail(st, RG_INVALID, "%s was made from %llu tokens, the text has %zu", ref->path,
                       (unsigned long long)n_token, id->n_token);
    }
    if (window != id->window) {
        return rg_fail(st, RG_INVALID, "%s was made in windows of %llu tokens, not of %u",
                       ref->path, (unsigned long long)window, id->window);
    }
    uint8_t hash[16];
    hash_ids(id, hash);
    if (memcmp(hash, ref->header + 24, sizeof hash) == 0) return RG_OK;
    return rg_fail(
        st, RG_INVALID,
        "%s was made from other tokens: hash %02x%02x%02x%02x..., not %02x%02x%02x%02x...",
        ref->path, ref->header[24], ref->header[25], ref->header[26], ref->header[27], hash[0],
        hash[1], hash[2], hash[3]);
}

rg_code kld_ref_check(kld_ref *ref, const kld_identity *id, rg_status *st) {
    RG_TRY(ref->saved ? check_saved(ref, id, st) : check_raw(ref, id, st));
    if (id->n_vocab == 0 || id->n_vocab > VOCAB_MAX) {
        return rg_fail(st, RG_INVALID, "a vocabulary of %u tokens, at most %u are possible",
                       id->n_vocab, VOCAB_MAX);
    }
    ref->n_vocab = id->n_vocab;
    ref->n_token = id->n_token;
    if (!ref->saved) return RG_OK;
    ref->planes = rg_alloc(id->n_vocab, 4, st);
    return ref->planes ? RG_OK : RG_NOMEM;
}

static rg_code ends_early(const kld_ref *ref, rg_status *st) {
    if (ferror(ref->file)) return rg_fail_errno(st, RG_IO, errno, "reading %s", ref->path);
    return rg_fail(st, RG_FORMAT, "%s ends at token %llu of %llu", ref->path,
                   (unsigned long long)ref->n_read, (unsigned long long)ref->n_token);
}

/* Unpacks until `want` bytes are there; *got is less at the end of the frame. */
static rg_code unpack(kld_ref *ref, uint8_t *to, size_t want, size_t *got, rg_status *st) {
    ZSTD_outBuffer out = {.dst = to, .size = want};
    while (out.pos < out.size && ref->frame_left) {
        if (ref->in.pos == ref->in.size) {
            ref->in.size = fread(ref->chunk, 1, CHUNK_BYTES, ref->file);
            ref->in.pos = 0;
            if (ref->in.size == 0) return ends_early(ref, st);
        }
        ref->frame_left = ZSTD_decompressStream(ref->zstd, &out, &ref->in);
        if (!ZSTD_isError(ref->frame_left)) continue;
        return rg_fail(st, RG_FORMAT, "%s is damaged at token %llu: %s", ref->path,
                       (unsigned long long)ref->n_read, ZSTD_getErrorName(ref->frame_left));
    }
    *got = out.pos;
    return RG_OK;
}

rg_code kld_ref_next(kld_ref *ref, float *row, rg_status *st) {
    if (ref->saved) {
        size_t got = 0;
        RG_TRY(unpack(ref, ref->planes, (size_t)4 * ref->n_vocab, &got, st));
        if (got < (size_t)4 * ref->n_vocab) return ends_early(ref, st);
        join_row(ref->planes, ref->n_vocab, row);
    } else if (fread(row, sizeof *row, ref->n_vocab, ref->file) != ref->n_vocab) {
        return ends_early(ref, st);
    }
    for (uint32_t i = 0; i < ref->n_vocab; i++) {
        if (isfinite(row[i])) continue;
        return rg_fail(st, RG_FORMAT, "%s: logit %u of token %llu is not finite", ref->path, i,
                       (unsigned long long)ref->n_read);
    }
    ref->n_read++;
    return RG_OK;
}

rg_code kld_ref_end(kld_ref *ref, rg_status *st) {
    if (!ref->saved) return RG_OK; /* the size was checked */
    uint8_t more = 0;
    size_t got = 0;
    RG_TRY(unpack(ref, &more, 1, &got, st)); /* reads the checksum of the frame too */
    if (got == 0) return RG_OK;
    return rg_fail(st, RG_FORMAT, "%s holds more than its %llu tokens", ref->path,
                   (unsigned long long)ref->n_token);
}

/* ---- writing -------------------------------------------------------------------------------- */

struct kld_save {
    char *path, *part; /* the file grows under the second name */
    FILE *file;
    bool finished;
    uint32_t n_vocab;
    ZSTD_CStream *zstd;
    uint8_t *planes, *chunk;
};

static rg_code write_bytes(const kld_save *s, const void *data, size_t n, rg_status *st) {
    if (fwrite(data, 1, n, s->file) == n) return RG_OK;
    return rg_fail_errno(st, RG_IO, errno, "writing %s", s->part);
}

static rg_code open_packer(kld_save *s, const kld_identity *id, rg_status *st) {
    s->zstd = ZSTD_createCStream();
    s->planes = rg_alloc(id->n_vocab, 4, st);
    s->chunk = rg_alloc(CHUNK_BYTES, 1, st);
    if (!s->planes || !s->chunk) return RG_NOMEM;
    if (!s->zstd) return rg_fail(st, RG_NOMEM, "no memory to pack %s", s->path);
    const unsigned long long total = (unsigned long long)id->n_token * id->n_vocab * 4;
    size_t rc = ZSTD_CCtx_setParameter(s->zstd, ZSTD_c_compressionLevel, LEVEL);
    if (!ZSTD_isError(rc)) rc = ZSTD_CCtx_setParameter(s->zstd, ZSTD_c_checksumFlag, 1);
    if (!ZSTD_isError(rc)) rc = ZSTD_CCtx_setPledgedSrcSize(s->zstd, total);
    if (!ZSTD_isError(rc)) return RG_OK;
    return rg_fail(st, RG_NOMEM, "packing %s: %s", s->path, ZSTD_getErrorName(rc));
}

rg_code kld_save_create(kld_save **out, const char *path, const kld_identity *id, rg_status *st) {
    rg_code rc = RG_OK;
    uint8_t header[HEADER_BYTES];
    *out = NULL;
    kld_save *s = rg_alloc(1, sizeof *s, st);
    if (!s) return RG_NOMEM;
    s->n_vocab = id->n_vocab;
    const size_t len = strlen(path);
    s->path = rg_strndup(path, len, st);
    s->part = rg_alloc(len + sizeof ".part", 1, st);
    if (!s->path || !s->part) RG_GO(RG_NOMEM);
    snprintf(s->part, len + sizeof ".part", "%s.part", path);
    s->file = fopen(s->part, "wbe");
    if (!s->file) RG_GO(rg_fail_errno(st, RG_IO, errno, "cannot write %s", s->part));
    RG_GO(open_packer(s, id, st));
    fill_header(header, id);
    RG_GO(write_bytes(s, header, sizeof header, st));
    *out = s;
    return RG_OK;
cleanup:
    kld_save_destroy(s);
    return rc;
}

static rg_code pack(kld_save *s, size_t n, ZSTD_EndDirective end, rg_status *st) {
    ZSTD_inBuffer in = {.src = s->planes, .size = n};
    for (;;) {
        ZSTD_outBuffer out = {.dst = s->chunk, .size = CHUNK_BYTES};
        const size_t left = ZSTD_compressStream2(s->zstd, &out, &in, end);
        if (ZSTD_isError(left)) {
            return rg_fail(st, RG_IO, "packing %s: %s", s->path, ZSTD_getErrorName(left));
        }
        RG_TRY(write_bytes(s, s->chunk, out.pos, st));
        if (end == ZSTD_e_end ? left == 0 : in.pos == in.size) return RG_OK;
    }
}

rg_code kld_save_row(kld_save *s, const float *row, rg_status *st) {
    split_row(row, s->n_vocab, s->planes);
    return pack(s, (size_t)4 * s->n_vocab, ZSTD_e_continue, st);
}

rg_code kld_save_finish(kld_save *s, uint64_t *size_bytes, rg_status *st) {
    RG_TRY(pack(s, 0, ZSTD_e_end, st));
    if (fflush(s->file) != 0) return rg_fail_errno(st, RG_IO, errno, "writing %s", s->part);
    *size_bytes = (uint64_t)ftello(s->file);
    FILE *file = s->file;
    s->file = NULL;
    if (fclose(file) != 0) return rg_fail_errno(st, RG_IO, errno, "writing %s", s->part);
    if (rename(s->part, s->path) != 0) {
        return rg_fail_errno(st, RG_IO, errno, "renaming %s to %s", s->part, s->path);
    }
    s->finished = true;
    return RG_OK;
}

void kld_save_destroy(kld_save *s) {
    if (!s) return;
    const bool opened = s->part && (s->file || s->zstd);
    if (s->file) fclose(s->file);
    if (opened && !s->finished) (void)unlink(s->part);
    ZSTD_freeCStream(s->zstd);
    rg_free(s->planes);
    rg_free(s->chunk);
    rg_free(s->path);
    rg_free(s->part);
    rg_free(s);
}
