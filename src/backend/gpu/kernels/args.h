/* What a launch is told besides its buffers: one struct of 4-byte numbers a kernel. This file is read by the host's compiler and
 * is the beginning of the template, so that both sides agree. Leading dimensions (ld_) and strides count numbers, not bytes. */

typedef struct {
    uint width, ld, position_offset, has_position, has_type, typed, word_type, position_type, type_type, out_type;
    uint word_rows, position_rows, type_rows;
} embed_args;

typedef struct {
    uint rows, width, ld_x, ld_residual, ld_y, ld_sum, x_type, residual_type, y_type, sum_type;
    uint has_residual, has_y, has_sum, has_bias;
    float eps;
} norm_args;

typedef struct {
    uint rows, width, ld_x, ld_residual, ld_y, x_type, residual_type, y_type, has_bias, has_residual, activation;
} activate_args;

typedef struct {
    uint rows, width, ld_x, ld_y, x_type, y_type, activation;
} glu_args;

typedef struct {
    uint rows, width, ld_x, ld_y, x_type, y_type, has_index;
} convert_args;

typedef struct {
    uint rows, n_heads, head_dim, ld_x, ld_z, ld_y, x_stride, z_stride, x_type, z_type, y_type;
    float eps;
} gate_args;

typedef struct {
    uint width, ld, type, pooling, out_width;
} pool_args;

typedef struct {
    uint m, n, k, ld_x, ld_residual, ld_y, x_type, w_type, residual_type, y_type;
    uint has_bias, has_residual, has_gate, activation;
    uint w_row, w_rows; /* the product's first row of W, and those that W has */
} gemm_args;

typedef struct {
    uint rows, cols, w_row, w_rows, y_type;
} unpack_args;

typedef struct {
    uint n_heads, ld_q, ld_k, ld_v, ld_o, q_stride, k_stride, v_stride, o_stride, q_type, kv_type, o_type, causal, paged;
    uint block_size, v_offset; /* paged: numbers of a block, where V begins behind K */
    float scale;
} attention_args;

typedef struct {
    uint n_kv_heads, head_dim, ld_k, ld_v, k_stride, v_stride, type, block_size, offset, kv_type;
} append_args;

typedef struct {
    uint n_heads, n_kv_heads, ld, q_stride, k_stride, type;
    float eps;
} rope_args;

typedef struct {
    uint width, taps, ld_x, ld_y, x_type, y_type, memory_size, offset;
} conv_args;

typedef struct {
    uint tokens, n_heads, n_key_heads, dv, ld_x, ld_gates, ld_o, q_stride, k_stride, v_stride, x_type, gates_type, o_type;
    uint memory_size, offset, stateful;
} delta_args;

/* A product of few rows with what surrounds it. */
typedef struct {
    uint m, n, k, ld_x, ld_residual, ld_y, x_type, residual_type, y_type;
    uint has_norm, has_glu, has_bias, has_residual, activation;
    uint split;                 /* simdgroups that share a row of W */
    uint w_row, up_row, w_rows; /* Q8_0: first rows of gate and up, and those that either matrix has */
    float eps;
} few_args;

/* Rows of u, and columns of it: of the convolution's q, k and v, of the gates b then a, and of z. */
typedef struct {
    uint n_heads, n_key_heads, dv, taps, width, ld_x, ld_y, x_type, y_type;
    uint q_column, k_column, v_column, q_stride, k_stride, v_stride, conv_column, gates_column, z_column, z_stride;
    uint memory_size, conv_offset, offset;
    float eps;
} delta_step_args;

typedef struct {
    uint n_heads, ld, q_stride, k_stride, v_stride, q_column, k_column, v_column, type;
    uint block_size, offset, v_offset, sines,
        splits; /* offset: of the layer in a block; v_offset: of V behind K; sines: in `rotary` */
    float eps, scale;
} step_args;

typedef struct {
    uint width, ld, n, indexed;
} top_args; /* n: of a chunk; indexed: columns have ids of their own */

typedef struct {
    uint n_heads, splits, ld_z, ld_y, z_stride, y_stride, z_type, y_type, has_gate;
} combine_args;
