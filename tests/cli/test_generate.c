#include "support/check.h"

#include "cli_run.h"
#include "pipeline/clip_run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROMPT "-p 'a red ball bouncing on a blue background'"

/* Shell: until the log of a run shows a line, for a minute at most. */
#define WAIT_FOR(pattern)                                                                          \
    "for i in $(seq 3000); do grep -q '" pattern "' log 2>/dev/null && break; sleep 0.02; done;"

static cli_result result, other;

static char *read_whole(const char *dir, const char *name, size_t *bytes)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(*bytes + 1);
    assert_int_equal(fread(text, 1, *bytes, file), *bytes);
    text[*bytes] = '\0';
    fclose(file);
    return text;
}

static void assert_same_file(const char *dir, const char *a, const char *b)
{
    size_t n_a, n_b;
    char *bytes_a = read_whole(dir, a, &n_a), *bytes_b = read_whole(dir, b, &n_b);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(bytes_a, bytes_b, n_a);
    free(bytes_a);
    free(bytes_b);
}

static void run_ok(cli_result *to, const char *dir, const char *arguments)
{
    cli_run(to, dir, arguments);
    if (to->code != 0) fail_msg("magi2 %s: exit %d: %s", arguments, to->code, to->err);
}

/* The seed is said; the same one gives the same bytes, in a file of that name alone. */
static void equal_runs_give_equal_files_and_nothing_else(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    run_ok(&result, dir, "generate " PROMPT " --steps 2 --seed 7 -o a.mp4 --save s1");
    run_ok(&other, dir, "generate " PROMPT " --steps 2 --seed 7 -o b.mp4 --save s2 --threads 1");
    assert_non_null(strstr(result.out, "seed 7"));
    assert_non_null(strstr(result.out, "125 frames at 12.5/s, 441000 samples at 44100 Hz"));
    assert_same_file(dir, "a.mp4", "b.mp4");
    assert_same_file(dir, "s1/manifest.json", "s2/manifest.json");
    assert_int_equal(cli_count_files(dir, 1), 0);
    assert_int_equal(cli_count_files(dir, 0), 4);
    run_ok(&other, dir, "generate " PROMPT " --steps 2 --seed 8 -o c.mp4 --save s3");
    size_t n;
    char *first = read_whole(dir, "s1/manifest.json", &n),
         *second = read_whole(dir, "s3/manifest.json", &n);
    assert_string_not_equal(first, second);
    free(first);
    free(second);
    m2_test_remove_tree(dir);
}

/* No other program is needed, wherever it is run from. */
static void no_program_is_needed_beside_it(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    const char *path = getenv("PATH");
    char *kept = strdup(path ? path : "");
    setenv("PATH", "/nonexistent", 1);
    cli_run(&result, dir, "generate " PROMPT " --steps 1 -o a.mp4");
    setenv("PATH", kept, 1);
    free(kept);
    assert_int_equal(result.code, 0);
    assert_true(cli_exists(dir, "a.mp4"));
    m2_test_remove_tree(dir);
}

