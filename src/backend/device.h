/* device.h - where an operator table computes: its memory, waiting for it, replaying its work.
 *
 * Code above the backend never asks which device it is: it takes memory from the table that will
 * work on it, waits where the host needs a value, and may record a step to replay it.
 *
 *     m2_arena step;
 *     M2_TRY(m2_device_arena_create(&ops, &step, "step", planned_bytes));
 *
 * Order    operators, uploads and downloads of one table run in the order of the calls.
 * Errors   an operator cannot fail for shapes; if the device fails below it, the first fault is
 *          kept and given back by the next m2_device_wait() with the operator's name.
 * Threads  one table, one thread at a time.
 */
#ifndef M2_BACKEND_DEVICE_H
#define M2_BACKEND_DEVICE_H

#include "backend/ops.h"
#include "core/status.h"

/* A recorded run of operators, replayed with one launch. */
typedef struct m2_recording m2_recording;

/* Points in the order of the calls, told apart by the device's own clock. */
typedef struct m2_timer m2_timer;

/* The most that operators take, where that is less than on the CPU.  What is beyond ends the program, so
 * networks compare their sizes with it before anything runs. */
typedef struct m2_device_limits {
    int64_t head_dim;         /* of attention        */
    int64_t n_experts, top_k; /* of one routing head */
    int64_t stream_tokens;    /* of residual streams */
    int64_t (*delta_tokens)(int64_t n_key_heads, int64_t n_value_heads);
    int64_t (*routed_tokens)(int64_t n_heads, int64_t n_experts, int64_t top_k);
} m2_device_limits;

typedef struct m2_device_api {
    const m2_device_limits *limits; /* NULL: none */

    /* Memory aligned to 256 bytes, not cleared.  Errors M2_ERR_MEMORY: needed, free, what to try. */
    m2_status (*alloc)(const m2_ops *ops, const char *name, size_t bytes, void **memory_out);
    void (*release)(const m2_ops *ops, void *memory);
    m2_status (*wait)(const m2_ops *ops);
    void (*memory)(const m2_ops *ops, size_t *free_out, size_t *total_out);
    /* Bytes that alloc can still give: what is free, or less where the table was opened with a limit.
     * NULL where memory is the system's. */
    size_t (*room)(const m2_ops *ops);

    /* Recording; NULL where the device cannot.  Between begin and end operators are noted, not run;
     * uploads and downloads must not happen.  end gives back NULL in *recording_out, and M2_OK, when
     * the device refused the recording: the caller goes on without one. */
    m2_status (*record_begin)(const m2_ops *ops);
    m2_status (*record_end)(const m2_ops *ops, m2_recording **recording_out);
    m2_status (*replay)(const m2_ops *ops, m2_recording *recording);
    void (*recording_destroy)(const m2_ops *ops, m2_recording *recording);

    /* A small array that the device writes and the host reads without asking the device.
     * `publish` is an operation like an operator: it copies `from` there when its turn comes. */
    m2_status (*mailbox_create)(const m2_ops *ops, size_t bytes, void **host_out);
    void (*mailbox_destroy)(const m2_ops *ops, void *host);
    void (*publish)(const m2_ops *ops, void *host, const m2_tensor *from);

    /* Marks 0 ... n_marks - 1, each set as often as wanted; the last time counts.  A mark is an
     * operation like an operator: it stands behind the calls before it.  `timer_ms` wants both marks
     * set and an m2_device_wait() since.  Errors  M2_ERR_MEMORY, M2_ERR_INTERNAL */
    m2_status (*timer_create)(const m2_ops *ops, int n_marks, m2_timer **timer_out);
    void (*timer_destroy)(const m2_ops *ops, m2_timer *timer);
    void (*timer_mark)(const m2_ops *ops, m2_timer *timer, int idx);
    double (*timer_ms)(const m2_ops *ops, const m2_timer *timer, int from, int to);
} m2_device_api;

/* The host as a device: memory of the system, nothing to wait for, no recordings. */
extern const m2_device_api m2_host_device;

/* An arena over memory of the table's device. */
m2_status m2_device_arena_create(const m2_ops *ops, m2_arena *arena, const char *name,
                                 size_t bytes);
void m2_device_arena_destroy(const m2_ops *ops, m2_arena *arena);
m2_status m2_device_wait(const m2_ops *ops);
/* The values of `tensor` where the host may read them: the same memory on the host, else a copy in
 * *copy_out, which the caller frees.  Errors  M2_ERR_MEMORY, M2_ERR_INTERNAL */
m2_status m2_device_fetch(const m2_ops *ops, const m2_tensor *tensor, m2_tensor *host_out,
                          void **copy_out);
/* Errors  M2_ERR_UNSUPPORTED: `value` of `what` is more than `most` of the device's limits */
m2_status m2_device_check_size(const char *what, int64_t value, int64_t most);
/* Pointers of the table may be followed by the host. */
int m2_device_is_host(const m2_ops *ops);

#endif
