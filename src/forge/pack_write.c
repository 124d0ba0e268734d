/* regolith pack: a model's experts into one file, whatever happens on the way.
 *
 * 1. Under the final name there is never anything but a whole, verified pack: all work is done on
 *    OUT.part, which carries another magic, and the rename comes last.
 * 2. OUT.part belongs to whoever holds its lock.
 * 3. OUT.part grows from front to back. What a killed run left is believed only as far as it gives
 *    the checksums of the model's own bytes.
 * 4. Every expert is read back once: those of an earlier run when they are taken over, the others
 *    at the end, after the system was asked to forget its cached copy.
 *
 * Memory: two buffers and the table of checksums. One thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "forge/forge.h"

#define WRITE_BYTES ((size_t)4 << 20)     /* collected before a write */
#define SYNC_BYTES  ((uint64_t)256 << 20) /* so the last sync is no long silence */
#define TEMP_SUFFIX ".part"

typedef unsigned long long ull;

typedef struct pack_job {
    const rg_forge_pack_options *opt;
    rg_gguf *gguf;
    rg_model *model;
    rg_pack *pack;
    char *path, *temp;
    rg_file file;     /* of temp, locked; size_bytes is what has been written */
    bool owned;       /* temp is ours to remove */
    uint8_t *header;  /* [header bytes] */
    uint8_t *pending; /* [WRITE_BYTES] behind file.size_bytes, not written yet */
    size_t n_pending;
    uint64_t unsynced_bytes;
    uint32_t n_kept; /* experts taken over from an earlier run */
    uint64_t kept_bytes;
    rg_pack_mover mover;
} pack_job;

/* The file is done up to `at` of `end`; what an earlier run did is no work of this one. */
static void tell(const pack_job *j, const char *what, uint64_t at, uint64_t end) {
    if (!j->opt->progress) return;
    j->opt->progress(j->opt->progress_user, what, at - j->kept_bytes, end - j->kept_bytes);
}

/* ---- names and places ----------------------------------------------------------------------- */

/* Something else under the name that was asked for must not be lost. */
static rg_code check_target(const char *path, rg_status *st) {
    uint8_t begin[4];
    if (access(path, F_OK) != 0) return RG_OK;
    rg_file f;
    RG_TRY(rg_file_open(&f, path, st));
    /* Both magics begin so. A run killed at once leaves an empty file. */
    const bool is_pack =
        f.size_bytes == 0 || (f.size_bytes >= sizeof begin &&
                              rg_file_read_at(&f, begin, sizeof begin, 0, path, NULL) == RG_OK &&
                              memcmp(begin, "rgpa", sizeof begin) == 0);
    rg_file_close(&f);
    if (is_pack) return RG_OK;
    return rg_fail(st, RG_INVALID, "%s is there and is no expert pack; it is left alone", path);
}

static rg_code name_files(pack_job *j, rg_status *st) {
    const char *asked = j->opt->out_path;
    if (asked) {
        j->path = rg_strndup(asked, strlen(asked), st);
        if (!j->path) return RG_NOMEM;
    } else {
        RG_TRY(rg_pack_default_path(&j->path, j->opt->model_path, st));
    }
    rg_buf b;
    rg_buf_init(&b, 0);
    const rg_code rc = rg_buf_printf(&b, st, "%s%s", j->path, TEMP_SUFFIX);
    if (rc != RG_OK) {
        rg_buf_deinit(&b);
        return rc;
    }
    j->temp = b.data;
    RG_TRY(check_target(j->path, st));
    return check_target(j->temp, st);
}

/* The folder of a path; release with rg_free. */
static char *folder_of(const char *path, rg_status *st) {
    const char *slash = strrchr(path, '/');
    if (!slash) return rg_strndup(".", 1, st);
    return rg_strndup(path, slash == path ? 1 : (size_t)(slash - path), st);
}