/* -1 is drawn and said; 0 is a seed like any other; none is the model's default. */
static void seeds_are_reported(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    run_ok(&result, dir, "generate " PROMPT " --steps 1 --seed -1 -o a.mp4");
    run_ok(&other, dir, "generate " PROMPT " --steps 1 --seed -1 -o b.mp4");
    assert_string_not_equal(strstr(result.out, "seed "), strstr(other.out, "seed "));
    run_ok(&result, dir, "generate " PROMPT " --steps 1 --seed 0 -o a.mp4");
    assert_non_null(strstr(result.out, "seed 0,"));
    /* A seed that was drawn is said even where nothing else is: the clip could not be made again. */
    run_ok(&result, dir, "generate " PROMPT " --steps 1 --seed -1 -o a.mp4 -q");
    char *end = NULL;
    assert_int_equal(strncmp(result.out, "seed ", 5), 0);
    assert_true(strtoll(result.out + 5, &end, 10) >= 0);
    assert_string_equal(end, "\n");
    run_ok(&result, dir, "generate " PROMPT " --steps 1 --seed 7 -o a.mp4 -q");
    assert_string_equal(result.out, "");
    run_ok(&result, dir, "generate " PROMPT " --steps 1 --seed -1 -o a.mp4 -q --json");
    assert_non_null(strstr(result.out, "\"seed\":"));
    assert_null(strstr(result.out, "\nseed "));
    run_ok(&result, dir, "generate " PROMPT " --steps 1 -o a.mp4 --json");
    assert_non_null(strstr(result.out, "\"seed\":42"));
    /* Among the tags too, once. */
    size_t n;
    char *bytes = read_whole(dir, "a.mp4", &n);
    const char *seed = memmem(bytes, n, "seed=42", 7);
    assert_non_null(seed);
    assert_null(memmem(seed + 1, n - (size_t)(seed + 1 - bytes), "seed=", 5));
    free(bytes);
    m2_test_remove_tree(dir);
}

/* Of two prompts the message says which. */
static void faults_of_the_negative_prompt_name_it(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    run_ok(&result, dir, "generate " PROMPT " --negative '{blurred}' --steps 1 -o a.mp4");
    assert_non_null(strstr(result.err, "warning negative prompt: it begins with { and is no JSON"));
    assert_null(strstr(result.err, "warning prompt:"));
    run_ok(&result, dir, "generate -p '{a ball}' --negative x --steps 1 -o a.mp4");
    assert_non_null(strstr(result.err, "warning prompt: it begins with { and is no JSON"));
    assert_null(strstr(result.err, "warning negative prompt:"));
    cli_run(&result, dir, "generate " PROMPT " --negative $(printf '\\351') --steps 1 -o b.mp4");
    assert_int_equal(result.code, 2);
    assert_non_null(strstr(result.err, "the negative prompt: the prompt is not UTF-8"));
    m2_test_remove_tree(dir);
}

/* An interrupted run leaves its state, says how to go on, and goes on to the same bits. */
static void an_interrupted_run_resumes_to_the_same_bits(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    char command[2048];
    run_ok(&result, dir, "generate " PROMPT " --steps 6 --seed 3 -o whole.mp4 --save whole");
    /* Stop it once the second step is reported. */
    snprintf(command, sizeof command,
             "cd '%s' && rm -f log && (env --default-signal=INT '%s' generate " PROMPT
             " --steps 6 --seed 3 -o part.mp4 2>log & pid=$!; "
             "" WAIT_FOR("preview 2/6") " kill -INT $pid; wait $pid)",
             dir, M2_MAGI2_PATH);
    const int status = system(command);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
    assert_true(cli_exists(dir, "part.mp4.state"));
    assert_false(cli_exists(dir, "part.mp4"));
    assert_int_equal(cli_count_files(dir, 1), 0);
    size_t n;
    char *log = read_whole(dir, "log", &n);
    assert_non_null(strstr(log, "--resume part.mp4.state -o part.mp4"));
    free(log);
    cli_run(&result, dir, "decode part.mp4.state -o part.mp4");
    assert_int_equal(result.code, 2);
    assert_non_null(strstr(result.err, "`magi2 generate --resume part.mp4.state -o part.mp4`"));
    run_ok(&result, dir, "generate --resume part.mp4.state -o part.mp4 --save part");
    cli_run(&result, dir, "decode part/video_latent.safetensors -o x.mp4");
    assert_int_equal(result.code, 1);
    assert_non_null(strstr(result.err, "give the file of --save-latent"));
    assert_same_file(dir, "whole.mp4", "part.mp4");
    assert_same_file(dir, "whole/video_latent.safetensors", "part/video_latent.safetensors");
    assert_same_file(dir, "whole/wave.safetensors", "part/wave.safetensors");
    assert_false(cli_exists(dir, "part.mp4.state"));
    /* Other settings than the state's would not give the same clip. */
    m2_test_remove_tree(dir);
}

