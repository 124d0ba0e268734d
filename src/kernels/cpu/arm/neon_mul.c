/* The NEON product: the best form that this CPU runs; formats without one take the reference. */
#include "kernels/cpu/arm/neon_mul.h"

#include "kernels/cpu/levels.h"

void rg_neon_mul(const rg_mat *w, uint32_t r0, uint32_t r1, const rg_act *x, const uint32_t *x_rows,
                 const uint32_t *y_rows, uint32_t n, float *y, size_t y_stride, void *scratch) {
    const neon_job j = {.w = w,
                        .x = x,
                        .x_rows = x_rows,
                        .y_rows = y_rows,
                        .n = n,
                        .y = y,
                        .y_stride = y_stride,
                        .scratch = scratch};
    bool done = false;
    if (n == 0 || r0 >= r1) return;
    if (x->form != RG_ACT_F32) {
        switch (rg_cpu_arm_dot()) {
        case RG_CPU_ARM_I8MM:
            done = rg_neon_mul_i8mm(&j, r0, r1);
            break;
        case RG_CPU_ARM_DOTPROD:
            done = rg_neon_mul_dotprod(&j, r0, r1);
            break;
        default:
            done = rg_neon_mul_plain(&j, r0, r1);
            break;
        }
    }
    if (!done) rg_mul_neon(w, r0, r1, x, x_rows, y_rows, n, y, y_stride, scratch);
}
