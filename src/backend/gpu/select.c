/* Which device a model is opened on. */
#include "backend/gpu/gpu.h"

#include <stdlib.h>
#include <string.h>

const lt_gpu_driver *const *lt_gpu_drivers(size_t *n)
{
    static const lt_gpu_driver *const drivers[] = { &lt_gpu_cuda, &lt_gpu_metal };
    *n = sizeof drivers / sizeof *drivers;
    return drivers;
}

/* "cuda" or "cuda:1": the driver and the number; false: another name. */
static bool parse(const char *name, const char *driver, int *index)
{
    size_t length = strlen(driver);
    *index = 0;
    if (strncmp(name, driver, length) != 0) return false;
    if (name[length] == '\0') return true;
    char *end;
    long number =
        name[length] == ':' && name[length + 1] >= '0' && name[length + 1] <= '9' ? strtol(name + length + 1, &end, 10) : -1;
    if (number < 0 || number > 1023 || *end) return false;
    *index = (int)number;
    return true;
}

static bool forbidden(void)
{
    const char *value = getenv("LATTICE_NO_GPU");
    return value && *value && strcmp(value, "0") != 0;
}

/* The runtime's own drivers stand in for those of the build: tests bring a device that runs on the CPU. */
static const lt_gpu_driver *const *drivers_of(const lattice_runtime *runtime, size_t *n)
{
    if (!runtime->gpu_driver) return lt_gpu_drivers(n);
    *n = 1;
    return &runtime->gpu_driver;
}

static lattice_status find_driver(const lattice_runtime *runtime, const char *name, const lt_gpu_driver **driver, int *index,
                                  lattice_error *err)
{
    static const char *const known[] = { "cuda", "metal" };
    size_t n;
    const lt_gpu_driver *const *drivers = drivers_of(runtime, &n);
    *driver = NULL;
    for (size_t i = 0; i < n && !*driver; i++) {
        if (parse(name, drivers[i]->name, index)) *driver = drivers[i];
    }
    for (size_t i = 0; i < sizeof known / sizeof *known && !*driver; i++) {
        if (parse(name, known[i], index)) return LATTICE_OK;
    }
    if (*driver) return LATTICE_OK;
    return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT, "unknown device '%s'; use auto, cpu, cuda, cuda:N or metal", name);
}

lattice_status lt_gpu_check_name(const lattice_runtime *runtime, const char *name, lattice_error *err)
{
    const lt_gpu_driver *driver;
    int index;
    if (!name || strcmp(name, "auto") == 0 || strcmp(name, "cpu") == 0) return LATTICE_OK;
    return find_driver(runtime, name, &driver, &index, err);
}

lattice_status lt_gpu_select(lattice_runtime *runtime, const char *name, lt_gpu_device **device, lattice_error *err)
{
    *device = NULL;
    if (name && strcmp(name, "cpu") == 0) return LATTICE_OK;
    bool asked = name && strcmp(name, "auto") != 0;
    const lt_gpu_driver *driver = NULL;
    int index = 0;
    if (asked) LT_TRY(find_driver(runtime, name, &driver, &index, err));
    if (forbidden()) {
        lt_log(runtime, LATTICE_LOG_WARNING, "LATTICE_NO_GPU is set: running on the CPU");
        return LATTICE_OK;
    }
    lattice_error why = { .code = LATTICE_OK };
    if (asked) {
        if (driver && driver->open(runtime, index, device, &why) == LATTICE_OK) return LATTICE_OK;
        lt_log(runtime, LATTICE_LOG_WARNING, "running on the CPU: %s", driver ? why.message : "this build has no such backend");
        return LATTICE_OK;
    }
    size_t n;
    const lt_gpu_driver *const *drivers = drivers_of(runtime, &n);
    for (size_t i = 0; i < n; i++) {
        if (drivers[i]->open(runtime, 0, device, &why) == LATTICE_OK) return LATTICE_OK;
        /* A machine without a device is no cause for a warning; one whose device does not start is. */
        if (why.code != LATTICE_ERR_NOT_FOUND) lt_log(runtime, LATTICE_LOG_WARNING, "running on the CPU: %s", why.message);
    }
    return LATTICE_OK;
}
