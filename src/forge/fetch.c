#include "forge/fetch.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "forge/file_out.h"
#include "forge/sha256.h"

#define PATH_BYTES   4096u
#define ETAG_BYTES   256u
#define WAIT_MS_MAX  60000u
#define VERIFY_BYTES ((size_t)4 << 20)

typedef unsigned long long ull;

/* What the last response said; reset at every status line, so redirects leave nothing behind. */
typedef struct response {
    long status;
    uint64_t range_begin, total; /* of Content-Range; UINT64_MAX: unknown */
    uint64_t length;             /* of Content-Length */
    unsigned retry_after_s;
    char etag[ETAG_BYTES];
} response;

typedef struct transfer {
    const rg_fetch_options *opt;
    response r;
    /* text */
    rg_buf *text;
    rg_status *st;
    rg_code rc;
    /* file */
    int fd;
    const char *path;
    uint64_t have;  /* bytes of the file on the drive */
    uint64_t begin; /* where this request asked to begin */
    uint64_t limit; /* bytes that the file can have; UINT64_MAX: unknown */
    uint64_t got;   /* by this request */
    bool placed;    /* the first bytes decided where they go */
    bool too_long;
} transfer;

/* ---- one request ----------------------------------------------------------------------------- */

static void reset_response(response *r) {
    *r = (response){.range_begin = UINT64_MAX, .total = UINT64_MAX, .length = UINT64_MAX};
}

static bool header_is(const char *line, size_t n, const char *name, const char **value) {
    const size_t len = strlen(name);
    if (n <= len || strncasecmp(line, name, len) != 0 || line[len] != ':') return false;
    *value = line + len + 1 + strspn(line + len + 1, " \t");
    return true;
}

static size_t on_header(char *data, size_t size, size_t count, void *user) {
    transfer *t = user;
    const size_t n = size * count;
    char line[1024];
    const char *v = NULL;
    const size_t len = n < sizeof line ? n : sizeof line - 1;
    memcpy(line, data, len);
    line[len] = 0;
    line[strcspn(line, "\r\n")] = 0;
    if (strncmp(line, "HTTP/", 5) == 0) {
        reset_response(&t->r);
        const char *space = strchr(line, ' ');
        t->r.status = space ? strtol(space, NULL, 10) : 0;
    } else if (header_is(line, len, "content-range", &v)) {
        const char *digits = v + strcspn(v, "0123456789*");
        char *end = NULL;
        if (*digits != '*') t->r.range_begin = strtoull(digits, &end, 10);
        const char *slash = strchr(v, '/');
        if (slash && slash[1] != '*') t->r.total = strtoull(slash + 1, NULL, 10);
    } else if (header_is(line, len, "content-length", &v)) {
        t->r.length = strtoull(v, NULL, 10);
    } else if (header_is(line, len, "retry-after", &v)) {
        t->r.retry_after_s = (unsigned)strtoul(v, NULL, 10);
    } else if (header_is(line, len, "etag", &v)) {
        snprintf(t->r.etag, sizeof t->r.etag, "%.*s", (int)sizeof t->r.etag - 1, v);
    }
    return n;
}

static size_t on_text(char *data, size_t size, size_t count, void *user) {
    transfer *t = user;
    if (t->r.status != 200) return size * count;
    t->rc = rg_buf_append(t->text, data, size * count, t->st);
    return t->rc == RG_OK ? size * count : 0;
}

/* Where the body goes: a whole one from the front, a part where it was asked to begin. */
static bool place(transfer *t) {
    t->placed = true;
    if (t->r.status == 200) {
        if (ftruncate(t->fd, 0) != 0) {
            t->rc = rg_fail_errno(t->st, RG_IO, errno, "cannot empty '%s'", t->path);
            return false;
        }
        t->have = 0;
    } else if (t->r.range_begin != t->begin) {
        return false; /* not what was asked for */
    }
    return true;
}

