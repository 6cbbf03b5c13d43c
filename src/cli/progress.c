/* progress.c - one line that is rewritten on a terminal, plain lines in a pipe, JSON on request. */
#include "cli/cli.h"

#include <string.h>
#include <unistd.h>

static const char *const stage_names[] = { "encode", "preview", "decode", "mux", "done" };

void m2_cli_progress_init(m2_cli_progress *progress, const m2_options *options)
{
    memset(progress, 0, sizeof *progress);
    progress->is_json = m2_options_has(options, M2_OPT_JSON);
    progress->is_quiet = m2_options_has(options, M2_OPT_QUIET);
    progress->is_terminal = isatty(STDERR_FILENO) && !progress->is_json;
    progress->last_stage = -1;
}

static void show_json(const magi2_progress *state)
{
    printf("{\"event\":\"progress\",\"stage\":\"%s\",\"step\":%d,\"steps\":%d,\"seconds\":%.3f,"
           "\"step_seconds\":%.4f,\"sigma\":%.6f,\"memory_bytes\":%zu}\n",
           stage_names[state->stage], state->step, state->n_steps, state->seconds,
           state->step_seconds, (double)state->sigma, state->memory_bytes);
    fflush(stdout);
}

static void show_line(m2_cli_progress *progress, const magi2_progress *state)
{
    char line[160];
    int n = snprintf(line, sizeof line, "%6.1f s  %-7s", state->seconds, stage_names[state->stage]);
    if (state->n_steps > 0)
        n += snprintf(line + n, sizeof line - (size_t)n, " %d/%d", state->step, state->n_steps);
    if (state->stage == MAGI2_STAGE_PREVIEW && state->step > 0)
        n += snprintf(line + n, sizeof line - (size_t)n, "  sigma %.4f  %.2f s/step  %.0f s left",
                      (double)state->sigma, state->step_seconds,
                      state->step_seconds * (state->n_steps - state->step));
    n += snprintf(line + n, sizeof line - (size_t)n, "  using %.0f MiB",
                  (double)state->memory_bytes / 1048576.0);
    if (progress->is_terminal) {
        const int blanks = progress->line_length > n ? progress->line_length - n : 0;
        fprintf(stderr, "\r%s%*s", line, blanks, "");
        fflush(stderr);
        progress->line_length = n;
    } else {
        fprintf(stderr, "%s\n", line);
    }
}

void m2_cli_progress_show(void *user, const magi2_progress *state)
{
    m2_cli_progress *progress = user;
    if (progress->is_json) {
        show_json(state);
        return;
    }
    if (progress->is_quiet || state->stage == MAGI2_STAGE_DONE) return;
    if (progress->is_terminal && progress->last_stage >= 0 &&
        progress->last_stage != (int)state->stage)
        m2_cli_progress_end(progress);
    progress->last_stage = (int)state->stage;
    show_line(progress, state);
}

void m2_cli_progress_end(m2_cli_progress *progress)
{
    if (progress->is_terminal && progress->line_length > 0) fputc('\n', stderr);
    progress->line_length = 0;
}
