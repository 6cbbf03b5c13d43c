#include "cli/cli.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Two of them, every byte written as an escape of six, fit the header of a state file. */
#define TEXT_BYTES_MAX ((size_t)8 << 20)

/* Bytes of the character at `c`, 0 if it is none of UTF-8. */
static int utf8_length(const unsigned char *c)
{
    const int n = *c < 0x80                 ? 1
                  : *c >= 0xc2 && *c < 0xe0 ? 2
                  : *c >= 0xe0 && *c < 0xf0 ? 3
                  : *c >= 0xf0 && *c < 0xf5 ? 4
                                            : 0;
    for (int i = 1; i < n; i++) {
        if ((c[i] & 0xc0) != 0x80) return 0;
    }
    return n;
}

void m2_cli_json_string(FILE *stream, const char *text)
{
    fputc('"', stream);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        const int n_whole = utf8_length(c);
        if (n_whole == 0) {
            fputs("\\ufffd", stream); /* a byte of a file name that is no text */
        } else if (n_whole > 1) {
            fwrite(c, 1, (size_t)n_whole, stream);
            c += n_whole - 1;
        } else if (*c == '"' || *c == '\\')
            fprintf(stream, "\\%c", *c);
        else if (*c == '\n')
            fputs("\\n", stream);
        else if (*c < 0x20)
            fprintf(stream, "\\u%04x", *c);
        else
            fputc(*c, stream);
    }
    fputc('"', stream);
}

static int print_failure(const m2_options *options, int code, const char *text)
{
    if (options && m2_options_has(options, M2_OPT_JSON)) {
        fprintf(stdout, "{\"event\":\"error\",\"exit\":%d,\"message\":", code);
        m2_cli_json_string(stdout, text);
        fputs("}\n", stdout);
        fflush(stdout);
    }
    fprintf(stderr, "magi2: %s\n", text);
    return code;
}

int m2_cli_fail(const m2_options *options, int code)
{
    const char *text = magi2_last_error();
    return print_failure(options, code, *text ? text : "failed");
}

int m2_cli_usage(const m2_options *options, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return print_failure(options, M2_EXIT_USAGE, text);
}

const char *m2_cli_given_model_dir(const m2_options *options)
{
    if (m2_options_has(options, M2_OPT_MODEL)) return options->values[M2_OPT_MODEL];
    const char *from_environment = getenv("MAGI2_MODEL");
    return from_environment && *from_environment ? from_environment : NULL;
}

const char *m2_cli_model_or_release(const m2_options *options)
{
    static const char *const released[] = { "272p", "540p", "1080p" };
    const char *given = m2_cli_given_model_dir(options);
    const char *tier = options->values[M2_OPT_TIER];
    for (int i = 0; i < 3 && tier && !given; i++)
        if (strcmp(tier, released[i]) == 0) return NULL;
    return m2_cli_model_dir(options);
}

const char *m2_cli_model_dir(const m2_options *options)
{
    const char *given = m2_cli_given_model_dir(options);
    if (given) return given;
    /* Installed beside the program, else where it was built. */
    static char path[4096];
    static const char from_program[] = "/" MAGI2_DEMO_FROM_BIN;
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof from_program);
    if (n > 0) {
        path[n] = '\0';
        char *slash = strrchr(path, '/');
        if (slash) {
            strcpy(slash, from_program);
            if (access(path, R_OK) == 0) return path;
        }
    }
    return MAGI2_DEMO_DIR;
}

char *m2_cli_read_text(const m2_options *options, const char *path, const char *option)
{
    const int is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "rb");
    if (!file) {
        m2_cli_usage(
            options,
            "--%s %s: cannot open: %s; give a text file, \"-\" for stdin, or the text itself "
            "with --%.*s",
            option, path, strerror(errno), (int)strcspn(option, "-"), option);
        return NULL;
    }
    char *text = malloc(TEXT_BYTES_MAX + 1);
    size_t n = text ? fread(text, 1, TEXT_BYTES_MAX + 1, file) : 0;
    const int has_failed = !text || ferror(file);
    if (!is_stdin) fclose(file);
    if (has_failed || n > TEXT_BYTES_MAX) {
        m2_cli_usage(options, "--%s %s: %s", option, path,
                     has_failed ? "cannot be read" : "is larger than 8 MiB; not a prompt");
        free(text);
        return NULL;
    }
    text[n] = '\0';
    if (n >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0)) {
        m2_cli_usage(options, "--%s %s: is UTF-16 text; save it as UTF-8", option, path);
        free(text);
        return NULL;
    }
    /* The mark that some editors put in front of UTF-8 is no part of the text. */
    const size_t mark = n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    memmove(text, text + mark, n + 1 - mark);
    n -= mark;
    if (memchr(text, '\0', n)) {
        m2_cli_usage(options, "--%s %s: holds a NUL byte; give a UTF-8 text file", option, path);
        free(text);
        return NULL;
    }
    char *exact = realloc(text, n + 1);
    return exact ? exact : text;
}