static void a_resumed_run_refuses_other_settings(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    run_ok(&result, dir, "generate " PROMPT " --steps 2 -o a.mp4 --save-latent kept.safetensors");
    cli_run(&result, dir, "generate --resume kept.safetensors --steps 3 -o b.mp4");
    assert_int_equal(result.code, 2);
    assert_non_null(strstr(result.err, "steps 2 (asked for 3)"));
    cli_run(&result, dir, "generate --resume kept.safetensors -p 'another' -o b.mp4");
    assert_int_equal(result.code, 2);
    assert_non_null(strstr(result.err, "another prompt, \"a red ball"));
    static const char *const others[] = {
        "--no-negative", "--noise-grid 108x2048", "--seed 5",
        "--tier 272p",   "--guidance-trick 3:1",  "--negative x"
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char arguments[200];
        snprintf(arguments, sizeof arguments, "generate --resume kept.safetensors -o b.mp4 %s",
                 others[i]);
        cli_run(&result, dir, arguments);
        if (result.code != 2) fail_msg("%s: exit %d: %s", others[i], result.code, result.err);
    }
    m2_test_remove_tree(dir);
}

/* Latents of a run decode to the clip that the run made. */
static void a_kept_latent_decodes_to_the_same_clip(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    run_ok(&result, dir, "generate " PROMPT " --steps 2 -o a.mp4 --save-latent kept.safetensors");
    run_ok(&result, dir, "decode kept.safetensors -o b.mp4");
    assert_same_file(dir, "a.mp4", "b.mp4");
    /* A denoised run that is taken up again keeps its latents where it is told to. */
    run_ok(&result, dir, "generate --resume kept.safetensors -o e.mp4 --save-latent again");
    assert_same_file(dir, "again", "kept.safetensors");
    assert_same_file(dir, "a.mp4", "e.mp4");
    run_ok(&result, dir, "decode kept.safetensors -o c.mp4 --output-size 160x90");
    assert_non_null(strstr(result.out, "160x90"));
    cli_run(&result, dir, "decode a.mp4 -o d.mp4");
    assert_int_equal(result.code, 1);
    assert_non_null(strstr(result.err, "a.mp4"));
    assert_false(cli_exists(dir, "d.mp4"));
    m2_test_remove_tree(dir);
}

/* Outputs under the name of an input, by the same name, another path or a link: refused by both
 * names, and the input is as it was.  Catches a latent of hours replaced by its own clip. */
static void no_output_replaces_an_input(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *output, *input;
    } cases[] = {
        { "decode kept -o kept", "kept", "kept" },
        { "decode kept -o ./kept", "./kept", "kept" },
        { "decode link -o kept", "kept", "link" },
        { "decode kept -o link", "link", "kept" },
        { "generate --resume kept -o link", "link", "kept" },
        { "generate --resume kept -o a.mp4 --save-latent kept", "kept", "kept" },
        { "generate -p x --noise kept -o kept", "kept", "kept" },
        { "generate -p x --noise noise.mp4.state -o noise.mp4", "noise.mp4.state", "noise" },
        { "generate --prompt-file kept -o link", "link", "kept" },
        { "generate --prompt-file kept -o a.mp4 --save-latent ./kept", "./kept", "kept" },
        { "generate --prompt-file noise.mp4.state -o noise.mp4", "noise.mp4", "noise.mp4.state" },
        { "generate -p x --negative-file kept -o kept", "kept", "kept" },
    };
    char *dir = m2_test_make_dir(), command[600];
    run_ok(&result, dir, "generate " PROMPT " --steps 1 -o a.mp4 --save-latent kept");
    snprintf(command, sizeof command,
             "cd '%s' && cp kept copy && cp kept noise.mp4.state && ln -s kept link", dir);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cli_run(&result, dir, cases[i].arguments);
        if (result.code != 2 || !strstr(result.err, "would replace") ||
            !strstr(result.err, cases[i].output) || !strstr(result.err, cases[i].input))
            fail_msg("%s: exit %d: %s", cases[i].arguments, result.code, result.err);
        assert_same_file(dir, "kept", "copy");
        assert_same_file(dir, "noise.mp4.state", "copy");
    }
    m2_test_remove_tree(dir);
}

