/* Devices of a test outlive its cores. Most of what a core on a software device costs is the
 * building of the same kernels once more, so rg_gpu_close puts a device aside and the next
 * rg_gpu_open with the same options gets it, kernels and all. A device that was lost, or whose
 * description a test has changed, is closed. Only where the linker can redirect calls (rg_test in
 * rooms.cmake), elsewhere these functions do nothing.
 */
#ifndef RG_TESTS_GPU_KEPT_H
#define RG_TESTS_GPU_KEPT_H

#ifdef RG_TEST_GPU_KEPT

/* Closes what is put aside. The teardown of a group of tests: afterwards nothing is allocated. */
int gpu_kept_release(void **state);

/* Kernels that are on the device already would hide that a test's core does not build them: until
 * the next call with `fresh` false, every device is opened anew and closed. */
void gpu_kept_fresh(bool fresh);

#else

static inline int gpu_kept_release(void **state) {
    (void)state;
    return 0;
}

static inline void gpu_kept_fresh(bool fresh) {
    (void)fresh;
}

#endif
#endif
