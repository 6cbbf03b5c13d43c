#include "core/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GEN   M2_CMD_GENERATE
#define RUNS  (M2_CMD_GENERATE | M2_CMD_DECODE)
#define BENCH M2_CMD_BENCH_STEP
#define PLAN  M2_CMD_PLAN
#define ALL   (RUNS | M2_CMD_INSPECT | M2_CMD_TOKENIZE | M2_CMD_DOCTOR | PLAN | BENCH)

typedef struct option_row {
    const char *name;     /* without the dashes                       */
    char letter;          /* short form, 0 for none                   */
    const char *argument; /* NULL for a switch                        */
    unsigned commands;
    const char *help;
    const char *not_built; /* why asking for it is refused; NULL: built */
} option_row;

static const option_row table[M2_OPT_COUNT] = {
    [M2_OPT_MODEL] = { "model", 'm', "DIR", ALL & ~(unsigned)M2_CMD_DOCTOR,
                       "checkpoint root (default: $MAGI2_MODEL, else the bundled demo model)",
                       NULL },
    [M2_OPT_PROMPT] = { "prompt", 'p', "TEXT", GEN | M2_CMD_TOKENIZE,
                        "what to show and to be heard; taken as it is, no escapes", NULL },
    [M2_OPT_PROMPT_FILE] = { "prompt-file", 0, "FILE", GEN | M2_CMD_TOKENIZE,
                             "the prompt is the whole file to its last byte; \"-\" is stdin",
                             NULL },
    [M2_OPT_SAMPLES] = { "samples", 0, "FILE.json", GEN, "a batch of prompts",
                         "batches from a samples file are not built yet" },
    [M2_OPT_IMAGE] = { "image", 0, "FILE", GEN, "first frame of the clip",
                       "the image encoder is not built yet; leave --image out" },
    [M2_OPT_NEGATIVE] = { "negative", 0, "TEXT", GEN,
                          "what to steer away from (default: the model's)", NULL },
    [M2_OPT_NEGATIVE_FILE] = { "negative-file", 0, "FILE", GEN, "the same from a file", NULL },
    [M2_OPT_NO_NEGATIVE] = { "no-negative", 0, NULL, GEN,
                             "no negative prompt: the uncond branch has no text", NULL },
    [M2_OPT_OUTPUT] = { "output", 'o', "FILE.mp4", RUNS,
                        "the clip to write; replaced if it is there", NULL },
    [M2_OPT_TIER] = { "tier", 0, "NAME", GEN | PLAN | BENCH,
                      "272p, 540p, 1080p [not built yet], or one that the model's magi2.json names "
                      "(default: the model's)",
                      NULL },
    [M2_OPT_STEPS] = { "steps", 0, "N", GEN | BENCH,
                       "denoising steps, 1 to 1000 (default: the model's; to measure, 5 steps or "
                       "runs)",
                       NULL },
    [M2_OPT_REFINER_STEPS] = { "refiner-steps", 0, "N", GEN, "steps of the 1080p refiner",
                               "the refiner is not built yet" },
    [M2_OPT_SHIFT] = { "shift", 0, "X", GEN, "sigma shift, above 0 (default: the model's)", NULL },
    [M2_OPT_SEED] = { "seed", 0, "N", GEN,
                      "0 to 2^63-1; -1 draws one (default: the model's, 42 as released)", NULL },
    [M2_OPT_NOISE] = { "noise", 0, "FILE", GEN,
                       "start from noise.video and noise.audio of this .safetensors file", NULL },
    [M2_OPT_NOISE_GRID] = { "noise-grid", 0, "SMSxTHREADS", GEN,
                            "draw the noise of another card (default 132x2048: H100, H200)", NULL },
    [M2_OPT_GUIDANCE_VIDEO] = { "guidance-video", 0, "X", GEN,
                                "guidance scale of the video (default: the model's, 5 as released)",
                                NULL },
    [M2_OPT_GUIDANCE_AUDIO] = { "guidance-audio", 0, "X", GEN,
                                "guidance scale of the sound (default: the model's, 7 as released)",
                                NULL },
    [M2_OPT_GUIDANCE_RESCALE] = { "guidance-rescale", 0, "X", GEN,
                                  "0 (off, as released) to 1: pull the deviation back to the cond "
                                  "branch's",
                                  NULL },
    [M2_OPT_GUIDANCE_TRICK] = { "guidance-trick", 0, "FRAMES:X", GEN,
                                "the first FRAMES latent frames use at most scale X; \"off\"",
                                NULL },
    [M2_OPT_GUIDANCE_DYNAMIC] = { "guidance-dynamic", 0, "T:X", GEN,
                                  "below timestep T the video scale is at most X; \"off\"", NULL },
    [M2_OPT_GUIDANCE_SKIM] = { "guidance-skim", 0, "X", GEN,
                               "skimmed guidance with this scale; \"off\"", NULL },
    [M2_OPT_OUTPUT_SIZE] = { "output-size", 0, "WxH", RUNS,
                             "exact final size, even numbers; the picture is stretched to it",
                             NULL },
    [M2_OPT_VIDEO_ENCODER] = { "video-encoder", 0, "NAME", RUNS,
                               "H.264 encoder: libx264, h264_nvenc, libopenh264, h264_vaapi "
                               "(default: the first that opens)",
                               NULL },
    [M2_OPT_BACKEND] = { "backend", 0, "NAME", RUNS | PLAN | BENCH,
                         "auto (a GPU if there is one), cpu, cuda or musa", NULL },
    [M2_OPT_THREADS] = { "threads", 0, "N", RUNS | BENCH,
                         "CPU threads (default: every CPU the process may use)", NULL },
    [M2_OPT_DEVICE] = { "device", 0, "N", RUNS | PLAN | BENCH, "which GPU, from 0", NULL },
    [M2_OPT_ISA] = { "isa", 0, "NAME", RUNS | BENCH,
                     "instruction set: ref, avx2, avx512 (for tests; same bits)", NULL },
    [M2_OPT_RAM_LIMIT] = { "ram-limit", 0, "SIZE", RUNS | PLAN | BENCH,
                           "on the CPU: refuse a plan that needs more memory, mapped weights "
                           "counted, e.g. 12G",
                           NULL },
    [M2_OPT_VRAM_LIMIT] = { "vram-limit", 0, "SIZE", RUNS | PLAN | BENCH,
                            "take no more than this on the GPU, the driver's part counted, "
                            "e.g. 40G",
                            NULL },
    [M2_OPT_LAYERS] = { "layers", 0, "N", BENCH,
                        "bench step, made-up weights: MoE layers with experts of their own, the "
                        "others share "
                        "them (default: as many as fit)",
                        NULL },
    [M2_OPT_STAGE] = { "stage", 0, "NAME", BENCH,
                       "bench stage: text, video, audio, or all of them (default)", NULL },
    [M2_OPT_TOKENS] = { "tokens", 0, "N", BENCH,
                        "bench stage: tokens of the text, 1 to 65536 (default: 2500)", NULL },
    [M2_OPT_LAYOUT] = { "layout", 0, "SPEC", RUNS, "how ranks share the work",
                        "runs on several ranks are not built yet" },
    [M2_OPT_OFFLOAD] = { "offload", 0, "MODE", RUNS, "keep weights outside the device",
                         "offloading is not built yet" },
    [M2_OPT_DTYPE] = { "dtype", 0, "NAME", GEN, "approximate weights",
                       "approximate modes are not built yet" },
    [M2_OPT_CACHE] = { "cache", 0, "MODE", GEN, "approximate step cache",
                       "approximate modes are not built yet" },
    [M2_OPT_SAVE] = { "save", 0, "DIR", RUNS,
                      "write video_latent, audio_latent, text, negative_text, frames, wave "
                      "(.safetensors) and manifest.json with their SHA-256",
                      NULL },
    [M2_OPT_METRICS] = { "metrics", 0, "DIR", GEN, "a record per rank and step",
                         "step records are not built yet" },
    [M2_OPT_SAVE_LATENT] = { "save-latent", 0, "FILE", GEN,
                             "keep the latents, written before decoding", NULL },
    [M2_OPT_CHECKPOINT_EVERY] = { "checkpoint-every", 0, "N", GEN,
                                  "write OUTPUT.state every N steps", NULL },
    [M2_OPT_RESUME] = { "resume", 0, "FILE", GEN,
                        "go on from a state file, to the same bits as an unbroken run; prompt and "
                        "settings are the file's, others are refused",
                        NULL },
    [M2_OPT_QUIET] = { "quiet", 'q', NULL, RUNS | BENCH, "errors alone, and a seed that was drawn",
                       NULL },
    [M2_OPT_VERBOSE] = { "verbose", 'v', NULL, RUNS | BENCH, "decisions too", NULL },
    [M2_OPT_JSON] = { "json", 0, NULL, ALL, "one JSON object a line on stdout", NULL },
    [M2_OPT_HELP] = { "help", 'h', NULL, ALL, "this text", NULL },
};