static rg_code check_space(const pack_job *j, rg_status *st) {
    struct statvfs fs;
    if (fstatvfs(j->file.fd, &fs) != 0) {
        return rg_fail_errno(st, RG_IO, errno, "%s: cannot ask its file system", j->temp);
    }
    const uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    const uint64_t need = rg_pack_file_bytes(j->pack) - j->file.size_bytes;
    if (need <= room) return RG_OK;
    return rg_fail(st, RG_IO, "%s: not enough space: %llu bytes are needed, %llu are free", j->path,
                   (ull)need, (ull)room);
}

/* Opens OUT.part and locks it; whatever it holds stays. */
static rg_code open_temp(pack_job *j, rg_status *st) {
    const int fd = open(j->temp, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) return rg_fail_errno(st, RG_IO, errno, "cannot create %s", j->temp);
    j->file.fd = fd;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        return rg_fail_errno(st, RG_BUSY, errno, "%s is being written by another process", j->temp);
    }
    /* The one that held the lock may have renamed or removed it in between. */
    struct stat ours, named;
    if (fstat(fd, &ours) != 0 || stat(j->temp, &named) != 0 || ours.st_ino != named.st_ino ||
        ours.st_dev != named.st_dev) {
        return rg_fail(st, RG_BUSY, "%s was taken by another process", j->temp);
    }
    j->owned = true;
    j->file.size_bytes = (uint64_t)ours.st_size;
    return RG_OK;
}

/* ---- writing -------------------------------------------------------------------------------- */

static rg_code write_at(const pack_job *j, const uint8_t *data, size_t len, uint64_t at,
                        rg_status *st) {
    for (size_t done = 0; done < len;) {
        const ssize_t n = pwrite(j->file.fd, data + done, len - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            return rg_fail_errno(st, RG_IO, n < 0 ? errno : ENOSPC,
                                 "writing %s: %zu bytes at %llu of %llu", j->temp, len - done,
                                 (ull)(at + done), (ull)rg_pack_file_bytes(j->pack));
        }
        done += (size_t)n;
    }
    return RG_OK;
}

static rg_code sync_file(pack_job *j, rg_status *st) {
    j->unsynced_bytes = 0;
    if (fsync(j->file.fd) == 0) return RG_OK;
    return rg_fail_errno(st, RG_IO, errno, "writing %s: %llu bytes to the drive", j->temp,
                         (ull)j->file.size_bytes);
}

static rg_code flush(pack_job *j, rg_status *st) {
    const size_t len = j->n_pending;
    j->n_pending = 0;
    RG_TRY(write_at(j, j->pending, len, j->file.size_bytes, st));
    j->file.size_bytes += len;
    j->unsynced_bytes += len;
    tell(j, "pack", j->file.size_bytes, rg_pack_file_bytes(j->pack));
    return j->unsynced_bytes < SYNC_BYTES ? RG_OK : sync_file(j, st);
}

/* Appends; NULL data are zeros. */
static rg_code append(pack_job *j, const uint8_t *data, size_t len, rg_status *st) {
    for (size_t done = 0; done < len;) {
        const size_t room = WRITE_BYTES - j->n_pending;
        const size_t n = len - done < room ? len - done : room;
        if (data) {
            memcpy(j->pending + j->n_pending, data + done, n);
        } else {
            memset(j->pending + j->n_pending, 0, n);
        }
        j->n_pending += n;
        done += n;
        if (j->n_pending == WRITE_BYTES) RG_TRY(flush(j, st));
    }
    return RG_OK;
}

static rg_code on_bytes(void *user, const void *data, size_t len, rg_status *st) {
    return append(user, data, len, st);
}

/* ---- experts -------------------------------------------------------------------------------- */

typedef struct place {
    const rg_pack_group *group;
    uint32_t layer, expert;
    uint64_t begin, end; /* in the file, padding included */
} place;