/* A second Ctrl-C ends at once and leaves no file under way. */
static void a_second_signal_ends_at_once_without_litter(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    char command[2048];
    snprintf(command, sizeof command,
             "cd '%s' && (env --default-signal=INT '%s' generate " PROMPT
             " --steps 500 -o a.mp4 2>log & pid=$!; "
             "" WAIT_FOR("preview 1/500") " kill -INT $pid; "
                                          "sleep 0.01; kill -INT $pid; wait $pid; test $? -ne 0)",
             dir, M2_MAGI2_PATH);
    assert_int_equal(system(command), 0);
    assert_false(cli_exists(dir, "a.mp4"));
    assert_int_equal(cli_count_files(dir, 1), 0);
    m2_test_remove_tree(dir);
}

/* What cannot be read or written is known before a model is looked for: minutes of loading and hours of
 * work hang on it. */
static void files_that_cannot_be_used_are_found_before_the_model_is(void **state)
{
    (void)state;
    static const struct {
        const char *prepare, *arguments, *part;
    } cases[] = {
        { "mkdir s.mp4.state", "-o s.mp4", "s.mp4.state" },
        { "mkfifo s.mp4.state", "-o s.mp4", "s.mp4.state: is no state file of magi2" },
        { "mkdir sd; mkfifo sd/clip.state", "--save sd", "sd/clip.state: is no state file" },
        { "mkdir sd; mkfifo sd/manifest.json", "--save sd", "sd/manifest.json: is no regular" },
        { "mkdir -p sd/wave.safetensors", "--save sd", "sd/wave.safetensors" },
        { "true", "--save /proc/self", "/proc/self" },
        { "true", "-o a.mp4 --save-latent a.mp4", "use another" },
        { "true", "-o a.mp4 --save-latent a.mp4.state", "use another" },
        { "true", "-o a.mp4 --save-latent ./a.mp4.state", "use another" },
        { "true", "-o a.mp4 --save-latent \"$PWD/a.mp4\"", "use another" },
        { "echo precious >a.mp4.state", "-o a.mp4", "is no state file of magi2" },
        { "true", "-o none/a.mp4", "none/a.mp4: cannot be written" },
        { "mkdir a.mp4", "-o a.mp4", "a.mp4: is " },
        { "true", "-o a.mp4 --save-latent none/l", "none/l: cannot be written" },
        { "true", "-o a.mp4 --save none/s", "none/s: cannot make the directory" },
        { "true", "-o a.mp4 --noise none", "none: " },
        { "echo x >n", "-o a.mp4 --noise n", "n: " },
        { "true", "-o $(head -c 252 /dev/zero | tr '\\0' n)", "name too long" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *dir = m2_test_make_dir();
        char command[600], arguments[600];
        snprintf(command, sizeof command, "cd '%s' && %s", dir, cases[i].prepare);
        assert_int_equal(system(command), 0);
        snprintf(arguments, sizeof arguments, "generate -m /nonexistent " PROMPT " --steps 500 %s",
                 cases[i].arguments);
        cli_run(&result, dir, arguments);
        if (result.code == 0 || !strstr(result.err, cases[i].part) ||
            strstr(result.err, "nonexistent"))
            fail_msg("%s: exit %d: %s", cases[i].arguments, result.code, result.err);
        assert_int_equal(cli_count_files(dir, 1), 0);
        m2_test_remove_tree(dir);
    }
    /* Looking leaves nothing behind, the directory to save to included. */
    char *dir = m2_test_make_dir();
    cli_run(&result, dir, "generate -m /nonexistent " PROMPT " --save s");
    assert_non_null(strstr(result.err, "/nonexistent"));
    cli_run(&result, dir, "generate -m /nonexistent " PROMPT " -o a.mp4 --save s/ --save-latent l");
    assert_non_null(strstr(result.err, "/nonexistent"));
    assert_int_equal(cli_count_files(dir, 0) + cli_count_files(dir, 1), 0);
    m2_test_remove_tree(dir);
}

/* A run that only saves keeps its state too, and one interrupted behind the last step leaves none
 * once it is finished. */
static void states_go_when_they_have_done_their_work(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    char command[2048];
    snprintf(command, sizeof command,
             "cd '%s' && (env --default-signal=INT '%s' generate " PROMPT
             " --steps 6 --save s 2>log & pid=$!; "
             "" WAIT_FOR("preview 2/6") " kill -INT $pid; wait $pid)",
             dir, M2_MAGI2_PATH);
    int status = system(command);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    assert_true(cli_exists(dir, "s/clip.state"));
    run_ok(&result, dir, "generate --resume s/clip.state --save s");
    assert_false(cli_exists(dir, "s/clip.state"));
    snprintf(command, sizeof command,
             "cd '%s' && (env --default-signal=INT '%s' generate " PROMPT
             " --steps 1 -o d.mp4 2>log & pid=$!; "
             "" WAIT_FOR("decode  0/") " kill -INT $pid; wait $pid)",
             dir, M2_MAGI2_PATH);
    status = system(command);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    assert_true(cli_exists(dir, "d.mp4.state"));
    run_ok(&result, dir, "generate --resume d.mp4.state -o d.mp4");
    assert_false(cli_exists(dir, "d.mp4.state"));
    m2_test_remove_tree(dir);
}

/* A command from the shell's history must not cost the steps of an interrupted run: it is refused
 * before a model is looked for, whatever it asks for, and the file is as it was. */
static void a_kept_state_is_replaced_by_no_other_run(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *file;
    } cases[] = {
        { PROMPT " --steps 1 -o a.mp4", "a.mp4.state" },
        { "-p another -o ./a.mp4", "a.mp4.state" },
        { "-p another --save s", "s/clip.state" },
        { "-p another -o a.mp4 --save s", "a.mp4.state" },
        { "--resume kept -o a.mp4", "a.mp4.state" },
    };
    char *dir = m2_test_make_dir(), command[600], part[200];
    snprintf(command, sizeof command,
             "cd '%s' && (env --default-signal=INT '%s' generate " PROMPT
             " --steps 6 -o b.mp4 2>log & pid=$!; "
             "" WAIT_FOR("preview 1/6") " kill -INT $pid; wait $pid; test $? = 3) && "
                                        "mv b.mp4.state kept && cp kept a.mp4.state && mkdir s && "
                                        "cp kept s/clip.state",
             dir, M2_MAGI2_PATH);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char arguments[300];
        snprintf(arguments, sizeof arguments, "generate -m /nonexistent %s", cases[i].arguments);
        snprintf(part, sizeof part, "%s: is the state of an interrupted run, ", cases[i].file);
        cli_run(&result, dir, arguments);
        if (result.code != 2 || !strstr(result.err, part) ||
            !strstr(result.err, " of 6 steps done: go on with --resume "))
            fail_msg("%s: exit %d: %s", cases[i].arguments, result.code, result.err);
        assert_same_file(dir, cases[i].file, "kept");
    }
    /* One that is cut short can be gone on from no more, and is still not ours to remove. */
    snprintf(command, sizeof command, "cd '%s' && head -c 300 kept >c.mp4.state", dir);
    assert_int_equal(system(command), 0);
    cli_run(&result, dir, "generate " PROMPT " --steps 1 -o c.mp4");
    assert_int_equal(result.code, 2);
    assert_non_null(strstr(result.err, "c.mp4.state: is the state of an interrupted run: go on"));
    /* What writes no state stands in nobody's way; nor does an empty file. */
    run_ok(&result, dir, "generate --resume kept -o d.mp4 --save-latent whole");
    run_ok(&result, dir, "decode whole -o a.mp4");
    assert_same_file(dir, "a.mp4.state", "kept");
    snprintf(command, sizeof command, "cd '%s' && : >e.mp4.state", dir);
    assert_int_equal(system(command), 0);
    run_ok(&result, dir, "generate " PROMPT " --steps 1 -o e.mp4");
    assert_null(strstr(result.err, "has changed"));
    assert_false(cli_exists(dir, "e.mp4.state"));
    m2_test_remove_tree(dir);
}

