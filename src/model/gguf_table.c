/* The tensor table of one GGUF file and the layout of its data section (format notes A.3, rules
 * 12-23 of A.6). After success every tensor has 1 to 4 non-zero dimensions, a known storable type,
 * whole blocks in each row, and a payload inside the file that overlaps no other.
 */
#include "model/gguf_parts.h"

#include <string.h>

#define RG_GGUF_DIMS_MAX 4u

typedef unsigned long long ull;

static rg_code take_name(rg_gguf_parser *p, rg_tensor *t, rg_str *name, rg_status *st) {
    uint64_t len = 0;
    const size_t at = p->c.pos;
    RG_TRY(rg_gguf_take_u64(p, &len, "tensor name length", st));
    if (len == 0 || len >= RG_GGUF_NAME_MAX) {
        return rg_fail(st, RG_FORMAT, "tensor name at byte %zu has %llu bytes, 1 to %u are allowed",
                       at, (ull)len, RG_GGUF_NAME_MAX - 1);
    }
    const uint8_t *data = NULL;
    RG_TRY(rg_gguf_take_bytes(p, &data, len, "tensor name", st));
    const void *nul = memchr(data, 0, (size_t)len);
    if (nul) {
        return rg_fail(st, RG_FORMAT, "tensor name at byte %zu holds a NUL as byte %zu of %llu", at,
                       (size_t)((const uint8_t *)nul - data), (ull)len);
    }
    memcpy(t->name, data, (size_t)len);
    *name = (rg_str){.data = (const char *)data, .len = (size_t)len};
    return RG_OK;
}

static rg_code take_dims(rg_gguf_parser *p, rg_tensor *t, rg_status *st) {
    const size_t at = p->c.pos;
    RG_TRY(rg_gguf_take_u32(p, &t->n_dims, "n_dims", st));
    if (t->n_dims > RG_GGUF_DIMS_MAX) {
        return rg_fail(st, RG_FORMAT, "n_dims at byte %zu is %u, the highest is %u", at, t->n_dims,
                       RG_GGUF_DIMS_MAX);
    }
    uint64_t elems = 1;
    for (uint32_t i = 0; i < RG_GGUF_DIMS_MAX; i++) {
        t->ne[i] = 1;
        if (i >= t->n_dims) continue;
        const size_t dim_at = p->c.pos;
        RG_TRY(rg_gguf_take_u64(p, &t->ne[i], "dimension", st));
        if (t->ne[i] == 0 || t->ne[i] > INT64_MAX) {
            return rg_fail(st, RG_FORMAT, "dimension %u at byte %zu is %llu, allowed are 1..2^63-1",
                           i, dim_at, (ull)t->ne[i]);
        }
        if (elems > INT64_MAX / t->ne[i]) {
            return rg_fail(st, RG_FORMAT,
                           "dimension %u at byte %zu: %llu elements times %llu exceed 2^63-1", i,
                           dim_at, (ull)elems, (ull)t->ne[i]);
        }
        elems *= t->ne[i];
    }
    return RG_OK;
}

static rg_code take_type(rg_gguf_parser *p, rg_tensor *t, rg_status *st) {
    uint32_t id = 0;
    const size_t at = p->c.pos;
    RG_TRY(rg_gguf_take_u32(p, &id, "tensor type", st));
    const rg_type_info *info = rg_type_get(id);
    if (!info || info->use == RG_USE_NONE) {
        return rg_fail(st, RG_UNSUPPORTED,
                       "type id at byte %zu is %u, this build knows no such type%s", at, id,
                       id < RG_TYPE_COUNT ? " (retired)" : "");
    }
    if (info->use == RG_USE_ACTIVATION) {
        return rg_fail(st, RG_FORMAT, "type id at byte %zu is %u (%s), which no file may store", at,
                       id, info->name);
    }
    t->type = (rg_type)id;
    if (t->ne[0] % info->block_elems != 0) {
        return rg_fail(st, RG_FORMAT,
                       "rows of %llu elements are no multiple of the %u of a %s block",
                       (ull)t->ne[0], info->block_elems, info->name);
    }
    /* The element product is below 2^63, so this one cannot wrap. */
    const uint64_t blocks = t->ne[0] / info->block_elems * t->ne[1] * t->ne[2] * t->ne[3];
    if (blocks > INT64_MAX / info->block_bytes || blocks > SIZE_MAX / info->block_bytes) {
        return rg_fail(st, RG_FORMAT, "%llu blocks of %u bytes exceed 2^63-1", (ull)blocks,
                       info->block_bytes);
    }
    t->size_bytes = blocks * info->block_bytes;
    return RG_OK;
}

/* Everything behind the name. */
static rg_code take_body(const rg_gguf_shard *s, rg_gguf_parser *p, rg_tensor *t, rg_status *st) {
    RG_TRY(take_dims(p, t, st));
    RG_TRY(take_type(p, t, st));
    const size_t at = p->c.pos;
    RG_TRY(rg_gguf_take_u64(p, &t->offset, "tensor offset", st));
    if (t->offset % s->alignment != 0) {
        return rg_fail(st, RG_FORMAT, "offset at byte %zu is %llu, no multiple of the alignment %u",
                       at, (ull)t->offset, s->alignment);
    }
    return RG_OK;
}

