#include "forge/pull.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "forge/fetch.h"

#define PATH_BYTES  4096u
#define NAME_BYTES  512u
#define FILES_MAX   4096u
#define LISTING_MAX ((size_t)64 << 20)

typedef struct hub_name {
    char repo[NAME_BYTES];  /* USER/REPO */
    char quant[NAME_BYTES]; /* "" = any */
} hub_name;

typedef struct hub_file {
    char path[NAME_BYTES];
    char sha256[65]; /* "" = unknown */
    uint64_t size_bytes;
} hub_file;

typedef struct file_list {
    hub_file *files;
    uint32_t n;
} file_list;

/* ---- names ----------------------------------------------------------------------------------- */

/* No part of a path that leads elsewhere. */
static bool is_safe(const char *path) {
    if (!*path || *path == '/' || strstr(path, "//")) return false;
    for (const char *p = path; p; p = strchr(p, '/')) {
        if (*p == '/') p++;
        if (strncmp(p, "..", 2) == 0 && (p[2] == '/' || !p[2])) return false;
        if (*p == '.' && (p[1] == '/' || !p[1])) return false;
    }
    for (const char *p = path; *p; p++) {
        if (!isalnum((unsigned char)*p) && !strchr("-_./+", *p)) return false;
    }
    return true;
}

static rg_code parse_name(hub_name *out, const char *name, rg_status *st) {
    const char *rest = name + 3;
    const char *colon = strchr(rest, ':');
    const size_t len = colon ? (size_t)(colon - rest) : strlen(rest);
    *out = (hub_name){0};
    if (strncmp(name, "hf:", 3) == 0 && len < NAME_BYTES &&
        (!colon || strlen(colon) < NAME_BYTES)) {
        memcpy(out->repo, rest, len);
        if (colon) snprintf(out->quant, sizeof out->quant, "%s", colon + 1);
        const char *slash = strchr(out->repo, '/');
        if (slash && !strchr(slash + 1, '/') && slash[1] && is_safe(out->repo)) return RG_OK;
    }
    return rg_fail(st, RG_INVALID, "'%.80s' is not hf:USER/REPO[:QUANT]", name);
}

static bool ends_with(const char *text, const char *end) {
    const size_t a = strlen(text), b = strlen(end);
    return a >= b && strcasecmp(text + a - b, end) == 0;
}

static bool holds(const char *text, const char *part) {
    for (const char *p = text; *p; p++) {
        if (strncasecmp(p, part, strlen(part)) == 0) return true;
    }
    return !*part;
}

/* Length of the name without "-0000N-of-0000M.gguf"; 0 when it is no part. */
static size_t split_stem(const char *path) {
    static const size_t tail = sizeof "-00001-of-00001.gguf" - 1;
    const size_t len = strlen(path);
    if (len <= tail) return 0;
    const char *p = path + len - tail;
    if (p[0] != '-' || strncmp(p + 6, "-of-", 4) != 0) return 0;
    for (unsigned i = 1; i < 6; i++) {
        if (!isdigit((unsigned char)p[i]) || !isdigit((unsigned char)p[i + 9])) return 0;
    }
    return len - tail;
}

static bool same_model(const char *a, const char *b) {
    const size_t x = split_stem(a), y = split_stem(b);
    return x ? x == y && strncmp(a, b, x) == 0 : strcmp(a, b) == 0;
}

static bool is_model(const char *path, const char *quant) {
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    return ends_with(path, ".gguf") && !holds(base, "mmproj") && !holds(base, "imatrix") &&
           holds(path, quant);
}

/* ---- choice ---------------------------------------------------------------------------------- */

static int by_path(const void *a, const void *b) {
    const hub_file *x = a, *y = b;
    return strcmp(x->path, y->path);
}