/* Of the i-th expert in the order of the file. */
static place place_of(const pack_job *j, uint32_t i) {
    const uint32_t X = j->model->hp.n_expert;
    place p = {.group = rg_pack_group_at(j->pack, i / X), .layer = i / X, .expert = i % X};
    p.begin = p.group->offset + p.expert * p.group->stride;
    p.end = p.begin + p.group->stride;
    return p;
}

static rg_code sum_of_file(pack_job *j, const place *p, uint64_t *sum, rg_status *st) {
    return rg_pack_mover_file(&j->mover, &j->file, j->temp, p->group, p->expert, sum, st);
}

/* An unfinished file has the header of this pack, checksums aside. */
static rg_code header_is_ours(const pack_job *j, bool *ours, rg_status *st) {
    const size_t len = rg_pack_header_bytes(j->pack);
    *ours = false;
    if (j->file.size_bytes < len) return RG_OK;
    uint8_t *found = rg_alloc(len, 1, st);
    if (!found) return RG_NOMEM;
    const rg_code rc = rg_file_read_at(&j->file, found, len, 0, j->temp, st);
    *ours = rc == RG_OK && rg_pack_same_header(j->pack, found, j->header);
    rg_free(found);
    return rc;
}

/* Keeps the experts at the front of OUT.part that are equal to the model's. */
static rg_code take_over(pack_job *j, rg_status *st) {
    bool ours = false;
    RG_TRY(header_is_ours(j, &ours, st));
    uint64_t keep = 0;
    if (ours) {
        keep = rg_pack_header_bytes(j->pack);
        rg_file_forget(&j->file);
    }
    for (uint32_t i = 0; ours && i < rg_pack_item_count(j->pack); i++) {
        const place p = place_of(j, i);
        uint64_t here = 0, model = 0;
        if (p.end > j->file.size_bytes) break;
        RG_TRY(sum_of_file(j, &p, &here, st));
        RG_TRY(rg_pack_mover_model(&j->mover, j->gguf, j->model, p.layer, p.expert, NULL, NULL,
                                   &model, st));
        if (here != model) break;
        rg_pack_set_checksum(j->pack, p.layer, p.expert, model);
        keep = p.end;
        j->n_kept++;
        tell(j, "check", keep, j->file.size_bytes);
    }
    if (ftruncate(j->file.fd, (off_t)keep) != 0) {
        return rg_fail_errno(st, RG_IO, errno, "cutting %s from %llu to %llu bytes", j->temp,
                             (ull)j->file.size_bytes, (ull)keep);
    }
    j->file.size_bytes = keep;
    j->kept_bytes = keep;
    return RG_OK;
}

static rg_code write_experts(pack_job *j, rg_status *st) {
    if (j->file.size_bytes == 0) {
        RG_TRY(append(j, j->header, rg_pack_header_bytes(j->pack), st));
        RG_TRY(flush(j, st)); /* a run that is killed early leaves something to continue */
    }
    for (uint32_t i = j->n_kept; i < rg_pack_item_count(j->pack); i++) {
        const place p = place_of(j, i);
        uint64_t sum = 0;
        RG_ASSERT(j->file.size_bytes + j->n_pending == p.begin);
        RG_TRY(rg_pack_mover_model(&j->mover, j->gguf, j->model, p.layer, p.expert, on_bytes, j,
                                   &sum, st));
        RG_TRY(append(j, NULL, (size_t)(p.group->stride - p.group->item_bytes), st));
        rg_pack_set_checksum(j->pack, p.layer, p.expert, sum);
    }
    RG_TRY(flush(j, st));
    RG_ASSERT(j->file.size_bytes == rg_pack_file_bytes(j->pack));
    return sync_file(j, st);
}

