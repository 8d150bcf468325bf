/* GET of the web page's files. See page.h.
 *
 * Each has a route of its own that is open without a key: the page is what asks for it, and holds nothing of the server's. */
#include "server/page.h"

#include <string.h>

#include "server/exchange.h"
#include "server/page_texts.h" /* made by the build */

/* The build puts a NUL behind each. */
#define CONTENT(array) array, sizeof(array) - 1

static const lt_page_file files[] = {
    { "/", "text/html; charset=utf-8", CONTENT(lt_page_index) },
    { "/page.css", "text/css; charset=utf-8", CONTENT(lt_page_style) },
    { "/page.js", "text/javascript; charset=utf-8", CONTENT(lt_page_script) },
};

const lt_page_file *lt_page_find(const char *path)
{
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (strcmp(files[i].path, path) == 0) return &files[i];
    return NULL;
}

void lt_page(lt_exchange *ex)
{
    const lt_page_file *file = lt_page_find(ex->route->path);
    if (!file) {
        lt_answer_error(ex, LT_PROBLEM_NOT_FOUND, NULL, "no such page");
        return;
    }
    lt_buf_append(&ex->out, file->data, file->size);
    lt_answer_json(ex);
    if (ex->status == 200) ex->content_type = file->content_type;
}
