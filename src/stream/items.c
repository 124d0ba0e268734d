/* Item table. The slot of an item holds its parts one after another, each as the page-aligned
 * superset of its extent, so that a read with O_DIRECT can go straight into the slot whatever the
 * alignment of the extent is.
 */
#include "stream/items.h"

#include <string.h>

#define CLASS_TOLERANCE 32u /* group sizes within 1/32 of each other share a class at first */

static uint64_t align_down(uint64_t x) {
    return x & ~(uint64_t)(RG_STREAM_ALIGN - 1);
}

static uint64_t align_up(uint64_t x) {
    return align_down(x + RG_STREAM_ALIGN - 1);
}

/* ---- checks ---------------------------------------------------------------------------------- */

static rg_code check_group(const rg_stream_group *g, uint32_t index, rg_status *st) {
    if (g->n_item == 0 || g->n_item > RG_STREAM_ITEMS_MAX) {
        return rg_fail(st, RG_INVALID, "group %u has %u items, 1 to %u can be", index, g->n_item,
                       RG_STREAM_ITEMS_MAX);
    }
    if (g->n_extent == 0 || g->n_extent > RG_STREAM_EXTENTS_MAX) {
        return rg_fail(st, RG_INVALID, "group %u has %u extents, 1 to %u can be", index,
                       g->n_extent, RG_STREAM_EXTENTS_MAX);
    }
    for (uint32_t e = 0; e < g->n_extent; e++) {
        const rg_stream_extent *x = &g->extents[e];
        const uint64_t room = (uint64_t)INT64_MAX - x->bytes - (uint64_t)2 * RG_STREAM_ALIGN;
        if (x->bytes == 0 || x->bytes > (1u << 30)) {
            return rg_fail(st, RG_INVALID, "group %u: extent %u has %u bytes, 1 to %u can be",
                           index, e, x->bytes, 1u << 30);
        }
        if (x->offset > room || (g->n_item > 1 && x->stride > (room - x->offset) / g->n_item)) {
            return rg_fail(st, RG_INVALID, "group %u: extent %u: offset %llu, stride %llu overflow",
                           index, e, (unsigned long long)x->offset, (unsigned long long)x->stride);
        }
    }
    return RG_OK;
}

rg_code rg_items_check_files(const rg_items *items, const uint64_t *file_bytes,
                             const char *const *paths, uint32_t n_file, rg_status *st) {
    for (uint32_t g = 0; g < items->n_group; g++) {
        const rg_stream_group *group = &items->groups[g];
        for (uint32_t e = 0; e < group->n_extent; e++) {
            const rg_stream_extent *x = &group->extents[e];
            if (x->file >= n_file) {
                return rg_fail(st, RG_INVALID, "group %u: file %u of %u", g, x->file, n_file);
            }
            const uint32_t last = group->n_item - 1; /* the strides ascend: the last ends last */
            const uint64_t end = x->offset + last * x->stride + x->bytes;
            if (end > file_bytes[x->file]) {
                return rg_fail(st, RG_FORMAT, "%s: group %u item %u ends at %llu, the file at %llu",
                               paths[x->file], g, last, (unsigned long long)end,
                               (unsigned long long)file_bytes[x->file]);
            }
        }
    }
    return RG_OK;
}

/* ---- layout ---------------------------------------------------------------------------------- */

/* The largest slot that an item of the group needs. */
static uint64_t group_slot_bytes(const rg_stream_group *g) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < g->n_item; i++) {
        uint64_t sum = 0;
        for (uint32_t e = 0; e < g->n_extent; e++) {
            const uint64_t begin = g->extents[e].offset + i * g->extents[e].stride;
            sum += align_up(begin + g->extents[e].bytes) - align_down(begin);
        }
        if (sum > most) most = sum;
    }
    RG_ASSERT(most > 0);
    RG_ASSERT(most % RG_STREAM_ALIGN == 0);
    return most;
}

/* Gathers sizes into classes, largest first; false when more than the limit would be needed. */
static bool make_classes(rg_stream_layout *out, const uint64_t *sizes, uint32_t n,
                         uint64_t tolerance) {
    uint64_t below = UINT64_MAX;
    out->n_class = 0;
    for (;;) {
        uint64_t largest = 0;
        for (uint32_t g = 0; g < n; g++)
            if (sizes[g] < below && sizes[g] > largest) largest = sizes[g];
        if (largest == 0) break;
        if (out->n_class == RG_STREAM_CLASSES_MAX) return false;
        out->class_bytes[out->n_class++] = largest;
        below = tolerance > 1 ? largest - largest / tolerance : 1;
    }
    for (uint32_t i = 0; i < out->n_class / 2; i++) { /* ascending */
        const uint64_t swap = out->class_bytes[i];
        out->class_bytes[i] = out->class_bytes[out->n_class - 1 - i];
        out->class_bytes[out->n_class - 1 - i] = swap;
    }
    return true;
}

static uint32_t class_for(const rg_stream_layout *layout, uint64_t bytes) {
    uint32_t c = 0;
    while (layout->class_bytes[c] < bytes)
        c++;
    RG_ASSERT(c < layout->n_class);
    return c;
}

static void lay_out(rg_stream_layout *out, const rg_stream_group *groups, const uint64_t *sizes,
                    uint32_t n_group) {
    uint64_t tolerance = CLASS_TOLERANCE;
    while (!make_classes(out, sizes, n_group, tolerance))
        tolerance /= 2;
    out->slot_bytes_max = out->class_bytes[out->n_class - 1];
    out->slot_bytes_all = 0;
    for (uint32_t g = 0; g < n_group; g++)
        out->slot_bytes_all += out->class_bytes[class_for(out, sizes[g])] * groups[g].n_item;
    RG_ASSERT(out->n_class >= 1);
    RG_ASSERT(out->slot_bytes_all >= out->slot_bytes_max);
}

