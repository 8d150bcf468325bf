/* The web page at `/`: its files lie in src/server/page and are put into the program when it is built. */
#ifndef LT_SERVER_PAGE_H
#define LT_SERVER_PAGE_H

#include <stddef.h>

typedef struct lt_page_file {
    const char *path; /* "/", "/page.css", "/page.js" */
    const char *content_type;
    const unsigned char *data;
    size_t size;
} lt_page_file;

/* NULL: the page has no such file. */
const lt_page_file *lt_page_find(const char *path);

#endif
