/* Taps see intermediate values of an evaluation. */
#ifndef RG_ENGINE_TAP_H
#define RG_ENGINE_TAP_H

#include "base/base.h"

/* Sees intermediate values: `rows` x `cols` f32, row-major, valid during the call. `row0` is the
 * position of the first row in its sequence. Names as in dump.h. */
typedef struct rg_tap {
    rg_code (*see)(void *user, const char *name, uint32_t layer, uint32_t row0, uint32_t rows,
                   uint32_t cols, const float *data, rg_status *st);
    void *user;
} rg_tap;

#endif
