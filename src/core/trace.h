/* trace.h - looking at activations by name while a network runs.
 *
 * A network calls m2_tap(trace, tensor, "preview.%02d.attn_out", layer) where a value is worth
 * seeing.  Without a trace that costs one test.  What is done with the value (dumped, compared,
 * counted) is the business of who owns the trace.
 *
 * Threads  taps are called from the thread that runs the network, in program order, once the value
 *          is whole; never from inside a parallel loop.
 */
#ifndef M2_CORE_TRACE_H
#define M2_CORE_TRACE_H

#include "core/tensor.h"

#define M2_TAP_NAME_MAX 128

typedef struct m2_trace {
    /* 1 if the value of that name is to be shown; NULL wants all. */
    int (*wants)(void *user, const char *name);
    /* `tensor` and `name` are borrowed for the call; the values may be changed in place, which is
     * how a test puts in a recorded input.  On a device, `tensor` has a device address. */
    void (*show)(void *user, const char *name, m2_tensor *tensor);
    void *user;
} m2_trace;

/* `trace` may be NULL.  Names longer than M2_TAP_NAME_MAX - 1 are a bug and abort. */
void m2_tap(const m2_trace *trace, const m2_tensor *tensor, const char *name_format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
