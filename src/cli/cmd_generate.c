/* cmd_generate.c - options to a request, and the request to a clip. */
#include "cli/cli.h"
#include "core/temp_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* "N:X", or "off". */
static m2_status parse_pair(const m2_options *options, m2_option_id id, const char *name,
                            const char *form, int64_t high, int *is_on, int *count_out,
                            double *value_out)
{
    const char *text = options->values[id];
    if (!text) return M2_OK;
    if (strcasecmp(text, "off") == 0) {
        *is_on = 0;
        return M2_OK;
    }
    char *colon = NULL, *end = NULL;
    const long long count = strtoll(text, &colon, 10);
    const double value = *colon == ':' ? strtod(colon + 1, &end) : 0;
    if (colon == text || *colon != ':' || end == colon + 1 || *end || count < 0 || count > high ||
        !isfinite(value) || value < 0)
        return m2_fail(M2_ERR_ARG,
                       "%s %s: must be %s with a number from 0 to %lld and a scale from 0 on, or "
                       "\"off\"",
                       name, text, form, (long long)high);
    *is_on = 1;
    *count_out = (int)count;
    *value_out = value;
    return M2_OK;
}

static m2_status parse_guidance(const m2_options *options, magi2_request *request)
{
    M2_TRY(m2_options_real(options, M2_OPT_GUIDANCE_VIDEO, 0, 1000, request->guidance_video,
                           &request->guidance_video));
    M2_TRY(m2_options_real(options, M2_OPT_GUIDANCE_AUDIO, 0, 1000, request->guidance_audio,
                           &request->guidance_audio));
    M2_TRY(m2_options_real(options, M2_OPT_GUIDANCE_RESCALE, 0, 1, request->guidance_rescale,
                           &request->guidance_rescale));
    M2_TRY(parse_pair(options, M2_OPT_GUIDANCE_TRICK, "--guidance-trick", "FRAMES:X", 1000000,
                      &request->guidance_trick, &request->guidance_trick_frames,
                      &request->guidance_trick_value));
    M2_TRY(parse_pair(options, M2_OPT_GUIDANCE_DYNAMIC, "--guidance-dynamic", "T:X", 1000,
                      &request->guidance_dynamic, &request->guidance_dynamic_start,
                      &request->guidance_dynamic_cutoff));
    const char *skim = options->values[M2_OPT_GUIDANCE_SKIM];
    if (skim && strcasecmp(skim, "off") == 0) {
        request->guidance_skim = 0;
    } else if (skim) {
        M2_TRY(m2_options_real(options, M2_OPT_GUIDANCE_SKIM, 0, 1000, 0,
                               &request->guidance_skim_scale));
        request->guidance_skim = 1;
    }
    return M2_OK;
}

static m2_status parse_numbers(const m2_options *options, magi2_request *request)
{
    int64_t value;
    M2_TRY(m2_options_int(options, M2_OPT_STEPS, 1, 1000, request->n_steps, &value));
    request->n_steps = (int)value;
    M2_TRY(m2_options_real(options, M2_OPT_SHIFT, 1e-6, 1e6, request->shift, &request->shift));
    M2_TRY(m2_options_int(options, M2_OPT_SEED, -1, INT64_MAX, request->seed, &request->seed));
    M2_TRY(m2_options_int(options, M2_OPT_CHECKPOINT_EVERY, 1, 1000, 0, &value));
    request->checkpoint_every = (int)value;
    M2_TRY(m2_options_pair(options, M2_OPT_OUTPUT_SIZE, 16, 16384, &request->output_width,
                           &request->output_height));
    if (request->output_width % 2 || request->output_height % 2)
        return m2_fail(M2_ERR_ARG, "--output-size %s: both numbers must be even",
                       options->values[M2_OPT_OUTPUT_SIZE]);
    if (m2_options_has(options, M2_OPT_NOISE_GRID))
        M2_TRY(m2_options_pair(options, M2_OPT_NOISE_GRID, 1, 65536, &request->noise_sms,
                               &request->noise_threads));
    return parse_guidance(options, request);
}

static int check_output_names(const m2_options *options)
{
    static const m2_option_id outputs[] = { M2_OPT_OUTPUT, M2_OPT_SAVE, M2_OPT_SAVE_LATENT };
    static const char *const names[] = { "output", "save", "save-latent" };
    const char *output = options->values[M2_OPT_OUTPUT];
    for (int i = 0; i < 3; i++) {
        const char *value = options->values[outputs[i]];
        if (value && !*value) return m2_cli_usage(options, "--%s has an empty name", names[i]);
    }
    if (!output && !m2_options_has(options, M2_OPT_SAVE))
        return m2_cli_usage(options, "nowhere to write; use --output FILE.mp4");
    if (output && strcmp(output, "-") == 0)
        return m2_cli_usage(options, "--output -: an mp4 cannot be written to a pipe; name a file");
    const size_t n = output ? strlen(output) : 0;
    if (output && !m2_options_has(options, M2_OPT_QUIET) &&
        (n < 5 || strcasecmp(output + n - 4, ".mp4") != 0))
        fprintf(stderr, "magi2: warning: --output %s: the file will be an mp4 whatever its name\n",
                output);
    return 0;
}

