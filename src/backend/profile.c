#include "backend/profile.h"

#include "backend/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 256

struct m2_profile_log {
    const m2_ops *inner;
    int is_on;
    m2_timer *timer; /* marks 2 i and 2 i + 1 around call i; NULL: nothing is timed */
    int64_t n_calls, n_calls_max;
    int *row_of_call; /* [n_calls_max] */
    int n_rows;
    int is_full; /* more rows than there is room for */
    m2_profile_row rows[ROWS_MAX];
    m2_profile_row read[ROWS_MAX]; /* what the last report shows */
};

static int row_of(m2_profile_log *log, const char *op, const m2_cost *cost)
{
    for (int i = 0; i < log->n_rows; i++) {
        const m2_profile_row *row = &log->rows[i];
        if (row->op == op && strcmp(row->detail, cost->detail) == 0) return i;
    }
    if (log->n_rows == ROWS_MAX) {
        log->is_full = 1;
        return ROWS_MAX - 1;
    }
    m2_profile_row *row = &log->rows[log->n_rows];
    *row = (m2_profile_row){ .op = op };
    memcpy(row->detail, cost->detail, sizeof row->detail);
    return log->n_rows++;
}

/* Gives back the call's number, or -1 when it is not timed. */
static int64_t begin_call(m2_profile_log *log, const char *op, const m2_cost *cost)
{
    const int64_t call = log->n_calls++;
    const int idx = row_of(log, op, cost);
    m2_profile_row *row = &log->rows[idx];
    row->n_calls++;
    row->flop += cost->flop;
    row->bytes += cost->bytes;
    if (!log->timer || call >= log->n_calls_max) return -1;
    log->row_of_call[call] = idx;
    log->inner->device_api->timer_mark(log->inner, log->timer, (int)(2 * call));
    return call;
}

static void end_call(m2_profile_log *log, int64_t call)
{
    if (call >= 0) log->inner->device_api->timer_mark(log->inner, log->timer, (int)(2 * call + 1));
}

static m2_profile_log *log_of(const m2_ops *ops)
{
    return ((const m2_profile *)ops)->log;
}

#define TIMED_SLOT(name)                                                                           \
    static void timed_##name(const m2_ops *ops, const m2_##name##_args *args)                      \
    {                                                                                              \
        static const char op[] = #name;                                                            \
        const m2_profile *profile = (const m2_profile *)ops;                                       \
        m2_profile_log *log = profile->log;                                                        \
        if (!log->is_on && !profile->watch) {                                                      \
            log->inner->name(log->inner, args);                                                    \
            return;                                                                                \
        }                                                                                          \
        const m2_cost cost = m2_cost_of_##name(args);                                              \
        const int64_t call = log->is_on ? begin_call(log, op, &cost) : -1;                         \
        log->inner->name(log->inner, args);                                                        \
        if (log->is_on) end_call(log, call);                                                       \
        if (profile->watch) profile->watch(profile->watch_user, &cost);                            \
    }
M2_OPS(TIMED_SLOT)
#undef TIMED_SLOT

static void timed_upload(const m2_ops *ops, m2_tensor *to, const void *from_host)
{
    static const char op[] = "upload";
    m2_profile_log *log = log_of(ops);
    if (!log->is_on) {
        log->inner->upload(log->inner, to, from_host);
        return;
    }
    const m2_cost cost = { .bytes = (double)m2_tensor_bytes(to) };
    const int64_t call = begin_call(log, op, &cost);
    log->inner->upload(log->inner, to, from_host);
    end_call(log, call);
}

static void timed_download(const m2_ops *ops, void *to_host, const m2_tensor *from)
{
    static const char op[] = "download";
    m2_profile_log *log = log_of(ops);
    if (!log->is_on) {
        log->inner->download(log->inner, to_host, from);
        return;
    }
    const m2_cost cost = { .bytes = (double)m2_tensor_bytes(from) };
    const int64_t call = begin_call(log, op, &cost);
    log->inner->download(log->inner, to_host, from);
    end_call(log, call);
}

