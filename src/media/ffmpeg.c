#include "media/ffmpeg.h"

#include "core/log.h"

#include <libavutil/error.h>
#include <libavutil/log.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void write_log(void *object, int level, const char *format, va_list args)
{
    /* Below a warning they tell of themselves, at length. */
    if (level > AV_LOG_WARNING || !m2_log_bound()) return;
    char text[1024];
    const AVClass *class = object ? *(AVClass **)object : NULL;
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\r\n")] = '\0';
    if (text[0]) m2_debug("media", "%s: %s", class ? class->item_name(object) : "ffmpeg", text);
}

static void set_log(void)
{
    av_log_set_callback(write_log);
}

void m2_ffmpeg_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_log);
}

m2_status m2_ffmpeg_fail(m2_status status, int error, const char *name, const char *what)
{
    char text[AV_ERROR_MAX_STRING_SIZE] = "";
    av_strerror(error, text, sizeof text);
    return m2_fail(error == AVERROR(ENOMEM) ? M2_ERR_MEMORY : status, "%s: %s: %s", name, what,
                   text);
}
