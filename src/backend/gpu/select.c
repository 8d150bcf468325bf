/* Which devices a model is opened on. */
#include "backend/gpu/gpu.h"

#include <stdlib.h>
#include <string.h>

const lt_gpu_driver *const *lt_gpu_drivers(size_t *n)
{
    static const lt_gpu_driver *const drivers[] = { &lt_gpu_cuda, &lt_gpu_metal };
    *n = sizeof drivers / sizeof *drivers;
    return drivers;
}

/* What a name asks of a driver: the numbers of devices, or all that there are. */
typedef struct wish {
    int numbers[LT_GPU_MAX_DEVICES];
    int n;
    bool all;
} wish;

static bool parse_number(const char **text, int *number)
{
    char *end;
    if (**text < '0' || **text > '9') return false;
    long value = strtol(*text, &end, 10);
    if (value < 0 || value > 1023) return false;
    *number = (int)value;
    *text = end;
    return true;
}

/* "cuda", "cuda:1", "cuda:0,1" or "cuda:all" for the driver "cuda"; false: another name. A device is named once. */
static bool parse(const char *name, const char *driver, wish *w)
{
    size_t length = strlen(driver);
    *w = (wish){ .n = 0 };
    if (strncmp(name, driver, length) != 0) return false;
    const char *at = name + length;
    if (*at == '\0') {
        w->n = 1; /* number 0 */
        return true;
    }
    if (*at != ':') return false;
    if (strcmp(at, ":all") == 0) {
        w->all = true;
        return true;
    }
    do {
        at++;
        if (w->n == LT_GPU_MAX_DEVICES || !parse_number(&at, &w->numbers[w->n])) return false;
        for (int i = 0; i < w->n; i++) {
            if (w->numbers[i] == w->numbers[w->n]) return false;
        }
        w->n++;
    } while (*at == ',');
    return *at == '\0';
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

static lattice_status find_driver(const lattice_runtime *runtime, const char *name, const lt_gpu_driver **driver, wish *w,
                                  lattice_error *err)
{
    static const char *const known[] = { "cuda", "metal" };
    size_t n;
    const lt_gpu_driver *const *drivers = drivers_of(runtime, &n);
    *driver = NULL;
    for (size_t i = 0; i < n && !*driver; i++) {
        if (parse(name, drivers[i]->name, w)) *driver = drivers[i];
    }
    for (size_t i = 0; i < sizeof known / sizeof *known && !*driver; i++) {
        if (parse(name, known[i], w)) return LATTICE_OK;
    }
    if (*driver) return LATTICE_OK;
    return lt_fail(err, LATTICE_ERR_INVALID_ARGUMENT,
                   "unknown device '%s'; use auto, cpu, cuda, cuda:N, cuda:N,M, cuda:all or metal", name);
}

lattice_status lt_gpu_check_name(const lattice_runtime *runtime, const char *name, lattice_error *err)
{
    const lt_gpu_driver *driver;
    wish w;
    if (!name || strcmp(name, "auto") == 0 || strcmp(name, "cpu") == 0) return LATTICE_OK;
    return find_driver(runtime, name, &driver, &w, err);
}

/* Opens what is wished for; a device that does not open is left out with a warning, and said to be when it is the only one. */
static void open_wish(lattice_runtime *runtime, const lt_gpu_driver *driver, const wish *w, lt_gpu_devices *devices)
{
    lattice_error why = { .code = LATTICE_OK };
    for (int i = 0; w->all ? i < LT_GPU_MAX_DEVICES : i < w->n; i++) {
        lattice_status status = driver->open(runtime, w->all ? i : w->numbers[i], &devices->device[devices->n], &why);
        if (status == LATTICE_OK) devices->n++;
        if (status == LATTICE_ERR_NOT_FOUND && w->all) break;
        if (status != LATTICE_OK && (w->all || w->n > 1))
            lt_log(runtime, LATTICE_LOG_WARNING, "a GPU is not used: %s", why.message);
    }
    if (devices->n == 0) lt_log(runtime, LATTICE_LOG_WARNING, "running on the CPU: %s", why.message);
}

lattice_status lt_gpu_select(lattice_runtime *runtime, const char *name, lt_gpu_devices *devices, lattice_error *err)
{
    devices->n = 0;
    if (name && strcmp(name, "cpu") == 0) return LATTICE_OK;
    bool asked = name && strcmp(name, "auto") != 0;
    const lt_gpu_driver *driver = NULL;
    wish w;
    if (asked) LT_TRY(find_driver(runtime, name, &driver, &w, err));
    if (forbidden()) {
        lt_log(runtime, LATTICE_LOG_WARNING, "LATTICE_NO_GPU is set: running on the CPU");
        return LATTICE_OK;
    }
    if (asked) {
        if (driver)
            open_wish(runtime, driver, &w, devices);
        else
            lt_log(runtime, LATTICE_LOG_WARNING, "running on the CPU: this build has no such backend");
        return LATTICE_OK;
    }
    size_t n;
    const lt_gpu_driver *const *drivers = drivers_of(runtime, &n);
    lattice_error why = { .code = LATTICE_OK };
    for (size_t i = 0; i < n; i++) {
        if (drivers[i]->open(runtime, 0, &devices->device[0], &why) == LATTICE_OK) {
            devices->n = 1;
            return LATTICE_OK;
        }
        /* A machine without a device is no cause for a warning; one whose device does not start is. */
        if (why.code != LATTICE_ERR_NOT_FOUND) lt_log(runtime, LATTICE_LOG_WARNING, "running on the CPU: %s", why.message);
    }
    return LATTICE_OK;
}
