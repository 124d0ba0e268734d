#include "engine/dump.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRIES_MAX  65536u
#define PATH_MAX_LEN 4096u
#define NAME_MAX_LEN 32u
#define INDEX_MAX    (16u << 20)
#define INDEX_HEADER "name\tlayer\trows\tcols\tfile\n"

typedef struct dump_entry {
    char name[NAME_MAX_LEN];
    uint32_t layer, cols;
    uint64_t rows;
} dump_entry;

struct rg_dump {
    char dir[PATH_MAX_LEN];
    bool compare;
    double tolerance;
    dump_entry *entries; /* written, or of the reference */
    uint32_t n_entry, cap;
    uint64_t n_compared; /* tensors rows looked at */
    bool differs;
    char difference[400];
};

static rg_code file_path(const rg_dump *d, const char *name, uint32_t layer, char *out,
                         rg_status *st) {
    const int n = name ? snprintf(out, PATH_MAX_LEN + 64, "%s/%s.%u.f32", d->dir, name, layer)
                       : snprintf(out, PATH_MAX_LEN + 64, "%s/index.tsv", d->dir);
    if (n < 0) return rg_fail(st, RG_BUG, "cannot form a path below %s", d->dir);
    return RG_OK;
}

static rg_code create(rg_dump **out, const char *dir, rg_status *st) {
    *out = NULL;
    const size_t len = strlen(dir);
    if (len == 0 || len >= PATH_MAX_LEN) {
        return rg_fail(st, RG_INVALID, "dump folder name of %zu bytes, at most %u", len,
                       PATH_MAX_LEN - 1);
    }
    rg_dump *d = rg_alloc(1, sizeof *d, st);
    if (!d) return RG_NOMEM;
    memcpy(d->dir, dir, len + 1);
    *out = d;
    return RG_OK;
}

static dump_entry *find(rg_dump *d, const char *name, uint32_t layer) {
    for (uint32_t i = 0; i < d->n_entry; i++) {
        dump_entry *e = &d->entries[i];
        if (e->layer == layer && strcmp(e->name, name) == 0) return e;
    }
    return NULL;
}

