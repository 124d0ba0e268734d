/* The cache is a pool of slots, one row each: a ring ordered by recency and a chained hash table
 * from row number to slot. The pool holds at least the rows of one request, so the rows of the
 * request in hand are the youngest of the ring and are never evicted by it.
 *
 * A request:   idle --request--> open --join, cancel--> idle
 * A missing row of it: queued [next, n_miss) --take--> being read (active) --> read, or failed.
 *
 * Invariants:
 *  1. Outside an open request every slot whose row is not NO_ROW holds that row's bytes.
 *  2. Readers touch only slots of rows they took; the worker looks at no bytes while a request is
 *     open.
 *  3. When a request fails or is given up, all rows it would have read leave the cache.
 *
 * Threads: `lock` guards next, active, failed, first, stop and meters, and hands `miss` and the
 * slots' bytes over. All else belongs to the worker. No lock is held while reading.
 */
#include "engine/ple_reader.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NONE        UINT32_MAX
#define NO_ROW      UINT64_MAX
#define SPAN_BYTES  ((size_t)32 << 10)  /* of one read at most, if rows are not longer */
#define STACK_BYTES ((size_t)256 << 10) /* readers need 1 KiB; sanitizers more */
#define LOAD_BYTES  ((size_t)4 << 20)   /* of one read of a table that is loaded */
#define RETRIES     3u
#define ALIGN       64u
#define PAGE        RG_DIRECT_ALIGN

typedef struct ple_slot {
    uint64_t row;
    uint32_t chain;        /* next of the same bucket */
    uint32_t older, newer; /* ring by recency; slot n_slot is its anchor */
    uint32_t stamp;        /* of the last request that wanted it */
    bool filled;           /* was read once */
} ple_slot;

typedef struct ple_miss {
    uint64_t row;
    uint32_t slot;
} ple_miss;

struct rg_ple_reader {
    rg_ple_reader_options opt;
    rg_stream_faults faults;
    char *path;
    rg_file file;
    bool direct, open;
    /* Laid out in one block. */
    void *memory;
    uint64_t memory_bytes;
    uint8_t *rows;     /* [n_slot][row_bytes], or the table [n_row][row_bytes] */
    uint64_t *wants;   /* [n_want_max] row numbers */
    uint32_t *at;      /* [n_want_max] their slots */
    ple_miss *miss;    /* [n_want_max] rows to read, ascending */
    ple_slot *slots;   /* [n_slot + 1] */
    uint32_t *buckets; /* [n_bucket] */
    uint8_t *buffers;  /* [n_thread + 1][buffer_bytes], the last one of the worker */
    size_t buffer_bytes;
    uint32_t n_slot, n_bucket, stamp;

    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool has_lock, stop, failed;
    uint32_t n_miss, next, active;
    rg_status first;
    rg_ple_meters meters;
    pthread_t threads[RG_PLE_THREADS_MAX];
    uint32_t n_thread, n_started;
    atomic_uint_fast64_t n_draw; /* faults: reads so far */
    atomic_uint burst;           /* faults: reads that still fail */
};

/* ---- memory --------------------------------------------------------------------------------- */

