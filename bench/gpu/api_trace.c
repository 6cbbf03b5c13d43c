/* api_trace.c - what a program asks of the CUDA driver between two replays of a recorded step.
 *
 * A library that the driver loads into any program:
 *     gcc -shared -fPIC -I/usr/local/cuda/include bench/gpu/api_trace.c -o api_trace.so -lcupti
 *     CUDA_INJECTION64_PATH=$PWD/api_trace.so magi2 generate --backend cuda ...
 * At the end it prints how many graphs were launched and every call between two of them.  Calls that
 * the runtime makes of the driver on its own are part of the runtime's call.
 */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_NAMES_MAX 64

typedef struct call_count {
    const char *name;
    long n;
} call_count;

static struct {
    long n_launches, n_gaps, n_clean;
    long n_now; /* calls since the last launch */
    int n_names;
    call_count now[N_NAMES_MAX], between[N_NAMES_MAX];
} seen;

static __thread int runtime_depth;

static void count(call_count *counts, const char *name, long n)
{
    for (int i = 0; i < N_NAMES_MAX; i++) {
        if (!counts[i].name) counts[i].name = name;
        if (strcmp(counts[i].name, name) != 0) continue;
        counts[i].n += n;
        return;
    }
}

static void on_launch(void)
{
    if (seen.n_launches++ > 0) {
        seen.n_gaps++;
        seen.n_clean += seen.n_now == 0;
        for (int i = 0; i < N_NAMES_MAX && seen.now[i].name; i++)
            count(seen.between, seen.now[i].name, seen.now[i].n);
    }
    memset(seen.now, 0, sizeof seen.now);
    seen.n_now = 0;
}

static void CUPTIAPI on_call(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                             const void *data)
{
    const CUpti_CallbackData *call = data;
    const int is_enter = call->callbackSite == CUPTI_API_ENTER;
    const int is_runtime = domain == CUPTI_CB_DOMAIN_RUNTIME_API;
    (void)user;
    (void)id;
    if (!is_enter) {
        if (is_runtime) runtime_depth--;
        return;
    }
    const int is_outermost = runtime_depth == 0;
    if (is_runtime) runtime_depth++;
    if (!is_outermost) return;
    if (strncmp(call->functionName, "cudaGraphLaunch", 15) == 0 ||
        strncmp(call->functionName, "cuGraphLaunch", 13) == 0) {
        on_launch();
        return;
    }
    seen.n_now++;
    count(seen.now, call->functionName, 1);
}

static void report(void)
{
    printf("api trace: %ld graphs launched, %ld times one after another, %ld of them with no other "
           "call between\n",
           seen.n_launches, seen.n_gaps, seen.n_clean);
    for (int i = 0; i < N_NAMES_MAX && seen.between[i].name; i++)
        printf("api trace: between launches %s, %ld times\n", seen.between[i].name,
               seen.between[i].n);
}

/* The driver calls this by name. */
int InitializeInjection(void);
int InitializeInjection(void)
{
    CUpti_SubscriberHandle subscriber;
    if (cuptiSubscribe(&subscriber, on_call, NULL) != CUPTI_SUCCESS) {
        fprintf(stderr, "api trace: CUPTI refuses\n");
        return 1;
    }
    cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API);
    cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
    atexit(report);
    return 1;
}
