/* Allocation helpers, arenas, reserved address space. */
#include "unit/support.h"

#include "base/memory.h"

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    const lattice_allocator *mem = &lt_malloc_allocator;
    assert_null(lt_alloc_array(mem, SIZE_MAX / 2, 3));
    assert_null(lt_resize_array(mem, NULL, SIZE_MAX / 4, 5));
    size_t out;
    assert_false(lt_mul(SIZE_MAX, 2, &out));
    assert_false(lt_add(SIZE_MAX, 1, &out));
    assert_true(lt_mul(SIZE_MAX, 1, &out));
    assert_int_equal(out, SIZE_MAX);
    uint64_t *data = NULL;
    size_t capacity = 0;
    assert_false(LT_GROW(mem, data, capacity, SIZE_MAX / 4));
    assert_null(data);
    assert_int_equal(capacity, 0);
}

static void an_empty_allocation_is_not_null(void **state)
{
    (void)state;
    void *a = lt_alloc(&lt_malloc_allocator, 0), *b = lt_alloc_array(&lt_malloc_allocator, 0, 8);
    assert_non_null(a);
    assert_non_null(b);
    lt_free(&lt_malloc_allocator, a);
    lt_free(&lt_malloc_allocator, b);
    lt_free(&lt_malloc_allocator, NULL);
}

static void growing_keeps_the_contents_and_at_least_doubles(void **state)
{
    (void)state;
    int *data = NULL;
    size_t capacity = 0;
    for (size_t i = 0; i < 10000; i++) {
        size_t before = capacity;
        assert_true(LT_GROW(&lt_malloc_allocator, data, capacity, i + 1));
        assert_true(capacity > i);
        assert_true(capacity == before || capacity >= 2 * before);
        data[i] = (int)i;
    }
    for (size_t i = 0; i < 10000; i++) assert_int_equal(data[i], i);
    lt_free(&lt_malloc_allocator, data);
}

static void growing_without_memory_keeps_the_old_array(void **state)
{
    (void)state;
    lt_test_allocator a = lt_test_allocator_failing_at(2);
    lattice_allocator mem = lt_test_allocator_hooks(&a);
    int *data = NULL;
    size_t capacity = 0;
    assert_true(LT_GROW(&mem, data, capacity, 5));
    int *old = data;
    size_t old_capacity = capacity;
    data[4] = 44;
    assert_false(LT_GROW(&mem, data, capacity, old_capacity + 1));
    assert_ptr_equal(data, old);
    assert_int_equal(capacity, old_capacity);
    assert_int_equal(data[4], 44);
    lt_free(&mem, data);
    assert_int_equal(lt_test_allocator_live(&a), 0);
}

static void an_arena_gives_zeroed_aligned_blocks_that_do_not_overlap(void **state)
{
    (void)state;
    lt_test_allocator a = lt_test_allocator_failing_at(0);
    lattice_allocator mem = lt_test_allocator_hooks(&a);
    lt_arena arena;
    lt_arena_init(&arena, &mem);
    enum { N = 400 };
    uint8_t *blocks[N];
    size_t sizes[N];
    for (size_t i = 0; i < N; i++) {
        sizes[i] = i % 50 == 49 ? 300000 + i : i * 7 % 501; /* also larger than any block of the arena */
        blocks[i] = lt_arena_alloc(&arena, sizes[i]);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 16, 0);
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(blocks[i][k], 0);
        if (sizes[i]) memset(blocks[i], (int)(i % 255 + 1), sizes[i]);
    }
    for (size_t i = 0; i < N; i++) {
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(blocks[i][k], i % 255 + 1);
    }
    /* Small blocks share allocations. */
    assert_in_range(atomic_load(&a.requests), 9, 60);
    char *copy = lt_arena_copy(&arena, "ab\0cd", 5);
    assert_memory_equal(copy, "ab\0cd\0", 6);
    assert_string_equal(lt_arena_copy(&arena, NULL, 0), "");
    assert_null(lt_arena_alloc(&arena, SIZE_MAX));
    assert_null(lt_arena_alloc(&arena, SIZE_MAX - 40));
    assert_null(lt_arena_array(&arena, SIZE_MAX / 2, 4));
    lt_arena_free(&arena);
    assert_int_equal(lt_test_allocator_live(&a), 0);
}