static void *take(uint8_t *base, uint64_t *used, uint64_t count, size_t size) {
    void *at = base ? base + *used : NULL;
    *used += (count * size + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static uint32_t count_slots(const rg_ple_reader_options *o) {
    /* A slot costs its row, its record, and one to two words of the hash table. */
    const uint64_t each = o->row_bytes + sizeof(ple_slot) + 2 * sizeof(uint32_t);
    uint64_t n = o->cache_bytes / each;
    if (n < o->n_want_max) n = o->n_want_max;
    if (n > o->n_row) n = o->n_row; /* no request has more distinct rows */
    return n < (1u << 30) ? (uint32_t)n : 1u << 30;
}

static size_t buffer_size(size_t row_bytes) {
    const size_t row = (row_bytes + (size_t)2 * PAGE - 1) / PAGE * PAGE + PAGE;
    return row > SPAN_BYTES ? row : SPAN_BYTES;
}

/* Counts and places in one function, so that the two agree. */
static uint64_t lay_out(rg_ple_reader *r, uint8_t *base) {
    const rg_ple_reader_options *o = &r->opt;
    uint64_t used = 0;
    if (!o->resident) {
        r->n_slot = count_slots(o);
        r->n_bucket = 1;
        while (r->n_bucket < r->n_slot)
            r->n_bucket *= 2;
        r->buffer_bytes = buffer_size(o->row_bytes);
        r->buffers = take(base, &used, r->n_thread + 1, r->buffer_bytes); /* page aligned */
        r->at = take(base, &used, o->n_want_max, sizeof *r->at);
        r->miss = take(base, &used, o->n_want_max, sizeof *r->miss);
        r->slots = take(base, &used, (uint64_t)r->n_slot + 1, sizeof *r->slots);
        r->buckets = take(base, &used, r->n_bucket, sizeof *r->buckets);
    }
    r->wants = take(base, &used, o->n_want_max, sizeof *r->wants);
    r->rows = take(base, &used, o->resident ? o->n_row : r->n_slot, o->row_bytes);
    return used;
}

static uint32_t count_threads(const rg_ple_reader_options *o) {
    if (o->resident) return 0;
    return o->n_thread && o->n_thread < RG_PLE_THREADS_MAX ? o->n_thread : RG_PLE_THREADS_MAX;
}

uint64_t rg_ple_reader_bytes(const rg_ple_reader_options *opt) {
    rg_ple_reader r = {.opt = *opt, .n_thread = count_threads(opt)};
    return lay_out(&r, NULL);
}

/* ---- cache ---------------------------------------------------------------------------------- */

static uint32_t *bucket_of(rg_ple_reader *r, uint64_t row) {
    /* Fibonacci hashing (Knuth, volume 3, 6.4): neighbouring rows spread. */
    return &r->buckets[(row * 0x9E3779B97F4A7C15u >> 32) & (r->n_bucket - 1)];
}

static uint32_t find(rg_ple_reader *r, uint64_t row) {
    uint32_t s = *bucket_of(r, row);
    while (s != NONE && r->slots[s].row != row)
        s = r->slots[s].chain;
    return s;
}

static void unlink_recency(rg_ple_reader *r, uint32_t s) {
    r->slots[r->slots[s].older].newer = r->slots[s].newer;
    r->slots[r->slots[s].newer].older = r->slots[s].older;
}

/* Puts s between `older` and what is newer than it. The anchor is both newest and oldest. */
static void link_recency(rg_ple_reader *r, uint32_t s, uint32_t older) {
    const uint32_t newer = r->slots[older].newer;
    r->slots[s].older = older;
    r->slots[s].newer = newer;
    r->slots[older].newer = s;
    r->slots[newer].older = s;
}

static void touch(rg_ple_reader *r, uint32_t s) {
    unlink_recency(r, s);
    link_recency(r, s, r->slots[r->n_slot].older);
    r->slots[s].stamp = r->stamp;
}

static void forget(rg_ple_reader *r, uint32_t s) {
    ple_slot *slot = &r->slots[s];
    if (slot->row == NO_ROW) return;
    uint32_t *link = bucket_of(r, slot->row);
    while (*link != s) {
        RG_ASSERT(*link != NONE);
        link = &r->slots[*link].chain;
    }
    *link = slot->chain;
    slot->row = NO_ROW;
}

/* The oldest slot becomes that of `row`, without its bytes. */
static uint32_t claim(rg_ple_reader *r, uint64_t row) {
    const uint32_t s = r->slots[r->n_slot].newer;
    RG_ASSERT(s < r->n_slot);
    RG_ASSERT(r->slots[s].row == NO_ROW || r->slots[s].stamp != r->stamp);
    forget(r, s);
    uint32_t *bucket = bucket_of(r, row);
    r->slots[s].row = row;
    r->slots[s].chain = *bucket;
    *bucket = s;
    touch(r, s);
    return s;
}

static void clear_cache(rg_ple_reader *r) {
    memset(r->buckets, 0xFF, r->n_bucket * sizeof *r->buckets);
    r->slots[r->n_slot] = (ple_slot){.row = NO_ROW, .older = r->n_slot, .newer = r->n_slot};
    for (uint32_t s = 0; s < r->n_slot; s++) {
        r->slots[s].row = NO_ROW;
        link_recency(r, s, r->slots[r->n_slot].older);
    }
}

/* Rows that were to be read leave the cache; their slots are the next to be claimed. */
static void drop_missing(rg_ple_reader *r) {
    for (uint32_t i = 0; i < r->n_miss; i++) {
        const uint32_t s = r->miss[i].slot;
        forget(r, s);
        r->slots[s].filled = false;
        unlink_recency(r, s);
        link_recency(r, s, r->n_slot);
    }
}

/* ---- reading -------------------------------------------------------------------------------- */

static uint64_t offset_of(const rg_ple_reader *r, uint64_t row) {
    return r->opt.offset + row * r->opt.row_bytes;
}
static uint64_t page_floor(uint64_t x) {
    return x - x % PAGE;
}
static uint64_t page_ceil(uint64_t x) {
    return page_floor(x + PAGE - 1);
}

static bool draw(const rg_ple_reader *r, uint64_t n, uint64_t what, uint32_t permille) {
    return permille && rg_random_unit(r->faults.seed, n * 4 + what) * 1000.0 < (double)permille;
}

/* One read, with the injected faults if there are any. */
static ssize_t read_once(rg_ple_reader *r, void *dst, size_t bytes, uint64_t offset) {
    if (r->opt.faults) {
        const rg_stream_faults *f = &r->faults;
        const uint64_t n = atomic_fetch_add_explicit(&r->n_draw, 1, memory_order_relaxed);
        if (draw(r, n, 0, f->stall_permille) && f->stall_ms_max) {
            const long ms = (long)(rg_random_unit(f->seed, n * 4 + 3) * f->stall_ms_max) + 1;
            const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
            nanosleep(&t, NULL);
        }
        unsigned left = atomic_load_explicit(&r->burst, memory_order_relaxed);
        while (left && !atomic_compare_exchange_weak_explicit(
                           &r->burst, &left, left - 1, memory_order_relaxed, memory_order_relaxed))
            continue;
        const bool fresh = !left && draw(r, n, 1, f->eio_permille);
        if (fresh) atomic_store_explicit(&r->burst, f->eio_burst, memory_order_relaxed);
        if (fresh || left) {
            errno = EIO;
            return -1;
        }
        if (bytes > 1 && draw(r, n, 2, f->short_permille)) bytes /= 2;
    }
    if (r->direct && bytes % PAGE) bytes = bytes > PAGE ? bytes - bytes % PAGE : PAGE;
    if (r->opt.read) return r->opt.read(r->opt.read_user, r->file.fd, dst, bytes, (off_t)offset);
    return pread(r->file.fd, dst, bytes, (off_t)offset);
}

typedef struct span_count {
    uint64_t reads, bytes, retries;
} span_count;

/* Bytes [begin, begin + size) of the file, of which `need` must come. */
static rg_code read_span(rg_ple_reader *r, uint8_t *dst, uint64_t begin, size_t need, size_t size,
                         uint64_t row, span_count *count, rg_status *st) {
    const uint32_t tries_max = r->opt.retries_max ? r->opt.retries_max : RETRIES;
    size_t done = 0;
    uint32_t tries = 0;
    for (;;) {
        const ssize_t n = read_once(r, dst + done, size - done, begin + done);
        count->reads++;
        const int err = n < 0 ? errno : 0;
        if (err == EINTR) continue;
        if (n > 0) {
            count->bytes += (uint64_t)n;
            if (done + (size_t)n >= need) return RG_OK;
            const size_t kept = r->direct ? (done + (size_t)n) / PAGE * PAGE : done + (size_t)n;
            if (kept > done) {
                done = kept;
                continue;
            }
        }
        if (tries++ < tries_max) {
            count->retries++;
            continue;
        }
        const unsigned long long at = begin + done, number = row;
        if (err) {
            return rg_fail_errno(st, RG_IO, err, "%s: n-gram row %llu: reading %zu bytes at %llu",
                                 r->path, number, size - done, at);
        }
        return rg_fail(st, RG_FORMAT,
                       "%s shrank: n-gram row %llu: %zu bytes wanted at %llu, %zu came", r->path,
                       number, need, (unsigned long long)begin, done);
    }
}

/* How many of the missing rows from `first` on come with one read: those in the same pages, or in
 * pages that touch. */
static uint32_t run_length(const rg_ple_reader *r, uint32_t first) {
    const uint64_t begin = page_floor(offset_of(r, r->miss[first].row));
    uint64_t end = page_ceil(offset_of(r, r->miss[first].row) + r->opt.row_bytes);
    uint32_t n = 1;
    for (; first + n < r->n_miss; n++) {
        const uint64_t at = offset_of(r, r->miss[first + n].row);
        const uint64_t behind = page_ceil(at + r->opt.row_bytes);
        if (page_floor(at) > end || behind - begin > r->buffer_bytes) break;
        end = behind;
    }
    return n;
}

static rg_code read_run(rg_ple_reader *r, uint32_t first, uint32_t n, uint8_t *buffer,
                        span_count *count, rg_status *st) {
    const uint64_t begin = offset_of(r, r->miss[first].row);
    const uint64_t end = offset_of(r, r->miss[first + n - 1].row) + r->opt.row_bytes;
    const uint64_t from = r->direct ? page_floor(begin) : begin;
    const uint64_t to = r->direct ? page_ceil(end) : end;
    RG_ASSERT(to - from <= r->buffer_bytes);
    RG_TRY(read_span(r, buffer, from, (size_t)(end - from), (size_t)(to - from), r->miss[first].row,
                     count, st));
    for (uint32_t i = first; i < first + n; i++) {
        memcpy(r->rows + (size_t)r->miss[i].slot * r->opt.row_bytes,
               buffer + (offset_of(r, r->miss[i].row) - from), r->opt.row_bytes);
    }
    return RG_OK;
}

/* Takes the next run and reads it. Called with the lock, which is free while reading. */
static void serve_run(rg_ple_reader *r, uint8_t *buffer) {
    const uint32_t first = r->next, n = run_length(r, first);
    r->next += n;
    r->active++;
    RG_ASSERT(r->next <= r->n_miss);
    pthread_mutex_unlock(&r->lock);
    span_count count = {0};
    rg_status st = {0};
    const rg_code rc = read_run(r, first, n, buffer, &count, &st);
    pthread_mutex_lock(&r->lock);
    r->meters.reads += count.reads;
    r->meters.read_bytes += count.bytes;
    r->meters.retries += count.retries;
    if (rc != RG_OK) {
        r->meters.errors++;
        if (!r->failed) r->first = st;
        r->failed = true;
        r->next = r->n_miss; /* the rest would be in vain */
    }
    RG_ASSERT(r->active > 0);
    r->active--;
    if (r->active == 0 && r->next == r->n_miss) pthread_cond_signal(&r->done);
}

static void *reader_main(void *arg) {
    rg_ple_reader *r = arg;
    pthread_mutex_lock(&r->lock);
    uint8_t *buffer = r->buffers + (size_t)r->n_started++ * r->buffer_bytes;
    for (;;) {
        while (!r->stop && r->next == r->n_miss)
            pthread_cond_wait(&r->work, &r->lock);
        if (r->stop) break;
        serve_run(r, buffer);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- requests ------------------------------------------------------------------------------- */

static void sift_down(ple_miss *m, uint32_t at, uint32_t n) {
    const ple_miss x = m[at];
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && m[child + 1].row > m[child].row) child++;
        if (m[child].row <= x.row) break;
        m[at] = m[child];
    }
    m[at] = x;
}

/* Heapsort (Williams 1964): in place, as a window allocates nothing. */
static void sort_missing(ple_miss *m, uint32_t n) {
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(m, i, n);
    for (uint32_t i = n; i-- > 1;) {
        const ple_miss top = m[0];
        m[0] = m[i];
        m[i] = top;
        sift_down(m, 0, i);
    }
}

/* Hits first, so that no wanted row is evicted for another. */
static uint32_t look_up(rg_ple_reader *r, uint32_t n, uint64_t *hits) {
    uint32_t n_miss = 0;
    r->stamp++;
    for (uint32_t i = 0; i < n; i++) {
        r->at[i] = find(r, r->wants[i]);
        if (r->at[i] == NONE) continue;
        touch(r, r->at[i]);
        ++*hits;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (r->at[i] != NONE) continue;
        r->at[i] = find(r, r->wants[i]);
        if (r->at[i] != NONE) continue; /* claimed for an earlier one of this request */
        const uint32_t s = r->at[i] = claim(r, r->wants[i]);
        const bool skip = r->opt.null_reads && r->slots[s].filled;
        r->slots[s].filled = true;
        if (!skip) r->miss[n_miss++] = (ple_miss){.row = r->wants[i], .slot = s};
    }
    return n_miss;
}

static rg_code check_wants(const rg_ple_reader *r, uint32_t n, rg_status *st) {
    for (uint32_t i = 0; i < n; i++) {
        if (r->wants[i] < r->opt.n_row) continue;
        return rg_fail(st, RG_INVALID, "n-gram row %llu is wanted, the table has %llu",
                       (unsigned long long)r->wants[i], (unsigned long long)r->opt.n_row);
    }
    return RG_OK;
}

rg_code rg_ple_reader_request(rg_ple_reader *r, uint32_t n, rg_status *st) {
    RG_ASSERT(n <= r->opt.n_want_max);
    rg_ple_reader_cancel(r);
    RG_TRY(check_wants(r, n, st));
    uint64_t hits = r->opt.resident ? n : 0;
    uint32_t n_miss = 0;
    if (!r->opt.resident) {
        n_miss = look_up(r, n, &hits);
        sort_missing(r->miss, n_miss);
    }
    r->open = true;
    pthread_mutex_lock(&r->lock);
    RG_ASSERT(r->active == 0);
    r->n_miss = n_miss;
    r->next = 0;
    r->failed = false;
    r->meters.wanted += n;
    r->meters.hits += hits;
    r->meters.shared += n - hits - n_miss;
    for (uint32_t i = 0; i < n_miss && i < r->n_thread; i++)
        pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
    return RG_OK;
}

rg_code rg_ple_reader_join(rg_ple_reader *r, rg_status *st) {
    RG_ASSERT(r->open);
    const uint64_t begin = rg_now_ns();
    pthread_mutex_lock(&r->lock);
    /* What nobody took yet is read here: the readers may be short of a processor. */
    while (r->next < r->n_miss)
        serve_run(r, r->buffers + (size_t)r->n_thread * r->buffer_bytes);
    while (r->active > 0)
        pthread_cond_wait(&r->done, &r->lock);
    const bool failed = r->failed;
    r->meters.wait_ns += rg_now_ns() - begin;
    pthread_mutex_unlock(&r->lock);
    r->open = false;
    if (!failed) return RG_OK;
    drop_missing(r);
    if (st && st->code == RG_OK) *st = r->first;
    return r->first.code;
}

void rg_ple_reader_cancel(rg_ple_reader *r) {
    if (!r->open) return;
    pthread_mutex_lock(&r->lock);
    r->next = r->n_miss;
    while (r->active > 0)
        pthread_cond_wait(&r->done, &r->lock);
    pthread_mutex_unlock(&r->lock);
    r->open = false;
    drop_missing(r);
}

uint64_t *rg_ple_reader_wants(rg_ple_reader *r) {
    return r->wants;
}

const uint8_t *rg_ple_reader_row(const rg_ple_reader *r, uint32_t i) {
    const uint64_t at = r->opt.resident ? r->wants[i] : r->at[i];
    return r->rows + at * r->opt.row_bytes;
}

/* ---- life ----------------------------------------------------------------------------------- */

/* AUTO falls back to the page cache. */
static rg_code open_file(rg_ple_reader *r, rg_status *st) {
    const rg_ple_reader_options *o = &r->opt;
    if (o->direct != RG_DIRECT_OFF && !o->resident) {
        rg_status why = {0};
        const rg_code rc = rg_file_open_direct(&r->file, r->path, &why);
        r->direct = rc == RG_OK;
        if (rc != RG_OK && o->direct == RG_DIRECT_ON) {
            if (st && st->code == RG_OK) *st = why;
            return rc;
        }
    }
    if (!r->direct) RG_TRY(rg_file_open(&r->file, r->path, st));
    const uint64_t table = o->n_row * o->row_bytes;
    if (o->offset > r->file.size_bytes || table > r->file.size_bytes - o->offset) {
        return rg_fail(st, RG_FORMAT, "%s: the n-gram table ends at %llu, the file at %llu",
                       r->path, (unsigned long long)(o->offset + table),
                       (unsigned long long)r->file.size_bytes);
    }
    if (!r->direct && !o->resident) rg_file_expect_random(&r->file);
    return RG_OK;
}

static rg_code load_table(rg_ple_reader *r, rg_status *st) {
    const uint64_t bytes = r->opt.n_row * r->opt.row_bytes;
    for (uint64_t at = 0; at < bytes; at += LOAD_BYTES) {
        const size_t n = bytes - at < LOAD_BYTES ? (size_t)(bytes - at) : LOAD_BYTES;
        RG_TRY(rg_file_read_at(&r->file, r->rows + at, n, r->opt.offset + at, r->path, st));
    }
    rg_file_close(&r->file);
    return RG_OK;
}

static rg_code start_threads(rg_ple_reader *r, rg_status *st) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) return rg_fail(st, RG_NOMEM, "no memory for a thread");
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES); /* refused: the usual size does too */
    const uint32_t n = r->n_thread;
    int err = 0;
    for (r->n_thread = 0; r->n_thread < n && !err;) {
        err = pthread_create(&r->threads[r->n_thread], &attr, reader_main, r);
        if (!err) r->n_thread++;
    }
    pthread_attr_destroy(&attr);
    if (!err) return RG_OK;
    return rg_fail_errno(st, RG_NOMEM, err, "n-gram reader thread %u of %u", r->n_thread, n);
}

