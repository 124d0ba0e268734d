/* Feeds every file named on the command line, and every regular file directly inside every
 * directory named, to a libFuzzer entry point once. So the corpus of a fuzz target is a plain test
 * on compilers that have no libFuzzer. Single-threaded.
 *
 * Each input lies in a heap block of exactly its own size, for AddressSanitizer to see the first
 * byte read beyond it. Exit 1 when a file cannot be read or there was no input at all.
 */
#include "fuzz_target.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/base.h"

#define INPUT_BYTES_MAX (64u << 20)
#define PATH_BYTES_MAX  4096

static rg_code replay_file(const char *path, rg_status *st) {
    rg_file file = {.fd = -1};
    uint8_t *data = NULL;
    rg_code rc = RG_OK;
    RG_GO(rg_file_open(&file, path, st));
    if (file.size_bytes > INPUT_BYTES_MAX) {
        rc = rg_fail(st, RG_INVALID, "%s has %llu bytes, the limit is %u", path,
                     (unsigned long long)file.size_bytes, INPUT_BYTES_MAX);
        goto cleanup;
    }
    const size_t size = (size_t)file.size_bytes;
    data = rg_alloc(size, 1, st);
    if (!data) {
        rc = RG_NOMEM;
        goto cleanup;
    }
    RG_GO(rg_file_read_at(&file, data, size, 0, path, st));
    (void)LLVMFuzzerTestOneInput(data, size); /* the value matters to the fuzzer's corpus only */
cleanup:
    rg_free(data);
    rg_file_close(&file);
    return rc;
}

static bool is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static rg_code replay_directory(const char *path, size_t *count, rg_status *st) {
    DIR *dir = opendir(path);
    if (!dir) return rg_fail(st, RG_IO, "%s: cannot open the directory", path);
    rg_code rc = RG_OK;
    for (const struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        char name[PATH_BYTES_MAX];
        const int len = snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (len < 0 || (size_t)len >= sizeof name) {
            rc = rg_fail(st, RG_INVALID, "%s: path of %d bytes, the limit is %zu", path, len,
                         sizeof name);
            break;
        }
        if (is_directory(name)) continue;
        rc = replay_file(name, st);
        if (rc != RG_OK) break;
        (*count)++;
    }
    closedir(dir);
    return rc;
}

int main(int argc, char **argv) {
    rg_status st = {0};
    size_t count = 0;
    rg_code rc = RG_OK;
    for (int i = 1; i < argc && rc == RG_OK; i++) {
        if (is_directory(argv[i])) {
            rc = replay_directory(argv[i], &count, &st);
        } else {
            rc = replay_file(argv[i], &st);
            if (rc == RG_OK) count++;
        }
    }
    if (rc == RG_OK && count == 0) rc = rg_fail(&st, RG_INVALID, "no input was given");
    if (rc != RG_OK) {
        fprintf(stderr, "replay: %s\n", st.message);
        return 1;
    }
    printf("replayed %zu inputs\n", count);
    return 0;
}