int m2_options_distance(const char *a, const char *b)
{
    enum { LONGEST = 32 };
    int row[LONGEST + 1];
    const int n = (int)strlen(b);
    if (n > LONGEST || strlen(a) > LONGEST) return LONGEST;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            const int above = row[j];
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (above + 1 < best) best = above + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
            diagonal = above;
        }
    }
    return row[n];
}

static m2_status fail_unknown(unsigned command, const char *name)
{
    /* A third of the letters may be wrong: more is another word. */
    int best = (int)strlen(name) / 3 + 1;
    if (best > 4) best = 4;
    const char *nearest = NULL;
    for (int i = 0; i < M2_OPT_COUNT; i++) {
        if (!(table[i].commands & command)) continue;
        const int distance = m2_options_distance(name, table[i].name);
        if (distance >= best) continue;
        best = distance;
        nearest = table[i].name;
    }
    if (nearest)
        return m2_fail(M2_ERR_ARG, "unknown option --%s; did you mean --%s? --help lists all", name,
                       nearest);
    return m2_fail(M2_ERR_ARG, "unknown option --%s; --help lists all", name);
}

static int find_row(unsigned command, const char *name, char letter)
{
    for (int i = 0; i < M2_OPT_COUNT; i++) {
        if (!(table[i].commands & command)) continue;
        if (name ? strcmp(table[i].name, name) == 0 : (letter && table[i].letter == letter))
            return i;
    }
    return -1;
}