static rg_code take_tensor(rg_gguf_shard *s, rg_gguf_parser *p, rg_tensor *t, rg_status *st) {
    rg_str name = {0};
    const size_t at = p->c.pos;
    RG_TRY(take_name(p, t, &name, st));
    const rg_code rc = take_body(s, p, t, st);
    if (rc == RG_BUSY) return rc;
    if (rc != RG_OK) return rg_context(st, rc, "tensor '%s'", t->name);
    bool existed = false;
    RG_TRY(rg_map_add(&s->tensor_index, name.data, name.len, s->n_tensor, &existed, st));
    if (!existed) return RG_OK;
    uint64_t first = 0;
    rg_map_get(&s->tensor_index, name.data, name.len, &first);
    return rg_fail(st, RG_FORMAT, "tensor '%s' at byte %zu is a duplicate: record %zu repeats %llu",
                   t->name, at, s->n_tensor, (ull)first);
}

/* ---- layout --------------------------------------------------------------------------------- */

/* Restores the heap order (largest offset on top) below `root`. */
static void sift_down(const rg_tensor **a, size_t root, size_t n) {
    for (;;) {
        size_t child = 2 * root + 1;
        if (child >= n) return;
        if (child + 1 < n && a[child + 1]->offset > a[child]->offset) child++;
        if (a[root]->offset >= a[child]->offset) return;
        const rg_tensor *t = a[root];
        a[root] = a[child];
        a[child] = t;
        root = child;
    }
}

/* Heap sort: n log n whatever a hostile file chose, and no memory of its own. */
static void sort_by_offset(const rg_tensor **a, size_t n) {
    for (size_t i = n / 2; i-- > 0;) {
        sift_down(a, i, n);
    }
    for (size_t end = n; end-- > 1;) {
        const rg_tensor *t = a[0];
        a[0] = a[end];
        a[end] = t;
        sift_down(a, 0, end);
    }
}

static rg_code check_overlap(const rg_tensor *a, const rg_tensor *b, rg_status *st) {
    RG_ASSERT(a->offset <= b->offset);
    if (a->size_bytes <= b->offset - a->offset) return RG_OK;
    return rg_fail(st, RG_FORMAT,
                   "tensor '%s' ends at byte %llu of the data, inside '%s', which begins at %llu",
                   a->name, (ull)(a->offset + a->size_bytes), b->name, (ull)b->offset);
}

/* Files in offset order, the usual case, are checked without a sorted copy. */
static rg_code check_overlaps(const rg_gguf_shard *s, rg_status *st) {
    bool sorted = true;
    for (size_t i = 1; i < s->n_tensor && sorted; i++) {
        sorted = s->tensors[i - 1].offset <= s->tensors[i].offset;
    }
    if (sorted) {
        for (size_t i = 1; i < s->n_tensor; i++) {
            RG_TRY(check_overlap(&s->tensors[i - 1], &s->tensors[i], st));
        }
        return RG_OK;
    }
    rg_log(RG_LOG_DEBUG, "%s: tensors are not in the order of their offsets", s->path);
    const rg_tensor **order = rg_alloc(s->n_tensor, sizeof *order, st);
    if (!order) return RG_NOMEM;
    for (size_t i = 0; i < s->n_tensor; i++) {
        order[i] = &s->tensors[i];
    }
    sort_by_offset(order, s->n_tensor);
    rg_code rc = RG_OK;
    for (size_t i = 1; i < s->n_tensor && rc == RG_OK; i++) {
        rc = check_overlap(order[i - 1], order[i], st);
    }
    rg_free(order);
    return rc;
}

static rg_code check_layout(rg_gguf_shard *s, const rg_gguf_parser *p, rg_status *st) {
    const uint64_t end = p->c.pos;
    const uint64_t pad = (s->alignment - end % s->alignment) % s->alignment;
    s->data_begin = end + pad; /* below 2^31: the header has a limit */
    if (s->n_tensor == 0) return RG_OK;
    if (s->data_begin > p->file_size) {
        return rg_fail(st, RG_FORMAT, "the data section begins at byte %llu, the file has %llu",
                       (ull)s->data_begin, (ull)p->file_size);
    }
    const uint64_t section = p->file_size - s->data_begin;
    for (size_t i = 0; i < s->n_tensor; i++) {
        const rg_tensor *t = &s->tensors[i];
        if (t->offset > section || t->size_bytes > section - t->offset) {
            return rg_fail(
                st, RG_FORMAT,
                "tensor '%s': %llu bytes at %llu of a data section (at byte %llu) of %llu", t->name,
                (ull)t->size_bytes, (ull)t->offset, (ull)s->data_begin, (ull)section);
        }
    }
    RG_TRY(check_overlaps(s, st));
    for (size_t i = 0; i < s->n_tensor; i++) {
        s->tensors[i].offset += s->data_begin;
    }
    return RG_OK;
}

rg_code rg_gguf_parse_table(rg_gguf_shard *s, rg_gguf_parser *p, uint64_t count, rg_status *st) {
    size_t cap = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (s->n_tensor == cap) {
            cap = cap ? cap * 2 : 16;
            rg_tensor *more = rg_realloc(s->tensors, cap, sizeof *more, st);
            if (!more) return RG_NOMEM;
            s->tensors = more;
        }
        s->tensors[s->n_tensor] = (rg_tensor){0};
        RG_TRY(take_tensor(s, p, &s->tensors[s->n_tensor], st));
        s->n_tensor++;
    }
    return check_layout(s, p, st);
}
