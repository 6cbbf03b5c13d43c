#include "support/check.h"

#include "core/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static m2_status parse(m2_options *options, unsigned command, const char *line)
{
    static char copy[512];
    static char *argv[32];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *save = NULL, *word = strtok_r(copy, " ", &save); word;
         word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    return m2_options_parse(options, command, argc, argv, 0);
}

/* Catches a form of giving a value that is lost or taken for an operand. */
static void values_are_taken_in_every_gnu_form(void **state)
{
    (void)state;
    m2_options options;
    check_ok(parse(&options, M2_CMD_GENERATE, "-p ball --output=a.mp4 --steps 4 -mdir -q"));
    assert_string_equal(options.values[M2_OPT_PROMPT], "ball");
    assert_string_equal(options.values[M2_OPT_OUTPUT], "a.mp4");
    assert_string_equal(options.values[M2_OPT_STEPS], "4");
    assert_string_equal(options.values[M2_OPT_MODEL], "dir");
    assert_true(m2_options_has(&options, M2_OPT_QUIET));
    assert_int_equal(options.n_operands, 0);
    check_ok(parse(&options, M2_CMD_DECODE, "-- -odd-name"));
    assert_int_equal(options.n_operands, 1);
    assert_string_equal(options.operands[0], "-odd-name");
}

/* Catches options that are parsed and ignored. */
static void wrong_use_is_refused_with_the_option_named(void **state)
{
    (void)state;
    static const struct {
        const char *line, *part;
    } cases[] = {
        { "--promt x", "did you mean --prompt" },
        { "--xyzzy 1", "unknown option --xyzzy" },
        { "--foo 1", "unknown option --foo; --help lists all" }, /* not --isa */
        { "--sead 1", "did you mean --seed?" },
        { "--steps", "--steps needs a value" },
        { "--steps 1 --steps 2", "given twice" },
        { "--quiet=yes", "takes no value" },
        { "-z", "unknown option -z" },
        { "-qv", "one by one" },
    };
    m2_options options;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_fails(parse(&options, M2_CMD_GENERATE, cases[i].line), M2_ERR_ARG, cases[i].part);
    check_fails(parse(&options, M2_CMD_DECODE, "--prompt x"), M2_ERR_ARG,
                "unknown option --prompt");
}

/* Catches a part that is not built and silently left out. */
static void parts_that_are_not_built_are_refused_by_name(void **state)
{
    (void)state;
    m2_options options;
    check_fails(parse(&options, M2_CMD_GENERATE, "--image a.png"), M2_ERR_UNSUPPORTED,
                "--image: the image encoder is not built yet");
    check_fails(parse(&options, M2_CMD_GENERATE, "--layout sp=8"), M2_ERR_UNSUPPORTED, "--layout");
}

/* Catches strtol's and strtod's leniency: blanks, trailing letters, hex floats out of range, NaN. */
static void numbers_are_read_strictly(void **state)
{
    (void)state;
    static const char *const bad_ints[] = { "",    "x",  "1x",
                                            "1.5", "0",  "11",
                                            "+5",  " 5", "99999999999999999999" };
    m2_options options = { .command = M2_CMD_GENERATE };
    int64_t value;
    for (size_t i = 0; i < sizeof bad_ints / sizeof bad_ints[0]; i++) {
        options.values[M2_OPT_STEPS] = bad_ints[i];
        check_fails(m2_options_int(&options, M2_OPT_STEPS, 1, 10, 3, &value), M2_ERR_ARG,
                    "--steps");
    }
    options.values[M2_OPT_STEPS] = "10";
    check_ok(m2_options_int(&options, M2_OPT_STEPS, 1, 10, 3, &value));
    assert_int_equal(value, 10);
    options.values[M2_OPT_STEPS] = NULL;
    check_ok(m2_options_int(&options, M2_OPT_STEPS, 1, 10, 3, &value));
    assert_int_equal(value, 3);

    static const char *const bad_reals[] = { "", "nan", "inf", "-1", "1e9", "2,5", "3 " };
    double real;
    for (size_t i = 0; i < sizeof bad_reals / sizeof bad_reals[0]; i++) {
        options.values[M2_OPT_SHIFT] = bad_reals[i];
        check_fails(m2_options_real(&options, M2_OPT_SHIFT, 0, 1000, 0, &real), M2_ERR_ARG,
                    "--shift");
    }
}

