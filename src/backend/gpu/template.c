/* Text substitution before compiling: numbers that a kernel needs as constants (sizes of arrays in registers and threadgroup
 * memory) are words in the template. The texts are files of kernels/, which the build turns into arrays. */
#include "backend/gpu/template.h"

#include "backend/gpu/texts.h"

#define TEXT(name) ((lt_str){ (const char *)name, sizeof name - 1 })

lt_str lt_gpu_template(void)
{
    return TEXT(lt_gpu_text_template);
}

lt_str lt_gpu_shim_cuda(void)
{
    return TEXT(lt_gpu_text_shim_cuda_h);
}

lt_str lt_gpu_shim_metal(void)
{
    return TEXT(lt_gpu_text_shim_metal_h);
}

lt_str lt_gpu_own_cuda(void)
{
    return TEXT(lt_gpu_text_own_cuda);
}

void lt_gpu_substitutions(const lt_gpu_shape *shape, lt_gpu_substitution list[LT_GPU_PLACEHOLDERS])
{
    /* A model that rotates nothing still compiles the kernel that would. */
    size_t half = (shape->rotary_dim ? shape->rotary_dim : shape->head_dim) / 2;
    const size_t values[] = { shape->head_dim, shape->n_heads / shape->n_kv_heads, shape->head_dim, half, half };
    static const char *const names[] = {
#define X(name) #name,
        LT_GPU_PLACEHOLDER_LIST(X)
#undef X
    };
    for (int i = 0; i < LT_GPU_PLACEHOLDERS; i++) list[i] = (lt_gpu_substitution){ names[i], values[i] };
}

/* The length of the placeholder that `text` begins with, or 0. */
static size_t placeholder_length(lt_str text)
{
    if (!lt_str_starts(text, "__FA_") && !lt_str_starts(text, "__FUSED_")) return 0;
    for (size_t i = 2; i + 1 < text.len; i++) {
        char c = text.data[i];
        if (c == '_' && text.data[i + 1] == '_') return i + 2;
        if (c != '_' && (c < 'A' || c > 'Z')) return 0;
    }
    return 0;
}

lattice_status lt_gpu_substitute(lt_str text, const lt_gpu_substitution *list, size_t n, lt_buf *out, lattice_error *err)
{
    size_t copied = 0;
    for (size_t at = 0; at < text.len; at++) {
        if (text.data[at] != '_') continue;
        lt_str rest = { text.data + at, text.len - at };
        size_t length = placeholder_length(rest);
        if (length == 0) continue;
        lt_str name = { rest.data, length };
        size_t i = 0;
        while (i < n && !lt_str_is(name, list[i].placeholder)) i++;
        if (i == n) return lt_fail(err, LATTICE_ERR_INTERNAL, "gpu: the placeholder %.*s is not substituted", LT_STR_ARG(name));
        lt_buf_append(out, text.data + copied, at - copied);
        lt_buf_printf(out, "%zu", list[i].value);
        at += length - 1;
        copied = at + 1;
    }
    lt_buf_append(out, text.data + copied, text.len - copied);
    return out->failed ? lt_no_memory(err, text.len, "kernels") : LATTICE_OK;
}

lattice_status lt_gpu_source(const lt_gpu_shape *shape, lt_str shim, lt_str extra, lt_buf *out, lattice_error *err)
{
    lt_gpu_substitution list[LT_GPU_PLACEHOLDERS];
    lt_gpu_substitutions(shape, list);
    lt_buf_printf(out, "#define HAS_DELTA %d\n#define DELTA_DK %zu\n", shape->delta_dk > 0,
                  shape->delta_dk ? shape->delta_dk : 32);
    lt_buf_printf(out, "#define DECODES %d\n#define FEW_BF16 %d\n#define FEW_Q8_0 %d\n#define KEEPS_BF16 %d\n", shape->decodes,
                  shape->few_bf16, shape->few_q8_0, shape->keeps_bf16);
    lt_buf_append(out, shim.data, shim.len);
    lt_str parts[2] = { lt_gpu_template(), extra };
    for (int i = 0; i < 2; i++) LT_TRY(lt_gpu_substitute(parts[i], list, LT_GPU_PLACEHOLDERS, out, err));
    return out->failed ? lt_no_memory(err, out->len, "kernels") : LATTICE_OK;
}
