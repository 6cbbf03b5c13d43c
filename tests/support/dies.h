/* dies.h - checks that a bug is stopped: runs a function in a child and looks how it ended. */
#ifndef M2_TESTS_SUPPORT_DIES_H
#define M2_TESTS_SUPPORT_DIES_H

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* 1 if `function` ends the process by abort(). */
static inline int m2_test_aborts(void (*function)(void *), void *argument)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        /* No core file and no words about what is wanted; cmocka has handlers of its own. */
        setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr)) _exit(3);
        function(argument);
        _exit(0);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) &&
           WTERMSIG(status) == SIGABRT;
}

#endif
