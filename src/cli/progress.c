/* The progress bar. See progress.h. */
#include "cli/progress.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { BAR = 24 };

/* The log may wipe the bar from any thread. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    const char *label, *unit;
    uint64_t total;
    double begun, drawn_at;
    bool active, drawn;
} bar;

void cli_progress_begin(const char *label, const char *unit, uint64_t total)
{
    memset(&bar, 0, sizeof bar);
    bar.label = label;
    bar.unit = unit;
    bar.total = total;
    bar.begun = lt_clock_seconds();
    bar.active = isatty(STDERR_FILENO) == 1;
}

static void print_amount(uint64_t amount)
{
    if (bar.unit)
        fprintf(stderr, "%llu", (unsigned long long)amount);
    else
        fprintf(stderr, "%.1f", (double)amount / 1e6);
}

static void draw(uint64_t done)
{
    double now = lt_clock_seconds(), spent = now - bar.begun;
    if (spent < 1 || now - bar.drawn_at < 0.1) return;
    bar.drawn_at = now;
    bar.drawn = true;
    fprintf(stderr, "\r\033[K%s ", bar.label);
    if (bar.total) {
        double share = done < bar.total ? (double)done / (double)bar.total : 1;
        int filled = (int)(share * (double)BAR);
        fprintf(stderr, "[%.*s%*s] %3.0f%% ", filled, "########################", BAR - filled, "", share * 100);
    }
    print_amount(done);
    if (bar.total) {
        fputc('/', stderr);
        print_amount(bar.total);
    }
    double rate = (double)done / spent;
    fprintf(stderr, " %s, %.*f/s", bar.unit ? bar.unit : "MB", bar.unit && rate >= 100 ? 0 : 1, bar.unit ? rate : rate / 1e6);
    if (bar.total && done && done < bar.total) {
        double left = (double)(bar.total - done) / rate;
        fprintf(stderr, ", %d:%02d left", (int)(left / 60), (int)left % 60);
    }
    fflush(stderr);
}

void cli_progress_update(uint64_t done)
{
    if (!bar.active) return;
    pthread_mutex_lock(&lock);
    draw(done);
    pthread_mutex_unlock(&lock);
}

void cli_progress_wipe(void)
{
    pthread_mutex_lock(&lock);
    if (bar.drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        bar.drawn = false;
    }
    pthread_mutex_unlock(&lock);
}

void cli_progress_end(void)
{
    cli_progress_wipe();
    bar.active = false;
}