static rg_code set_up(rg_ple_reader *r, rg_status *st) {
    RG_TRY(open_file(r, st));
    r->memory_bytes = lay_out(r, NULL);
    const rg_code rc = rg_mem_map(&r->memory, r->memory_bytes, st);
    if (rc != RG_OK) return rg_context(st, rc, "rows of the n-gram table");
    (void)lay_out(r, r->memory);
    if (r->opt.resident) {
        RG_TRY(load_table(r, st));
    } else {
        clear_cache(r);
    }
    if (pthread_mutex_init(&r->lock, NULL) != 0)
        return rg_fail(st, RG_NOMEM, "cannot make the lock of the n-gram readers");
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->done, NULL);
    r->has_lock = true;
    return start_threads(r, st);
}

rg_code rg_ple_reader_create(rg_ple_reader **out, const rg_ple_reader_options *opt, rg_status *st) {
    *out = NULL;
    RG_ASSERT(opt->row_bytes > 0 && opt->n_row > 0);
    if (opt->n_want_max < 1 || opt->n_want_max > RG_PLE_WANT_MAX) {
        return rg_fail(st, RG_INVALID, "%u n-gram rows a window are wanted, 1..%u are possible",
                       opt->n_want_max, RG_PLE_WANT_MAX);
    }
    rg_ple_reader *r = rg_alloc(1, sizeof *r, st);
    if (!r) return RG_NOMEM;
    r->opt = *opt;
    r->file.fd = -1;
    if (opt->faults) {
        r->faults = *opt->faults;
        r->opt.faults = &r->faults;
    }
    r->n_thread = count_threads(opt);
    r->path = rg_strndup(opt->path, strlen(opt->path), st);
    rg_code rc = r->path ? RG_OK : RG_NOMEM;
    if (rc == RG_OK) rc = set_up(r, st);
    if (rc == RG_OK) {
        *out = r;
    } else {
        rg_ple_reader_destroy(r);
    }
    return rc;
}

void rg_ple_reader_destroy(rg_ple_reader *r) {
    if (!r) return;
    if (r->has_lock) {
        pthread_mutex_lock(&r->lock);
        r->stop = true;
        pthread_cond_broadcast(&r->work);
        pthread_mutex_unlock(&r->lock);
        for (uint32_t i = 0; i < r->n_thread; i++)
            pthread_join(r->threads[i], NULL);
        pthread_cond_destroy(&r->done);
        pthread_cond_destroy(&r->work);
        pthread_mutex_destroy(&r->lock);
    }
    rg_file_close(&r->file);
    rg_mem_unmap(r->memory, r->memory_bytes);
    rg_free(r->path);
    rg_free(r);
}

void rg_ple_reader_meters_get(rg_ple_reader *r, rg_ple_meters *out) {
    pthread_mutex_lock(&r->lock);
    *out = r->meters;
    pthread_mutex_unlock(&r->lock);
    out->n_slot = r->n_slot;
}

bool rg_ple_reader_direct(const rg_ple_reader *r) {
    return r->direct;
}
uint64_t rg_ple_reader_memory(const rg_ple_reader *r) {
    return r->memory_bytes;
}
