/* The AVX-512 product: dispatch by family; formats without a form of their own take the reference.
 */
#include "kernels/cpu/x86/v4_mul.h"

#include "kernels/cpu/levels.h"

void rg_v4_mul(const rg_mat *w, uint32_t r0, uint32_t r1, const rg_act *x, const uint32_t *x_rows,
               const uint32_t *y_rows, uint32_t n, float *y, size_t y_stride, void *scratch) {
    const v4_job j = {.w = w,
                      .x = x,
                      .x_rows = x_rows,
                      .y_rows = y_rows,
                      .n = n,
                      .y = y,
                      .y_stride = y_stride,
                      .scratch = scratch};
    bool done = false;
    if (n == 0 || r0 >= r1) return;
    switch (x->form) {
    case RG_ACT_Q256:
        done = rg_v4_mul_k(&j, r0, r1) || rg_v4_mul_grid(&j, r0, r1);
        break;
    case RG_ACT_Q32:
        done = rg_v4_mul_32(&j, r0, r1);
        break;
    default:
        done = rg_v4_mul_float(&j, r0, r1);
        break;
    }
    if (!done) rg_mul_v4(w, r0, r1, x, x_rows, y_rows, n, y, y_stride, scratch);
}
