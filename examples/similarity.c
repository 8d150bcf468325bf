/* Embeds sentences and prints how similar they are: everything that a program needs of lattice.h for it.
 *
 *     similarity MODEL [SENTENCE…]
 *
 * Vectors have unit length, so that the similarity of two texts, the cosine of the angle between them, is their dot product. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lattice.h"

static const char *const examples[] = {
    "A cat is sleeping on the sofa.",       "A kitten naps on the couch.",
    "The stock market fell sharply today.", "Shares dropped after the interest rate decision.",
    "How do I bake sourdough bread?",
};

static int fail(const lattice_error *err)
{
    fprintf(stderr, "similarity: %s\n", err->message);
    return 1;
}

static void print_vectors(const char *const *sentences, size_t n, const float *vectors, size_t dim)
{
    for (size_t i = 0; i < n; i++) {
        printf("%2zu  %-50s", i + 1, sentences[i]);
        for (size_t j = 0; j < dim && j < 4; j++) printf(" %7.4f", (double)vectors[i * dim + j]);
        printf(" … (%zu values)\n", dim);
    }
}

static void print_similarities(const char *const *sentences, size_t n, const float *vectors, size_t dim)
{
    printf("\ncosine similarity\n    ");
    for (size_t j = 0; j < n; j++) printf("%7zu", j + 1);
    printf("\n");
    for (size_t i = 0; i < n; i++) {
        printf("%2zu  ", i + 1);
        for (size_t j = 0; j < n; j++) {
            double dot = 0;
            for (size_t d = 0; d < dim; d++) dot += (double)vectors[i * dim + d] * (double)vectors[j * dim + d];
            printf("%7.3f", dot);
        }
        printf("   %s\n", sentences[i]);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: similarity MODEL [SENTENCE…]\n");
        return 2;
    }
    const char *const *sentences = argc > 2 ? (const char *const *)argv + 2 : examples;
    size_t n = argc > 2 ? (size_t)argc - 2 : sizeof examples / sizeof examples[0];

    lattice_error err;
    lattice_runtime *runtime = NULL;
    lattice_model *model = NULL;
    lattice_runtime_options runtime_options = lattice_runtime_options_default();
    if (lattice_runtime_create(&runtime_options, &runtime, &err) != LATTICE_OK) return fail(&err);

    int code = 1;
    float *vectors = NULL;
    lattice_text *texts = NULL;
    if (lattice_model_open(runtime, argv[1], NULL, &model, &err) != LATTICE_OK) {
        fail(&err);
        goto done;
    }
    size_t dim = lattice_embed_dim(model, NULL);
    vectors = calloc(n * dim + 1, sizeof *vectors);
    texts = calloc(n, sizeof *texts);
    if (!vectors || !texts) {
        fprintf(stderr, "similarity: out of memory\n");
        goto done;
    }
    for (size_t i = 0; i < n; i++) texts[i] = (lattice_text){ sentences[i], strlen(sentences[i]) };
    if (lattice_embed(model, texts, n, NULL, vectors, NULL, &err) != LATTICE_OK) {
        fail(&err);
        goto done;
    }
    print_vectors(sentences, n, vectors, dim);
    print_similarities(sentences, n, vectors, dim);
    code = 0;
done:
    free(texts);
    free(vectors);
    lattice_model_close(model);
    lattice_runtime_free(runtime);
    return code;
}
