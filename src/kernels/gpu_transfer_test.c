/* Transfers: copies of a second thread beside the lists, lists that wait for them, memory of the
 * host that the device takes. The validation layers, where installed, stay silent.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>

#include <cmocka.h>

#include "kernels/gpu_check.h"

#define PLACES  4u
#define ROUNDS  25u
#define PIECE   ((size_t)65536)
#define WAIT_NS ((uint64_t)60 * 1000000000u)

typedef struct set_up {
    gpu_check c;
    rg_gpu_buffer staging, unseen;
    rg_gpu_list *lists[PLACES];
    void *memory; /* imported; NULL: the driver's */
} set_up;

static void must(rg_code rc, const rg_status *st) {
    if (rc == RG_OK) return;
    fail_msg("%s", st->message);
    abort(); /* not reached */
}

static set_up open_set_up(bool import) {
    set_up s = {.c = gpu_check_open()};
    rg_status st = {0};
    rg_gpu *gpu = s.c.gpu;
    if (import) {
        must(rg_mem_map(&s.memory, PLACES * PIECE, &st), &st);
        if (rg_gpu_buffer_import(gpu, &s.staging, s.memory, PLACES * PIECE, &st) != RG_OK) {
            assert_int_equal(st.code, RG_UNSUPPORTED);
            print_message("%s\n", st.message);
            rg_mem_unmap(s.memory, PLACES * PIECE);
            s.memory = NULL;
            rg_status_clear(&st);
        }
    }
    if (!s.memory)
        must(rg_gpu_buffer_create(gpu, &s.staging, PLACES * PIECE, RG_GPU_STAGING, &st), &st);
    assert_non_null(s.staging.mapped);
    must(rg_gpu_buffer_create(gpu, &s.unseen, 2 * PLACES * PIECE, RG_GPU_UNSEEN, &st), &st);
    assert_null(s.unseen.mapped);
    assert_true(s.unseen.address);
    for (uint32_t i = 0; i < PLACES; i++)
        must(rg_gpu_transfer_create(&s.lists[i], gpu, &st), &st);
    return s;
}

static void close_set_up(set_up *s) {
    for (uint32_t i = 0; i < PLACES; i++)
        rg_gpu_list_destroy(s->lists[i]);
    rg_gpu_buffer_destroy(s->c.gpu, &s->unseen);
    rg_gpu_buffer_destroy(s->c.gpu, &s->staging);
    if (s->memory) rg_mem_unmap(s->memory, PLACES * PIECE);
    gpu_check_close(&s->c);
}

static uint8_t byte_of(uint64_t round, size_t place, size_t i) {
    return (uint8_t)(round * 31 + place * 7 + i * 13 + (i >> 8));
}

static void fill_place(const set_up *s, uint64_t round, uint32_t place) {
    uint8_t *to = (uint8_t *)s->staging.mapped + place * PIECE;
    for (size_t i = 0; i < PIECE; i++)
        to[i] = byte_of(round, place, i);
}

static rg_code send_place(const set_up *s, uint32_t place, size_t to, uint64_t *value,
                          rg_status *st) {
    rg_gpu_list *list = s->lists[place];
    rg_gpu_list_begin(list, true);
    rg_gpu_copy(list, &s->unseen, to, &s->staging, place * PIECE, PIECE);
    RG_TRY(rg_gpu_list_end(list, st));
    return rg_gpu_transfer_submit(s->c.gpu, list, value, st);
}

