/* The description of a qwen4exp model: metadata first, then tensors against it. Immutable after
 * create, so any thread may read it.
 */
#include "model/desc.h"

#include <string.h>

#include "model/desc_parts.h"
#include "model/gguf_parts.h"

static rg_code check_architecture(const rg_gguf *g, rg_status *st) {
    rg_str arch = {0};
    RG_TRY(rg_gguf_get_str(g, "general.architecture", &arch, st));
    if (arch.len == strlen(RG_ARCH_NAME) && memcmp(arch.data, RG_ARCH_NAME, arch.len) == 0) {
        return RG_OK;
    }
    const int shown = arch.len < RG_GGUF_SHOWN_MAX ? (int)arch.len : RG_GGUF_SHOWN_MAX;
    return rg_fail(st, RG_UNSUPPORTED,
                   "general.architecture is '%.*s', this build runs " RG_ARCH_NAME, shown,
                   arch.data);
}

static rg_code read_model(rg_desc_reader *r, const rg_model_options *opt, rg_status *st) {
    RG_TRY(check_architecture(r->g, st));
    RG_TRY(rg_desc_read_hparams(r, st));
    if (opt && opt->no_mtp) r->m->hp.n_mtp = 0;
    if (!(opt && opt->no_mtp) && rg_gguf_has_attached(r->g)) RG_TRY(rg_desc_read_attached(r, st));
    return rg_desc_find_tensors(r, st);
}

rg_code rg_model_create(rg_model **out, const rg_gguf *g, const rg_model_options *opt,
                        rg_status *st) {
    *out = NULL;
    rg_desc_reader r = {.g = g};
    r.m = rg_alloc(1, sizeof *r.m, st);
    if (!r.m) return RG_NOMEM;
    rg_code rc = read_model(&r, opt, st);
    rg_free(r.plan);
    rg_free(r.used);
    if (rc != RG_OK) {
        rg_model_destroy(r.m);
        /* Getters have named the file already. */
        const char *name = rg_gguf_base_name(rg_gguf_file_path(g, 0));
        if (st && strncmp(st->message, name, strlen(name)) == 0) return rc;
        return rg_context(st, rc, "%.*s", RG_GGUF_SHOWN_MAX, name);
    }
    RG_ASSERT(r.m->token_embd && r.m->output);
    *out = r.m;
    return RG_OK;
}

void rg_model_destroy(rg_model *m) {
    if (!m) return;
    rg_free(m->layers);
    rg_free(m);
}
