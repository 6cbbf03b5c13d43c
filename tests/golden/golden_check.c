/* golden_check - judge this build against golden data.
 *
 *   golden_check [options] DIR...     every case found under the directories
 *
 * A component is known by its folder's name.  Exit 0 only if nothing failed and something passed.
 */
#include "golden_run.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    golden_component *check;
    const char *why_not; /* for a component that is not built */
} components[] = {
    { "checkpoint", golden_check_checkpoint, NULL },
    { "rng", golden_check_rng, NULL },
    { "tokenizer", golden_check_tokenizer, NULL },
    { "prompt", golden_check_prompt, NULL },
    { "sampler", golden_check_sampler, NULL },
    { "ops", golden_check_ops, NULL },
    { "text", golden_check_text, NULL },
    { "dit", golden_check_dit, NULL },
    { "turbo", golden_check_turbo, NULL },
    { "audio", golden_check_audio, NULL },
    { "video", golden_check_video, NULL },
    { "e2e", golden_check_e2e, NULL },
    { "demo-e2e", golden_check_demo_e2e, NULL },
    { "image", NULL, "reading pictures is not built yet" },
    { "vae", NULL, "the image encoder is not built yet" },
    { "refiner", NULL, "the refiner is not built yet" },
};
#define N_COMPONENTS (int)(sizeof components / sizeof components[0])

static int find_component(const char *name)
{
    for (int i = 0; i < N_COMPONENTS; i++) {
        if (strcmp(components[i].name, name) == 0) return i;
    }
    return -1;
}

static void check_component(golden_run *run, int idx, const char *dir, const char *only)
{
    if (only && strcmp(only, components[idx].name) != 0) return;
    const int passed = run->n_passed, failed = run->n_failed, skipped = run->n_skipped;
    run->component = components[idx].name;
    if (components[idx].check) {
        components[idx].check(run, dir);
        golden_check_device(run);
        golden_free_copies(run);
        if (run->n_passed == passed && run->n_failed == failed && run->n_skipped == skipped)
            golden_result(run, 0, dir, "no case in this folder");
    } else {
        golden_skip(run, dir, components[idx].why_not ? components[idx].why_not : "not built yet");
    }
    if (!run->is_json)
        printf("%s: %d passed, %d failed, %d skipped\n\n", run->component, run->n_passed - passed,
               run->n_failed - failed, run->n_skipped - skipped);
}

/* `dir` is a component's folder, or one that holds such folders. */
static void check_dir(golden_run *run, const char *dir, const char *only)
{
    char *path = golden_format(run, "%s", dir);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = '\0';
    const char *slash = strrchr(path, '/');
    int idx = find_component(slash ? slash + 1 : path);
    if (idx >= 0) {
        check_component(run, idx, path, only);
        return;
    }
    int n_found = 0;
    for (char **name = golden_list(run, path, 1); *name; name++) {
        idx = find_component(*name);
        run->component = *name;
        if (idx >= 0) {
            n_found++;
            check_component(run, idx, golden_format(run, "%s/%s", path, *name), only);
        } else if (!only) {
            golden_skip(run, golden_format(run, "%s/%s", path, *name), "no component of this name");
        }
    }
    run->component = "golden_check";
    if (n_found == 0) golden_result(run, 0, path, "holds no folder of a known component");
}

static void print_usage(void)
{
    printf("usage: golden_check [--backend cpu|cuda|musa|guarded] [--portable|--cudnn]\n"
           "                    [--isa ref|avx2|avx512] [--threads N] [--only COMPONENT] [--json]\n"
           "                    DIR...\n");
}

static int parse_and_run(golden_run *run, int argc, char **argv)
{
    static const struct option options[] = {
        { "backend", required_argument, NULL, 'b' },
        { "portable", no_argument, NULL, 'p' },
        { "cudnn", no_argument, NULL, 'c' },
        { "isa", required_argument, NULL, 'i' },
        { "threads", required_argument, NULL, 't' },
        { "only", required_argument, NULL, 'o' },
        { "json", no_argument, NULL, 'j' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    m2_isa isa = M2_ISA_BEST;
    const char *backend = "cpu";
    m2_gpu_params gpu = { 0 };
    int n_threads = 0;
    const char *only = NULL;
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        char *end = NULL;
        if (c == 'b') {
            backend = optarg;
        } else if (c == 'p') {
            gpu.use_portable = 1;
        } else if (c == 'c') {
            gpu.prefers_dnn = 1;
        } else if (c == 'i' && !m2_isa_parse(optarg, &isa)) {
            fprintf(stderr, "golden_check: --isa %s: use ref, avx2 or avx512\n", optarg);
            return 2;
        } else if (c == 't') {
            const long given = strtol(optarg, &end, 10);
            if (*end != '\0' || given < 1 || given > 1024) {
                fprintf(stderr, "golden_check: --threads %s: use a number from 1 to 1024\n",
                        optarg);
                return 2;
            }
            n_threads = (int)given;
        } else if (c == 'o') {
            only = optarg;
            if (find_component(only) < 0) {
                fprintf(stderr, "golden_check: --only %s: no such component\n", optarg);
                return 2;
            }
        } else if (c == 'j') {
            run->is_json = 1;
        } else if (c == 'h') {
            print_usage();
            return 0;
        } else if (c == '?') {
            print_usage();
            return 2;
        }
    }
    if (optind == argc) {
        print_usage();
        return 2;
    }
    m2_status status = m2_pool_create(n_threads, &run->pool);
    if (status == M2_OK) status = golden_open_backend(run, backend, isa, &gpu);
    if (status != M2_OK) {
        fprintf(stderr, "golden_check: %s\n", m2_last_error());
        return status == M2_ERR_UNSUPPORTED && strcmp(backend, "cpu") != 0 ? 2 : 1;
    }
    if (run->gpu && !run->is_json) printf("%s\n", m2_gpu_banner(run->gpu));
    for (int i = optind; i < argc; i++) check_dir(run, argv[i], only);
    printf("%d passed, %d failed, %d skipped\n", run->n_passed, run->n_failed, run->n_skipped);
    return run->n_failed == 0 && run->n_passed > 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    golden_run run = { .component = "golden_check" };
    const int code = parse_and_run(&run, argc, argv);
    golden_run_free(&run);
    return code;
}
