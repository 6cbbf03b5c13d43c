/* main.c - finds the command and hands over. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

typedef struct command_row {
    const char *name;
    unsigned command;
    int (*run)(const m2_options *options);
    const char *operands; /* NULL: takes none */
    const char *job;
    const char *not_built; /* why it is refused; NULL: built */
    const char *note;      /* below the options; NULL: none  */
} command_row;

static const command_row commands[] = {
    { "generate", M2_CMD_GENERATE, m2_cmd_generate, NULL, "one clip from a prompt", NULL, NULL },
    { "decode", M2_CMD_DECODE, m2_cmd_decode, "LATENT.safetensors",
      "a saved latent or state file to mp4", NULL, NULL },
    { "inspect", M2_CMD_INSPECT, m2_cmd_inspect, "[PATH]",
      "what a checkpoint holds; strict check against the model tables", NULL, NULL },
    { "tokenize", M2_CMD_TOKENIZE, m2_cmd_tokenize, NULL,
      "prompt to ids, as the encoder will see them", NULL, NULL },
    { "doctor", M2_CMD_DOCTOR, m2_cmd_doctor, NULL, "this machine on one page", NULL, NULL },
    { "serve", 0, NULL, NULL, "the HTTP server", "the server is not built yet", NULL },
    { "bench", M2_CMD_BENCH_STEP, m2_cmd_bench, "step|stage",
      "measure: `bench step`, one denoising step; `bench stage`, text encoder and decoders", NULL,
      "Without --model and $MAGI2_MODEL: on the CPU the bundled demo model; on a GPU, and anywhere "
      "with\n--tier 272p or 540p, the released architecture with made-up weights.\n" },
    { "plan", M2_CMD_PLAN, m2_cmd_plan, NULL,
      "what a model needs on given hardware, before anything is loaded", NULL,
      "Without --model and $MAGI2_MODEL: the bundled demo model; with --tier 272p or 540p the "
      "released\ntransformer by its tables, with no other network; the first line says which.  "
      "Against a limit, the\nreleased one has as many experts as fit, as bench step has them.  "
      "--vram-limit takes a card's whole\nmemory as its driver counts it: 143156M for an H200.\n" },
    { "quantize", 0, NULL, NULL, "write a smaller checkpoint", "quantize is not built yet", NULL },
    { "compare", 0, NULL, NULL, "two runs' saved arrays", "compare is not built yet", NULL },
};
#define N_COMMANDS (int)(sizeof commands / sizeof commands[0])

static void print_usage(FILE *stream)
{
    fprintf(stream,
            "magi2 %s - MAGI-2 Preview: a prompt in, ten seconds of video with sound out\n\n"
            "usage: magi2 COMMAND [options]\n\n",
            magi2_version());
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(stream, "  %-10s %s%s\n", commands[i].name,
                commands[i].not_built ? "[not built yet] " : "", commands[i].job);
    fprintf(stream,
            "\nmagi2 COMMAND --help lists a command's options.\n"
            "Environment: MAGI2_MODEL, the checkpoint root where --model is not given.\n"
            "Exit: 0 done, 1 failed while running, 2 wrong usage, 3 interrupted (its state is "
            "saved\n      once a step is done); a second Ctrl-C ends at once with the signal.\n");
}

static void print_command_help(const command_row *row)
{
    printf("usage: magi2 %s [options]%s%s\n%s\n\n", row->name, row->operands ? " " : "",
           row->operands ? row->operands : "", row->job);
    if (row->not_built)
        printf("%s\n", row->not_built);
    else
        m2_options_print_help(stdout, row->command);
    if (row->note) printf("\n%s", row->note);
}

static int run_command(const command_row *row, int argc, char **argv)
{
    m2_options options;
    if (row->not_built && argc > 2 &&
        (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0)) {
        print_command_help(row);
        return M2_EXIT_DONE;
    }
    if (row->not_built) {
        fprintf(stderr, "magi2 %s: %s\n", row->name, row->not_built);
        return M2_EXIT_USAGE;
    }
    if (m2_options_parse(&options, row->command, argc, argv, 2) != M2_OK)
        return m2_cli_fail(NULL, M2_EXIT_USAGE);
    if (m2_options_has(&options, M2_OPT_HELP)) {
        print_command_help(row);
        return M2_EXIT_DONE;
    }
    if (options.n_operands > (row->operands ? 1 : 0))
        return m2_cli_usage(&options, "%s: unexpected argument '%s'%s", row->name,
                            options.operands[row->operands ? 1 : 0],
                            row->command & (M2_CMD_GENERATE | M2_CMD_TOKENIZE)
                                ? "; a prompt goes behind --prompt, quoted"
                                : "");
    if (m2_options_has(&options, M2_OPT_QUIET) && m2_options_has(&options, M2_OPT_VERBOSE))
        return m2_cli_usage(&options, "--quiet and --verbose are both given; use one");
    magi2_install_map_guard();
    m2_cli_catch_signals();
    return row->run(&options);
}

/* The command of that name, or NULL after a message that offers the nearest. */
static const command_row *find_command(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(name, commands[i].name) == 0) return &commands[i];
    }
    for (int i = 0; i < N_COMMANDS; i++) {
        if (m2_options_distance(name, commands[i].name) > 2) continue;
        fprintf(stderr, "magi2: unknown command '%s'; did you mean %s?\n", name, commands[i].name);
        return NULL;
    }
    fprintf(stderr, "magi2: unknown command '%s'; magi2 --help lists them\n", name);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return M2_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
        printf("magi2 %s\n", magi2_version());
        return M2_EXIT_DONE;
    }
    const int wants_help = strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 ||
                           strcmp(argv[1], "-h") == 0;
    if (wants_help && argc == 2) {
        print_usage(stdout);
        return M2_EXIT_DONE;
    }
    const command_row *row = find_command(argv[wants_help ? 2 : 1]);
    if (!row) return M2_EXIT_USAGE;
    if (!wants_help) return run_command(row, argc, argv);
    print_command_help(row);
    return M2_EXIT_DONE;
}
