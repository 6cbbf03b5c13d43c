/* cli_run.h - run the program as a user does, and look at what it says and leaves. */
#ifndef M2_TESTS_CLI_CLI_RUN_H
#define M2_TESTS_CLI_CLI_RUN_H

#include <stddef.h>

typedef struct cli_result {
    int code;        /* exit code; 128 + n for signal n */
    char out[65536]; /* stdout, cut                     */
    char err[65536]; /* stderr, cut                     */
} cli_result;

/* Run `magi2 ARGUMENTS` through the shell, in `dir`, with the environment of the test. */
void cli_run(cli_result *result, const char *dir, const char *arguments);

/* Files of a directory that are not hidden, and those that are. */
int cli_count_files(const char *dir, int want_hidden);
int cli_exists(const char *dir, const char *name);

#endif
