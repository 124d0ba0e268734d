/* Mutated GGUF headers, in process: each must come back as an error or as a valid load, within one
 * second and 64 MB, and leave nothing behind.
 *
 *   mutate_gguf_test [COUNT [SEED]]      default 3000 mutations, seed 1
 *
 * Case i depends on (seed, i) alone, so the case a failure names can be run again by itself. The
 * seeds are the headers of tests/fuzz/corpus/gguf.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "model/gguf.h"
#include "support/gguf_exercise.h"

#define CORPUS         RG_SOURCE_DIR "/tests/fuzz/corpus/gguf/"
#define COUNT_DEFAULT  3000u
#define TIME_NS_MAX    1000000000u
#define MEMORY_MAX     (64u << 20)
#define HEADER_MAX     (1u << 16)
#define OUTPUT_MAX     (2 * HEADER_MAX)
#define SPOTS_MAX      4096
#define RECORDS_MAX    512
#define DATA_BYTES     (64u << 20)
#define OPERATIONS_MAX 4

static const char *const seeds[] = {"a-f32", "a-fused", "a-mix",    "b-f16",
                                    "c-f32", "k-mtp",   "types-v2", "types-v3"};

/* An integer field of a header. */
typedef struct spot {
    uint32_t at, width;
} spot;

typedef struct record {
    uint32_t begin, end;
    bool is_tensor;
} record;

/* A seed and where its fields and records lie. */
typedef struct seed_header {
    uint8_t bytes[HEADER_MAX];
    size_t len;
    spot spots[SPOTS_MAX];
    size_t n_spot;
    record records[RECORDS_MAX];
    size_t n_record;
} seed_header;

/* The draws of one case. */
typedef struct draws {
    uint64_t seed, counter;
} draws;

static uint64_t draw(draws *d, uint64_t below) {
    return rg_random_u64(d->seed, d->counter++) % below;
}

/* ---- seeds ---------------------------------------------------------------------------------- */

static uint64_t read_uint(const uint8_t *at, uint32_t width) {
    uint64_t v = 0;
    memcpy(&v, at, width);
    return v;
}

/* Notes an integer field, steps over it and returns its value. */
static uint64_t field(seed_header *h, size_t *pos, uint32_t width) {
    RG_ASSERT(*pos + width <= h->len && h->n_spot < SPOTS_MAX);
    h->spots[h->n_spot++] = (spot){.at = (uint32_t)*pos, .width = width};
    const uint64_t v = read_uint(h->bytes + *pos, width);
    *pos += width;
    return v;
}

static void walk_value(seed_header *h, size_t *pos, uint64_t type) {
    static const uint32_t widths[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == RG_GGUF_STRING) {
        const uint64_t len = field(h, pos, 8);
        *pos += (size_t)len;
    } else if (type == RG_GGUF_ARRAY) {
        const uint64_t elem = field(h, pos, 4);
        const uint64_t count = field(h, pos, 8);
        for (uint64_t i = 0; i < count; i++) {
            walk_value(h, pos, elem);
        }
    } else {
        RG_ASSERT(type < RG_ARRAY_LEN(widths));
        (void)field(h, pos, widths[type]);
    }
}

static void note_record(seed_header *h, size_t begin, size_t end, bool is_tensor) {
    RG_ASSERT(h->n_record < RECORDS_MAX && end <= h->len);
    h->records[h->n_record++] =
        (record){.begin = (uint32_t)begin, .end = (uint32_t)end, .is_tensor = is_tensor};
}

static void walk(seed_header *h) {
    size_t pos = 4;
    (void)field(h, &pos, 4);
    const uint64_t n_tensor = field(h, &pos, 8);
    const uint64_t n_kv = field(h, &pos, 8);
    for (uint64_t i = 0; i < n_kv; i++) {
        const size_t begin = pos;
        const uint64_t len = field(h, &pos, 8);
        pos += (size_t)len;
        const uint64_t type = field(h, &pos, 4);
        walk_value(h, &pos, type);
        note_record(h, begin, pos, false);
    }
    for (uint64_t i = 0; i < n_tensor; i++) {
        const size_t begin = pos;
        const uint64_t len = field(h, &pos, 8);
        pos += (size_t)len;
        const uint64_t n_dims = field(h, &pos, 4);
        for (uint64_t d = 0; d < n_dims; d++) {
            (void)field(h, &pos, 8);
        }
        (void)field(h, &pos, 4);
        (void)field(h, &pos, 8);
        note_record(h, begin, pos, true);
    }
    RG_ASSERT(pos == h->len);
}