/* The prompts' files are known here alone; the library looks at the other inputs. */
static int check_texts_are_kept(const m2_options *options)
{
    static const m2_option_id outputs[] = { M2_OPT_OUTPUT, M2_OPT_SAVE_LATENT };
    static const m2_option_id inputs[] = { M2_OPT_PROMPT_FILE, M2_OPT_NEGATIVE_FILE };
    static const char *const output_names[] = { "output", "save-latent" };
    static const char *const input_names[] = { "prompt-file", "negative-file" };
    for (int i = 0; i < 2; i++) {
        const char *input = options->values[inputs[i]];
        char state[4096];
        for (int k = 0; k < 2 && input; k++) {
            const char *output = options->values[outputs[k]];
            if (output && m2_is_same_file(output, input))
                return m2_cli_usage(options, "--%s %s would replace --%s %s; use another name",
                                    output_names[k], output, input_names[i], input);
        }
        const char *output = options->values[M2_OPT_OUTPUT];
        snprintf(state, sizeof state, "%s.state", output ? output : "");
        if (input && output && m2_is_same_file(state, input))
            return m2_cli_usage(options,
                                "--output %s keeps its state in %s, which would replace --%s %s; "
                                "use another name",
                                output, state, input_names[i], input);
    }
    return 0;
}

static int check_combinations(const m2_options *options)
{
    if (m2_options_has(options, M2_OPT_NEGATIVE) + m2_options_has(options, M2_OPT_NEGATIVE_FILE) +
            m2_options_has(options, M2_OPT_NO_NEGATIVE) >
        1)
        return m2_cli_usage(options, "--negative, --negative-file and --no-negative: use one");
    int code = check_output_names(options);
    if (code) return code;
    code = check_texts_are_kept(options);
    if (code) return code;
    const char *prompt_file = options->values[M2_OPT_PROMPT_FILE];
    const char *negative_file = options->values[M2_OPT_NEGATIVE_FILE];
    if (prompt_file && negative_file && strcmp(prompt_file, "-") == 0 &&
        strcmp(negative_file, "-") == 0)
        return m2_cli_usage(options, "--prompt-file and --negative-file cannot both be stdin");
    if (m2_options_has(options, M2_OPT_NOISE) &&
        (m2_options_has(options, M2_OPT_SEED) || m2_options_has(options, M2_OPT_NOISE_GRID)))
        return m2_cli_usage(options,
                            "--noise gives the noise itself; leave --seed and --noise-grid "
                            "out");
    return 0;
}

static void print_result(const m2_options *options, const magi2_request *request,
                         const magi2_result *result)
{
    if (m2_options_has(options, M2_OPT_JSON)) {
        printf("{\"event\":\"done\",\"output\":");
        if (request->output)
            m2_cli_json_string(stdout, request->output);
        else
            fputs("null", stdout);
        printf(",\"seed\":%lld,\"steps\":%d,\"width\":%d,\"height\":%d,\"frames\":%d,"
               "\"fps\":\"%d/%d\",\"sample_rate\":%d,\"samples\":%lld,\"tokens\":%d,"
               "\"negative_tokens\":%d,\"tokens_cut\":%d,\"encode_seconds\":%.3f,"
               "\"preview_seconds\":%.3f,\"decode_seconds\":%.3f,\"mux_seconds\":%.3f,"
               "\"seconds\":%.3f,\"peak_memory_bytes\":%zu}\n",
               (long long)result->seed, result->n_steps, result->width, result->height,
               result->n_frames, result->fps_num, result->fps_den, result->sample_rate,
               (long long)result->n_samples, result->n_tokens, result->n_negative_tokens,
               result->n_tokens_cut, result->encode_seconds, result->preview_seconds,
               result->decode_seconds, result->mux_seconds, result->total_seconds,
               result->peak_memory_bytes);
        return;
    }
    if (m2_options_has(options, M2_OPT_QUIET)) {
        /* What nobody chose is said all the same: the clip could not be made again without it. */
        if (request->seed == MAGI2_SEED_RANDOM) printf("seed %lld\n", (long long)result->seed);
        return;
    }
    printf("%s: %dx%d, %d frames at %g/s, %lld samples at %d Hz; seed %lld, %d step%s; %.1f s "
           "(encode %.1f, preview %.1f, decode %.1f, mux %.1f), %.0f MiB at most\n",
           request->output ? request->output : request->save_dir, result->width, result->height,
           result->n_frames, (double)result->fps_num / result->fps_den,
           (long long)result->n_samples, result->sample_rate, (long long)result->seed,
           result->n_steps, result->n_steps == 1 ? "" : "s", result->total_seconds,
           result->encode_seconds, result->preview_seconds, result->decode_seconds,
           result->mux_seconds, (double)result->peak_memory_bytes / 1048576.0);
}

