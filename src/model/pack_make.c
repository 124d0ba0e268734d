/* Making packs: the tables that a model's pack has, its header, the experts' bytes. */
#include <string.h>
#include <xxhash.h>

#include "model/pack_parts.h"

#define MOVE_BYTES ((size_t)1 << 20) /* read at once */
#define PART_ALIGN 4u

const rg_moe_desc *rg_model_moe(const rg_model *m, uint32_t i) {
    RG_ASSERT(i < m->hp.n_layer + m->hp.n_mtp);
    return i < m->hp.n_layer ? &m->layers[i].moe : &m->mtp.layer.moe;
}

uint32_t rg_pack_parts_of(const rg_moe_desc *d, const rg_tensor *parts[RG_PACK_PARTS_MAX]) {
    uint32_t n = 0;
    parts[RG_PACK_PARTS_MAX - 1] = NULL;
    parts[n++] = d->gate_up ? d->gate_up : d->gate;
    if (!d->gate_up) parts[n++] = d->up;
    parts[n++] = d->down;
    return n;
}

/* ---- tables --------------------------------------------------------------------------------- */

static rg_code plan_group(rg_pack_group *g, const rg_model *m, uint32_t index, rg_status *st) {
    const rg_tensor *parts[RG_PACK_PARTS_MAX];
    uint64_t sum = 0;
    g->n_item = m->hp.n_expert;
    g->n_part = rg_pack_parts_of(rg_model_moe(m, index), parts);
    for (uint32_t k = 0; k < g->n_part; k++) {
        const uint64_t bytes = parts[k]->size_bytes / g->n_item;
        /* Inside a pack a part begins where the one before ends; kernels read numbers of 4 bytes.
         */
        if (sum % PART_ALIGN != 0) {
            return rg_fail(st, RG_UNSUPPORTED,
                           "tensor %s: its experts would begin at byte %llu of a packed expert, no "
                           "multiple of %u",
                           parts[k]->name, (unsigned long long)sum, PART_ALIGN);
        }
        g->part_bytes[k] = (uint32_t)bytes;
        sum += bytes;
        if (bytes > 0 && sum <= RG_PACK_EXPERT_MAX) continue;
        return rg_fail(st, RG_UNSUPPORTED, "tensor %s: experts of %llu bytes, 1 to %u can be",
                       parts[k]->name, (unsigned long long)sum, RG_PACK_EXPERT_MAX);
    }
    g->item_bytes = (uint32_t)sum;
    g->stride = rg_pack_align_up(g->item_bytes);
    return RG_OK;
}

rg_code rg_pack_plan(rg_pack **out, const rg_gguf *g, const rg_model *m, rg_status *st) {
    *out = NULL;
    const uint32_t n_group = m->hp.n_layer + m->hp.n_mtp;
    const uint64_t n_item = (uint64_t)n_group * m->hp.n_expert;
    if (n_item > RG_PACK_ITEMS_MAX) {
        return rg_fail(st, RG_UNSUPPORTED, "%llu experts, a pack holds up to %u",
                       (unsigned long long)n_item, RG_PACK_ITEMS_MAX);
    }
    rg_pack *p = NULL;
    RG_TRY(rg_pack_alloc(&p, n_group, (uint32_t)n_item, st));
    p->header_bytes = rg_pack_align_up(rg_pack_table_bytes(n_group, p->n_item));
    uint64_t at = p->header_bytes;
    rg_code rc = RG_OK;
    for (uint32_t i = 0; i < n_group && rc == RG_OK; i++) {
        rc = plan_group(&p->groups[i], m, i, st);
        p->groups[i].offset = at;
        p->groups[i].checksums = p->sums + (size_t)i * m->hp.n_expert;
        at += p->groups[i].n_item * p->groups[i].stride;
    }
    p->file_bytes = at;
    if (rc == RG_OK) rc = rg_model_identity(g, m, &p->identity, st);
    if (rc != RG_OK) {
        rg_pack_close(p);
        return rc;
    }
    *out = p;
    return RG_OK;
}

void rg_pack_set_checksum(rg_pack *p, uint32_t group, uint32_t item, uint64_t sum) {
    RG_ASSERT(group < p->n_group);
    RG_ASSERT(item < p->groups[group].n_item);
    p->sums[(size_t)(p->groups[group].checksums - p->sums) + item] = sum;
}

/* ---- header --------------------------------------------------------------------------------- */

static uint8_t *put_u32(uint8_t *to, uint32_t x) {
    for (unsigned i = 0; i < 4; i++)
        to[i] = (uint8_t)(x >> (8 * i));
    return to + 4;
}

static uint8_t *put_u64(uint8_t *to, uint64_t x) {
    return put_u32(put_u32(to, (uint32_t)x), (uint32_t)(x >> 32));
}

