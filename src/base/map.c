#include "base/map.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/random.h"

/* wyhash-style mixing (128-bit multiply, fold): short keys, good spread, no table. */
__extension__ typedef unsigned __int128 u128;

static uint64_t mix(uint64_t a, uint64_t b) {
    const u128 p = (u128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static uint64_t hash_bytes(uint64_t seed, const char *key, size_t len) {
    uint64_t h = seed ^ len;
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        uint64_t w = 0;
        memcpy(&w, key + i, 8);
        h = mix(h ^ w, seed ^ 0xD6E8FEB86659FD93u);
    }
    uint64_t tail = 0;
    memcpy(&tail, key + i, len - i);
    return mix(h ^ tail, seed ^ 0xA0761D6478BD642Fu);
}

void rg_map_init(rg_map *m) {
    /* Where the system placed this map, and when: nothing a file can know. */
    *m = (rg_map){.seed = rg_random_u64(rg_now_ns(), (uint64_t)(uintptr_t)m)};
}

void rg_map_deinit(rg_map *m) {
    rg_free(m->entries);
    *m = (rg_map){.seed = m->seed};
}

static rg_map_entry *find(const rg_map *m, const char *key, size_t len, uint64_t hash) {
    size_t i = (size_t)hash & (m->cap - 1);
    for (;;) {
        rg_map_entry *e = &m->entries[i];
        if (!e->key) return e;
        if (e->hash == hash && e->len == len && memcmp(e->key, key, len) == 0) return e;
        i = (i + 1) & (m->cap - 1);
    }
}

static rg_code grow(rg_map *m, rg_status *st) {
    rg_map bigger = {.cap = m->cap ? m->cap * 2 : 64, .count = m->count, .seed = m->seed};
    bigger.entries = rg_alloc(bigger.cap, sizeof *bigger.entries, st);
    if (!bigger.entries) return RG_NOMEM;
    for (size_t i = 0; i < m->cap; i++) {
        const rg_map_entry *e = &m->entries[i];
        if (e->key) *find(&bigger, e->key, e->len, e->hash) = *e;
    }
    rg_free(m->entries);
    *m = bigger;
    return RG_OK;
}

rg_code rg_map_add(rg_map *m, const char *key, size_t len, uint64_t value, bool *existed,
                   rg_status *st) {
    if (m->count * 2 >= m->cap) RG_TRY(grow(m, st));
    const uint64_t hash = hash_bytes(m->seed, key, len);
    rg_map_entry *e = find(m, key, len, hash);
    if (existed) *existed = e->key != NULL;
    if (e->key) return RG_OK;
    *e = (rg_map_entry){.key = key, .len = len, .hash = hash, .value = value};
    m->count++;
    return RG_OK;
}

bool rg_map_get(const rg_map *m, const char *key, size_t len, uint64_t *out) {
    if (!m->cap) return false;
    const rg_map_entry *e = find(m, key, len, hash_bytes(m->seed, key, len));
    if (!e->key) return false;
    if (out) *out = e->value;
    return true;
}
