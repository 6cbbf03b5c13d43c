#include "cli_run.h"

#include "support/check.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void slurp(const char *path, char *to, size_t bytes)
{
    FILE *file = fopen(path, "rb");
    const size_t n = file ? fread(to, 1, bytes - 1, file) : 0;
    to[n] = '\0';
    if (file) fclose(file);
}

void cli_run(cli_result *result, const char *dir, const char *arguments)
{
    char command[8192];
    char *logs = m2_test_make_dir();
    snprintf(command, sizeof command, "cd '%s' && </dev/null >%s/out 2>%s/err '%s' %s", dir, logs,
             logs, M2_MAGI2_PATH, arguments);
    const int status = system(command);
    result->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    char path[300];
    snprintf(path, sizeof path, "%s/out", logs);
    slurp(path, result->out, sizeof result->out);
    snprintf(path, sizeof path, "%s/err", logs);
    slurp(path, result->err, sizeof result->err);
    m2_test_remove_tree(logs);
}

int cli_count_files(const char *dir, int want_hidden)
{
    int n = 0;
    DIR *handle = opendir(dir);
    for (struct dirent *entry; handle && (entry = readdir(handle));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        n += (entry->d_name[0] == '.') == want_hidden;
    }
    if (handle) closedir(handle);
    return n;
}

int cli_exists(const char *dir, const char *name)
{
    char path[4096];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return stat(path, &info) == 0;
}