static size_t on_body(char *data, size_t size, size_t count, void *user) {
    transfer *t = user;
    const size_t n = size * count;
    size_t done = 0;
    if (t->r.status != 200 && t->r.status != 206) return n; /* an error page */
    if (!t->placed && !place(t)) return 0;
    if (n > t->limit - t->have) {
        t->too_long = true;
        return 0;
    }
    while (done < n) {
        const ssize_t w = pwrite(t->fd, data + done, n - done, (off_t)t->have);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) {
            t->rc = rg_fail_errno(t->st, RG_IO, w < 0 ? errno : EIO, "cannot write '%s'", t->path);
            return 0;
        }
        done += (size_t)w;
        t->have += (uint64_t)w;
        t->got += (uint64_t)w;
    }
    if (t->opt->progress && t->limit != UINT64_MAX) {
        t->opt->progress(t->opt->progress_user, "pull", t->have, t->limit);
    }
    return n;
}

static rg_code request(transfer *t, const char *url, const char *range, const char *etag,
                       CURLcode *result, rg_status *st) {
    char line[ETAG_BYTES + 64], auth[1024];
    struct curl_slist *headers = NULL;
    CURL *c = curl_easy_init();
    if (!c) return rg_fail(st, RG_NOMEM, "libcurl cannot start");
    reset_response(&t->r);
    const bool plain = strncmp(url, "http:", 5) == 0; /* asked for by name, as a local server is */
    const char *protocols = plain ? "http,https" : "https";
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, protocols);
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, protocols);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 20L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, t->opt->stall_s ? (long)t->opt->stall_s : 30L);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "regolith");
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, t->text ? on_text : on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    if (range) curl_easy_setopt(c, CURLOPT_RANGE, range);
    if (range && etag && *etag) {
        snprintf(line, sizeof line, "If-Range: %s", etag);
        headers = curl_slist_append(headers, line);
    }
    if (t->opt->token && *t->opt->token) { /* libcurl keeps it from other hosts */
        snprintf(auth, sizeof auth, "Authorization: Bearer %s", t->opt->token);
        headers = curl_slist_append(headers, auth);
    }
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    *result = curl_easy_perform(c);
    curl_slist_free_all(headers);
    curl_easy_cleanup(c);
    return t->rc;
}

/* ---- tries ----------------------------------------------------------------------------------- */

static bool passing(long status) {
    return status == 429 || status == 408 || status >= 500;
}

