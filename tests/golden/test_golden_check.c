/* test_golden_check.c - golden_check as a judge: it passes good data and notices any change of them.
 *
 * The program is run as a user runs it, on copies of the committed data whose unchanged files are
 * links.  GOLDEN_CHECK is its path. */
#include "golden/damage.h"
#include "support/check.h"
#include "support/files.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* `n_places_max` of one file are tried: what a run costs decides. */
static const struct {
    const char *name;
    int n_places_max;
} components[] = {
    { "checkpoint", 10 }, { "rng", 4 },   { "sampler", 12 }, { "tokenizer", 2 },
    { "prompt", 8 },      { "ops", 12 },  { "text", 8 },     { "dit", 12 },
    { "turbo", 5 },       { "audio", 7 }, { "video", 20 },   { "demo-e2e", 1 },
};
#define N_COMPONENTS (int)(sizeof components / sizeof components[0])

/* Patterns of files and places that golden_check cannot judge, and why. */
static const struct {
    const char *file, *place, *why;
} unjudged[] = {
    { "checkpoint/bad/*.pth", "*", "broken: refused whatever its values are" },
    { "checkpoint/bad/[!t]*.safetensors", "*", "broken: refused whatever its values are" },
    { "checkpoint/bad/bad.json", "files.*.wrong", "prose" },
    { "checkpoint/bad/bad.json", "files.[0124].must", "prose behind \"refuse the file\"" },
    { "checkpoint/tensors.json", "*.offset",
      "where values lie: the values themselves are compared" },
    { "checkpoint/report.json", "*", "only notes, no errors" },
    { "prompt/report.json", "*", "only notes, no errors" },
    { "tokenizer/report.json", "*", "only notes, no errors" },
    { "video/report.json", "*", "only notes, no errors" },
    { "*/report.json", "cpu_cases.*", "notes of the run" },
    { "*/report.json", "versions.*", "notes of the run" },
    { "*/report.json", "*(not kept)*", "of tensors that are in no file" },
    { "*/report.json", "*whole chain*", "of a tensor that is in no file" },
    { "text/report.json", "*.small/L*", "of cases that are not kept here" },
    { "text/report.json", "*.real_heads/*", "of cases that are not kept here" },
    { "dit/report.json", "*.[ab]/*", "of cases that are not kept here" },
    { "dit/report.json", "*h.layer0.*",
      "the truth from the start is kept of the last layer alone" },
    { "turbo/report.json", "*.unpatchify/*", "of cases that are not kept here" },
    { "turbo/report.json", "*.shuffle_dw/*", "of cases that are not kept here" },
    { "turbo/report.json", "*.released_pattern/*", "of cases that are not kept here" },
    { "ops/report.json", "*.moe/*", "of cases that are not kept here" },
    { "rng/randn.json", "gpu.max_threads_per_multiprocessor", "is divided by 256" },
    { "tokenizer/cjk_split_ranges.json", "note", "prose" },
    { "tokenizer/tokenizer_config.json", "*", "of another library" },
    { "tokenizer/transformers_check.json", "*.differences", "counts texts that are in no file" },
    { "text/small/tokenizer_config.json", "*", "of another library" },
    { "prompt/markdown.jsonl", "*", "skipped: of the prompt enhancer" },
    { "ops/moe_layer.safetensors", "*expert_bias_ema", "the layer was made without a loader" },
    { "ops/rmsnorm.safetensors", "hidden_mm_empty_group.weight", "of the group without rows" },
    { "text/*/config.json", "*image_token_id", "of what is not run" },
    { "text/*/config.json", "*video_token_id", "of what is not run" },
    { "text/*/config.json", "vision_*", "of what is not run" },
    { "text/*/config.json", "*mtp_*", "of what is not run" },
    { "text/*/config.json", "*attention_dropout", "of training" },
    { "text/*/config.json", "*initializer_range", "of training" },
    { "text/*/config.json", "*max_position_embeddings", "a limit of others" },
    { "text/*/config.json", "*partial_rotary_factor", "stands twice; one counts" },
    { "text/*/config.json", "*mrope_section.*", "of pictures" },
    { "text/*/config.json", "*full_attention_interval", "layer_types says it" },
    { "text/nested/model.safetensors.index.json", "metadata.total_size", "for people" },
    { "text/*/model*.safetensors", "*embed_tokens.weight",
      "most rows are of tokens that no case holds" },
    { "text/*/model*.safetensors", "*lm_head.weight", "of what is not run" },
    { "text/*/model*.safetensors", "*layers.[67].*", "the last two layers are not run" },
    { "text/*/model*.safetensors", "*visual.*", "of what is not run" },
    { "text/*/model*.safetensors", "mtp.*", "of what is not run" },
    { "text/report.json", "*.nested/* f32 h*", "of tensors that are in no file" },
    { "text/small/config.json", "*rope_theta", "hides behind bf16 in few tokens; nested shows it" },
    { "text/small/model.safetensors", "layers.3.self_attn.q_proj.weight",
      "one head hides in bf16" },
    { "dit/report.json", "*c/i2va_one_image rope*", "of a tensor that is in no file" },
    { "dit/report.json", "*c/i2va_one_image h.pre*", "of a tensor that is in no file" },
    { "dit/c/config.json", "engine_config.*", "of the reference's engine" },
    { "dit/c/config.json", "*alpha_init", "of training" },
    { "dit/c/config.json", "evaluation_config.*", "most are of the pipeline" },
    { "turbo/*/checkpoint.ckpt", "optimizer/*", "of training" },
    { "turbo/*/checkpoint.ckpt", "ema_state_dict/n_averaged", "of training" },
    { "turbo/*/checkpoint.ckpt", "*conv_in.conv.weight",
      "latents one high or one wide leave taps without work" },
    { "turbo/*/config.json", "in_channels", "of the encoder" },
    { "turbo/small_activations/config.json", "decoder_dw_kernel_size",
      "its blocks have no such kernel" },
    { "audio/*/model.safetensors", "*.encoder.*", "of what is not run" },
    { "audio/*/model_config.json", "*.encoder.*", "of what is not run" },
    { "audio/*/model_config.json", "*cond_dim", "of what is not run" },
    { "audio/*/model_config.json", "sample_*", "of training, and of the file written" },
    { "audio/*/model_config.json", "audio_channels", "stands twice; the decoder's counts" },
    { "audio/resample.safetensors", "N1.in", "too short for one sample: refused" },
};

