/* Test support: reads the golden files of tests/data/quant word by word. Private to the tests of
 * this room.
 */
#ifndef RG_QUANT_GOLDEN_WORDS_H
#define RG_QUANT_GOLDEN_WORDS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

typedef struct golden {
    char *text; /* owned */
    char *next; /* start of the unread rest */
} golden;

/* Opens a golden file; `*header` points to its first line. */
static inline void golden_open(golden *g, const char *name, char **header) {
    char path[512];
    size_t len = 0;
    rg_status st = {0};
    assert_true(snprintf(path, sizeof path, "%s/quant/%s", RG_TEST_DATA, name) < (int)sizeof path);
    if (rg_file_slurp(&g->text, &len, path, 1 << 20, &st) != RG_OK) fail_msg("%s", st.message);
    g->next = g->text;
    *header = strsep(&g->next, "\n");
    assert_int_equal((*header)[0], '#');
}

static inline void golden_close(golden *g) {
    rg_free(g->text);
}

/* The next word, NULL at the end of the file. */
static inline char *golden_word(golden *g) {
    char *word = NULL;
    do {
        word = strsep(&g->next, " \n");
    } while (word && *word == '\0');
    return word;
}

/* Number behind "key=" in the header line. */
static inline size_t golden_number(const char *header, const char *key) {
    const char *at = strstr(header, key);
    assert_non_null(at);
    return strtoul(at + strlen(key), NULL, 10);
}

/* Two hex digits a byte, byte 0 first; the word must have exactly `n` bytes. */
static inline void golden_bytes(const char *word, uint8_t *out, size_t n) {
    assert_int_equal(strlen(word), 2 * n);
    for (size_t i = 0; i < n; i++) {
        const char digits[3] = {word[2 * i], word[2 * i + 1], '\0'};
        out[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
}

/* Bits of one f32, eight hex digits. */
static inline uint32_t golden_bits(const char *word) {
    assert_int_equal(strlen(word), 8);
    return (uint32_t)strtoul(word, NULL, 16);
}

#endif
