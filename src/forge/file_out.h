/* A large file written as a stream: two aligned buffers, one filled by the caller while a writer
 * thread writes the other. The file has a temporary name until it is committed, so that nothing
 * half-written ever stands under the final name. Private to the room; one caller thread.
 */
#ifndef RG_FORGE_FILE_OUT_H
#define RG_FORGE_FILE_OUT_H

#include "base/base.h"

#define RG_FILE_OUT_BUFFER ((size_t)8 << 20) /* bytes of one write */

typedef struct rg_file_out rg_file_out;

/* Creates `path`.part-PID beside `path`. `slack` is what a caller may write behind the room it was
 * shown. IO when the folder cannot be written. */
RG_MUST_CHECK rg_code rg_file_out_create(rg_file_out **out, const char *path, size_t slack,
                                         rg_status *st);
/* Where the next bytes go, and how many fit before a hand-over; up to `slack` more may follow. */
uint8_t *rg_file_out_room(rg_file_out *f, size_t *room);
/* `n` bytes were put there. A failed write shows here, once and for all. */
RG_MUST_CHECK rg_code rg_file_out_advance(rg_file_out *f, size_t n, rg_status *st);
RG_MUST_CHECK rg_code rg_file_out_write(rg_file_out *f, const void *data, size_t n, rg_status *st);
RG_MUST_CHECK rg_code rg_file_out_zeros(rg_file_out *f, size_t n, rg_status *st);
uint64_t rg_file_out_size(const rg_file_out *f); /* bytes so far */
/* All bytes are on the drive and the file is closed, still under its temporary name. */
RG_MUST_CHECK rg_code rg_file_out_finish(rg_file_out *f, rg_status *st);
/* Gives a finished file its name. */
RG_MUST_CHECK rg_code rg_file_out_commit(rg_file_out *f, rg_status *st);
/* Takes the file away again, whatever its state. */
void rg_file_out_discard(rg_file_out *f);
/* Ends the writer and releases memory; a file that was not committed is removed. NULL is allowed.
 */
void rg_file_out_destroy(rg_file_out *f);

/* IO when the file system that holds `path` has less than `bytes` to give. */
RG_MUST_CHECK rg_code rg_file_out_check_space(const char *path, uint64_t bytes, rg_status *st);

#endif
