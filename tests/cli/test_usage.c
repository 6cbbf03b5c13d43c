#include "support/check.h"

#include "cli_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
        { "bench", "bench what?" },
        { "bench ops", "bench ops is not built yet" },
        { "bench compare", "bench compare is not built yet" },
        { "bench nonsense", "bench nonsense: unknown" },
        { "bench step --tokens 5", "are for `bench stage`" },
        { "bench stage --layers 2", "--layers is for `bench step`" },
        { "bench stage --tokens 0", "--tokens 0: must be a whole number from 1" },
        { "bench stage --backend cpu --stage sound", "text, video, audio or all" },
        { "bench step --layers 0", "--layers 0: must be a whole number from 1" },
        { "bench step -m x --layers 2", "--layers is for made-up weights" },
        { "bench step --steps 0", "--steps 0" },
        { "bench step --backend cpu --tier nonsense", "nonsense" },
        { "bench step --layer 2", "did you mean --layers?" },
        { "plan --tier nonsense", "nonsense" },
        { "plan --backend tpu", "--backend tpu" },
        { "plan --backend musa", "programs for MUSA are not built yet" },
        { "plan --backend cpu --vram-limit 40G", "--vram-limit is of a GPU" },
        { "plan --vram-limit many", "--vram-limit many" },
        { "plan --threads 2", "unknown option --threads" },
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
        { "generate -p x -o a.mp4 --backend musa", "programs for MUSA are not built yet" },
        { "generate -p x -o a.mp4 --backend cpu --device 0", "--device is of a GPU" },
        /* The first GPU is one too: --isa makes this a run on the CPU wherever it is tried. */
        { "generate -p x -o a.mp4 --isa ref --device 0", "--device are of a GPU" },
        { "generate -p ' \t\n' -o a.mp4", "prompt is empty" },
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
        { "generate --prompt-file none.txt -o a.mp4", "or the text itself with --prompt" },
        { "generate -p x --negative-file none.txt -o a.mp4", "the text itself with --negative" },
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
        { "generate -p x -o /nonexistent/a.mp4", "make the folder first" },
        { "generate -p x -o a.mp4 --noise /nonexistent.safetensors", "/nonexistent.safetensors" },
        { "generate --resume /nonexistent.state -o a.mp4", "/nonexistent.state" },
        { "decode /nonexistent.state -o a.mp4", "/nonexistent.state" },
        { "inspect /nonexistent", "/nonexistent" },
        { "inspect '" M2_DEMO_DIR "/preview/modell.safetensors'",
          "did you mean " M2_DEMO_DIR "/preview/model.safetensors?" },
        { "inspect '" M2_DEMO_DIR "/text_encoder/config.json'", "give a checkpoint" },
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
    static const char *const good[] = { "--help",          "help",       "--version",
                                        "generate --help", "decode -h",  "doctor --help",
                                        "bench --help",    "plan --help" };
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

/* Each folder of a model by itself, whatever its file is called. */
static void parts_of_a_model_are_inspected_by_their_folders(void **state)
{
    (void)state;
    static cli_result result;
    static const char *const parts[][2] = {
        { "text_encoder", "model.language_model.norm.weight" },
        { "preview", "block.layers.0.attention.linear_qkv.weight" },
        { "turbo_vae", "module.decoder.conv_out.conv.bias" },
        { "vae", "decoder.head.2.bias" },
        { "stable-audio-open-1.0", "pretransform.model.decoder.layers.0.weight_v" },
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char arguments[300];
        snprintf(arguments, sizeof arguments, "inspect '%s/%s'", M2_DEMO_DIR, parts[i][0]);
        cli_run(&result, "/tmp", arguments);
        if (result.code != 0 || !strstr(result.out, parts[i][1]))
            fail_msg("magi2 %s: exit %d: %s", arguments, result.code, result.err);
    }
}

/* A model of which one shard is missing: the fault stands below its part, each line further in than
 * the part's, and the other parts are reported all the same. */