static void the_whole_range_of_seeds_is_read(void **state)
{
    (void)state;
    m2_options options = { .command = M2_CMD_GENERATE };
    int64_t seed;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        { "0", 0 }, { "-1", -1 }, { "4294967296", 4294967296 }, { "9223372036854775807", INT64_MAX }
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        options.values[M2_OPT_SEED] = good[i].text;
        check_ok(m2_options_int(&options, M2_OPT_SEED, -1, INT64_MAX, 42, &seed));
        assert_true(seed == good[i].value);
    }
    static const char *const bad[] = { "-2", "9223372036854775808", "18446744073709551616" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        options.values[M2_OPT_SEED] = bad[i];
        check_fails(m2_options_int(&options, M2_OPT_SEED, -1, INT64_MAX, 42, &seed), M2_ERR_ARG,
                    "--seed");
    }
}

static void pairs_and_sizes_are_read_strictly(void **state)
{
    (void)state;
    m2_options options = { .command = M2_CMD_GENERATE };
    int width, height;
    options.values[M2_OPT_OUTPUT_SIZE] = "1920x1080";
    check_ok(m2_options_pair(&options, M2_OPT_OUTPUT_SIZE, 16, 16384, &width, &height));
    assert_int_equal(width, 1920);
    assert_int_equal(height, 1080);
    static const char *const bad_pairs[] = {
        "1920", "1920x", "x1080", "1920x1080x3", "8x1080", "a"
    };
    for (size_t i = 0; i < sizeof bad_pairs / sizeof bad_pairs[0]; i++) {
        options.values[M2_OPT_OUTPUT_SIZE] = bad_pairs[i];
        check_fails(m2_options_pair(&options, M2_OPT_OUTPUT_SIZE, 16, 16384, &width, &height),
                    M2_ERR_ARG, "--output-size");
    }
    size_t bytes;
    options.values[M2_OPT_RAM_LIMIT] = "1.5G";
    check_ok(m2_options_bytes(&options, M2_OPT_RAM_LIMIT, &bytes));
    assert_true(bytes == (size_t)3 << 29);
    static const char *const bad_sizes[] = { "", "G", "0", "0.5", "-1G", "1X", "1GG" };
    for (size_t i = 0; i < sizeof bad_sizes / sizeof bad_sizes[0]; i++) {
        options.values[M2_OPT_RAM_LIMIT] = bad_sizes[i];
        check_fails(m2_options_bytes(&options, M2_OPT_RAM_LIMIT, &bytes), M2_ERR_ARG,
                    "--ram-limit");
    }
}

/* Catches a row without help, and one whose missing part is not marked. */
static void help_lists_every_option_and_marks_what_is_not_built(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    m2_options_print_help(stream, M2_CMD_GENERATE);
    fclose(stream);
    assert_non_null(strstr(text, "--prompt TEXT"));
    assert_non_null(strstr(text, "-o, --output FILE.mp4"));
    const char *image = strstr(text, "--image");
    assert_non_null(image);
    assert_non_null(strstr(image, "[not built yet]"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_taken_in_every_gnu_form),
        cmocka_unit_test(wrong_use_is_refused_with_the_option_named),
        cmocka_unit_test(parts_that_are_not_built_are_refused_by_name),
        cmocka_unit_test(numbers_are_read_strictly),
        cmocka_unit_test(the_whole_range_of_seeds_is_read),
        cmocka_unit_test(pairs_and_sizes_are_read_strictly),
        cmocka_unit_test(help_lists_every_option_and_marks_what_is_not_built),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
