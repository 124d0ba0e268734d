/* A checkpoint folder of safetensors files: the headers of all of them, rows on demand. Private to
 * the room; immutable after open.
 *
 * A file is a u64 length, that many bytes of JSON (name -> dtype, shape, data_offsets), then data.
 * Types: F32, F16, BF16, F8_E4M3 with one scale for each block of 128 x 128 (NAME_scale_inv beside
 * NAME), I64 where asked for.
 */
#ifndef RG_FORGE_SAFETENSORS_H
#define RG_FORGE_SAFETENSORS_H

#include "model/model.h"

#define RG_ST_NAME_MAX  256u
#define RG_ST_FILES_MAX 4096u
#define RG_ST_BLOCK     128u /* rows and columns of one fp8 scale */

typedef enum rg_st_type { RG_ST_F32, RG_ST_F16, RG_ST_BF16, RG_ST_F8, RG_ST_I64 } rg_st_type;

typedef struct rg_st_tensor {
    char name[RG_ST_NAME_MAX];
    rg_st_type type;
    uint32_t n_dims, file;
    uint64_t dims[4];    /* outermost first */
    uint64_t offset;     /* in its file */
    uint64_t rows, cols; /* cols: the last dimension */
    bool used;
} rg_st_tensor;

typedef struct rg_checkpoint rg_checkpoint;

/* Every *.safetensors of the folder, or those that model.safetensors.index.json names. */
RG_MUST_CHECK rg_code rg_checkpoint_open(rg_checkpoint **out, const char *folder, rg_status *st);
void rg_checkpoint_close(rg_checkpoint *c); /* NULL is allowed */
/* NULL if absent; marks it used. */
const rg_st_tensor *rg_checkpoint_find(rg_checkpoint *c, const char *name);
size_t rg_checkpoint_count(const rg_checkpoint *c);
const rg_st_tensor *rg_checkpoint_at(const rg_checkpoint *c, size_t i);
/* Row `row` as f32 [cols], exact (fp8: code times scale, one rounding). `scale` is the block
 * scales' tensor of an fp8 one, NULL otherwise. Any thread. */
RG_MUST_CHECK rg_code rg_checkpoint_row(const rg_checkpoint *c, const rg_st_tensor *t,
                                        const rg_st_tensor *scale, uint64_t row, float *x,
                                        rg_status *st);
/* The scales of an fp8 tensor; FORMAT when they are missing or of another shape. */
RG_MUST_CHECK rg_code rg_checkpoint_scale(rg_checkpoint *c, const rg_st_tensor *t,
                                          const rg_st_tensor **scale, rg_status *st);
/* All of an I64 tensor, each in 0 .. 2^63-1, into `v` [n]. */
RG_MUST_CHECK rg_code rg_checkpoint_i64(const rg_checkpoint *c, const rg_st_tensor *t, uint64_t *v,
                                        size_t n, rg_status *st);
/* One fp8 code (E4M3, no infinities) as f32; NaN for 0x7f and 0xff. */
float rg_f8_e4m3_to_f32(uint8_t code);

#endif
