/* The template and its validation, without any device. */
#include "support.h"

#include "backend/gpu/shape.h"
#include "backend/gpu/template.h"

static lt_gpu_shape shape_of(size_t head_dim, size_t n_heads, size_t n_kv_heads)
{
    return (lt_gpu_shape){ .n_heads = n_heads, .n_kv_heads = n_kv_heads, .head_dim = head_dim };
}

static void INV_1_all_five_placeholders_are_substituted(void **state)
{
    (void)state;
    lt_gpu_shape shape = shape_of(80, 6, 2);
    shape.rotary_dim = 20;
    lt_gpu_substitution list[LT_GPU_PLACEHOLDERS];
    lt_gpu_substitutions(&shape, list);
    static const struct {
        const char *name;
        size_t value;
    } wanted[] = { { "__FA_HEAD_DIM__", 80 },
                   { "__FA_GQA_GROUPS__", 3 },
                   { "__FUSED_C_HEAD_DIM__", 80 },
                   { "__FUSED_C_HALF_DIM__", 10 },
                   { "__FUSED_C_THREADS__", 10 } };
    lt_str text = lt_gpu_template();
    for (size_t i = 0; i < LT_GPU_PLACEHOLDERS; i++) {
        assert_string_equal(list[i].placeholder, wanted[i].name);
        assert_int_equal(list[i].value, wanted[i].value);
        assert_non_null(memmem(text.data, text.len, wanted[i].name, strlen(wanted[i].name))); /* the template uses it */
    }
    lt_buf out;
    lattice_error err;
    lt_buf_init(&out, &lt_malloc_allocator);
    assert_ok_err(lt_gpu_source(&shape, LT_STR("// shim\n"), LT_STR("int x = __FA_HEAD_DIM__;\n"), &out, &err), &err);
    assert_null(memmem(out.data, out.len, "__FA_", 5));
    assert_null(memmem(out.data, out.len, "__FUSED_", 8));
    assert_non_null(memmem(out.data, out.len, "#define FA_DIM 80\n", 18));
    assert_non_null(memmem(out.data, out.len, "int x = 80;\n", 12));
    lt_buf_free(&out);
}

static void INV_1_a_placeholder_left_over_is_an_error_that_names_it(void **state)
{
    (void)state;
    lt_gpu_shape shape = shape_of(64, 4, 2);
    lt_gpu_substitution list[LT_GPU_PLACEHOLDERS];
    lt_gpu_substitutions(&shape, list);
    for (size_t missing = 0; missing < LT_GPU_PLACEHOLDERS; missing++) {
        lt_gpu_substitution four[LT_GPU_PLACEHOLDERS - 1];
        size_t n = 0;
        for (size_t i = 0; i < LT_GPU_PLACEHOLDERS; i++) {
            if (i != missing) four[n++] = list[i];
        }
        lattice_error err;
        lt_buf out;
        lt_buf_init(&out, &lt_malloc_allocator);
        assert_int_equal(lt_gpu_substitute(lt_gpu_template(), four, n, &out, &err), LATTICE_ERR_INTERNAL);
        assert_non_null(strstr(err.message, list[missing].placeholder));
        lt_buf_free(&out);
    }
    lattice_error err;
    lt_buf out;
    lt_buf_init(&out, &lt_malloc_allocator);
    assert_int_equal(lt_gpu_substitute(LT_STR("a __FA_TILE__ b"), list, LT_GPU_PLACEHOLDERS, &out, &err), LATTICE_ERR_INTERNAL);
    assert_non_null(strstr(err.message, "__FA_TILE__"));
    lt_buf_clear(&out);
    assert_ok_err(lt_gpu_substitute(LT_STR("__syncthreads __FA_ __fa_x__ _"), list, LT_GPU_PLACEHOLDERS, &out, &err), &err);
    assert_string_equal(out.data, "__syncthreads __FA_ __fa_x__ _");
    lt_buf_free(&out);
}

static void shapes_of_published_models_are_admitted(void **state)
{
    (void)state;
    static const size_t shapes[][2] = { { 32, 1 },  { 64, 1 },  { 64, 2 },  { 80, 2 },  { 80, 3 },
                                        { 128, 2 }, { 128, 4 }, { 128, 5 }, { 256, 4 }, { 256, 8 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char reason[LT_GPU_REASON];
        lt_gpu_shape shape = shape_of(shapes[i][0], 2 * shapes[i][1], 2);
        assert_true(lt_gpu_shape_admits(&shape, reason));
        assert_string_equal(reason, "");
        size_t queries, heads;
        lt_gpu_attention_tile(&shape, &queries, &heads);
        assert_int_equal(shapes[i][1] % heads, 0);
    }
}

/* INV-2: head_dim % 4 == 0.  INV-3: heads divide into key/value heads. */
static void INV_2_and_3_other_shapes_are_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        size_t head_dim, n_heads, n_kv_heads;
        const char *reason;
    } cases[] = { { 66, 2, 1, "head_dim 66 is not divisible by 4" },
                  { 0, 2, 1, "head_dim is 0" },
                  { 64, 3, 2, "3 query heads do not divide into 2 key/value heads" },
                  { 64, 2, 0, "there are 2 query heads and 0 key/value heads" },
                  { 2048, 2, 1, "head_dim 2048 is over 1024" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char reason[LT_GPU_REASON];
        lt_gpu_shape shape = shape_of(cases[i].head_dim, cases[i].n_heads, cases[i].n_kv_heads);
        assert_false(lt_gpu_shape_admits(&shape, reason));
        assert_string_equal(reason, cases[i].reason);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(INV_1_all_five_placeholders_are_substituted),
        cmocka_unit_test(INV_1_a_placeholder_left_over_is_an_error_that_names_it),
        cmocka_unit_test(shapes_of_published_models_are_admitted),
        cmocka_unit_test(INV_2_and_3_other_shapes_are_refused_with_the_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
