/* Finding the Objective-C runtime and Metal at run time, so that a build needs neither and starts without. */
#include "backend/gpu/metal_api.h"

#include <dlfcn.h>
#include <stdio.h>

typedef struct function {
    const char *name;
    size_t offset; /* of the pointer in metal_api */
} function;

/* The libraries stay loaded: the runtime keeps pointers into every one that has classes. */
static bool load(const char *library, const function *functions, size_t n, metal_api *api, char *text, size_t size)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    if (!handle) {
        snprintf(text, size, "Metal is a part of macOS, and %s cannot be opened here", library);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        void *address = dlsym(handle, functions[i].name);
        if (!address) {
            snprintf(text, size, "%s has no %s", library, functions[i].name);
            return false;
        }
        memcpy((char *)api + functions[i].offset, &address, sizeof address);
    }
    return true;
}

bool lt_metal_load(metal_api *api, char *text, size_t size)
{
    static const function runtime[] = {
#define X(member, name, result, parameters) { name, offsetof(metal_api, member) },
        LT_OBJC_FUNCTIONS(X)
    };
    static const function metal[] = { LT_METAL_FUNCTIONS(X)
#undef X
    };
    /* A program that draws nothing is given no default device unless Core Graphics is loaded. */
    return load("/usr/lib/libobjc.A.dylib", runtime, sizeof runtime / sizeof *runtime, api, text, size) &&
           load("/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics", NULL, 0, api, text, size) &&
           load("/System/Library/Frameworks/Metal.framework/Metal", metal, sizeof metal / sizeof *metal, api, text, size);
}

void lt_metal_messages(const metal_api *api, metal_messages *messages)
{
#define X(member, name, result, parameters)                                                                                      \
    messages->member.selector = api->selector(name);                                                                             \
    messages->member.send = (result(*) parameters)api->send;
    LT_METAL_MESSAGES(X)
#undef X
}