static void load_seed(seed_header *h, const char *name) {
    char path[512];
    char *data = NULL;
    rg_status st = {0};
    snprintf(path, sizeof path, CORPUS "%s", name);
    if (rg_file_slurp(&data, &h->len, path, HEADER_MAX, &st) != RG_OK) {
        fprintf(stderr, "%s\n", st.message);
        exit(1);
    }
    memcpy(h->bytes, data, h->len);
    rg_free(data);
    walk(h);
}

/* ---- mutations ------------------------------------------------------------------------------ */

/* The header being changed. */
typedef struct work {
    uint8_t bytes[OUTPUT_MAX];
    size_t len;
} work;

static void put_bytes(work *w, size_t at, const uint8_t *data, size_t len) {
    if (at > w->len || len > OUTPUT_MAX - w->len) return;
    memmove(w->bytes + at + len, w->bytes + at, w->len - at);
    memcpy(w->bytes + at, data, len);
    w->len += len;
}

static void cut_bytes(work *w, size_t at, size_t len) {
    if (at > w->len || len > w->len - at) return;
    memmove(w->bytes + at, w->bytes + at + len, w->len - at - len);
    w->len -= len;
}

static void flip_bytes(work *w, draws *d) {
    if (w->len == 0) return;
    for (uint64_t n = 1 + draw(d, 4); n > 0; n--) {
        w->bytes[draw(d, w->len)] ^= (uint8_t)(1 + draw(d, 255));
    }
}

/* An integer field gets a value at which arithmetic goes wrong, or one near its own. */
static void set_field(work *w, const seed_header *h, draws *d) {
    static const uint64_t extremes[] = {0,
                                        1,
                                        2,
                                        13,
                                        64,
                                        UINT8_MAX,
                                        UINT16_MAX,
                                        65536,
                                        INT32_MAX,
                                        1ull << 31,
                                        UINT32_MAX,
                                        1ull << 32,
                                        1ull << 60,
                                        1ull << 61,
                                        1ull << 62,
                                        INT64_MAX,
                                        1ull << 63,
                                        UINT64_MAX - 31,
                                        UINT64_MAX - 7,
                                        UINT64_MAX};
    const spot *s = &h->spots[draw(d, h->n_spot)];
    if (s->at + s->width > w->len) return;
    const uint64_t old = read_uint(w->bytes + s->at, s->width);
    uint64_t v = extremes[draw(d, RG_ARRAY_LEN(extremes))];
    switch (draw(d, 5)) {
    case 0:
        v = old + 1 + draw(d, 4);
        break;
    case 1:
        v = old - 1 - draw(d, 4);
        break;
    case 2:
        v = old << draw(d, 16);
        break;
    default:
        break;
    }
    memcpy(w->bytes + s->at, &v, s->width);
}

/* Adds to one of the two counts of the header. */
static void add_count(work *w, bool is_tensor, uint64_t by) {
    const size_t at = is_tensor ? 8 : 16;
    if (w->len < at + 8) return;
    const uint64_t v = read_uint(w->bytes + at, 8) + by;
    memcpy(w->bytes + at, &v, 8);
}

static void change_record(work *w, const seed_header *h, draws *d) {
    const record *a = &h->records[draw(d, h->n_record)];
    const record *b = &h->records[draw(d, h->n_record)];
    const size_t len = a->end - a->begin;
    switch (draw(d, 3)) {
    case 0: /* twice */
        put_bytes(w, b->begin, h->bytes + a->begin, len);
        if (draw(d, 4)) add_count(w, b->is_tensor, 1);
        break;
    case 1: /* gone */
        cut_bytes(w, a->begin, len);
        if (draw(d, 4)) add_count(w, a->is_tensor, UINT64_MAX);
        break;
    default: /* instead of another one, later records first so that positions hold */
        if (a->is_tensor != b->is_tensor) return;
        cut_bytes(w, b->begin, b->end - b->begin);
        put_bytes(w, b->begin, h->bytes + a->begin, len);
        break;
    }
}

/* A piece of some other header over, or into, this one. */
static void splice(work *w, const seed_header *from, draws *d) {
    if (w->len == 0) return;
    const size_t begin = (size_t)draw(d, from->len);
    size_t len = (size_t)draw(d, 1 + (from->len - begin) / (1 + draw(d, 64)));
    const size_t at = (size_t)draw(d, w->len);
    if (draw(d, 2)) {
        put_bytes(w, at, from->bytes + begin, len);
    } else {
        if (len > w->len - at) len = w->len - at;
        memcpy(w->bytes + at, from->bytes + begin, len);
    }
}