rg_code rg_stream_layout_of(rg_stream_layout *out, const rg_stream_group *groups, uint32_t n_group,
                            rg_status *st) {
    *out = (rg_stream_layout){0};
    if (n_group == 0 || n_group > RG_STREAM_GROUPS_MAX) {
        return rg_fail(st, RG_INVALID, "%u groups, 1 to %u can be", n_group, RG_STREAM_GROUPS_MAX);
    }
    uint64_t sizes[RG_STREAM_GROUPS_MAX];
    uint64_t n_item = 0;
    for (uint32_t g = 0; g < n_group; g++) {
        RG_TRY(check_group(&groups[g], g, st));
        n_item += groups[g].n_item;
        if (n_item > RG_STREAM_ITEMS_MAX) {
            return rg_fail(st, RG_INVALID, "%llu items up to group %u, the limit is %u",
                           (unsigned long long)n_item, g, RG_STREAM_ITEMS_MAX);
        }
        sizes[g] = group_slot_bytes(&groups[g]);
    }
    lay_out(out, groups, sizes, n_group);
    return RG_OK;
}

uint64_t rg_stream_min_bytes(const rg_stream_layout *layout, uint32_t n_used) {
    return layout->slot_bytes_max * ((uint64_t)n_used + 1);
}

/* ---- table ----------------------------------------------------------------------------------- */

static bool same_shape(const rg_stream_group *a, const rg_stream_group *b) {
    if (a->n_extent != b->n_extent) return false;
    for (uint32_t e = 0; e < a->n_extent; e++)
        if (a->extents[e].bytes != b->extents[e].bytes) return false;
    return true;
}

static void fill_table(rg_items *t) {
    uint32_t item = 0;
    for (uint32_t g = 0; g < t->n_group; g++) {
        t->first_item[g] = item;
        for (uint32_t i = 0; i < t->groups[g].n_item; i++)
            t->group_of[item++] = (uint16_t)g;
        t->class_of[g] = (uint8_t)class_for(&t->layout, group_slot_bytes(&t->groups[g]));
        t->shape_of[g] = (uint16_t)g;
        for (uint32_t h = 0; h < g; h++) {
            if (!same_shape(&t->groups[g], &t->groups[h])) continue;
            t->shape_of[g] = t->shape_of[h];
            break;
        }
        if (t->groups[g].n_item > t->group_items_max) t->group_items_max = t->groups[g].n_item;
    }
    t->first_item[t->n_group] = item;
    RG_ASSERT(item == t->n_item);
}

rg_code rg_items_init(rg_items *out, const rg_stream_group *groups, uint32_t n_group,
                      rg_status *st) {
    *out = (rg_items){0};
    rg_stream_layout layout;
    RG_TRY(rg_stream_layout_of(&layout, groups, n_group, st));
    out->layout = layout;
    out->n_group = n_group;
    for (uint32_t g = 0; g < n_group; g++)
        out->n_item += groups[g].n_item;
    out->groups = rg_alloc(n_group, sizeof *out->groups, st);
    out->first_item = rg_alloc((size_t)n_group + 1, sizeof *out->first_item, st);
    out->group_of = rg_alloc(out->n_item, sizeof *out->group_of, st);
    out->class_of = rg_alloc(n_group, sizeof *out->class_of, st);
    out->shape_of = rg_alloc(n_group, sizeof *out->shape_of, st);
    if (!out->groups || !out->first_item || !out->group_of || !out->class_of || !out->shape_of) {
        rg_items_deinit(out);
        return RG_NOMEM;
    }
    memcpy(out->groups, groups, n_group * sizeof *groups);
    fill_table(out);
    return RG_OK;
}

void rg_items_deinit(rg_items *items) {
    rg_free(items->groups);
    rg_free(items->first_item);
    rg_free(items->group_of);
    rg_free(items->class_of);
    rg_free(items->shape_of);
    *items = (rg_items){0};
}

uint32_t rg_items_parts(const rg_items *items, uint32_t item,
                        rg_item_part parts[RG_STREAM_EXTENTS_MAX]) {
    RG_ASSERT(item < items->n_item);
    const rg_stream_group *g = &items->groups[items->group_of[item]];
    const uint32_t index = rg_items_index(items, item);
    uint64_t at = 0;
    for (uint32_t e = 0; e < g->n_extent; e++) {
        const uint64_t begin = g->extents[e].offset + index * g->extents[e].stride;
        const uint64_t end = begin + g->extents[e].bytes;
        parts[e] = (rg_item_part){.file = g->extents[e].file,
                                  .read_offset = align_down(begin),
                                  .read_bytes = align_up(end) - align_down(begin),
                                  .slot_offset = at,
                                  .payload_skip = begin - align_down(begin),
                                  .payload_bytes = g->extents[e].bytes};
        at += parts[e].read_bytes;
    }
    RG_ASSERT(at <= items->layout.class_bytes[items->class_of[items->group_of[item]]]);
    return g->n_extent;
}

bool rg_items_checksum(const rg_items *items, uint32_t item, uint64_t *sum) {
    RG_ASSERT(item < items->n_item);
    const rg_stream_group *g = &items->groups[items->group_of[item]];
    if (!g->checksums) return false;
    *sum = g->checksums[rg_items_index(items, item)];
    return true;
}