/* Two runs to one output: what the other has put in the place of this one's state is not removed at
 * the end, and an interrupted run does not promise what is not there. */
static void a_run_removes_and_promises_its_own_state_alone(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir(), command[2048], *log;
    size_t n;
    run_ok(&result, dir, "generate -p other --steps 1 -o o.mp4 --save-latent other");
    static const char *const ends[] = { "", "kill -INT $pid;" };
    static const char *const says[] = {
        "a.mp4.state: has changed since this run wrote it, and is left",
        "its state is not kept: a.mp4.state has changed or is gone since this run wrote it"
    };
    for (int i = 0; i < 2; i++) {
        /* Stopped while it is exchanged, so that it cannot be over too early. */
        snprintf(
            command, sizeof command,
            "cd '%s' && rm -f log a.mp4.state && (env --default-signal=INT '%s' generate " PROMPT
            " --steps 1 -o a.mp4 2>log & pid=$!; "
            "" WAIT_FOR("decode  0/") " kill -STOP $pid; cp other new; "
                                      "mv new a.mp4.state; %s kill -CONT $pid; wait $pid)",
            dir, M2_MAGI2_PATH, ends[i]);
        const int status = system(command);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), i == 0 ? 0 : 3);
        assert_same_file(dir, "a.mp4.state", "other");
        log = read_whole(dir, "log", &n);
        if (!strstr(log, says[i])) fail_msg("%s", log);
        free(log);
    }
    /* The same between steps: replaced, as a run has but one name for it, and not without a word. */
    snprintf(command, sizeof command,
             "cd '%s' && rm -f log a.mp4.state && (env --default-signal=INT '%s' generate " PROMPT
             " --steps 12 --checkpoint-every 6 -o a.mp4 2>log & pid=$!; "
             "" WAIT_FOR("preview 2/12") " kill -STOP $pid; cp other new; "
                                         "mv new a.mp4.state; kill -CONT $pid; wait $pid)",
             dir, M2_MAGI2_PATH);
    assert_int_equal(system(command), 0);
    log = read_whole(dir, "log", &n);
    if (!strstr(log, "a.mp4.state: has changed since this run began, and is replaced"))
        fail_msg("%s", log);
    free(log);
    assert_false(cli_exists(dir, "a.mp4.state"));
    m2_test_remove_tree(dir);
}