static rg_code add(rg_dump *d, const char *name, uint32_t layer, uint32_t cols, dump_entry **out,
                   rg_status *st) {
    if (d->n_entry == ENTRIES_MAX || strlen(name) >= NAME_MAX_LEN) {
        return rg_fail(st, RG_INVALID, "dump: too many tensors (%u) or too long a name (%s)",
                       d->n_entry, name);
    }
    if (d->n_entry == d->cap) {
        const uint32_t cap = d->cap ? d->cap * 2 : 64;
        dump_entry *entries = rg_realloc(d->entries, cap, sizeof *entries, st);
        if (!entries) return RG_NOMEM;
        d->entries = entries;
        d->cap = cap;
    }
    dump_entry *e = &d->entries[d->n_entry++];
    *e = (dump_entry){.layer = layer, .cols = cols};
    memcpy(e->name, name, strlen(name) + 1);
    *out = e;
    return RG_OK;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* A state is what it is after the last token: later calls replace earlier ones. */
static bool is_state(const char *name) {
    return strcmp(name, "gdn_state") == 0;
}

static rg_code write_rows(rg_dump *d, const char *name, uint32_t layer, uint32_t rows,
                          uint32_t cols, const float *data, rg_status *st) {
    dump_entry *e = find(d, name, layer);
    const bool fresh = !e || is_state(name);
    if (!e) RG_TRY(add(d, name, layer, cols, &e, st));
    RG_ASSERT(e);
    char path[PATH_MAX_LEN + 64];
    RG_TRY(file_path(d, name, layer, path, st));
    FILE *f = fopen(path, fresh ? "wbe" : "abe");
    if (!f) return rg_fail_errno(st, RG_IO, errno, "cannot write %s", path);
    const size_t n = (size_t)rows * cols;
    int err = fwrite(data, sizeof *data, n, f) == n ? 0 : errno;
    if (fclose(f) != 0 && !err) err = errno;
    if (err) return rg_fail_errno(st, RG_IO, err, "writing %s", path);
    e->rows = fresh ? rows : e->rows + rows;
    return RG_OK;
}

static rg_code write_index(const rg_dump *d, rg_status *st) {
    char path[PATH_MAX_LEN + 64];
    RG_TRY(file_path(d, NULL, 0, path, st));
    FILE *f = fopen(path, "we");
    if (!f) return rg_fail_errno(st, RG_IO, errno, "cannot write %s", path);
    fputs(INDEX_HEADER, f);
    for (uint32_t i = 0; i < d->n_entry; i++) {
        const dump_entry *e = &d->entries[i];
        fprintf(f, "%s\t%u\t%llu\t%u\t%s.%u.f32\n", e->name, e->layer, (unsigned long long)e->rows,
                e->cols, e->name, e->layer);
    }
    int err = ferror(f) ? errno : 0;
    if (fclose(f) != 0 && !err) err = errno;
    if (err) return rg_fail_errno(st, RG_IO, err, "writing %s", path);
    return RG_OK;
}

/* ---- comparing ------------------------------------------------------------------------------ */

/* A decimal field and the tab behind it; NULL when `at` is none. */
static const char *parse_field(const char *at, uint64_t max, uint64_t *out) {
    char *end = NULL;
    errno = 0;
    *out = strtoull(at, &end, 10);
    return *at >= '0' && *at <= '9' && !errno && *out <= max && *end == '\t' ? end + 1 : NULL;
}

static bool parse_line(const char *line, char name[NAME_MAX_LEN], uint32_t *layer, uint64_t *rows,
                       uint32_t *cols) {
    const size_t len = strcspn(line, "\t/\n");
    uint64_t numbers[3] = {0};
    if (len == 0 || len >= NAME_MAX_LEN || line[len] != '\t') return false;
    memcpy(name, line, len);
    name[len] = 0;
    const char *at = line + len + 1;
    for (int i = 0; i < 3 && at; i++)
        at = parse_field(at, UINT32_MAX, &numbers[i]);
    *layer = (uint32_t)numbers[0];
    *rows = numbers[1];
    *cols = (uint32_t)numbers[2];
    return at != NULL;
}

static rg_code parse_index(rg_dump *d, const char *text, const char *path, rg_status *st) {
    if (strncmp(text, INDEX_HEADER, strlen(INDEX_HEADER)) != 0) {
        return rg_fail(st, RG_FORMAT, "%s is no complete index: its first line is not the heading",
                       path);
    }
    const char *line = strchr(text, '\n');
    while (line && line[1]) {
        char name[NAME_MAX_LEN];
        uint32_t layer = 0, cols = 0;
        uint64_t rows = 0;
        if (!parse_line(line + 1, name, &layer, &rows, &cols)) {
            return rg_fail(st, RG_FORMAT, "%s: line %u is not name, layer, rows, cols", path,
                           d->n_entry + 2);
        }
        dump_entry *e = NULL;
        RG_TRY(add(d, name, layer, cols, &e, st));
        RG_ASSERT(e);
        e->rows = rows;
        line = strchr(line + 1, '\n');
    }
    return RG_OK;
}

static void note_difference(rg_dump *d, const char *fmt, ...) RG_PRINTF(2, 3);
static void note_difference(rg_dump *d, const char *fmt, ...) {
    if (d->differs) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(d->difference, sizeof d->difference, fmt, args);
    va_end(args);
    d->differs = true;
}

static void compare_values(rg_dump *d, const char *name, uint32_t layer, uint32_t row0,
                           uint32_t cols, size_t n, const float *data, const float *ref) {
    double scale = 0.0, worst = 0.0;
    size_t at = 0;
    for (size_t i = 0; i < n; i++)
        scale = fmax(scale, fabs((double)ref[i]));
    for (size_t i = 0; i < n; i++) {
        const double diff = fabs((double)data[i] - (double)ref[i]);
        if (!(diff <= worst)) {
            worst = isnan(diff) ? HUGE_VAL : diff;
            at = i;
        }
    }
    if (worst <= d->tolerance * scale) return;
    note_difference(d,
                    "first difference: layer %u %s, row %zu column %zu: %.9g, reference %.9g "
                    "(largest in the tensor: %.3g of %.3g)",
                    layer, name, row0 + at / cols, at % cols, (double)data[at], (double)ref[at],
                    worst, scale);
}

static rg_code compare_rows(rg_dump *d, const char *name, uint32_t layer, uint32_t row0,
                            uint32_t rows, uint32_t cols, const float *data, rg_status *st) {
    if (d->differs || is_state(name)) return RG_OK; /* states of other windows are not kept */
    const dump_entry *e = find(d, name, layer);
    if (!e || e->cols != cols || (uint64_t)row0 + rows > e->rows) {
        note_difference(d,
                        "first difference: layer %u %s [%u..%u) x %u, the reference has %llu x %u",
                        layer, name, row0, row0 + rows, cols,
                        e ? (unsigned long long)e->rows : 0ull, e ? e->cols : 0u);
        return RG_OK;
    }
    char path[PATH_MAX_LEN + 64];
    RG_TRY(file_path(d, name, layer, path, st));
    const size_t n = (size_t)rows * cols;
    float *ref = rg_alloc(n, sizeof *ref, st);
    if (!ref) return RG_NOMEM;
    rg_file f = {.fd = -1};
    rg_code rc = rg_file_open(&f, path, st);
    if (rc == RG_OK) {
        rc = rg_file_read_at(&f, ref, n * sizeof *ref, (uint64_t)row0 * cols * sizeof *ref, path,
                             st);
    }
    if (rc == RG_OK) compare_values(d, name, layer, row0, cols, n, data, ref);
    d->n_compared++;
    rg_file_close(&f);
    rg_free(ref);
    return rc;
}

/* ---- interface ------------------------------------------------------------------------------ */

rg_code rg_dump_create(rg_dump **out, const char *dir, rg_status *st) {
    RG_TRY(create(out, dir, st));
    char path[PATH_MAX_LEN + 64];
    rg_code rc = file_path(*out, NULL, 0, path, st);
    FILE *f = rc == RG_OK ? fopen(path, "wxe") : NULL;
    if (f) {
        fclose(f);
        return RG_OK;
    }
    if (rc == RG_OK) rc = rg_fail_errno(st, RG_IO, errno, "cannot begin a dump: %s", path);
    rg_dump_destroy(*out);
    *out = NULL;
    return rc;
}

rg_code rg_dump_compare(rg_dump **out, const char *dir, double tolerance, rg_status *st) {
    if (!(tolerance >= 0.0 && tolerance < 1e9)) {
        *out = NULL;
        return rg_fail(st, RG_INVALID, "dump tolerance %g, must be 0 or more", tolerance);
    }
    RG_TRY(create(out, dir, st));
    rg_dump *d = *out;
    d->compare = true;
    d->tolerance = tolerance;
    char path[PATH_MAX_LEN + 64], *text = NULL;
    size_t len = 0;
    rg_code rc = file_path(d, NULL, 0, path, st);
    if (rc == RG_OK) rc = rg_file_slurp(&text, &len, path, INDEX_MAX, st);
    if (rc == RG_OK) rc = parse_index(d, text, path, st);
    rg_free(text);
    if (rc != RG_OK) {
        rg_dump_destroy(d);
        *out = NULL;
    }
    return rc;
}

static rg_code see(void *user, const char *name, uint32_t layer, uint32_t row0, uint32_t rows,
                   uint32_t cols, const float *data, rg_status *st) {
    rg_dump *d = user;
    if (d->compare) return compare_rows(d, name, layer, row0, rows, cols, data, st);
    return write_rows(d, name, layer, rows, cols, data, st);
}

rg_tap rg_dump_tap(rg_dump *d) {
    return (rg_tap){.see = see, .user = d};
}

rg_code rg_dump_finish(rg_dump *d, char *report, size_t cap, rg_status *st) {
    if (!d->compare) {
        snprintf(report, cap, "%u tensors dumped to %s", d->n_entry, d->dir);
        return write_index(d, st);
    }
    if (d->differs) {
        snprintf(report, cap, "%s", d->difference);
    } else {
        snprintf(report, cap, "no difference in %llu comparisons",
                 (unsigned long long)d->n_compared);
    }
    return RG_OK;
}

void rg_dump_destroy(rg_dump *d) {
    if (!d) return;
    rg_free(d->entries);
    rg_free(d);
}