char *m2_cli_prompt(const m2_options *options, int *code_out)
{
    *code_out = M2_EXIT_USAGE;
    const char *inline_text = options->values[M2_OPT_PROMPT];
    const char *path = options->values[M2_OPT_PROMPT_FILE];
    if (!inline_text == !path) {
        m2_cli_usage(options, inline_text ? "--prompt and --prompt-file are both given; use one"
                                          : "no prompt; use --prompt TEXT or --prompt-file FILE");
        return NULL;
    }
    char *text = inline_text ? strdup(inline_text) : m2_cli_read_text(options, path, "prompt-file");
    if (text && !text[strspn(text, " \t\r\n\v\f")]) {
        m2_cli_usage(options, "the prompt is empty; say what to show");
        free(text);
        return NULL;
    }
    return text;
}

void m2_cli_log(void *user, magi2_log_level level, const char *component, const char *text)
{
    static const char *const names[] = { "error", "warning", "info", "debug" };
    (void)user;
    if (level == MAGI2_LOG_ERROR) return; /* printed once, by the command, at the end */
    fprintf(stderr, "%s %s: %s\n", names[level], component, text);
}

magi2_log_level m2_cli_log_level(const m2_options *options)
{
    if (m2_options_has(options, M2_OPT_QUIET)) return MAGI2_LOG_ERROR;
    return m2_options_has(options, M2_OPT_VERBOSE) ? MAGI2_LOG_DEBUG : MAGI2_LOG_WARNING;
}

int m2_cli_engine_params(const m2_options *options, magi2_params *params)
{
    int64_t threads = 0, device = 0;
    magi2_params_init(params);
    params->model_dir = m2_cli_model_dir(options);
    if (m2_options_int(options, M2_OPT_THREADS, 1, 1024, 0, &threads) != M2_OK ||
        m2_options_int(options, M2_OPT_DEVICE, 0, 1023, 0, &device) != M2_OK ||
        m2_options_bytes(options, M2_OPT_RAM_LIMIT, &params->ram_limit) != M2_OK ||
        m2_options_bytes(options, M2_OPT_VRAM_LIMIT, &params->vram_limit) != M2_OK)
        return m2_cli_fail(options, M2_EXIT_USAGE);
    const char *backend = options->values[M2_OPT_BACKEND];
    if (backend && strcmp(backend, "cpu") == 0 &&
        (m2_options_has(options, M2_OPT_DEVICE) || m2_options_has(options, M2_OPT_VRAM_LIMIT)))
        return m2_cli_usage(options, "--%s is of a GPU, --backend cpu uses none; leave one out",
                            m2_options_has(options, M2_OPT_DEVICE) ? "device" : "vram-limit");
    if (backend && (strcmp(backend, "cuda") == 0 || strcmp(backend, "musa") == 0) &&
        m2_options_has(options, M2_OPT_RAM_LIMIT))
        return m2_cli_usage(options,
                            "--ram-limit is of the CPU, --backend %s counts a GPU's "
                            "memory: use --vram-limit, or --backend cpu",
                            backend);
    params->n_threads = (int)threads;
    params->device = (int)device;
    params->needs_gpu = m2_options_has(options, M2_OPT_DEVICE);
    if (m2_options_has(options, M2_OPT_BACKEND)) params->backend = options->values[M2_OPT_BACKEND];
    params->isa = options->values[M2_OPT_ISA];
    params->log = m2_cli_log;
    params->log_level = m2_cli_log_level(options);
    return 0;
}

int m2_cli_print_text(const m2_options *options, magi2_status status, char *text)
{
    const int has_failed = text && (fputs(text, stdout) < 0 || fflush(stdout) != 0);
    magi2_free(text);
    if (has_failed) {
        fprintf(stderr, "magi2: stdout cannot be written: %s\n", strerror(errno));
        return M2_EXIT_FAILED;
    }
    return status == MAGI2_OK ? M2_EXIT_DONE : m2_cli_fail(options, m2_cli_exit_code(status));
}

int m2_cli_exit_code(magi2_status status)
{
    switch (status) {
    case MAGI2_OK:
        return M2_EXIT_DONE;
    case MAGI2_ERR_ARG:
    case MAGI2_ERR_UNSUPPORTED:
        return M2_EXIT_USAGE;
    case MAGI2_ERR_INTERRUPTED:
        return M2_EXIT_INTERRUPTED;
    default:
        return M2_EXIT_FAILED;
    }
}

/* ---- Ctrl-C ---- */

static volatile int cancel_flag;

static void on_signal(int signal_number)
{
    if (cancel_flag) {
        magi2_remove_temp_files();
        signal(signal_number, SIG_DFL);
        raise(signal_number);
        return;
    }
    cancel_flag = 1;
    static const char text[] = "\nmagi2: stopping after this step; once more ends at once\n";
    const ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
}

void m2_cli_catch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_NODEFER; /* the second one re-raises itself from inside the handler */
    static const int caught[] = { SIGINT, SIGTERM, SIGHUP };
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++) {
        /* What the caller ignores (nohup, jobs in the background) stays ignored. */
        struct sigaction before;
        if (sigaction(caught[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN) continue;
        sigaction(caught[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is then an error like a full disk */
}

const volatile int *m2_cli_cancel_flag(void)
{
    return &cancel_flag;
}
