#include "forge/gguf_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "forge/file_out.h"

#define JOURNAL_MAGIC "regolith-write 1 "
#define SYNC_BYTES    ((uint64_t)512 << 20) /* written between two lines of the journal */

typedef struct part {
    rg_gguf_out head;
    char path[RG_WRITE_PATH_MAX], temp[RG_WRITE_PATH_MAX];
    int fd;
    uint32_t begin, end; /* tensors */
    bool named;          /* stands under its final name */
} part;

struct rg_gguf_write {
    rg_write_options opt;
    const rg_gguf_out *head;
    const rg_out_tensor *tensors;
    uint32_t n_tensor, n_part;
    part *parts;
    uint64_t *offset;   /* [n_tensor] in its part */
    uint32_t *part_of;  /* [n_tensor] */
    bool *has;          /* [n_tensor] */
    uint32_t *unlisted; /* [n_tensor] ended, not in the journal yet */
    uint32_t n_unlisted;
    char journal[RG_WRITE_PATH_MAX];
    int journal_fd;
    uint64_t size_bytes, unsynced;
    bool finished;
};

uint64_t rg_out_tensor_bytes(const rg_out_tensor *t) {
    const size_t row = rg_row_bytes(t->type, (size_t)t->ne[0]);
    uint64_t bytes = row;
    for (uint32_t d = 1; d < t->n_dims; d++) {
        if (__builtin_mul_overflow(bytes, t->ne[d], &bytes)) return 0;
    }
    return bytes <= INT64_MAX ? bytes : 0;
}

/* ---- layout ---------------------------------------------------------------------------------- */

static void deal(rg_gguf_write *w) {
    uint64_t total = 0, seen = 0;
    uint32_t at = 0;
    for (uint32_t i = 0; i < w->n_tensor; i++)
        total += w->tensors[i].size_bytes;
    for (uint32_t p = 0; p < w->n_part; p++) {
        w->parts[p].begin = at;
        const double until = (double)total * (p + 1) / w->n_part;
        while (at < w->n_tensor && (p + 1 == w->n_part || (double)seen < until)) {
            w->part_of[at] = p;
            seen += w->tensors[at++].size_bytes;
        }
        w->parts[p].end = at;
    }
}

static rg_code name_part(const rg_gguf_write *w, uint32_t p, rg_status *st) {
    part *t = &w->parts[p];
    const char *path = w->opt.path;
    size_t len = strlen(path);
    int n = 0;
    if (w->n_part == 1) {
        n = snprintf(t->path, sizeof t->path, "%s", path);
    } else {
        if (len > 5 && strcmp(path + len - 5, ".gguf") == 0) len -= 5;
        if (len > sizeof t->path) len = sizeof t->path;
        n = snprintf(t->path, sizeof t->path, "%.*s-%05u-of-%05u.gguf", (int)len, path, p + 1,
                     w->n_part);
    }
    const int m = snprintf(t->temp, sizeof t->temp, "%.4000s.part", t->path);
    if (n >= 0 && n < 4000 && m < (int)sizeof t->temp) return RG_OK;
    return rg_fail(st, RG_INVALID, "the path of %zu bytes is too long", strlen(path));
}