/* The latents of hours are there when the disk is full at last: the message must say so, and the
 * command that it gives must give the clip. */
static void a_clip_that_cannot_be_written_leaves_its_state_and_says_how_to_go_on(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir(), command[2048];
    size_t n;
    run_ok(&result, dir, "generate " PROMPT " --steps 1 -o whole.mp4 --save-latent kept");
    char *bytes = read_whole(dir, "whole.mp4", &n);
    free(bytes);
    /* Room for the state file, in blocks of 512 bytes, and not for the clip. */
    snprintf(command, sizeof command,
             "cd '%s' && ulimit -f %zu && '%s' generate " PROMPT " --steps 1 -q -o a.mp4 2>log",
             dir, n / 512 - 2, M2_MAGI2_PATH);
    const int status = system(command);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_false(cli_exists(dir, "a.mp4"));
    char *log = read_whole(dir, "log", &n);
    if (!strstr(log, "a.mp4: cannot ") || !strstr(log, "File too large; its state is kept, 1 of 1"))
        fail_msg("%s", log);
    const char *advice = strstr(log, "`magi2 ");
    assert_non_null(advice);
    char *end = strchr(advice + 1, '`');
    assert_non_null(end);
    *end = '\0';
    assert_string_equal(advice, "`magi2 decode a.mp4.state -o a.mp4");
    assert_same_file(dir, "a.mp4.state", "kept");
    run_ok(&result, dir, advice + strlen("`magi2 "));
    assert_same_file(dir, "a.mp4", "whole.mp4");
    assert_false(cli_exists(dir, "a.mp4.state"));
    free(log);
    m2_test_remove_tree(dir);
}

