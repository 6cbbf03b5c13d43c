/* log.h - messages for people, through a callback that the caller owns.
 *
 * A log is a callback and a level.  It is bound to the calling thread on entry into the library
 * and to the pool's workers with it, so that code deep down can log without carrying a context.
 * The library itself never prints.
 *
 * Threads  a log may be bound to many threads; its callback is then called from all of them.
 */
#ifndef M2_CORE_LOG_H
#define M2_CORE_LOG_H

typedef enum m2_log_level {
    M2_LOG_ERROR = 0,
    M2_LOG_WARNING,
    M2_LOG_INFO, /* one line a stage or step     */
    M2_LOG_DEBUG /* decisions: kernels, bytes    */
} m2_log_level;

typedef struct m2_log {
    /* `component` is "pipeline", "io" ...; `text` has no newline; both borrowed for the call. */
    void (*write)(void *user, m2_log_level level, const char *component, const char *text);
    void *user;
    m2_log_level level; /* messages above it are dropped before they are formatted */
} m2_log;

/* Bind `log` (borrowed, NULL for none) to the calling thread; gives back the one before. */
const m2_log *m2_log_bind(const m2_log *log);
const m2_log *m2_log_bound(void);

void m2_log_printf(m2_log_level level, const char *component, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define m2_warn(component, ...)  m2_log_printf(M2_LOG_WARNING, component, __VA_ARGS__)
#define m2_info(component, ...)  m2_log_printf(M2_LOG_INFO, component, __VA_ARGS__)
#define m2_debug(component, ...) m2_log_printf(M2_LOG_DEBUG, component, __VA_ARGS__)

#endif