static int run_request(const m2_options *options, magi2_request *request)
{
    magi2_params params;
    const int code = m2_cli_engine_params(options, &params);
    if (code) return code;
    m2_cli_progress progress;
    m2_cli_progress_init(&progress, options);
    request->progress = m2_cli_progress_show;
    request->progress_user = &progress;
    request->cancel = m2_cli_cancel_flag();

    magi2_engine *engine = NULL;
    magi2_status status = magi2_check_request(request);
    magi2_result result = { 0 };
    if (status == MAGI2_OK) status = magi2_open(&params, &engine);
    if (status == MAGI2_OK) status = magi2_generate(engine, request, &result);
    m2_cli_progress_end(&progress);
    magi2_close(engine);
    if (status != MAGI2_OK) return m2_cli_fail(options, m2_cli_exit_code(status));
    print_result(options, request, &result);
    return M2_EXIT_DONE;
}

int m2_cmd_generate(const m2_options *options)
{
    magi2_request request;
    magi2_request_init(&request);
    if (parse_numbers(options, &request) != M2_OK) return m2_cli_fail(options, M2_EXIT_USAGE);
    int code = check_combinations(options);
    if (code) return code;
    char *negative = NULL, *prompt = NULL;
    /* A resumed run has its prompt in the state file. */
    if (!m2_options_has(options, M2_OPT_RESUME) || m2_options_has(options, M2_OPT_PROMPT) ||
        m2_options_has(options, M2_OPT_PROMPT_FILE)) {
        prompt = m2_cli_prompt(options, &code);
        if (!prompt) return code;
    }
    if (m2_options_has(options, M2_OPT_NEGATIVE_FILE)) {
        negative =
            m2_cli_read_text(options, options->values[M2_OPT_NEGATIVE_FILE], "negative-file");
        if (!negative) {
            free(prompt);
            return M2_EXIT_USAGE;
        }
    }
    request.prompt = prompt;
    request.negative = negative ? negative : options->values[M2_OPT_NEGATIVE];
    request.use_negative = !m2_options_has(options, M2_OPT_NO_NEGATIVE);
    request.tier = options->values[M2_OPT_TIER];
    request.noise = options->values[M2_OPT_NOISE];
    request.output = options->values[M2_OPT_OUTPUT];
    request.video_encoder = options->values[M2_OPT_VIDEO_ENCODER];
    request.save_dir = options->values[M2_OPT_SAVE];
    request.save_latent = options->values[M2_OPT_SAVE_LATENT];
    request.resume = options->values[M2_OPT_RESUME];
    code = run_request(options, &request);
    free(prompt);
    free(negative);
    return code;
}

int m2_cmd_decode(const m2_options *options)
{
    magi2_request request;
    magi2_request_init(&request);
    if (options->n_operands != 1)
        return m2_cli_usage(options,
                            "decode needs the file to decode: magi2 decode LATENT.safetensors "
                            "-o FILE.mp4");
    const int names_code = check_output_names(options);
    if (names_code) return names_code;
    if (m2_options_pair(options, M2_OPT_OUTPUT_SIZE, 16, 16384, &request.output_width,
                        &request.output_height) != M2_OK)
        return m2_cli_fail(options, M2_EXIT_USAGE);
    if (request.output_width % 2 || request.output_height % 2)
        return m2_cli_usage(options, "--output-size %s: both numbers must be even",
                            options->values[M2_OPT_OUTPUT_SIZE]);
    request.output = options->values[M2_OPT_OUTPUT];
    request.save_dir = options->values[M2_OPT_SAVE];
    request.video_encoder = options->values[M2_OPT_VIDEO_ENCODER];
    magi2_params params;
    const int code = m2_cli_engine_params(options, &params);
    if (code) return code;
    m2_cli_progress progress;
    m2_cli_progress_init(&progress, options);
    request.progress = m2_cli_progress_show;
    request.progress_user = &progress;
    request.cancel = m2_cli_cancel_flag();
    magi2_engine *engine = NULL;
    magi2_result result = { 0 };
    magi2_status status = magi2_open(&params, &engine);
    if (status == MAGI2_OK) status = magi2_decode(engine, options->operands[0], &request, &result);
    m2_cli_progress_end(&progress);
    magi2_close(engine);
    if (status != MAGI2_OK) return m2_cli_fail(options, m2_cli_exit_code(status));
    print_result(options, &request, &result);
    return M2_EXIT_DONE;
}
