/* profile.h - an operator table that passes every call on to another one and times it.
 *
 *     m2_profile profile;
 *     M2_TRY(m2_profile_open(&profile, &ops, n_calls_max));
 *     m2_preview_forward(preview, &profile.ops, ...);
 *     M2_TRY(m2_profile_read(&profile, &report));
 *
 * A network that is handed `profile.ops` does not know.  Calls are gathered in rows: an operator and
 * a detail that tells its calls apart by the shape of their weights.  Time is the device's own, from
 * a mark before the call to one behind it.
 *
 * Work     FLOP counts 2 for each multiply-add of products, attention and mixing; what is done to one
 *          element alone counts by its bytes.  Bytes are those that cannot be avoided: each input read
 *          once, each output written once, weights of all experts once; scratch is none of them.
 * Planning over a measuring table nothing is timed: the rows then hold what a run would do.
 * Threads  one profile, one thread at a time.
 */
#ifndef M2_BACKEND_PROFILE_H
#define M2_BACKEND_PROFILE_H

#include "backend/ops.h"
#include "core/status.h"

#define M2_PROFILE_DETAIL_BYTES 40

typedef struct m2_profile_row {
    const char *op;
    char detail[M2_PROFILE_DETAIL_BYTES]; /* "3072->9216", "" where there is nothing to tell */
    int64_t n_calls;
    double ms;   /* of all calls; 0 over a measuring table */
    double flop; /* of all calls */
    double bytes;
} m2_profile_row;

typedef struct m2_profile_log m2_profile_log;

typedef struct m2_cost {
    double flop, bytes;
    char detail[M2_PROFILE_DETAIL_BYTES];
} m2_cost;

typedef struct m2_profile {
    m2_ops ops; /* first: the slots find the rest by it */
    m2_profile_log *log;
    /* Told of every operator's call behind it, timed or not; NULL: nobody is. */
    void (*watch)(void *user, const m2_cost *cost);
    void *watch_user;
} m2_profile;

typedef struct m2_profile_report {
    const m2_profile_row *rows; /* borrowed until the next call, the longest first */
    int n_rows;
    int64_t n_calls;
    double ms, flop, bytes; /* of all rows               */
    double whole_ms;        /* first mark to last one    */
} m2_profile_report;

/* `inner` is borrowed until close; n_calls_max calls are timed, more make the reading fail (a run over
 * a measuring table tells how many there are; there it may be 0).
 * Errors  M2_ERR_MEMORY, M2_ERR_INTERNAL */
m2_status m2_profile_open(m2_profile *profile, const m2_ops *inner, int64_t n_calls_max);
void m2_profile_close(m2_profile *profile);
/* Off, calls are passed on and that is all; on from the start. */
void m2_profile_switch(m2_profile *profile, int is_on);

/* Waits for the device and adds up; then the profile begins anew.
 * Errors  of the device; M2_ERR_INTERNAL: more calls than were planned for */
m2_status m2_profile_read(m2_profile *profile, m2_profile_report *report_out);

/* ---- the work of one call (profile_cost.c) ---- */

#define M2_COST_OF_(name) m2_cost m2_cost_of_##name(const m2_##name##_args *args);
M2_OPS(M2_COST_OF_)
#undef M2_COST_OF_

#endif