static rg_code lay_out(rg_gguf_write *w, uint32_t p, rg_status *st) {
    part *t = &w->parts[p];
    if (p == 0) {
        RG_TRY(rg_buf_append(&t->head.kv, w->head->kv.data, w->head->kv.len, st));
        t->head.n_kv = w->head->n_kv;
    }
    if (w->n_part > 1) {
        RG_TRY(rg_gguf_out_u16(&t->head, "split.no", (uint16_t)p, st));
        RG_TRY(rg_gguf_out_u16(&t->head, "split.count", (uint16_t)w->n_part, st));
        RG_TRY(rg_gguf_out_i32(&t->head, "split.tensors.count", (int32_t)w->n_tensor, st));
    }
    for (uint32_t i = t->begin; i < t->end; i++) {
        const rg_out_tensor *x = &w->tensors[i];
        w->offset[i] = t->head.data_bytes; /* the header's bytes come on top */
        RG_TRY(rg_gguf_out_tensor(&t->head, x->name, x->type, x->ne, x->n_dims, x->size_bytes, st));
    }
    const uint64_t header = rg_gguf_out_header_bytes(&t->head);
    for (uint32_t i = t->begin; i < t->end; i++)
        w->offset[i] += header;
    w->size_bytes += rg_gguf_out_file_bytes(&t->head);
    return RG_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

static rg_code put(int fd, const char *path, const void *data, size_t n, uint64_t at,
                   rg_status *st) {
    const uint8_t *p = data;
    while (n > 0) {
        const ssize_t done = pwrite(fd, p, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) {
            return rg_fail_errno(st, RG_IO, done < 0 ? errno : EIO,
                                 "cannot write '%s' at byte %llu", path, (unsigned long long)at);
        }
        p += done;
        n -= (size_t)done;
        at += (uint64_t)done;
    }
    return RG_OK;
}

static rg_code put_header(const rg_gguf_write *w, uint32_t p, rg_status *st) {
    const part *t = &w->parts[p];
    uint8_t start[24];
    rg_gguf_out_start(&t->head, start);
    const uint64_t kv = t->head.kv.len, table = t->head.table.len;
    RG_TRY(put(t->fd, t->temp, start, sizeof start, 0, st));
    if (kv) RG_TRY(put(t->fd, t->temp, t->head.kv.data, kv, 24, st));
    return table ? put(t->fd, t->temp, t->head.table.data, table, 24 + kv, st) : RG_OK;
}

static rg_code open_part(const rg_gguf_write *w, uint32_t p, bool keep, rg_status *st) {
    part *t = &w->parts[p];
    t->fd = open(t->temp, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (t->fd < 0) return rg_fail_errno(st, RG_IO, errno, "cannot create '%s'", t->temp);
    if (!keep && ftruncate(t->fd, 0) != 0) {
        return rg_fail_errno(st, RG_IO, errno, "cannot empty '%s'", t->temp);
    }
    /* Zeros where nothing will be written, the padding behind the last tensor included. */
    if (ftruncate(t->fd, (off_t)rg_gguf_out_file_bytes(&t->head)) != 0) {
        return rg_fail_errno(st, RG_IO, errno, "cannot size '%s'", t->temp);
    }
    return put_header(w, p, st);
}

/* ---- journal --------------------------------------------------------------------------------- */

static void identity_line(const rg_gguf_write *w, char line[64]) {
    int n = snprintf(line, 64, JOURNAL_MAGIC);
    for (int i = 0; i < 16; i++)
        n += snprintf(line + n, (size_t)(64 - n), "%02x", w->opt.identity[i]);
    snprintf(line + n, (size_t)(64 - n), "\n");
}

/* Whether an earlier run left the parts of which it wrote the journal. Only one that was whole can
 * have given names. */
static bool find_parts(rg_gguf_write *w) {
    bool whole = true;
    for (uint32_t i = 0; i < w->n_tensor; i++)
        whole = whole && w->has[i];
    for (uint32_t p = 0; p < w->n_part; p++) {
        part *t = &w->parts[p];
        if (access(t->temp, F_OK) == 0) continue;
        t->named = whole && access(t->path, F_OK) == 0;
        if (!t->named) return false;
    }
    return true;
}

static void forget(rg_gguf_write *w) {
    memset(w->has, 0, w->n_tensor * sizeof *w->has);
    for (uint32_t p = 0; p < w->n_part; p++)
        w->parts[p].named = false;
}

/* What an earlier run of the same job left: tensors are marked; false when there is nothing. */
static bool read_journal(rg_gguf_write *w) {
    char want[64];
    char *text = NULL;
    size_t len = 0;
    bool same = true;
    forget(w);
    identity_line(w, want);
    if (rg_file_slurp(&text, &len, w->journal, (size_t)64 << 20, NULL) != RG_OK) return false;
    same = len >= strlen(want) && memcmp(text, want, strlen(want)) == 0;
    const char *at = same ? text + strlen(want) : NULL;
    while (at && *at) {
        char *end = NULL;
        const unsigned long i = strtoul(at, &end, 10);
        if (end == at || *end != '\n' || i >= w->n_tensor) break;
        w->has[i] = true;
        at = end + 1;
    }
    rg_free(text);
    same = same && find_parts(w);
    if (!same) forget(w);
    return same;
}

static rg_code open_journal(rg_gguf_write *w, rg_status *st) {
    w->journal_fd = open(w->journal, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (w->journal_fd < 0) {
        return rg_fail_errno(st, RG_IO, errno, "cannot create '%s'", w->journal);
    }
    if (flock(w->journal_fd, LOCK_EX | LOCK_NB) != 0) {
        close(w->journal_fd);
        w->journal_fd = -1;
        return rg_fail(st, RG_BUSY, "another run is writing '%s'", w->parts[0].temp);
    }
    return RG_OK;
}

static rg_code start_journal(rg_gguf_write *w, rg_status *st) {
    char line[64];
    identity_line(w, line);
    const ssize_t len = (ssize_t)strlen(line);
    if (ftruncate(w->journal_fd, 0) == 0 && write(w->journal_fd, line, (size_t)len) == len) {
        return RG_OK;
    }
    return rg_fail_errno(st, RG_IO, errno, "cannot write '%s'", w->journal);
}

/* Names the tensors that ended since the last call, once their bytes are on the drive. */
static rg_code list_ended(rg_gguf_write *w, rg_status *st) {
    for (uint32_t p = 0; p < w->n_part; p++) {
        if (!w->parts[p].named && fdatasync(w->parts[p].fd) != 0) {
            return rg_fail_errno(st, RG_IO, errno, "cannot write '%s'", w->parts[p].temp);
        }
    }
    for (uint32_t k = 0; k < w->n_unlisted; k++) {
        char line[16];
        const int n = snprintf(line, sizeof line, "%u\n", w->unlisted[k]);
        if (write(w->journal_fd, line, (size_t)n) != n) {
            return rg_fail_errno(st, RG_IO, errno, "cannot write '%s'", w->journal);
        }
    }
    w->n_unlisted = 0;
    w->unsynced = 0;
    return RG_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static rg_code refuse_existing(const rg_gguf_write *w, rg_status *st) {
    for (uint32_t p = 0; p < w->n_part && !w->opt.overwrite; p++) {
        if (!w->parts[p].named && access(w->parts[p].path, F_OK) == 0) {
            return rg_fail(st, RG_INVALID, "'%s' exists (--overwrite replaces it)",
                           w->parts[p].path);
        }
    }
    return RG_OK;
}

static rg_code check_room(const rg_gguf_write *w, bool resumed, rg_status *st) {
    uint64_t need = w->size_bytes;
    for (uint32_t i = 0; i < w->n_tensor && resumed; i++) {
        if (w->has[i]) need -= w->tensors[i].size_bytes;
    }
    return rg_file_out_check_space(w->parts[0].path, need, st);
}

static rg_code start(rg_gguf_write *w, rg_status *st) {
    w->parts = rg_alloc(w->n_part, sizeof *w->parts, st);
    w->offset = rg_alloc(w->n_tensor, sizeof *w->offset, st);
    w->part_of = rg_alloc(w->n_tensor, sizeof *w->part_of, st);
    w->has = rg_alloc(w->n_tensor, sizeof *w->has, st);
    w->unlisted = rg_alloc(w->n_tensor, sizeof *w->unlisted, st);
    if (!w->parts || !w->offset || !w->part_of || !w->has || !w->unlisted) return RG_NOMEM;
    for (uint32_t p = 0; p < w->n_part; p++) {
        w->parts[p].fd = -1;
        rg_gguf_out_init(&w->parts[p].head);
    }
    deal(w);
    for (uint32_t p = 0; p < w->n_part; p++) {
        RG_TRY(name_part(w, p, st));
        RG_TRY(lay_out(w, p, st));
    }
    const int n = snprintf(w->journal, sizeof w->journal, "%.4000s.log", w->parts[0].temp);
    RG_ASSERT(n < (int)sizeof w->journal);
    (void)read_journal(w); /* for the names given already; again below, under its lock */
    RG_TRY(refuse_existing(w, st));
    RG_TRY(open_journal(w, st));
    const bool resumed = read_journal(w);
    RG_TRY(check_room(w, resumed, st));
    for (uint32_t p = 0; p < w->n_part; p++) {
        if (!w->parts[p].named) RG_TRY(open_part(w, p, resumed, st));
    }
    return resumed ? RG_OK : start_journal(w, st);
}

rg_code rg_gguf_write_create(rg_gguf_write **out, const rg_write_options *opt,
                             const rg_gguf_out *head, const rg_out_tensor *tensors,
                             uint32_t n_tensor, rg_status *st) {
    *out = NULL;
    if (opt->parts > RG_WRITE_PARTS_MAX) {
        return rg_fail(st, RG_INVALID, "%u parts, at most %u are possible", opt->parts,
                       RG_WRITE_PARTS_MAX);
    }
    rg_gguf_write *w = rg_alloc(1, sizeof *w, st);
    if (!w) return RG_NOMEM;
    w->opt = *opt;
    w->head = head;
    w->tensors = tensors;
    w->n_tensor = n_tensor;
    w->n_part = opt->parts > 1 ? opt->parts : 1;
    w->journal_fd = -1;
    const rg_code rc = start(w, st);
    if (rc != RG_OK) {
        rg_gguf_write_destroy(w);
        return rc;
    }
    *out = w;
    return RG_OK;
}

bool rg_gguf_write_has(const rg_gguf_write *w, uint32_t i) {
    return w->has[i];
}

rg_code rg_gguf_write_at(rg_gguf_write *w, uint32_t i, uint64_t begin, const void *data, size_t n,
                         rg_status *st) {
    RG_ASSERT(i < w->n_tensor);
    RG_ASSERT(begin <= w->tensors[i].size_bytes && n <= w->tensors[i].size_bytes - begin);
    const part *p = &w->parts[w->part_of[i]];
    w->unsynced += n;
    return put(p->fd, p->temp, data, n, w->offset[i] + begin, st);
}

rg_code rg_gguf_write_end(rg_gguf_write *w, uint32_t i, rg_status *st) {
    RG_ASSERT(i < w->n_tensor);
    if (w->has[i]) return RG_OK;
    w->has[i] = true;
    w->unlisted[w->n_unlisted++] = i;
    const uint64_t limit = w->opt.sync_bytes ? w->opt.sync_bytes : SYNC_BYTES;
    return w->unsynced >= limit ? list_ended(w, st) : RG_OK;
}

rg_code rg_gguf_write_finish(rg_gguf_write *w, rg_status *st) {
    for (uint32_t i = 0; i < w->n_tensor; i++)
        RG_ASSERT(w->has[i]);
    RG_TRY(list_ended(w, st));
    for (uint32_t p = 0; p < w->n_part; p++) {
        part *t = &w->parts[p];
        if (t->named) continue;
        const int synced = fsync(t->fd), closed = close(t->fd);
        t->fd = -1;
        if (synced != 0 || closed != 0) {
            return rg_fail_errno(st, RG_IO, errno, "cannot finish '%s'", t->temp);
        }
    }
    for (uint32_t p = 0; p < w->n_part; p++) {
        part *t = &w->parts[p];
        if (t->named) continue;
        if (rename(t->temp, t->path) != 0) {
            return rg_fail_errno(st, RG_IO, errno, "cannot rename '%s'", t->temp);
        }
        t->named = true;
    }
    (void)unlink(w->journal);
    w->finished = true;
    return RG_OK;
}

uint64_t rg_gguf_write_bytes(const rg_gguf_write *w) {
    return w->size_bytes;
}

const char *rg_gguf_write_path(const rg_gguf_write *w) {
    return w->parts[0].path;
}

void rg_gguf_write_destroy(rg_gguf_write *w) {
    if (!w) return;
    const bool ours = w->journal_fd >= 0; /* else another run may be writing them */
    for (uint32_t p = 0; w->parts && p < w->n_part; p++) {
        part *t = &w->parts[p];
        if (t->fd >= 0) close(t->fd);
        if (ours && !w->finished) (void)unlink(t->named ? t->path : t->temp);
        rg_gguf_out_deinit(&t->head);
    }
    if (ours && !w->finished) (void)unlink(w->journal);
    if (ours) close(w->journal_fd);
    rg_free(w->parts);
    rg_free(w->offset);
    rg_free(w->part_of);
    rg_free(w->has);
    rg_free(w->unlisted);
    rg_free(w);
}
