/* Small pieces of work that a scheduler runs between batches. */
#ifndef LT_ENGINE_POSTS_H
#define LT_ENGINE_POSTS_H

typedef struct lt_post {
    void (*fn)(struct lt_post *post); /* may free the post */
    struct lt_post *next;             /* the scheduler's */
} lt_post;

#endif
