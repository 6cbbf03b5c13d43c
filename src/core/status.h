/* status.h - how a call says that it failed, and how the reason is kept.
 *
 * What the world can break returns m2_status.  The first function that knows of the fault calls
 * m2_fail(), once, with every fact; callers only pass the status up.  The text is kept per thread
 * for magi2_last_error() and goes to the log that is bound to the thread (log.h).
 *
 * Threads  every thread has its own last error.
 */
#ifndef M2_CORE_STATUS_H
#define M2_CORE_STATUS_H

typedef enum m2_status {
    M2_OK = 0,
    M2_ERR_ARG,         /* a parameter or option is out of range          */
    M2_ERR_IO,          /* a file cannot be opened, read or written       */
    M2_ERR_FORMAT,      /* a file is not what it should be                */
    M2_ERR_MODEL,       /* a checkpoint or config does not fit the model  */
    M2_ERR_MEMORY,      /* not enough memory                              */
    M2_ERR_NUMERIC,     /* a value that is not finite                     */
    M2_ERR_UNSUPPORTED, /* a part that this build or version does not have */
    M2_ERR_INTERRUPTED, /* stopped on request                             */
    M2_ERR_INTERNAL     /* a library underneath failed                    */
} m2_status;

/* Format the one message for this fault, keep it as the thread's last error, log it at level error.
 * Returns `status`, so that `return m2_fail(...)` reads well.  Messages over 4,000 bytes are cut. */
m2_status m2_fail(m2_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The thread's last error text, "" if there was none; valid until the thread's next m2_fail. */
const char *m2_last_error(void);
void m2_clear_error(void);

/* A short name: "ok", "bad argument", "i/o" ... */
const char *m2_status_name(m2_status status);

/* Pass a failure up unchanged. */
#define M2_TRY(expression)                                                                         \
    do {                                                                                           \
        const m2_status m2_try_status_ = (expression);                                             \
        if (m2_try_status_ != M2_OK) return m2_try_status_;                                        \
    } while (0)

#endif
