/* cli.h - the commands; each takes parsed options and gives back the exit code. */
#ifndef M2_CLI_CLI_H
#define M2_CLI_CLI_H

#include "core/options.h"
#include "magi2.h"

enum { M2_EXIT_DONE = 0, M2_EXIT_FAILED = 1, M2_EXIT_USAGE = 2, M2_EXIT_INTERRUPTED = 3 };

int m2_cmd_generate(const m2_options *options);
int m2_cmd_decode(const m2_options *options);
int m2_cmd_inspect(const m2_options *options);
int m2_cmd_tokenize(const m2_options *options);
int m2_cmd_doctor(const m2_options *options);
int m2_cmd_bench(const m2_options *options);
int m2_cmd_plan(const m2_options *options);

/* ---- shared by the commands (cli_common.c) ---- */

/* Print "magi2: <last error>" on stderr (or as a JSON line); gives back `code`. */
int m2_cli_fail(const m2_options *options, int code);
/* Usage error of a command's own. */
int m2_cli_usage(const m2_options *options, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* --model, $MAGI2_MODEL, the bundled demo model; a static string. */
const char *m2_cli_model_dir(const m2_options *options);
/* --prompt or --prompt-file, exactly one; malloc'd.  NULL after a usage error was printed. */
char *m2_cli_prompt(const m2_options *options, int *code_out);
/* A whole text file, "-" is stdin; malloc'd; NULL after an error was printed. */
char *m2_cli_read_text(const m2_options *options, const char *path, const char *option);
/* Log callback of the commands: plain lines on stderr. */
void m2_cli_log(void *user, magi2_log_level level, const char *component, const char *text);
magi2_log_level m2_cli_log_level(const m2_options *options);
/* Engine parameters from --model, --backend, --threads ...; 0 or an exit code after a message. */
int m2_cli_engine_params(const m2_options *options, magi2_params *params);
/* --model or $MAGI2_MODEL; NULL: neither. */
const char *m2_cli_given_model_dir(const m2_options *options);
/* m2_cli_model_dir(); NULL: none is given and the tier is one of the release, not of the demo model. */
const char *m2_cli_model_or_release(const m2_options *options);
/* A text that the library gave goes to stdout; gives back the exit code of `status`. */
int m2_cli_print_text(const m2_options *options, magi2_status status, char *text);
/* Exit code for a status of the library. */
int m2_cli_exit_code(magi2_status status);

/* ---- Ctrl-C ---- */

/* The first signal sets the flag, the second removes files under way and ends the process. */
void m2_cli_catch_signals(void);
const volatile int *m2_cli_cancel_flag(void);

/* ---- progress (progress.c) ---- */
typedef struct m2_cli_progress {
    int is_terminal, is_json, is_quiet;
    int last_stage;
    int line_length;
} m2_cli_progress;
void m2_cli_progress_init(m2_cli_progress *progress, const m2_options *options);
void m2_cli_progress_show(void *user, const magi2_progress *state);
/* End the line that is being rewritten, if any. */
void m2_cli_progress_end(m2_cli_progress *progress);

/* A JSON string with quotes to `stream`. */
void m2_cli_json_string(FILE *stream, const char *text);

#endif