static int is_unjudged(const char *file, const char *place)
{
    for (size_t i = 0; i < sizeof unjudged / sizeof unjudged[0]; i++)
        if (fnmatch(unjudged[i].file, file, 0) == 0 && fnmatch(unjudged[i].place, place, 0) == 0)
            return 1;
    return 0;
}

/* ---- running it ---- */

/* The exit code of golden_check on a folder; -1 if a signal ended it.  Its lines go to *output_out,
 * malloc'd. */
static int run_golden_check(const char *tmp, const char *dir, char **output_out)
{
    char *log = m2_test_join(tmp, "output");
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!freopen(log, "wb", stdout) || dup2(STDOUT_FILENO, STDERR_FILENO) < 0) _exit(99);
        execl(GOLDEN_CHECK, GOLDEN_CHECK, "--threads", strstr(dir, "e2e") ? "2" : "1", dir,
              (char *)NULL);
        _exit(98);
    }
    int status = 0;
    size_t n;
    assert_int_equal(waitpid(child, &status, 0), child);
    *output_out = m2_test_read_file(log, &n);
    remove(log);
    free(log);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Whether golden_check refuses the folder: exit 1 with a line that holds `part`. */
static int is_refused(const char *tmp, const char *dir, const char *part)
{
    char *output;
    const int code = run_golden_check(tmp, dir, &output);
    const int is_right = code == 1 && strstr(output, part);
    if (!is_right) print_error("exit code %d, without \"%s\"\n", code, part);
    free(output);
    return is_right;
}

/* ---- copies ---- */