static void a_fault_of_several_lines_stands_below_its_part(void **state)
{
    (void)state;
    static cli_result result;
    static const char index[] = "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":"
                                "\"two.safetensors\"}}";
    char *dir = m2_test_make_dir(), path[300];
    snprintf(path, sizeof path, "%s/preview", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/preview/model.safetensors.index.json", dir);
    FILE *file = fopen(path, "wb");
    fputs(index, file);
    fclose(file);
    static const char *const parts[] = { "text_encoder", "turbo_vae", "stable-audio-open-1.0" };
    for (int i = 0; i < 3; i++) {
        char target[300];
        snprintf(path, sizeof path, "%s/%s", dir, parts[i]);
        snprintf(target, sizeof target, "%s/%s", M2_DEMO_DIR, parts[i]);
        assert_int_equal(symlink(target, path), 0);
    }
    cli_run(&result, dir, "inspect .");
    assert_int_equal(result.code, 1);
    const char *wanted =
        "DOES NOT FIT\n"
        "    ./preview/model.safetensors.index.json: its shards do not hold what it "
        "lists, 2 faults in 2 files; download again what is named:\n"
        "      one.safetensors is missing\n"
        "      two.safetensors is missing\n"
        "turbo_vae ";
    if (!strstr(result.out, wanted)) fail_msg("%s", result.out);
    assert_string_equal(result.err, "magi2: .: these parts do not fit the model: preview\n");
    cli_run(&result, dir, "generate -m . -p x -o a.mp4");
    assert_int_equal(result.code, 1);
    assert_non_null(strstr(result.err, "what is named:\n  one.safetensors is missing\n  two."));
    m2_test_remove_tree(dir);
}

static void write_text(const char *dir, const char *name, const char *text, size_t n)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, n, file), n);
    fclose(file);
}

/* The mark that editors put in front of UTF-8 is not seen by the model; UTF-16 is no text here. */
static void byte_order_marks_are_dropped_or_refused(void **state)
{
    (void)state;
    static cli_result plain, marked, refused;
    char *dir = m2_test_make_dir();
    write_text(dir, "plain.txt", "a ball", 6);
    write_text(dir, "marked.txt",
               "\xef\xbb\xbf"
               "a ball",
               9);
    write_text(dir, "little.txt",
               "\xff\xfe"
               "a\0 \0",
               6);
    write_text(dir, "big.txt",
               "\xfe\xff"
               "\0a\0 ",
               6);
    write_text(dir, "mark.txt", "\xef\xbb\xbf", 3);
    cli_run(&plain, dir, "tokenize --json --prompt-file plain.txt");
    cli_run(&marked, dir, "tokenize --json --prompt-file marked.txt");
    assert_int_equal(plain.code, 0);
    assert_string_equal(marked.out, plain.out);
    cli_run(&marked, dir, "tokenize --json --prompt-file - <marked.txt");
    assert_string_equal(marked.out, plain.out);
    static const char *const files[] = { "little.txt", "big.txt" };
    for (int i = 0; i < 2; i++) {
        char arguments[100], part[100];
        snprintf(arguments, sizeof arguments, "tokenize --prompt-file %s", files[i]);
        snprintf(part, sizeof part, "%s: is UTF-16 text; save it as UTF-8", files[i]);
        cli_run(&refused, dir, arguments);
        assert_int_equal(refused.code, 2);
        if (!strstr(refused.err, part)) fail_msg("%s", refused.err);
    }
    cli_run(&refused, dir, "tokenize --prompt-file mark.txt");
    assert_int_equal(refused.code, 2);
    assert_non_null(strstr(refused.err, "prompt is empty"));
    m2_test_remove_tree(dir);
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

/* The command that shows what becomes of a caption says what was wrong with it, as `generate` does. */
static void tokenize_warns_of_captions_that_are_not_taken_whole(void **state)
{
    (void)state;
    static cli_result shown;
    char *dir = m2_test_make_dir();
    cli_run(&shown, dir, "tokenize --json -p '{\"global_layer\": {\"context\": \"x\",}}'");
    assert_int_equal(shown.code, 0);
    assert_string_equal(shown.err, "warning prompt: it begins with { and is no JSON: a string is "
                                   "missing at line 1, column 34; it is taken as plain text\n");
    assert_null(strstr(shown.out, "warning"));
    cli_run(&shown, dir, "tokenize -p '{\"global_layer\": {\"context\": \"x\"}}'");
    assert_int_equal(shown.code, 0);
    assert_string_equal(shown.err, "");
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
        cmocka_unit_test(parts_of_a_model_are_inspected_by_their_folders),
        cmocka_unit_test(a_fault_of_several_lines_stands_below_its_part),
        cmocka_unit_test(byte_order_marks_are_dropped_or_refused),
        cmocka_unit_test(prompts_are_taken_as_they_are),
        cmocka_unit_test(tokenize_warns_of_captions_that_are_not_taken_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