static m2_status set_value(m2_options *options, int idx, const char *value)
{
    if (options->values[idx]) return m2_fail(M2_ERR_ARG, "--%s is given twice", table[idx].name);
    if (table[idx].not_built)
        return m2_fail(M2_ERR_UNSUPPORTED, "--%s: %s", table[idx].name, table[idx].not_built);
    options->values[idx] = value;
    return M2_OK;
}

/* One "--name", "--name=value" or "-x" at argv[*at]; moves *at over a value that follows. */
static m2_status parse_option(m2_options *options, int argc, char **argv, int *at)
{
    const char *argument = argv[*at];
    const char *value = NULL;
    char name[64] = "";
    int idx;
    if (argument[1] == '-') {
        const char *equals = strchr(argument, '=');
        const size_t n = equals ? (size_t)(equals - argument - 2) : strlen(argument) - 2;
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1),
                 argument + 2);
        if (equals) value = equals + 1;
        idx = find_row(options->command, name, 0);
        if (idx < 0) return fail_unknown(options->command, name);
    } else {
        idx = find_row(options->command, NULL, argument[1]);
        if (idx < 0)
            return m2_fail(M2_ERR_ARG, "unknown option -%c; --help lists all", argument[1]);
        if (argument[2] && !table[idx].argument)
            return m2_fail(M2_ERR_ARG, "%s: short options are given one by one", argument);
        if (argument[2]) value = argument + 2;
    }
    if (!table[idx].argument) {
        if (value) return m2_fail(M2_ERR_ARG, "--%s takes no value", table[idx].name);
        return set_value(options, idx, "");
    }
    if (!value) {
        if (*at + 1 >= argc)
            return m2_fail(M2_ERR_ARG, "--%s needs a value: --%s %s", table[idx].name,
                           table[idx].name, table[idx].argument);
        value = argv[++*at];
    }
    return set_value(options, idx, value);
}

m2_status m2_options_parse(m2_options *options, unsigned command, int argc, char **argv, int first)
{
    *options = (m2_options){ .command = command };
    int only_operands = 0;
    for (int i = first; i < argc; i++) {
        if (!only_operands && strcmp(argv[i], "--") == 0) {
            only_operands = 1;
        } else if (!only_operands && argv[i][0] == '-' && argv[i][1]) {
            M2_TRY(parse_option(options, argc, argv, &i));
        } else if (options->n_operands == M2_OPERANDS_MAX) {
            return m2_fail(M2_ERR_ARG, "more than %d file names", M2_OPERANDS_MAX);
        } else {
            options->operands[options->n_operands++] = argv[i];
        }
    }
    return M2_OK;
}

