#include "support/check.h"

#include "cli_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every wrong use is exit 2 with a message that names the thing, before anything is loaded and with
 * no file made.  Catches options that are swallowed: 0 steps taken for the default, one of two
 * numbers ignored, no prompt replaced by a built-in one. */
static void wrong_use_exits_2_and_names_the_fault(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *part;
    } cases[] = {
        { "", "usage: magi2 COMMAND" },
        { "frobnicate", "unknown command 'frobnicate'" },
        { "serve", "not built yet" },
        { "quantize", "not built yet" },
        { "generate", "nowhere to write" },
        { "generate -o a.mp4", "no prompt" },
        { "generate -p '' -o a.mp4", "prompt is empty" },
        { "generate -p x --prompt-file y -o a.mp4", "both given" },
        { "generate -p x", "nowhere to write" },
        { "generate -p x -o a.mp4 --steps 0", "--steps 0: must be a whole number from 1 to 1000" },
        { "generate -p x -o a.mp4 --steps 4x", "--steps 4x" },
        { "generate -p x -o a.mp4 --seed -2", "--seed -2" },
        { "generate -p x -o a.mp4 --seed 9223372036854775808", "--seed 9223372036854775808" },
        { "generate -p x -o a.mp4 --shift 0", "--shift 0" },
        { "generate -p x -o a.mp4 --output-size 1920", "--output-size 1920" },
        { "generate -p x -o a.mp4 --output-size 1081x607", "must be even" },
        { "generate -p x -o a.mp4 --image a.png", "image encoder is not built yet" },
        { "generate -p x -o a.mp4 --image a.png --image b.png", "--image" },
        { "generate -p x -o a.mp4 --tier 1080p", "refiner" },
        { "generate -p x -o a.mp4 --tier nonsense", "nonsense" },
        { "generate -p x -o a.mp4 --backend musa", "--backend musa: this build has" },
        { "generate -p x -o a.mp4 --backend tpu", "--backend tpu" },
        { "generate -p x -o a.mp4 --isa sse9", "--isa sse9" },
        { "generate -p x -o a.mp4 --threads 0", "--threads 0" },
        { "generate -p x -o a.mp4 --layout sp=8", "several ranks are not built yet" },
        { "generate -p x -o a.mp4 --negative a --no-negative", "use one" },
        { "generate -p x -o a.mp4 --noise n --seed 1", "leave --seed" },
        { "generate -p x -o a.mp4 --guidance-trick 13", "--guidance-trick 13: must be FRAMES:X" },
        { "generate -p x -o ''", "--output has an empty name" },
        { "generate -p x -o -", "cannot be written to a pipe" },
        { "generate --prompt-file - --negative-file - -o a.mp4", "cannot both be stdin" },
        { "help nonsense", "unknown command 'nonsense'" },
        { "generat -p x", "did you mean generate?" },
        { "generate -p x -o a.mp4 -q -v", "use one" },
        { "generate a red ball -o a.mp4", "unexpected argument 'a'" },
        { "decode -o a.mp4", "decode needs the file" },
        { "tokenize", "no prompt" },
        { "inspect a b", "unexpected argument 'b'" },
    };
    char *dir = m2_test_make_dir();
    static cli_result result;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cli_run(&result, dir, cases[i].arguments);
        if (result.code != 2 || !strstr(result.err, cases[i].part))
            fail_msg("magi2 %s: exit %d, expected 2 with \"%s\": %s", cases[i].arguments,
                     result.code, cases[i].part, result.err);
        assert_int_equal(cli_count_files(dir, 0) + cli_count_files(dir, 1), 0);
    }
    m2_test_remove_tree(dir);
}