void rg_pack_write_header(const rg_pack *p, bool finished, uint8_t *header) {
    uint8_t *at = header;
    memset(header, 0, (size_t)p->header_bytes);
    // NOLINTNEXTLINE(bugprone-not-null-terminated-result): the magic is bytes, not a string
    memcpy(at, finished ? RG_PACK_MAGIC : RG_PACK_MAGIC_BEGUN, RG_PACK_MAGIC_BYTES);
    at = put_u32(at + RG_PACK_MAGIC_BYTES, RG_PACK_VERSION);
    at = put_u32(at, p->n_group);
    at = put_u64(at, p->header_bytes);
    at = put_u64(at, p->file_bytes);
    at = put_u64(at, p->identity.low);
    at = put_u64(at, p->identity.high);
    at = put_u64(at, p->n_item);
    RG_ASSERT(at == header + RG_PACK_AT_SUM);
    at += sizeof(uint64_t);
    for (uint32_t i = 0; i < p->n_group; i++) {
        const rg_pack_group *g = &p->groups[i];
        at = put_u32(put_u32(at, g->n_item), g->n_part);
        for (uint32_t k = 0; k < RG_PACK_PARTS_MAX; k++)
            at = put_u32(at, g->part_bytes[k]);
        at = put_u32(at, 0);
        at = put_u64(put_u64(at, g->stride), g->offset);
    }
    for (uint32_t i = 0; i < p->n_item; i++)
        at = put_u64(at, p->sums[i]);
    RG_ASSERT(at == header + rg_pack_table_bytes(p->n_group, p->n_item));
    put_u64(header + RG_PACK_AT_SUM, rg_pack_header_sum(header, (size_t)p->header_bytes));
}

bool rg_pack_same_header(const rg_pack *p, const uint8_t *a, const uint8_t *b) {
    const size_t front = RG_PACK_AT_SUM - RG_PACK_MAGIC_BYTES;
    const size_t groups = (size_t)p->n_group * RG_PACK_RECORD;
    return memcmp(a + RG_PACK_MAGIC_BYTES, b + RG_PACK_MAGIC_BYTES, front) == 0 &&
           memcmp(a + RG_PACK_HEAD, b + RG_PACK_HEAD, groups) == 0;
}

/* ---- experts -------------------------------------------------------------------------------- */

rg_code rg_pack_mover_init(rg_pack_mover *mover, rg_status *st) {
    *mover = (rg_pack_mover){.buffer = rg_alloc(MOVE_BYTES, 1, st)};
    if (!mover->buffer) return RG_NOMEM;
    mover->hash = XXH3_createState();
    if (mover->hash) return RG_OK;
    rg_pack_mover_deinit(mover);
    return rg_fail(st, RG_NOMEM, "cannot make the state of a checksum");
}

void rg_pack_mover_deinit(rg_pack_mover *mover) {
    rg_free(mover->buffer);
    XXH3_freeState(mover->hash);
    *mover = (rg_pack_mover){0};
}

static size_t piece(uint64_t left) {
    return left < MOVE_BYTES ? (size_t)left : MOVE_BYTES;
}

rg_code rg_pack_mover_model(rg_pack_mover *mover, const rg_gguf *g, const rg_model *m,
                            uint32_t group, uint32_t item, rg_pack_sink *sink, void *user,
                            uint64_t *sum, rg_status *st) {
    const rg_tensor *parts[RG_PACK_PARTS_MAX];
    const uint32_t n_part = rg_pack_parts_of(rg_model_moe(m, group), parts);
    RG_ASSERT(item < m->hp.n_expert);
    XXH3_64bits_reset(mover->hash);
    for (uint32_t k = 0; k < n_part; k++) {
        const uint64_t bytes = parts[k]->size_bytes / m->hp.n_expert;
        for (uint64_t done = 0; done < bytes;) {
            const size_t len = piece(bytes - done);
            RG_TRY(rg_gguf_read(g, parts[k], item * bytes + done, len, mover->buffer, st));
            XXH3_64bits_update(mover->hash, mover->buffer, len);
            if (sink) RG_TRY(sink(user, mover->buffer, len, st));
            done += len;
        }
    }
    *sum = XXH3_64bits_digest(mover->hash);
    return RG_OK;
}

rg_code rg_pack_mover_file(rg_pack_mover *mover, const rg_file *file, const char *name,
                           const rg_pack_group *group, uint32_t item, uint64_t *sum,
                           rg_status *st) {
    const uint64_t begin = group->offset + item * group->stride;
    RG_ASSERT(item < group->n_item);
    XXH3_64bits_reset(mover->hash);
    for (uint64_t done = 0; done < group->item_bytes;) {
        const size_t len = piece(group->item_bytes - done);
        RG_TRY(rg_file_read_at(file, mover->buffer, len, begin + done, name, st));
        XXH3_64bits_update(mover->hash, mover->buffer, len);
        done += len;
    }
    *sum = XXH3_64bits_digest(mover->hash);
    return RG_OK;
}

static rg_code verify_group(const rg_pack *pack, uint32_t group, const rg_file *file,
                            rg_pack_mover *mover, rg_status *st) {
    const rg_pack_group *g = rg_pack_group_at(pack, group);
    for (uint32_t i = 0; i < g->n_item; i++) {
        uint64_t sum = 0;
        RG_TRY(rg_pack_mover_file(mover, file, rg_pack_path(pack), g, i, &sum, st));
        if (sum == g->checksums[i]) continue;
        return rg_fail(st, RG_IO, "%s: layer %u expert %u has checksum %016llx, not %016llx",
                       rg_pack_path(pack), group, i, (unsigned long long)sum,
                       (unsigned long long)g->checksums[i]);
    }
    return RG_OK;
}

rg_code rg_pack_verify(const rg_pack *pack, bool (*tick)(void *user), void *user, rg_status *st) {
    rg_file file;
    rg_pack_mover mover = {0};
    RG_TRY(rg_file_open(&file, rg_pack_path(pack), st));
    rg_code rc = rg_pack_mover_init(&mover, st);
    for (uint32_t g = 0; rc == RG_OK && g < rg_pack_group_count(pack); g++) {
        rc = verify_group(pack, g, &file, &mover, st);
        if (rc == RG_OK && tick && !tick(user)) rc = rg_fail(st, RG_CANCELED, "canceled");
    }
    rg_pack_mover_deinit(&mover);
    rg_file_close(&file);
    return rc;
}