/* Values rise by one, what was copied is there, and takes time. */
static void check_copies(bool import) {
    set_up s = open_set_up(import);
    rg_status st = {0};
    uint8_t *got = rg_alloc(PIECE, 1, NULL);
    assert_non_null(got);
    uint64_t value = 0, first = 0;
    assert_int_equal(rg_gpu_transfer_passed(s.c.gpu), 0);
    for (uint32_t i = 0; i < PLACES; i++) {
        fill_place(&s, 1, i);
        must(send_place(&s, i, (size_t)(2 * i + 1) * PIECE, &value, &st), &st);
        if (i == 0) first = value;
        assert_int_equal(value, first + i);
    }
    must(rg_gpu_transfer_wait(s.c.gpu, value, WAIT_NS, &st), &st);
    assert_int_equal(rg_gpu_transfer_passed(s.c.gpu), value);
    for (uint32_t i = 0; i < PLACES; i++) {
        for (uint32_t half = 0; half < 2; half++) {
            must(rg_gpu_read(s.c.gpu, &s.unseen, (size_t)(2 * i + half) * PIECE, got, PIECE, &st),
                 &st);
            for (size_t k = 0; k < PIECE; k++)
                assert_int_equal(got[k], half ? byte_of(1, i, k) : 0);
        }
        print_message("copy %u: %llu ns\n", i, (unsigned long long)rg_gpu_transfer_ns(s.lists[i]));
    }
    rg_free(got);
    close_set_up(&s);
}

static void copies(void **state) {
    (void)state;
    check_copies(false);
}

static void imported(void **state) {
    (void)state;
    check_copies(true);
}

/* The other thread: reads come in, copies go out. Round r goes to slot r % SLOTS. */
#define SLOTS (2 * PLACES)
typedef struct sender {
    const set_up *s;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t values[ROUNDS]; /* 0: not yet */
    uint32_t n_read;         /* rounds whose slots the device is done with */
    bool failed;
} sender;

static void await_read(sender *x, uint32_t n) {
    pthread_mutex_lock(&x->lock);
    while (x->n_read < n)
        pthread_cond_wait(&x->moved, &x->lock);
    pthread_mutex_unlock(&x->lock);
}

static void *send_rounds(void *arg) {
    sender *x = arg;
    uint64_t of_place[PLACES] = {0};
    rg_status st = {0};
    for (uint32_t r = 0; r < ROUNDS; r++) {
        const uint32_t place = r % PLACES;
        rg_code rc = RG_OK;
        if (r >= SLOTS) await_read(x, r + 1 - SLOTS);
        if (r >= PLACES) rc = rg_gpu_transfer_wait(x->s->c.gpu, of_place[place], WAIT_NS, &st);
        if (rc == RG_OK) {
            fill_place(x->s, r, place);
            rc = send_place(x->s, place, (r % SLOTS) * PIECE, &of_place[place], &st);
        }
        pthread_mutex_lock(&x->lock);
        x->values[r] = of_place[place];
        x->failed = rc != RG_OK;
        pthread_cond_broadcast(&x->moved);
        pthread_mutex_unlock(&x->lock);
        if (rc != RG_OK) break;
    }
    return NULL;
}

/* The copy of a round that was handed over; before it, that `n_read` rounds were read. */
static uint64_t await_sent(sender *x, uint32_t round, uint32_t n_read) {
    pthread_mutex_lock(&x->lock);
    x->n_read = n_read;
    pthread_cond_broadcast(&x->moved);
    while (!x->values[round] && !x->failed)
        pthread_cond_wait(&x->moved, &x->lock);
    const uint64_t value = x->values[round];
    assert_false(x->failed);
    pthread_mutex_unlock(&x->lock);
    return value;
}

/* Lists that start when a copy is done read its bytes, while the other thread fills and sends. */
static void beside_lists(void **state) {
    (void)state;
    set_up s = open_set_up(false);
    rg_status st = {0};
    rg_gpu_buffer seen;
    sender x = {.s = &s};
    pthread_t thread;
    must(rg_gpu_buffer_create(s.c.gpu, &seen, PIECE, RG_GPU_READBACK, &st), &st);
    pthread_mutex_init(&x.lock, NULL);
    pthread_cond_init(&x.moved, NULL);
    assert_int_equal(pthread_create(&thread, NULL, send_rounds, &x), 0);
    for (uint32_t r = 0; r < ROUNDS; r++) {
        rg_gpu_list_begin(s.c.list, false);
        rg_gpu_copy(s.c.list, &seen, 0, &s.unseen, (r % SLOTS) * PIECE, PIECE);
        must(rg_gpu_list_end(s.c.list, &st), &st);
        const rg_gpu_part part = {.list = s.c.list,
                                  .wait_transfer = await_sent(&x, r, r),
                                  .signal = rg_gpu_next(s.c.gpu)};
        must(rg_gpu_submit(s.c.gpu, &part, 1, &st), &st);
        must(rg_gpu_wait(s.c.gpu, part.signal, WAIT_NS, &st), &st);
        for (size_t k = 0; k < PIECE; k++)
            assert_int_equal(((const uint8_t *)seen.mapped)[k], byte_of(r, r % PLACES, k));
    }
    pthread_join(thread, NULL);
    pthread_cond_destroy(&x.moved);
    pthread_mutex_destroy(&x.lock);
    rg_gpu_buffer_destroy(s.c.gpu, &seen);
    close_set_up(&s);
}

