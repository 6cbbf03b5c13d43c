/* bench_progress.c - what `bench step` says while it runs: on a CPU a step of the release takes hours. */
#include "pipeline/bench.h"

#include "pipeline/bench_table.h"
#include "pipeline/clip.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* Between two lines about the steps: this, and more when the run gets long. */
#define SAY_SECONDS 5.0
#define SAY_SHARE   0.02

static void say(const m2_bench *bench, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(const m2_bench *bench, const char *format, ...)
{
    char text[512];
    va_list args;
    if (!bench->request->say) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    bench->request->say(bench->request->say_user, text);
}

void m2_bench_say_head(const m2_bench *bench, size_t weights_bytes)
{
    const m2_engine *engine = bench->engine;
    const size_t weights =
        bench->is_synthetic ? weights_bytes : engine->mapped_bytes + engine->weights.used;
    say(bench, "bench step: %.200s, tier %s, backend %s, %d threads",
        bench->is_synthetic ? "the release's architecture with made-up weights" : engine->model_dir,
        bench->settings.tier, engine->ops.backend, m2_pool_n_threads(engine->pool));
    say(bench, "%lld tokens, %d layers: %.4g TFLOP and at least %.4g GB a step",
        (long long)bench->need.n_tokens, engine->config.arch.num_layers, bench->need.flop / 1e12,
        bench->need.bytes / 1e9);
    say(bench, "memory: weights %.0f MiB, request %.0f, step %.0f", (double)weights / 0x1p20,
        (double)bench->need.request_bytes / 0x1p20, (double)bench->step_bytes / 0x1p20);
}

static void put_time(char text[32], double seconds)
{
    if (seconds < 120)
        snprintf(text, 32, "%.1f s", seconds);
    else if (seconds < 7200)
        snprintf(text, 32, "%.0f min", seconds / 60);
    else
        snprintf(text, 32, "%.1f h", seconds / 3600);
}

/* By the work that is done, which the calls of the steps tell. */
static void watch_call(void *user, const m2_cost *cost)
{
    m2_bench *bench = user;
    const double now = m2_clip_now();
    char spent[32], left[32];
    bench->done_flop += cost->flop;
    if (now - bench->last_said < SAY_SECONDS + SAY_SHARE * (now - bench->begin)) return;
    bench->last_said = now;
    const double n_done = bench->done_flop / bench->need.flop;
    if (!(n_done > 0)) return;
    const double n_left = bench->n_to_run > n_done ? bench->n_to_run - n_done : 0;
    put_time(spent, now - bench->begin);
    put_time(left, (now - bench->begin) / n_done * n_left);
    say(bench, "%.1f%% of step %d of about %d after %s, %s left", 100 * (n_done - floor(n_done)),
        1 + (int)n_done, bench->n_to_run, spent, left);
}

void m2_bench_say_steps(m2_bench *bench)
{
    const m2_roof *roof = &bench->roof;
    const double by_flop = bench->need.flop / roof->flop_s,
                 by_bytes = bench->need.bytes / roof->bytes_s;
    const double step = by_flop > by_bytes ? by_flop : by_bytes;
    char one[32], all[32];
    put_time(one, step);
    put_time(all, step * bench->n_to_run);
    say(bench,
        "roofs: %.4g TFLOP/s, %.4g GB/s; so a step takes %s or more, the about %d that are run %s",
        roof->flop_s / 1e12, roof->bytes_s / 1e9, one, bench->n_to_run, all);
    bench->begin = bench->last_said = m2_clip_now();
    if (!bench->request->say) return;
    bench->profile.watch_user = bench;
    bench->profile.watch = watch_call;
}