static void print_wrapped(FILE *stream, const char *text, const char *marker)
{
    enum { COLUMN = 30, WIDTH = 96 };
    int column = COLUMN;
    char line[512];
    snprintf(line, sizeof line, "%s%s", marker, text);
    for (char *save = NULL, *word = strtok_r(line, " ", &save); word;
         word = strtok_r(NULL, " ", &save)) {
        const int n = (int)strlen(word);
        if (column > COLUMN && column + 1 + n > WIDTH) {
            fprintf(stream, "\n%*s", COLUMN, "");
            column = COLUMN;
        } else if (column > COLUMN) {
            fputc(' ', stream);
            column++;
        }
        fputs(word, stream);
        column += n;
    }
    fputc('\n', stream);
}

void m2_options_print_help(FILE *stream, unsigned command)
{
    for (int i = 0; i < M2_OPT_COUNT; i++) {
        if (!(table[i].commands & command)) continue;
        char head[64];
        if (table[i].letter)
            snprintf(head, sizeof head, "  -%c, --%s %s", table[i].letter, table[i].name,
                     table[i].argument ? table[i].argument : "");
        else
            snprintf(head, sizeof head, "      --%s %s", table[i].name,
                     table[i].argument ? table[i].argument : "");
        fprintf(stream, "%-29s ", head);
        if (strlen(head) > 29) fprintf(stream, "\n%30s", "");
        const char *help = i == M2_OPT_MODEL && command & (PLAN | BENCH)
                               ? "checkpoint root (default: $MAGI2_MODEL, else as said at the end)"
                               : table[i].help;
        print_wrapped(stream, help, table[i].not_built ? "[not built yet] " : "");
    }
}

m2_status m2_options_int(const m2_options *options, m2_option_id id, int64_t low, int64_t high,
                         int64_t fallback, int64_t *value_out)
{
    const char *text = options->values[id];
    *value_out = fallback;
    if (!text) return M2_OK;
    char *end = NULL;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < low || value > high ||
        !(text[0] == '-' || (text[0] >= '0' && text[0] <= '9')))
        return m2_fail(M2_ERR_ARG, "--%s %s: must be a whole number from %lld to %lld",
                       table[id].name, text, (long long)low, (long long)high);
    *value_out = value;
    return M2_OK;
}

m2_status m2_options_real(const m2_options *options, m2_option_id id, double low, double high,
                          double fallback, double *value_out)
{
    const char *text = options->values[id];
    *value_out = fallback;
    if (!text) return M2_OK;
    char *end = NULL;
    const double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < low || value > high)
        return m2_fail(M2_ERR_ARG, "--%s %s: must be a number from %g to %g", table[id].name, text,
                       low, high);
    *value_out = value;
    return M2_OK;
}

m2_status m2_options_pair(const m2_options *options, m2_option_id id, int64_t low, int64_t high,
                          int *first_out, int *second_out)
{
    const char *text = options->values[id];
    *first_out = *second_out = 0;
    if (!text) return M2_OK;
    char *middle = NULL, *end = NULL;
    errno = 0;
    const long long first = strtoll(text, &middle, 10);
    const int has_middle = middle != text && (*middle == 'x' || *middle == 'X');
    const long long second = has_middle ? strtoll(middle + 1, &end, 10) : 0;
    if (!has_middle || end == middle + 1 || *end || errno || first < low || first > high ||
        second < low || second > high)
        return m2_fail(M2_ERR_ARG, "--%s %s: must be %s, each from %lld to %lld", table[id].name,
                       text, table[id].argument, (long long)low, (long long)high);
    *first_out = (int)first;
    *second_out = (int)second;
    return M2_OK;
}

m2_status m2_options_bytes(const m2_options *options, m2_option_id id, size_t *bytes_out)
{
    const char *text = options->values[id];
    *bytes_out = 0;
    if (!text) return M2_OK;
    char *end = NULL;
    const double number = strtod(text, &end);
    double unit = 1;
    if (*end) {
        const char *const units = "KMGT";
        const char letter = *end >= 'a' ? (char)(*end - 'a' + 'A') : *end;
        const char *found = strchr(units, letter);
        if (found) {
            for (const char *u = units; u <= found; u++) unit *= 1024;
            end++;
            if (strcmp(end, "iB") == 0 || strcmp(end, "B") == 0) end += strlen(end);
        }
    }
    if (end == text || *end || !isfinite(number) || number * unit < 1 || number * unit > 1e18)
        return m2_fail(M2_ERR_ARG, "--%s %s: must be a size such as 12G, 512M or 1048576",
                       table[id].name, text);
    *bytes_out = (size_t)(number * unit);
    return M2_OK;
}
