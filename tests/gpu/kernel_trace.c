/* kernel_trace.c - which kernels a program starts: a library that the driver loads into it.
 *
 *     CUDA_INJECTION64_PATH=.../libkernel_trace.so KERNEL_TRACE=FILE program ...
 *
 * At the end FILE has the symbol of each kernel that was started or recorded, one a line.
 */
#include <cupti.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_NAMES_MAX 4096

static struct {
    pthread_mutex_t lock;
    int n;
    char *names[N_NAMES_MAX];
} seen = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void note(const char *name)
{
    pthread_mutex_lock(&seen.lock);
    int i = 0;
    while (i < seen.n && strcmp(seen.names[i], name) != 0) i++;
    if (i == seen.n && i < N_NAMES_MAX) seen.names[seen.n++] = strdup(name);
    pthread_mutex_unlock(&seen.lock);
}

static void CUPTIAPI on_call(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                             const void *data)
{
    const CUpti_CallbackData *call = data;
    (void)user;
    (void)domain;
    (void)id;
    if (call->callbackSite == CUPTI_API_ENTER && call->symbolName &&
        strstr(call->functionName, "Launch"))
        note(call->symbolName);
}

static void report(void)
{
    const char *path = getenv("KERNEL_TRACE");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) {
        fprintf(stderr, "kernel trace: KERNEL_TRACE must name a file that can be written\n");
        return;
    }
    for (int i = 0; i < seen.n; i++) fprintf(file, "%s\n", seen.names[i]);
    fclose(file);
}

/* The driver calls this by name. */
int InitializeInjection(void);
int InitializeInjection(void)
{
    CUpti_SubscriberHandle subscriber;
    if (cuptiSubscribe(&subscriber, on_call, NULL) != CUPTI_SUCCESS) {
        fprintf(stderr, "kernel trace: CUPTI refuses\n");
        return 1;
    }
    cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API);
    atexit(report);
    return 1;
}