static void an_arena_without_memory_answers_null_and_stays_usable(void **state)
{
    (void)state;
    lt_test_allocator a = lt_test_allocator_failing_at(2);
    lattice_allocator mem = lt_test_allocator_hooks(&a);
    lt_arena arena;
    lt_arena_init(&arena, &mem);
    char *first = lt_arena_copy(&arena, "kept", 4);
    assert_non_null(first);
    assert_null(lt_arena_alloc(&arena, 1 << 20));
    assert_string_equal(first, "kept");
    assert_non_null(lt_arena_alloc(&arena, 16));
    lt_arena_free(&arena);
    assert_int_equal(lt_test_allocator_live(&a), 0);
}

static void reserved_pages_cost_nothing_until_touched_and_can_be_given_back(void **state)
{
    (void)state;
    lattice_error err;
    lt_reserve reserve;
    size_t size = (size_t)1 << 36; /* 64 GiB */
    assert_ok_err(lt_reserve_create(size, &reserve, &err), &err);
    assert_int_equal((uintptr_t)reserve.base % (2 << 20), 0);
    assert_true(reserve.size >= size);

    /* Of the reservation alone: what the whole process holds is, under emulation, the emulator's tables too. */
    uint8_t *bytes = reserve.base;
    const size_t touched = 8 << 20, looked_at = (size_t)1 << 28;
    const lt_reserve begin = { bytes, looked_at }, end = { bytes + size - looked_at, looked_at };
    assert_int_equal(lt_reserve_resident(&begin), 0);
    assert_int_equal(lt_reserve_resident(&end), 0);
    memset(bytes, 0xAA, touched);
    bytes[size - 1] = 1;
#ifdef __linux__
    assert_true(lt_reserve_resident(&begin) >= touched);
    assert_true(lt_reserve_resident(&end) > 0);
#endif
    lt_reserve_discard(&reserve, 5000, touched - 10000);
    assert_true(lt_reserve_resident(&begin) <= (size_t)6 * (size_t)sysconf(_SC_PAGESIZE)); /* both ends and parts of pages */
    for (size_t i = 0; i < touched; i++) {
        bool given_back = i >= 5000 && i < touched - 5000;
        if (bytes[i] != (given_back ? 0 : 0xAA)) fail_msg("byte %zu is %d", i, bytes[i]);
    }
    lt_reserve_discard(&reserve, 10, 20); /* inside one page */
    assert_int_equal(bytes[9], 0xAA);
    assert_int_equal(bytes[10], 0);
    assert_int_equal(bytes[29], 0);
    assert_int_equal(bytes[30], 0xAA);
    lt_reserve_discard(&reserve, size + 4096, 1); /* outside: nothing */
    lt_reserve_free(&reserve);
    assert_null(reserve.base);
    lt_reserve_free(&reserve);
}

static void a_reservation_that_cannot_be_is_out_of_memory(void **state)
{
    (void)state;
    lattice_error err;
    lt_reserve reserve;
    assert_int_equal(lt_reserve_create(SIZE_MAX, &reserve, &err), LATTICE_ERR_NO_MEMORY);
    assert_null(reserve.base);
    assert_int_equal(lt_reserve_create((size_t)1 << 62, &reserve, &err), LATTICE_ERR_NO_MEMORY);
    assert_ok_err(lt_reserve_create(0, &reserve, &err), &err);
    lt_reserve_free(&reserve);
    assert_ok_err(lt_reserve_create(100, &reserve, &err), &err);
    assert_int_equal((uintptr_t)reserve.base % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    memset(reserve.base, 1, reserve.size);
    lt_reserve_free(&reserve);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(an_empty_allocation_is_not_null),
        cmocka_unit_test(growing_keeps_the_contents_and_at_least_doubles),
        cmocka_unit_test(growing_without_memory_keeps_the_old_array),
        cmocka_unit_test(an_arena_gives_zeroed_aligned_blocks_that_do_not_overlap),
        cmocka_unit_test(an_arena_without_memory_answers_null_and_stays_usable),
        cmocka_unit_test(reserved_pages_cost_nothing_until_touched_and_can_be_given_back),
        cmocka_unit_test(a_reservation_that_cannot_be_is_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
