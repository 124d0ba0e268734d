#include "support/split_draft.h"

#include <stdio.h>
#include <string.h>

#include "support/gguf_writer.h"

static void check(rg_code rc, const rg_status *st) {
    if (rc != RG_OK) fprintf(stderr, "%s\n", st->message);
    RG_ASSERT(rc == RG_OK);
}

/* Half of each row, under the name with eh_proj replaced. */
static void add_half(rg_gguf_writer *w, const rg_tensor *t, const uint8_t *data, int half) {
    const char *mark = strstr(t->name, "eh_proj");
    const size_t row_bytes = rg_row_bytes(t->type, t->ne[0]), part = row_bytes / 2;
    const uint64_t ne[2] = {t->ne[0] / 2, t->ne[1]};
    char name[RG_GGUF_NAME_MAX];
    rg_status st = {0};
    RG_ASSERT(part == rg_row_bytes(t->type, ne[0])); /* whole blocks */
    uint8_t *rows = rg_alloc(ne[1], part, &st);
    check(rows ? RG_OK : RG_NOMEM, &st);
    for (uint64_t i = 0; i < ne[1]; i++)
        memcpy(rows + i * part, data + i * row_bytes + (half ? part : 0), part);
    snprintf(name, sizeof name, "%.*s%s%s", (int)(mark - t->name), t->name,
             half ? "fc_hidden" : "fc_embd", mark + strlen("eh_proj"));
    rg_gguf_writer_tensor(w, name, t->type, 2, ne, rows);
    rg_free(rows);
}

void rg_test_split_draft(const char *from, const char *to) {
    rg_status st = {0};
    rg_gguf *g = NULL;
    rg_gguf_writer w;
    check(rg_gguf_open(&g, from, &st), &st);
    rg_gguf_writer_init(&w);
    for (size_t i = 0; i < rg_gguf_kv_count(g); i++)
        rg_gguf_writer_copy_kv(&w, rg_gguf_kv_at(g, i));
    for (size_t i = 0; i < rg_gguf_tensor_count(g); i++) {
        const rg_tensor *t = rg_gguf_tensor_at(g, i);
        uint8_t *data = rg_alloc(t->size_bytes, 1, &st);
        check(data ? rg_gguf_read(g, t, 0, t->size_bytes, data, &st) : RG_NOMEM, &st);
        if (strstr(t->name, "nextn.eh_proj.weight")) {
            add_half(&w, t, data, 0);
            add_half(&w, t, data, 1);
        } else {
            rg_gguf_writer_tensor(&w, t->name, t->type, t->n_dims, t->ne, data);
        }
        rg_free(data);
    }
    rg_gguf_writer_save(&w, to);
    rg_gguf_writer_deinit(&w);
    rg_gguf_close(g);
}