/* Keeps the files of the one model that fits. */
static rg_code choose(file_list *l, const char *name, const char *quant, rg_status *st) {
    uint32_t n = 0, models = 0;
    char found[120] = "";
    for (uint32_t i = 0; i < l->n; i++) {
        if (is_model(l->files[i].path, quant)) l->files[n++] = l->files[i];
    }
    l->n = n;
    if (n) qsort(l->files, n, sizeof *l->files, by_path);
    for (uint32_t i = 0; i < n; i++) {
        if (i && same_model(l->files[i - 1].path, l->files[i].path)) continue;
        const size_t len = strlen(found);
        snprintf(found + len, sizeof found - len, "%s%.100s", models ? ", " : "", l->files[i].path);
        models++;
    }
    if (models == 1) {
        const size_t stem = split_stem(l->files[0].path);
        const unsigned long parts =
            stem ? strtoul(l->files[0].path + stem + 10, NULL, 10) : 1; /* -00001-of-NNNNN */
        if (n == parts) return RG_OK;
        return rg_fail(st, RG_FORMAT, "%.80s: %u of %lu parts are there", name, n, parts);
    }
    if (models == 0) return rg_fail(st, RG_INVALID, "%.80s: no GGUF file of that name", name);
    return rg_fail(st, RG_INVALID, "%.60s: %u models fit, name one: %s", name, models, found);
}

/* ---- hub ------------------------------------------------------------------------------------- */

static rg_code parse_listing(file_list *l, const char *text, size_t len, rg_status *st) {
    json_error_t why;
    json_t *root = json_loadb(text, len, 0, &why);
    rg_code rc =
        json_is_array(root) ? RG_OK : rg_fail(st, RG_FORMAT, "the hub's listing: %.100s", why.text);
    l->files = rg_alloc(FILES_MAX, sizeof *l->files, st);
    if (!l->files) rc = RG_NOMEM;
    for (size_t i = 0; rc == RG_OK && i < json_array_size(root) && l->n < FILES_MAX; i++) {
        const json_t *e = json_array_get(root, i), *lfs = json_object_get(e, "lfs");
        const char *path = json_string_value(json_object_get(e, "path"));
        const char *sha = json_string_value(json_object_get(lfs, "oid"));
        const json_t *size = json_object_get(lfs ? lfs : e, "size");
        if (!path || !is_safe(path) || strlen(path) >= NAME_BYTES || !json_is_integer(size) ||
            json_integer_value(size) < 0) {
            continue;
        }
        hub_file *f = &l->files[l->n++];
        snprintf(f->path, sizeof f->path, "%s", path);
        if (sha && strlen(sha) == 64) snprintf(f->sha256, sizeof f->sha256, "%s", sha);
        f->size_bytes = (uint64_t)json_integer_value(size);
    }
    json_decref(root);
    return rc;
}

static rg_code make_folders(const char *path, rg_status *st) {
    char part[PATH_BYTES];
    if (strlen(path) >= sizeof part) return rg_fail(st, RG_INVALID, "a path is too long");
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            return rg_fail_errno(st, RG_IO, errno, "cannot make the folder '%s'", part);
        }
        *slash = '/';
    }
    return RG_OK;
}

static rg_fetch_options fetch_options(const rg_pull_options *o) {
    return (rg_fetch_options){.token = o->token,
                              .tries = o->tries,
                              .wait_ms = o->wait_ms,
                              .stall_s = o->stall_s,
                              .progress = o->progress,
                              .progress_user = o->progress_user};
}

static rg_code pull_file(const rg_pull_options *o, const char *url, const char *path,
                         const rg_fetch_want *want, rg_buf *out, rg_status *st) {
    const rg_fetch_options f = fetch_options(o);
    RG_TRY(make_folders(path, st));
    RG_TRY(rg_fetch_file(&f, url, path, want, st));
    return rg_buf_printf(out, st, "%s\n", path);
}