/* A limit on file sizes is an error like a full disk; ignored signals stay ignored. */
static void limits_and_ignored_signals_are_respected(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    char command[2048];
    snprintf(command, sizeof command,
             "cd '%s' && ulimit -f 20 && '%s' generate " PROMPT
             " --steps 1 -q -o a.mp4 2>/dev/null",
             dir, M2_MAGI2_PATH);
    const int status = system(command);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_false(cli_exists(dir, "a.mp4"));
    assert_int_equal(cli_count_files(dir, 1), 0);
    snprintf(command, sizeof command,
             "cd '%s' && (trap '' HUP; exec '%s' generate " PROMPT
             " --steps 2 -o b.mp4 2>log) & pid=$!; "
             "cd '%s'; " WAIT_FOR("preview 1/2") " "
                                                 "kill -HUP $pid; wait $pid",
             dir, M2_MAGI2_PATH, dir);
    assert_int_equal(system(command), 0);
    assert_true(cli_exists(dir, "b.mp4"));
    m2_test_remove_tree(dir);
}

/* The plan is refused before anything is computed. */
static void too_little_memory_is_said_before_the_first_step(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    cli_run(&result, dir, "generate " PROMPT " -o a.mp4 --backend cpu --ram-limit 1M");
    assert_int_equal(result.code, 1);
    assert_non_null(strstr(result.err, "the weights alone need"));
    assert_non_null(strstr(result.err, "--ram-limit"));
    assert_null(strstr(result.err, "preview 1/"));
    assert_int_equal(cli_count_files(dir, 0), 0);
    m2_test_remove_tree(dir);
}

static char *model_root;

/* A small picture: what is tested here does not depend on its size. */
static int use_tiny_model(void **state)
{
    (void)state;
    char model_dir[4096];
    model_root = m2_test_make_dir();
    clip_make_tiny_model(model_root, model_dir);
    return setenv("MAGI2_MODEL", model_dir, 1);
}

static int remove_tiny_model(void **state)
{
    (void)state;
    m2_test_remove_tree(model_root);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_runs_give_equal_files_and_nothing_else),
        cmocka_unit_test(no_program_is_needed_beside_it),
        cmocka_unit_test(seeds_are_reported),
        cmocka_unit_test(faults_of_the_negative_prompt_name_it),
        cmocka_unit_test(an_interrupted_run_resumes_to_the_same_bits),
        cmocka_unit_test(a_resumed_run_refuses_other_settings),
        cmocka_unit_test(a_kept_latent_decodes_to_the_same_clip),
        cmocka_unit_test(no_output_replaces_an_input),
        cmocka_unit_test(a_second_signal_ends_at_once_without_litter),
        cmocka_unit_test(files_that_cannot_be_used_are_found_before_the_model_is),
        cmocka_unit_test(states_go_when_they_have_done_their_work),
        cmocka_unit_test(a_kept_state_is_replaced_by_no_other_run),
        cmocka_unit_test(a_run_removes_and_promises_its_own_state_alone),
        cmocka_unit_test(a_clip_that_cannot_be_written_leaves_its_state_and_says_how_to_go_on),
        cmocka_unit_test(limits_and_ignored_signals_are_respected),
        cmocka_unit_test(too_little_memory_is_said_before_the_first_step),
    };
    return cmocka_run_group_tests(tests, use_tiny_model, remove_tiny_model);
}