static rg_code verify_experts(pack_job *j, rg_status *st) {
    rg_file_forget(&j->file);
    for (uint32_t i = j->n_kept; i < rg_pack_item_count(j->pack); i++) {
        const place p = place_of(j, i);
        const uint64_t want = p.group->checksums[p.expert];
        uint64_t sum = 0;
        RG_TRY(sum_of_file(j, &p, &sum, st));
        if (sum != want) {
            return rg_fail(st, RG_IO,
                           "%s: layer %u expert %u reads back as %016llx, %016llx was written",
                           j->temp, p.layer, p.expert, (ull)sum, (ull)want);
        }
        tell(j, "verify", p.end, rg_pack_file_bytes(j->pack));
    }
    return RG_OK;
}

/* The real header in front, read back, then the real name. */
static rg_code finish(pack_job *j, rg_status *st) {
    rg_pack *again = NULL;
    rg_pack_write_header(j->pack, true, j->header);
    RG_TRY(write_at(j, j->header, rg_pack_header_bytes(j->pack), 0, st));
    RG_TRY(sync_file(j, st));
    RG_TRY(rg_pack_open(&again, j->temp, st));
    rg_pack_close(again);
    if (rename(j->temp, j->path) != 0) {
        return rg_fail_errno(st, RG_IO, errno, "renaming %s to %s", j->temp, j->path);
    }
    j->owned = false;
    char *folder = folder_of(j->path, st);
    if (!folder) return RG_NOMEM;
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot sync a folder; the pack is there either way. */
    if (fd >= 0 && fsync(fd) != 0) rg_log(RG_LOG_INFO, "%s: cannot sync the folder", folder);
    if (fd >= 0) close(fd);
    rg_free(folder);
    return RG_OK;
}

/* ---- command -------------------------------------------------------------------------------- */

static rg_code open_model(pack_job *j, rg_status *st) {
    const rg_model_options whole = {0};
    RG_TRY(rg_gguf_open(&j->gguf, j->opt->model_path, st));
    RG_TRY(rg_model_create(&j->model, j->gguf, &whole, st));
    RG_TRY(rg_pack_plan(&j->pack, j->gguf, j->model, st));
    RG_TRY(rg_pack_mover_init(&j->mover, st));
    j->header = rg_alloc(rg_pack_header_bytes(j->pack), 1, st);
    j->pending = rg_alloc(WRITE_BYTES, 1, st);
    if (!j->header || !j->pending) return RG_NOMEM;
    rg_pack_write_header(j->pack, false, j->header);
    return RG_OK;
}

static rg_code make(pack_job *j, rg_status *st) {
    RG_TRY(open_model(j, st));
    RG_TRY(name_files(j, st));
    RG_TRY(open_temp(j, st));
    RG_TRY(take_over(j, st));
    RG_TRY(check_space(j, st));
    RG_TRY(write_experts(j, st));
    RG_TRY(verify_experts(j, st));
    return finish(j, st);
}

static rg_code describe(const pack_job *j, rg_buf *out, rg_status *st) {
    char kept[64] = "";
    if (j->n_kept) {
        snprintf(kept, sizeof kept, ", %u of them were there from an earlier run", j->n_kept);
    }
    return rg_buf_printf(out, st, "%s: %u experts in %u layers, %.1f MiB, verified%s\n", j->path,
                         rg_pack_item_count(j->pack), rg_pack_group_count(j->pack),
                         (double)rg_pack_file_bytes(j->pack) / 0x1p20, kept);
}

rg_code rg_forge_pack(const rg_forge_pack_options *opt, rg_buf *out, rg_status *st) {
    pack_job j = {.opt = opt, .file = {.fd = -1}};
    rg_code rc = make(&j, st);
    if (rc == RG_OK) rc = describe(&j, out, st);
    if (j.owned) (void)unlink(j.temp); /* failed: while the lock still holds */
    rg_file_close(&j.file);
    rg_pack_mover_deinit(&j.mover);
    rg_free(j.header);
    rg_free(j.pending);
    rg_free(j.path);
    rg_free(j.temp);
    rg_pack_close(j.pack);
    rg_model_destroy(j.model);
    rg_gguf_close(j.gguf);
    return rc;
}