/* Faults of files are exit 1 and name the file. */
static void faults_of_files_exit_1_and_name_the_file(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *part;
    } cases[] = {
        { "generate -p x -o a.mp4 -m /nonexistent", "/nonexistent" },
        { "generate -p x -o a.mp4 -m '" M2_DEMO_DIR "/preview'", "pass its root instead" },
        { "generate -p x -o a.mp4 -m '" M2_DEMO_DIR "/preview/model.safetensors'",
          "pass its root instead" },
        { "generate -p x -o /nonexistent/a.mp4", "/nonexistent/a.mp4" },
        { "generate -p x -o a.mp4 --noise /nonexistent.safetensors", "/nonexistent.safetensors" },
        { "generate --resume /nonexistent.state -o a.mp4", "/nonexistent.state" },
        { "decode /nonexistent.state -o a.mp4", "/nonexistent.state" },
        { "inspect /nonexistent", "/nonexistent" },
    };
    char *dir = m2_test_make_dir();
    static cli_result result;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cli_run(&result, dir, cases[i].arguments);
        if (result.code != 1 || !strstr(result.err, cases[i].part))
            fail_msg("magi2 %s: exit %d, expected 1 with \"%s\": %s", cases[i].arguments,
                     result.code, cases[i].part, result.err);
        assert_int_equal(cli_count_files(dir, 0) + cli_count_files(dir, 1), 0);
    }
    m2_test_remove_tree(dir);
}

static void help_and_version_exit_0(void **state)
{
    (void)state;
    static cli_result result;
    static const char *const good[] = { "--help",          "help",      "--version",
                                        "generate --help", "decode -h", "doctor --help" };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cli_run(&result, "/tmp", good[i]);
        assert_int_equal(result.code, 0);
        assert_true(result.out[0] != '\0');
    }
}

/* A bug report's page must come out whole on any machine. */
static void doctor_and_inspect_report_on_this_machine_and_model(void **state)
{
    (void)state;
    static cli_result result;
    cli_run(&result, "/tmp", "doctor");
    assert_int_equal(result.code, 0);
    assert_non_null(strstr(result.out, "cpu"));
    cli_run(&result, "/tmp", "doctor --json");
    assert_int_equal(result.code, 0);
    assert_true(result.out[0] == '{');
    cli_run(&result, "/tmp", "inspect");
    assert_int_equal(result.code, 0);
    assert_non_null(strstr(result.out, "preview"));
    assert_null(strstr(result.out, "DOES NOT FIT"));
    cli_run(&result, "/tmp", "inspect '" M2_DEMO_DIR "/preview'");
    assert_int_equal(result.code, 0);
    assert_non_null(strstr(result.out, "block.layers.0.attention.linear_qkv.weight"));
}

/* No escapes: a backslash and an n are two characters; a file with a line break is another prompt. */
static void prompts_are_taken_as_they_are(void **state)
{
    (void)state;
    static cli_result inline_escape, from_file, from_stdin;
    char *dir = m2_test_make_dir();
    char path[300];
    snprintf(path, sizeof path, "%s/prompt.txt", dir);
    FILE *file = fopen(path, "wb");
    fputs("a ball\nb", file);
    fclose(file);
    cli_run(&inline_escape, dir, "tokenize --json -p 'a ball\\nb'");
    cli_run(&from_file, dir, "tokenize --json --prompt-file prompt.txt");
    cli_run(&from_stdin, dir, "tokenize --json --prompt-file - <prompt.txt");
    assert_int_equal(inline_escape.code, 0);
    assert_int_equal(from_file.code, 0);
    assert_int_equal(from_stdin.code, 0);
    assert_string_not_equal(inline_escape.out, from_file.out);
    assert_string_equal(from_stdin.out, from_file.out);
    m2_test_remove_tree(dir);
}

int main(void)
{
    unsetenv("MAGI2_MODEL");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_use_exits_2_and_names_the_fault),
        cmocka_unit_test(faults_of_files_exit_1_and_name_the_file),
        cmocka_unit_test(help_and_version_exit_0),
        cmocka_unit_test(doctor_and_inspect_report_on_this_machine_and_model),
        cmocka_unit_test(prompts_are_taken_as_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
