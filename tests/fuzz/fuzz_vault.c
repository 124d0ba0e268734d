/* A file of the prefix cache, damaged or made up: what is read is what was written, or an error
 * with a message, and then the entry is gone. Byte 0 chooses: 0 the bytes are the file, 1 they
 * stand behind a good header, 2 they are changes {place u16, bits u8} of a good file, 3 they say
 * where a good file is cut.
 */
#include "fuzz_target.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/vault.h"

#define N_IDS        40
#define PAYLOAD      5000u
#define FILE_MAX     (1u << 16)
#define HEADER_BYTES 56u

static char folder[256], path[600];
static rg_vault *vault;
static int32_t ids[N_IDS];
static uint8_t payload[PAYLOAD], good[FILE_MAX], made[FILE_MAX];
static size_t n_good;

/* Not an assertion of ours: a failure must end the process in every build. */
static void require(bool holds) {
    if (!holds) abort();
}

static void clean_up(void) {
    rg_vault_close(vault);
    DIR *d = opendir(folder);
    for (const struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(folder);
}

static void write_good(void) {
    require(rg_vault_write(vault, RG_VAULT_STATE, ids, N_IDS, payload, PAYLOAD, NULL) == RG_OK);
}

static void find_file(void) {
    DIR *d = opendir(folder);
    require(d != NULL);
    for (const struct dirent *e; (e = readdir(d));) {
        if (strstr(e->d_name, ".rgs")) snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    }
    closedir(d);
}

static void start(void) {
    static const uint8_t identity[16] = "fuzz";
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/rg_fuzz_vault_XXXXXX", tmp ? tmp : "/tmp");
    require(mkdtemp(folder) != NULL);
    require(rg_vault_open(&vault, folder, 1 << 30, identity, NULL) == RG_OK);
    atexit(clean_up);
    for (int32_t i = 0; i < N_IDS; i++)
        ids[i] = i * 7;
    for (uint32_t i = 0; i < PAYLOAD; i++)
        payload[i] = (uint8_t)(i * i >> 5);
    write_good();
    find_file();
    FILE *f = fopen(path, "rb");
    require(f != NULL);
    n_good = fread(good, 1, sizeof good, f);
    fclose(f);
    require(n_good > HEADER_BYTES && n_good < sizeof good);
}

/* The file of an input; returns its length. */
static size_t make(const uint8_t *data, size_t size) {
    const unsigned how = data[0] % 4;
    size_t n = n_good;
    data++;
    size--;
    memcpy(made, good, n_good);
    if (how < 2) {
        const size_t at = how ? HEADER_BYTES : 0;
        if (size > sizeof made - at) size = sizeof made - at;
        memcpy(made + at, data, size);
        n = at + size;
    } else if (how == 2) {
        for (size_t i = 0; i + 3 <= size; i += 3)
            made[(data[i] | (size_t)data[i + 1] << 8) % n_good] ^= data[i + 2];
    } else if (size >= 2) {
        n = (data[0] | (size_t)data[1] << 8) % (n_good + 1);
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    if (!vault) start();
    if (rg_vault_find(vault, ids, N_IDS, N_IDS) == 0) write_good();
    const size_t n = make(data, size);
    FILE *f = fopen(path, "wb");
    require(f && fwrite(made, 1, n, f) == n && fclose(f) == 0);
    uint8_t *read = NULL;
    uint64_t bytes = 0;
    rg_status st = {0};
    if (rg_vault_read(vault, RG_VAULT_STATE, ids, N_IDS, &read, &bytes, &st) == RG_OK) {
        require(bytes == PAYLOAD && memcmp(read, payload, PAYLOAD) == 0);
    } else {
        require(!read && st.message[0] && !strchr(st.message, '\n'));
        require(access(path, F_OK) != 0);
        require(rg_vault_find(vault, ids, N_IDS, N_IDS) == 0);
    }
    rg_free(read);
    return 0;
}