/* A list handed over ahead of the copy that it waits for does not start. Where one queue does all,
 * nothing behind such a list could run: there the value is that of a copy that was handed over. */
static void held_back(void **state) {
    (void)state;
    set_up s = open_set_up(false);
    rg_status st = {0};
    rg_gpu_buffer seen;
    rg_gpu *gpu = s.c.gpu;
    uint64_t value = 0;
    must(rg_gpu_buffer_create(gpu, &seen, PIECE, RG_GPU_READBACK, &st), &st);
    rg_gpu_list_begin(s.c.list, false);
    rg_gpu_copy(s.c.list, &seen, 0, &s.unseen, 0, PIECE);
    must(rg_gpu_list_end(s.c.list, &st), &st);
    fill_place(&s, 3, 0);
    rg_gpu_part part = {.list = s.c.list, .signal = rg_gpu_next(gpu)};
    if (rg_gpu_get_info(gpu)->transfer) {
        part.wait_transfer = 1;
        must(rg_gpu_submit(gpu, &part, 1, &st), &st);
        assert_int_equal(rg_gpu_wait(gpu, part.signal, 50000000u, &st), RG_TIMEOUT);
        rg_status_clear(&st);
        must(send_place(&s, 0, 0, &value, &st), &st);
        assert_int_equal(value, 1);
    } else {
        must(send_place(&s, 0, 0, &value, &st), &st);
        part.wait_transfer = value;
        must(rg_gpu_submit(gpu, &part, 1, &st), &st);
    }
    must(rg_gpu_wait(gpu, part.signal, WAIT_NS, &st), &st);
    for (size_t k = 0; k < PIECE; k++)
        assert_int_equal(((const uint8_t *)seen.mapped)[k], byte_of(3, 0, k));
    rg_gpu_buffer_destroy(gpu, &seen);
    close_set_up(&s);
}

/* A lost device takes no copies; those under way end or are given up. */
static void lost(void **state) {
    (void)state;
    set_up s = open_set_up(false);
    rg_status st = {0};
    uint64_t value = 0, none = 77;
    must(send_place(&s, 0, 0, &value, &st), &st);
    rg_gpu_lose(s.c.gpu);
    assert_int_equal(send_place(&s, 1, PIECE, &none, &st), RG_IO);
    assert_int_equal(none, 77);
    assert_non_null(strstr(st.message, "was lost"));
    rg_status_clear(&st);
    must(rg_gpu_transfer_wait(s.c.gpu, value, WAIT_NS, &st), &st);
    close_set_up(&s);
}

/* Pieces of memory that no device takes. */
static void bad_imports(void **state) {
    (void)state;
    gpu_check c = gpu_check_open();
    rg_gpu_buffer b;
    rg_status st = {0};
    void *memory = NULL;
    must(rg_mem_map(&memory, 2 * PIECE, &st), &st);
    assert_int_equal(rg_gpu_buffer_import(c.gpu, &b, (uint8_t *)memory + 64, PIECE, &st),
                     RG_UNSUPPORTED);
    assert_null(b.handle);
    assert_int_equal(rg_gpu_buffer_import(c.gpu, &b, memory, PIECE - 16, NULL), RG_UNSUPPORTED);
    assert_null(b.handle);
    rg_mem_unmap(memory, 2 * PIECE);
    gpu_check_close(&c);
}

int main(void) {
    if (!gpu_check_here()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies),    cmocka_unit_test(imported), cmocka_unit_test(beside_lists),
        cmocka_unit_test(held_back), cmocka_unit_test(lost),     cmocka_unit_test(bad_imports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
