/* SHA-256 against the vectors of FIPS 180-4, whole and in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "forge/sha256.h"

static void known_vectors(void **state) {
    (void)state;
    static const struct {
        const char *text, *hex;
    } vectors[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        rg_sha256 s;
        char hex[65];
        rg_sha256_init(&s);
        rg_sha256_add(&s, vectors[i].text, strlen(vectors[i].text));
        rg_sha256_hex(&s, hex);
        assert_string_equal(hex, vectors[i].hex);
    }
}

/* A million times "a", in pieces of every length up to 200. */
static void pieces(void **state) {
    (void)state;
    char block[200], hex[65];
    rg_sha256 s;
    memset(block, 'a', sizeof block);
    rg_sha256_init(&s);
    for (size_t left = 1000000, n = 1; left > 0; n = n % 200 + 1) {
        const size_t take = n < left ? n : left;
        rg_sha256_add(&s, block, take);
        left -= take;
    }
    rg_sha256_hex(&s, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_vectors), cmocka_unit_test(pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