static void mutate(work *w, const seed_header *headers, const seed_header *h, draws *d) {
    memcpy(w->bytes, h->bytes, h->len);
    w->len = h->len;
    for (uint64_t n = 1 + draw(d, OPERATIONS_MAX); n > 0; n--) {
        switch (draw(d, 8)) {
        case 0:
            flip_bytes(w, d);
            break;
        case 1:
            if (draw(d, 4) == 0) w->len = (size_t)draw(d, w->len + 1);
            break;
        case 2:
            splice(w, &headers[draw(d, RG_ARRAY_LEN(seeds))], d);
            break;
        case 3:
        case 4:
            change_record(w, h, d);
            break;
        default:
            set_field(w, h, d);
            break;
        }
    }
}

/* ---- run ------------------------------------------------------------------------------------ */

typedef struct tally {
    uint64_t loaded, described, refused;
    uint64_t time_ns_max, memory_max;
} tally;

static bool run_case(tally *t, const void *data, size_t len, uint64_t file_size) {
    const uint64_t live = rg_alloc_live_bytes();
    rg_alloc_peak_reset();
    const uint64_t start_ns = rg_now_ns();
    bool described = false;
    const rg_code rc = rg_test_gguf_exercise(data, len, file_size, &described);
    const uint64_t time_ns = rg_now_ns() - start_ns;
    const uint64_t memory = rg_alloc_peak_bytes() - live;
    t->loaded += rc == RG_OK;
    t->described += described;
    t->refused += rc != RG_OK;
    if (time_ns > t->time_ns_max) t->time_ns_max = time_ns;
    if (memory > t->memory_max) t->memory_max = memory;
    if (rg_alloc_live_bytes() != live) {
        fprintf(stderr, "%" PRIu64 " bytes before, %" PRIu64 " after\n", live,
                rg_alloc_live_bytes());
        return false;
    }
    if (time_ns > TIME_NS_MAX || memory > MEMORY_MAX) {
        fprintf(stderr, "took %" PRIu64 " ns and %" PRIu64 " bytes\n", time_ns, memory);
        return false;
    }
    return true;
}

/* Every header as it is must be a model, or at least a file. */
static bool run_seeds(tally *t, const seed_header *headers) {
    for (size_t i = 0; i < RG_ARRAY_LEN(seeds); i++) {
        const uint64_t described = t->described, loaded = t->loaded;
        if (!run_case(t, headers[i].bytes, headers[i].len, headers[i].len + DATA_BYTES))
            return false;
        const bool is_model = strncmp(seeds[i], "types", 5) != 0;
        if (t->loaded == loaded || (is_model && t->described == described)) {
            fprintf(stderr, "seed %s does not load\n", seeds[i]);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    const uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : COUNT_DEFAULT;
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    seed_header *headers = rg_alloc(RG_ARRAY_LEN(seeds), sizeof *headers, NULL);
    work *w = rg_alloc(1, sizeof *w, NULL);
    RG_ASSERT(headers && w);
    for (size_t i = 0; i < RG_ARRAY_LEN(seeds); i++) {
        load_seed(&headers[i], seeds[i]);
    }
    tally t = {0};
    bool ok = run_seeds(&t, headers);
    t = (tally){0};
    for (uint64_t i = 0; i < count && ok; i++) {
        draws d = {.seed = rg_random_u64(seed, i)};
        mutate(w, headers, &headers[draw(&d, RG_ARRAY_LEN(seeds))], &d);
        const uint64_t behind = draw(&d, 4) ? DATA_BYTES : draw(&d, 4096);
        /* An exact copy, so that a sanitizer sees the first byte read beyond. */
        void *exact = rg_alloc(w->len, 1, NULL);
        RG_ASSERT(exact != NULL);
        if (w->len) memcpy(exact, w->bytes, w->len);
        ok = run_case(&t, exact, w->len, w->len + behind);
        rg_free(exact);
        if (!ok) fprintf(stderr, "in case %" PRIu64 " of seed %" PRIu64 "\n", i, seed);
    }
    printf("%" PRIu64 " mutated headers, seed %" PRIu64 ": %" PRIu64 " refused, %" PRIu64
           " loaded, %" PRIu64 " of them models; at most %.1f ms and %.2f MB a case\n",
           t.refused + t.loaded, seed, t.refused, t.loaded, t.described,
           (double)t.time_ns_max * 1e-6, (double)t.memory_max * 1e-6);
    /* Mutations that never load, or always do, would test nothing. */
    if (count >= 1000)
        ok = ok && t.refused > count / 4 && t.loaded > count / 100 && t.described > 0;
    rg_free(w);
    rg_free(headers);
    return ok ? 0 : 1;
}