static rg_code pull_hub(const rg_pull_options *o, rg_buf *out, rg_status *st) {
    hub_name name;
    file_list l = {0};
    rg_buf text;
    char url[PATH_BYTES], path[PATH_BYTES];
    const char *endpoint = o->endpoint && *o->endpoint ? o->endpoint : RG_PULL_ENDPOINT;
    const rg_fetch_options f = fetch_options(o);
    RG_TRY(parse_name(&name, o->name, st));
    rg_buf_init(&text, LISTING_MAX);
    snprintf(url, sizeof url, "%.1024s/api/models/%s/tree/main?recursive=true", endpoint,
             name.repo);
    rg_code rc = rg_fetch_text(&f, url, LISTING_MAX, &text, st);
    if (rc == RG_OK) rc = parse_listing(&l, text.data ? text.data : "", text.len, st);
    if (rc == RG_OK) rc = choose(&l, o->name, name.quant, st);
    for (uint32_t i = 0; i < l.n && rc == RG_OK; i++) {
        const hub_file *x = &l.files[i];
        const rg_fetch_want want = {x->size_bytes, x->sha256[0] ? x->sha256 : NULL};
        snprintf(url, sizeof url, "%.1024s/%s/resolve/main/%s", endpoint, name.repo, x->path);
        snprintf(path, sizeof path, "%.2048s/%s/%s", o->store, name.repo, x->path);
        rc = pull_file(o, url, path, &want, out, st);
    }
    rg_buf_deinit(&text);
    rg_free(l.files);
    return rc;
}

static rg_code pull_url(const rg_pull_options *o, rg_buf *out, rg_status *st) {
    char path[PATH_BYTES];
    const char *slash = strrchr(o->name, '/');
    const char *base = slash ? slash + 1 : "";
    const size_t len = strcspn(base, "?#");
    char file[NAME_BYTES];
    snprintf(file, sizeof file, "%.*s", (int)(len < sizeof file ? len : 0), base);
    if (!is_safe(file)) return rg_fail(st, RG_INVALID, "'%.80s' names no file", o->name);
    snprintf(path, sizeof path, "%.2048s/url/%s", o->store, file);
    const rg_fetch_want want = {UINT64_MAX, o->sha256};
    return pull_file(o, o->name, path, &want, out, st);
}

rg_code rg_forge_pull(const rg_pull_options *opt, rg_buf *out, rg_status *st) {
    const bool url =
        strncmp(opt->name, "https://", 8) == 0 || strncmp(opt->name, "http://", 7) == 0;
    return url ? pull_url(opt, out, st) : pull_hub(opt, out, st);
}

/* ---- store ----------------------------------------------------------------------------------- */

static rg_code scan(file_list *l, const char *folder, const char *under, unsigned depth,
                    rg_status *st) {
    char path[PATH_BYTES], name[NAME_BYTES];
    snprintf(path, sizeof path, "%.2048s/%.1024s", folder, under);
    DIR *d = opendir(path);
    rg_code rc = RG_OK;
    if (!d) return RG_OK;
    /* readdir is safe where no two threads share a stream, and this one is local. */
    for (struct dirent *e; rc == RG_OK && (e = readdir(d));) { /* NOLINT(concurrency-mt-unsafe) */
        if (e->d_name[0] == '.') continue;
        const int n = snprintf(name, sizeof name, "%s%s%s", under, *under ? "/" : "", e->d_name);
        if (n >= (int)sizeof name) continue;
        if (ends_with(name, ".gguf")) {
            if (l->n < FILES_MAX) memcpy(l->files[l->n++].path, name, sizeof name);
        } else if (depth) {
            rc = scan(l, folder, name, depth - 1, st);
        }
    }
    closedir(d);
    return rc;
}

rg_code rg_forge_pulled(const char *name, const char *store, rg_buf *out, rg_status *st) {
    hub_name hub;
    char folder[PATH_BYTES];
    file_list l = {0};
    RG_TRY(parse_name(&hub, name, st));
    snprintf(folder, sizeof folder, "%.2048s/%s", store, hub.repo);
    l.files = rg_alloc(FILES_MAX, sizeof *l.files, st);
    if (!l.files) return RG_NOMEM;
    rg_code rc = scan(&l, folder, "", 4, st);
    bool any = false;
    for (uint32_t i = 0; i < l.n; i++)
        any = any || is_model(l.files[i].path, hub.quant);
    if (rc == RG_OK && !any) {
        rc = rg_fail(st, RG_INVALID, "%.80s is not here yet: regolith pull %.80s", name, name);
    }
    if (rc == RG_OK) rc = choose(&l, name, hub.quant, st);
    if (rc == RG_OK) rc = rg_buf_printf(out, st, "%s/%s", folder, l.files[0].path);
    rg_free(l.files);
    return rc;
}
