/* SHA-256 against the examples that NIST publishes for FIPS 180-4, and against itself in pieces of every size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/sha256.h"

static void hex_of(const void *data, size_t size, char hex[65])
{
    lt_sha256 hash;
    uint8_t digest[LT_SHA256_SIZE];
    lt_sha256_init(&hash);
    lt_sha256_update(&hash, data, size);
    lt_sha256_final(&hash, digest);
    lt_sha256_hex(digest, hex);
}

static void sha256_of_published_examples(void **state)
{
    (void)state;
    static const struct {
        const char *text, *digest;
    } cases[] = {
        { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
        { "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
          "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1" },
    };
    char hex[65];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hex_of(cases[i].text, strlen(cases[i].text), hex);
        assert_string_equal(hex, cases[i].digest);
    }
}

static void sha256_of_a_million_a(void **state)
{
    (void)state;
    static char a[1000];
    memset(a, 'a', sizeof a);
    lt_sha256 hash;
    lt_sha256_init(&hash);
    for (int i = 0; i < 1000; i++) lt_sha256_update(&hash, a, sizeof a);
    uint8_t digest[LT_SHA256_SIZE];
    char hex[65];
    lt_sha256_final(&hash, digest);
    lt_sha256_hex(digest, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void sha256_does_not_depend_on_the_pieces(void **state)
{
    (void)state;
    uint8_t data[300];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7);
    for (size_t size = 0; size <= sizeof data; size += 13) {
        char whole[65], pieces[65];
        hex_of(data, size, whole);
        for (size_t piece = 1; piece <= 130; piece += 3) {
            lt_sha256 hash;
            uint8_t digest[LT_SHA256_SIZE];
            lt_sha256_init(&hash);
            for (size_t at = 0; at < size; at += piece) lt_sha256_update(&hash, data + at, piece < size - at ? piece : size - at);
            lt_sha256_final(&hash, digest);
            lt_sha256_hex(digest, pieces);
            assert_string_equal(pieces, whole);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_of_published_examples),
        cmocka_unit_test(sha256_of_a_million_a),
        cmocka_unit_test(sha256_does_not_depend_on_the_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
