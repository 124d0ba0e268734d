#include "api/api.h"

rg_code rg_engine_collect_importance(rg_engine *engine, rg_status *st) {
    return rg_core_collect_importance(engine->core, st);
}

rg_code rg_engine_visit_importance(const rg_engine *engine, rg_importance_fn *fn, void *user,
                                   rg_status *st) {
    const rg_importance *im = rg_core_importance(engine->core);
    rg_importance_view v;
    for (uint32_t i = 0; im && rg_importance_at(im, i, &v); i++) {
        RG_TRY(fn(user, v.tensor->name, v.cols, v.n, v.sums, v.counts, st));
    }
    return im ? RG_OK : rg_fail(st, RG_INVALID, "no importance was collected");
}