static void pause_for(const rg_fetch_options *opt, unsigned attempt, unsigned retry_after_s) {
    uint64_t ms = opt->wait_ms ? opt->wait_ms : 1000;
    ms <<= attempt < 6 ? attempt : 6;
    if (retry_after_s) ms = (uint64_t)retry_after_s * 1000;
    if (ms > WAIT_MS_MAX) ms = WAIT_MS_MAX;
    const struct timespec t = {.tv_sec = (time_t)(ms / 1000),
                               .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static rg_code say_status(const char *url, long status, rg_status *st) {
    const char *why = status == 401 || status == 403 ? " (HF_TOKEN gives access to closed models)"
                      : status == 404                ? " (no such model or file)"
                                                     : "";
    return rg_fail(st, RG_IO, "%.120s: the server answers %ld%s", url, status, why);
}

static unsigned tries_of(const rg_fetch_options *opt) {
    return opt->tries ? opt->tries : 5;
}

rg_code rg_fetch_text(const rg_fetch_options *opt, const char *url, size_t max, rg_buf *out,
                      rg_status *st) {
    CURLcode result = CURLE_OK;
    transfer t = {.opt = opt, .text = out, .st = st, .rc = RG_OK, .fd = -1};
    for (unsigned attempt = 0;; attempt++) {
        rg_buf_clear(out);
        out->max = max;
        RG_TRY(request(&t, url, NULL, NULL, &result, st));
        if (result == CURLE_OK && t.r.status == 200) return RG_OK;
        const bool again = result != CURLE_OK || passing(t.r.status);
        if (!again || attempt + 1 >= tries_of(opt)) break;
        pause_for(opt, attempt, t.r.retry_after_s);
    }
    if (result != CURLE_OK) {
        return rg_fail(st, RG_IO, "%.120s: %s", url, curl_easy_strerror(result));
    }
    return say_status(url, t.r.status, st);
}

/* ---- files ----------------------------------------------------------------------------------- */

typedef struct file_job {
    const rg_fetch_options *opt;
    const char *url, *path;
    rg_fetch_want want;
    char temp[PATH_BYTES], etag[ETAG_BYTES];
    int fd;
    bool restarted; /* began anew once already for a wrong hash */
} file_job;

static rg_code hash_file(const file_job *j, int fd, uint64_t size, char hex[65], rg_status *st) {
    uint8_t *buffer = rg_alloc(VERIFY_BYTES, 1, st);
    rg_sha256 s;
    rg_code rc = buffer ? RG_OK : RG_NOMEM;
    rg_sha256_init(&s);
    for (uint64_t at = 0; at < size && rc == RG_OK;) {
        const ssize_t n = pread(fd, buffer, VERIFY_BYTES, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            rc = rg_fail_errno(st, RG_IO, n < 0 ? errno : EIO, "reading '%s'", j->temp);
            break;
        }
        rg_sha256_add(&s, buffer, (size_t)n);
        at += (uint64_t)n;
        if (j->opt->progress) j->opt->progress(j->opt->progress_user, "verify", at, size);
    }
    rg_free(buffer);
    rg_sha256_hex(&s, hex);
    return rc;
}

/* A file that is there already and right. */
static rg_code is_complete(const file_job *j, bool *yes, rg_status *st) {
    struct stat facts;
    char hex[65] = "";
    *yes = false;
    const int fd = open(j->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return RG_OK;
    rg_code rc = RG_OK;
    bool same = fstat(fd, &facts) == 0 && j->want.size_bytes != UINT64_MAX &&
                (uint64_t)facts.st_size == j->want.size_bytes;
    if (same && j->want.sha256) {
        rc = hash_file(j, fd, j->want.size_bytes, hex, st);
        same = strcmp(hex, j->want.sha256) == 0;
    }
    close(fd);
    *yes = same;
    return rc;
}

static rg_code open_part(file_job *j, uint64_t *have, rg_status *st) {
    struct stat facts;
    const int n = snprintf(j->temp, sizeof j->temp, "%s.part", j->path);
    if (n >= (int)sizeof j->temp) return rg_fail(st, RG_INVALID, "a path of %d bytes", n);
    j->fd = open(j->temp, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (j->fd < 0) return rg_fail_errno(st, RG_IO, errno, "cannot create '%s'", j->temp);
    if (flock(j->fd, LOCK_EX | LOCK_NB) != 0) {
        return rg_fail(st, RG_BUSY, "another run is getting '%s'", j->path);
    }
    if (fstat(j->fd, &facts) != 0) return rg_fail_errno(st, RG_IO, errno, "'%s'", j->temp);
    *have = (uint64_t)facts.st_size;
    return RG_OK;
}

static rg_code start_over(const file_job *j, transfer *t, rg_status *st) {
    t->have = 0;
    if (ftruncate(j->fd, 0) == 0) return RG_OK;
    return rg_fail_errno(st, RG_IO, errno, "cannot empty '%s'", j->temp);
}

/* Size and identity of what the server has now, against what was begun. */
static rg_code check_same(file_job *j, transfer *t, rg_status *st) {
    const response *r = &t->r;
    const uint64_t total = r->status == 206 ? r->total : r->status == 200 ? r->length : UINT64_MAX;
    if (total != UINT64_MAX && j->want.size_bytes != UINT64_MAX && total != j->want.size_bytes) {
        return rg_fail(st, RG_IO, "%.120s: the server has %llu bytes, %llu were announced", j->url,
                       (ull)total, (ull)j->want.size_bytes);
    }
    if (total != UINT64_MAX && t->limit != UINT64_MAX && total != t->limit) {
        return rg_fail(st, RG_IO, "%.120s: the file grew from %llu to %llu bytes meanwhile", j->url,
                       (ull)t->limit, (ull)total);
    }
    if (total != UINT64_MAX) t->limit = total;
    if (r->etag[0]) memcpy(j->etag, r->etag, sizeof j->etag);
    return RG_OK;
}

/* One request for what is missing. *whole: the file is complete. */
static rg_code one_try(file_job *j, transfer *t, bool *whole, CURLcode *result, rg_status *st) {
    char range[32];
    *whole = false;
    t->begin = t->have;
    t->got = 0;
    t->placed = t->too_long = false;
    snprintf(range, sizeof range, "%llu-", (ull)t->have);
    RG_TRY(request(t, j->url, t->have ? range : NULL, j->etag, result, st));
    if (t->r.status == 416) { /* the server has no such byte: done, or begun with another file */
        if (t->limit != UINT64_MAX && t->have == t->limit) {
            *whole = true;
            return RG_OK;
        }
        return start_over(j, t, st);
    }
    if (t->r.status != 200 && t->r.status != 206) return RG_OK;
    RG_TRY(check_same(j, t, st));
    if (t->too_long) {
        return rg_fail(st, RG_IO, "%.120s: the server sends more than %llu bytes", j->url,
                       (ull)t->limit);
    }
    if (t->r.status == 206 && t->placed && t->r.range_begin != t->begin) {
        return start_over(j, t, st);
    }
    *whole = *result == CURLE_OK && (t->limit == UINT64_MAX || t->have == t->limit);
    return RG_OK;
}

static rg_code get_all(file_job *j, transfer *t, rg_status *st) {
    bool whole = t->limit != UINT64_MAX && t->have == t->limit;
    CURLcode result = CURLE_OK;
    for (unsigned idle = 0; !whole;) {
        const uint64_t before = t->have;
        RG_TRY(one_try(j, t, &whole, &result, st));
        if (whole) break;
        const long status = t->r.status;
        const bool answered = status != 0 && status != 200 && status != 206 && status != 416;
        if (answered && !passing(status)) return say_status(j->url, status, st);
        idle = t->have > before ? 0 : idle + 1;
        if (idle >= tries_of(j->opt)) {
            if (answered) return say_status(j->url, status, st);
            return rg_fail(st, RG_IO, "%.120s: stopped at byte %llu: %s", j->url, (ull)t->have,
                           result ? curl_easy_strerror(result) : "the server sends no more");
        }
        pause_for(j->opt, idle, t->r.retry_after_s);
    }
    return RG_OK;
}

static rg_code finish(file_job *j, transfer *t, bool *again, rg_status *st) {
    char hex[65] = "";
    *again = false;
    if (j->want.sha256) {
        RG_TRY(hash_file(j, j->fd, t->have, hex, st));
        if (strcmp(hex, j->want.sha256) != 0) {
            RG_TRY(start_over(j, t, st));
            *again = !j->restarted;
            j->restarted = true;
            if (*again) return RG_OK;
            return rg_fail(st, RG_FORMAT, "%.100s: sha256 is %.16s..., not %.16s...", j->url, hex,
                           j->want.sha256);
        }
    }
    if (fsync(j->fd) != 0 || rename(j->temp, j->path) != 0) {
        return rg_fail_errno(st, RG_IO, errno, "cannot finish '%s'", j->path);
    }
    return RG_OK;
}

static rg_code fetch(file_job *j, rg_status *st) {
    bool complete = false, again = true;
    transfer t = {
        .opt = j->opt, .st = st, .rc = RG_OK, .path = j->temp, .limit = j->want.size_bytes};
    RG_TRY(is_complete(j, &complete, st));
    if (complete) return RG_OK;
    RG_TRY(open_part(j, &t.have, st));
    t.fd = j->fd;
    /* What was begun cannot be told from another file without a size or a hash to check. */
    if (t.have && (t.limit == UINT64_MAX || !j->want.sha256 || t.have > t.limit)) {
        RG_TRY(start_over(j, &t, st));
    }
    if (t.limit != UINT64_MAX) RG_TRY(rg_file_out_check_space(j->path, t.limit - t.have, st));
    while (again) {
        RG_TRY(get_all(j, &t, st));
        RG_TRY(finish(j, &t, &again, st));
    }
    return RG_OK;
}

rg_code rg_fetch_file(const rg_fetch_options *opt, const char *url, const char *path,
                      const rg_fetch_want *want, rg_status *st) {
    file_job j = {.opt = opt, .url = url, .path = path, .want = *want, .fd = -1};
    const rg_code rc = fetch(&j, st);
    struct stat facts;
    /* Nothing useful is kept of a file that failed for good before its first byte. */
    if (rc != RG_OK && rc != RG_BUSY && j.fd >= 0 && fstat(j.fd, &facts) == 0 && !facts.st_size) {
        (void)unlink(j.temp);
    }
    if (j.fd >= 0) close(j.fd);
    return rc;
}
