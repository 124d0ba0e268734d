/* kld: reference logits on disk. Private to cmd_kld.c and kld_ref.c.
 *
 * A saved reference is a header of 64 bytes (little endian) and one zstd frame:
 *     0  "RGKLREF1"
 *     8  u32 n_vocab      12  u32 window      16  u64 n_token
 *    24  u8[16]  XXH3-128, canonical form, of the token ids as i32
 *    40  u8[8]   XXH3-64, canonical form, of bytes 0..39
 *    48  zeros
 * The frame holds n_token rows of f32 logits, each as four planes [4][n_vocab]: first the lowest
 * byte of every value, last the highest. Signs and exponents side by side compress, fractions do
 * not. A raw reference is rows of f32 alone, as `logits --out` writes them.
 */
#ifndef RG_CLI_KLD_H
#define RG_CLI_KLD_H

#include "cli/cli.h"
#include "forge/forge.h"

/* What a reference was made from. */
typedef struct kld_identity {
    uint32_t n_vocab, window;
    const int32_t *ids; /* [n_token] */
    size_t n_token;
} kld_identity;

typedef struct kld_ref kld_ref;

/* Opens a reference. Its own window (0: raw, unknown) tells how the text is to be cut. */
rg_code kld_ref_open(kld_ref **out, const char *path, rg_status *st);
uint32_t kld_ref_window(const kld_ref *ref);
/* INVALID, naming what differs, unless it was made from this text under this vocabulary and window.
 */
rg_code kld_ref_check(kld_ref *ref, const kld_identity *id, rg_status *st);
/* The next row [n_vocab]; checked before. Every value is finite. */
rg_code kld_ref_next(kld_ref *ref, float *row, rg_status *st);
/* After the last row: FORMAT when the file goes on. */
rg_code kld_ref_end(kld_ref *ref, rg_status *st);
void kld_ref_close(kld_ref *ref);

typedef struct kld_save kld_save;

/* The file appears under its name when it is finished. */
rg_code kld_save_create(kld_save **out, const char *path, const kld_identity *id, rg_status *st);
rg_code kld_save_row(kld_save *save, const float *row, rg_status *st);
rg_code kld_save_finish(kld_save *save, uint64_t *size_bytes, rg_status *st);
/* Leaves nothing behind unless finished. NULL is allowed. */
void kld_save_destroy(kld_save *save);

#endif