static m2_status open_log(m2_profile_log *log, const m2_ops *inner, int64_t n_calls_max)
{
    log->inner = inner;
    log->is_on = 1;
    if (inner->is_measuring) return M2_OK;
    log->n_calls_max = n_calls_max;
    log->row_of_call = calloc((size_t)n_calls_max, sizeof *log->row_of_call);
    if (!log->row_of_call)
        return m2_fail(M2_ERR_MEMORY, "no memory to time %lld calls", (long long)n_calls_max);
    return inner->device_api->timer_create(inner, (int)(2 * n_calls_max), &log->timer);
}

m2_status m2_profile_open(m2_profile *profile, const m2_ops *inner, int64_t n_calls_max)
{
    m2_profile made = { .ops = *inner, .log = calloc(1, sizeof *made.log) };
    if (!made.log) return m2_fail(M2_ERR_MEMORY, "no memory for a profile");
    made.ops.upload = timed_upload;
    made.ops.download = timed_download;
#define SET_SLOT(name) made.ops.name = timed_##name;
    M2_OPS(SET_SLOT)
#undef SET_SLOT
    const m2_status status = open_log(made.log, inner, n_calls_max);
    if (status != M2_OK) {
        m2_profile_close(&made);
        return status;
    }
    *profile = made;
    return M2_OK;
}

void m2_profile_close(m2_profile *profile)
{
    m2_profile_log *log = profile->log;
    if (!log) return;
    if (log->timer) log->inner->device_api->timer_destroy(log->inner, log->timer);
    free(log->row_of_call);
    free(log);
    profile->log = NULL;
}

void m2_profile_switch(m2_profile *profile, int is_on)
{
    profile->log->is_on = is_on;
}

static int longest_first(const void *a, const void *b)
{
    const m2_profile_row *one = a, *two = b;
    if (one->ms != two->ms) return one->ms < two->ms ? 1 : -1;
    if (one->flop != two->flop) return one->flop < two->flop ? 1 : -1;
    return (one->bytes < two->bytes) - (one->bytes > two->bytes);
}

static void add_times(m2_profile_log *log, m2_profile_report *report)
{
    const m2_device_api *api = log->inner->device_api;
    const int n = (int)log->n_calls;
    for (int i = 0; i < n; i++)
        log->rows[log->row_of_call[i]].ms +=
            api->timer_ms(log->inner, log->timer, 2 * i, 2 * i + 1);
    if (n > 0) report->whole_ms = api->timer_ms(log->inner, log->timer, 0, 2 * n - 1);
}

m2_status m2_profile_read(m2_profile *profile, m2_profile_report *report_out)
{
    m2_profile_log *log = profile->log;
    m2_profile_report report = { .rows = log->read, .n_calls = log->n_calls };
    if (!log->inner->is_measuring) M2_TRY(m2_device_wait(log->inner));
    if (log->is_full || (log->timer && log->n_calls > log->n_calls_max))
        return m2_fail(M2_ERR_INTERNAL, "%lld calls of %d kinds, there is room for %lld of %d",
                       (long long)log->n_calls, log->n_rows + log->is_full,
                       (long long)log->n_calls_max, ROWS_MAX);
    if (log->timer) add_times(log, &report);
    report.n_rows = log->n_rows;
    memcpy(log->read, log->rows, (size_t)log->n_rows * sizeof log->rows[0]);
    qsort(log->read, (size_t)log->n_rows, sizeof log->read[0], longest_first);
    for (int i = 0; i < report.n_rows; i++) {
        report.ms += log->read[i].ms;
        report.flop += log->read[i].flop;
        report.bytes += log->read[i].bytes;
    }
    log->n_calls = 0;
    log->n_rows = 0;
    *report_out = report;
    return M2_OK;
}