static int is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Names in a folder, sorted, malloc'd and ended by NULL. */
static char **names_in(const char *dir)
{
    struct dirent **entries;
    const int n = scandir(dir, &entries, NULL, alphasort);
    assert_true(n >= 0);
    char **names = calloc((size_t)n + 1, sizeof *names);
    assert_non_null(names);
    for (int i = 0, k = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.') names[k++] = strdup(entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return names;
}

static void free_names(char **names)
{
    for (char **name = names; *name; name++) free(*name);
    free(names);
}

/* Links to all files below `from`; of its folders only the one named `only`, all if that is NULL. */
static void link_tree(const char *from, const char *to, const char *only)
{
    assert_int_equal(mkdir(to, 0700), 0);
    char **names = names_in(from);
    for (char **name = names; *name; name++) {
        char *source = m2_test_join(from, *name), *link = m2_test_join(to, *name);
        if (!is_folder(source))
            assert_int_equal(symlink(source, link), 0);
        else if (!only || strcmp(only, *name) == 0)
            link_tree(source, link, NULL);
        free(source);
        free(link);
    }
    free_names(names);
}

/* A linked copy of a component, `tmp`/<component>.  Of its folders the one that `file` lies in is
 * there; all of them if `file` is NULL or the report, which speaks of all. */
static char *link_component(const char *tmp, const char *component, const char *file)
{
    char *data = strdup(m2_test_path("data")), *to = m2_test_join(tmp, component);
    char *from = m2_test_join(data, component), folder[256] = "";
    const char *slash = file ? strchr(file, '/') : NULL;
    if (slash) snprintf(folder, sizeof folder, "%.*s", (int)(slash - file), file);
    link_tree(from, to, file && strcmp(file, "report.json") != 0 ? folder : NULL);
    free(data);
    free(from);
    return to;
}

/* ---- every file ---- */

typedef struct damage_walk {
    const char *tmp, *component;
    int n_places_max, n_tried, n_unnoticed;
} damage_walk;

static void try_place(damage_walk *state, const char *file, const char *path, int64_t idx)
{
    char *copy = link_component(state->tmp, state->component, file);
    char *changed = m2_test_join(copy, file), *output;
    char *name = m2_test_join(state->component, file);
    assert_int_equal(remove(changed), 0);
    const char *place = damage_write(path, changed, idx);
    if (place && !is_unjudged(name, place)) {
        const int code = run_golden_check(state->tmp, copy, &output);
        state->n_tried++;
        if (code != 1 || !strstr(output, "FAILED")) {
            state->n_unnoticed++;
            print_error("%s: %s is changed, the exit code is %d\n", name, place, code);
        }
        free(output);
    }
    free(name);
    free(changed);
    m2_test_remove_tree(copy);
}

static void try_file(damage_walk *state, const char *file, const char *path)
{
    char *name = m2_test_join(state->component, file);
    const int64_t n = is_unjudged(name, "*") ? 0 : damage_n_places(path);
    if (n == 0 && !is_unjudged(name, "*"))
        fail_msg("%s: a file of a kind that this test cannot change", name);
    free(name);
    const int64_t n_tries = n < state->n_places_max ? n : state->n_places_max;
    for (int64_t i = 0; i < n_tries; i++) try_place(state, file, path, i * n / n_tries);
}

/* `below` is the way from the component's folder: "" or "a/". */
static void try_folder(damage_walk *state, const char *dir, const char *below)
{
    char **names = names_in(dir);
    for (char **name = names; *name; name++) {
        char *path = m2_test_join(dir, *name), file[512];
        snprintf(file, sizeof file, "%s%s%s", below, *name, is_folder(path) ? "/" : "");
        if (is_folder(path))
            try_folder(state, path, file);
        else
            try_file(state, file, path);
        free(path);
    }
    free_names(names);
}

/* Catches a file that golden_check opens and does not compare, a limit that damaged reference data
 * loosen, and a case that passes whatever it holds. */
static void one_changed_value_of_any_file_is_noticed(void **state)
{
    char *tmp = *state;
    int n_tried = 0, n_unnoticed = 0;
    for (int i = 0; i < N_COMPONENTS; i++) {
        damage_walk walk = { tmp, components[i].name, components[i].n_places_max, 0, 0 };
        char *data = strdup(m2_test_path("data")), *dir = m2_test_join(data, components[i].name);
        try_folder(&walk, dir, "");
        assert_true(walk.n_tried > 0);
        n_tried += walk.n_tried;
        n_unnoticed += walk.n_unnoticed;
        free(data);
        free(dir);
    }
    print_message("%d changes tried\n", n_tried);
    assert_int_equal(n_unnoticed, 0);
}

static void good_data_pass(void **state)
{
    for (int i = 0; i < N_COMPONENTS; i++) {
        char *data = strdup(m2_test_path("data")), *dir = m2_test_join(data, components[i].name);
        char *output;
        const int code = run_golden_check(*state, dir, &output);
        if (code != 0) fail_msg("%s: exit code %d\n%s", dir, code, output);
        assert_null(strstr(output, "FAILED"));
        free(output);
        free(dir);
        free(data);
    }
}

/* ---- what is not understood ---- */

static int is_weights(const char *file)
{
    return strstr(file, "ckpt/") || strstr(file, "model") || strncmp(file, "bad/", 4) == 0;
}

static void add_entries(const char *tmp, const char *component, const char *dir, const char *below)
{
    char **names = names_in(dir);
    for (char **name = names; *name; name++) {
        char *path = m2_test_join(dir, *name), *file = m2_test_join(below, *name);
        const char *relative = file + (*file == '/');
        if (is_folder(path)) {
            add_entries(tmp, component, path, relative);
        } else if (strstr(*name, ".safetensors") && !is_weights(relative)) {
            char *copy = link_component(tmp, component, relative);
            char *changed = m2_test_join(copy, relative);
            assert_int_equal(remove(changed), 0);
            damage_add_entry(path, changed);
            if (!is_refused(tmp, copy, "stranger")) fail_msg("%s/%s", component, relative);
            free(changed);
            m2_test_remove_tree(copy);
        }
        free(path);
        free(file);
    }
    free_names(names);
}

/* Catches a check that goes by the names it expects and never sees the others. */
static void an_entry_more_is_not_understood(void **state)
{
    for (int i = 0; i < N_COMPONENTS; i++) {
        if (components[i].n_places_max == 1) continue; /* a run costs too much */
        char *data = strdup(m2_test_path("data")), *dir = m2_test_join(data, components[i].name);
        add_entries(*state, components[i].name, dir, "");
        free(dir);
        free(data);
    }
}

/* `copy` with a file, or an empty folder, that no component knows. */
static void add_stranger(const char *tmp, const char *copy, int is_dir)
{
    char *stranger = m2_test_join(copy, is_dir ? "stranger" : "stranger.bin");
    if (is_dir)
        assert_int_equal(mkdir(stranger, 0700), 0);
    else
        m2_test_write_file(stranger, "?", 1);
    char *top = strdup(copy);
    /* The component's folder is the one below `tmp`. */
    top[strlen(tmp) + 1 + strcspn(copy + strlen(tmp) + 1, "/")] = '\0';
    if (!is_refused(tmp, top, "stranger")) fail_msg("%s", stranger);
    assert_int_equal(remove(stranger), 0);
    free(stranger);
    free(top);
}

static void a_file_or_folder_more_is_not_understood(void **state)
{
    for (int i = 0; i < N_COMPONENTS; i++) {
        char *copy = link_component(*state, components[i].name, NULL);
        char **names = names_in(copy);
        add_stranger(*state, copy, 0);
        if (components[i].n_places_max > 1) add_stranger(*state, copy, 1);
        for (char **name = names; *name; name++) {
            char *below = m2_test_join(copy, *name);
            if (is_folder(below)) add_stranger(*state, below, 0);
            free(below);
        }
        free_names(names);
        m2_test_remove_tree(copy);
    }
}

/* Nothing checked is nothing passed. */
static void an_empty_folder_fails(void **state)
{
    for (int i = 0; i < N_COMPONENTS; i++) {
        char *dir = m2_test_join(*state, components[i].name);
        assert_int_equal(mkdir(dir, 0700), 0);
        if (!is_refused(*state, dir, "FAILED")) fail_msg("%s", dir);
        assert_int_equal(remove(dir), 0);
        free(dir);
    }
}

/* A folder of another name beside components is named and counted, and they are judged all the same:
 * tests/data as a whole, as the README has it.  Alone it is nothing checked, and fails. */
static void an_unknown_folder_is_skipped_by_name_and_alone_fails(void **state)
{
    char *dir = m2_test_join(*state, "nonsense"), *inside = m2_test_join(dir, "nonsense");
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_true(is_refused(*state, dir, "no folder of a known component"));
    assert_int_equal(mkdir(inside, 0700), 0);
    assert_true(is_refused(*state, dir, "no component of this name"));
    assert_true(is_refused(*state, dir, "0 passed, 1 failed, 1 skipped"));
    char *known = link_component(dir, "video", NULL), *output;
    const int code = run_golden_check(*state, dir, &output);
    if (code != 0 || !strstr(output, "nonsense/nonsense") ||
        !strstr(output, "no component of this name") || !strstr(output, " 0 failed, 1 skipped\n"))
        fail_msg("exit code %d\n%s", code, output);
    free(output);
    free(known);
    free(inside);
    free(dir);
}

/* A component that is not built is no success. */
static void what_is_not_built_is_skipped_with_a_reason(void **state)
{
    static const char *const names[] = { "vae", "image", "refiner" };
    for (int i = 0; i < 3; i++) {
        char *dir = m2_test_join(*state, names[i]);
        assert_int_equal(mkdir(dir, 0700), 0);
        assert_true(is_refused(*state, dir, "skipped"));
        assert_true(is_refused(*state, dir, "not built yet"));
        assert_true(is_refused(*state, dir, "0 passed, 0 failed, 1 skipped"));
        free(dir);
    }
}

static int make_tmp(void **state)
{
    *state = m2_test_make_dir();
    return 0;
}

static int remove_tmp(void **state)
{
    m2_test_remove_tree(*state);
    return 0;
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, make_tmp, remove_tmp)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(good_data_pass),
        TEST(one_changed_value_of_any_file_is_noticed),
        TEST(an_entry_more_is_not_understood),
        TEST(a_file_or_folder_more_is_not_understood),
        TEST(an_empty_folder_fails),
        TEST(an_unknown_folder_is_skipped_by_name_and_alone_fails),
        TEST(what_is_not_built_is_skipped_with_a_reason),
    };
    return cmocka_run_group_tests_name("golden_check", tests, NULL, NULL);
}
