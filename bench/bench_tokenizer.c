/* bench_tokenizer - time and memory of opening a tokenizer.json and of encoding texts that are hard
 * on one part or the other.
 *
 *   bench_tokenizer TOKENIZER.json [TEXT-FILE ...]
 *
 * Time is of the CPU, the best of five.  Memory is the growth of the process's peak, each text in a process of its own.
 */
#include "model/text/tokenizer.h"
#include "model/text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TEXT_BYTES ((size_t)1 << 20)

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static long peak_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static size_t count_chars(const char *text, size_t bytes)
{
    size_t n = 0;
    for (size_t k = 0; k < bytes; k++) n += ((unsigned char)text[k] & 0xc0) != 0x80;
    return n;
}

static void encode(const m2_tokenizer *tokenizer, const char *name, const char *text, size_t bytes)
{
    double best = 1e30;
    long long n_total = 0;
    const long before = peak_kib();
    for (int k = 0; k < 5; k++) {
        m2_tokens tokens;
        const double begin = now_ms();
        if (m2_tokenizer_encode(tokenizer, text, bytes, NULL, &tokens) != M2_OK) {
            printf("%-28s %s\n", name, m2_last_error());
            return;
        }
        const double ms = now_ms() - begin;
        if (ms < best) best = ms;
        n_total = tokens.n_total;
        m2_tokens_free(&tokens);
    }
    const double extra = (double)(peak_kib() - before) * 1024;
    printf("%-28s %9zu bytes %9zu chars %9lld tokens %9.2f ms %6.1f bytes/char\n", name, bytes,
           count_chars(text, bytes), n_total, best, extra / (double)count_chars(text, bytes));
}

/* In a child, so that the peak is this text's. */
static void measure(const m2_tokenizer *tokenizer, const char *name, const char *text, size_t bytes)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        encode(tokenizer, name, text, bytes);
        fflush(stdout);
        _exit(0);
    }
    if (child > 0) waitpid(child, NULL, 0);
}

static void measure_repeated(const m2_tokenizer *tokenizer, const char *name, const char *unit,
                             size_t bytes_max)
{
    const size_t n = strlen(unit), bytes = bytes_max / n * n;
    char *text = malloc(bytes ? bytes : 1);
    if (!text) abort();
    for (size_t at = 0; at < bytes; at += n) memcpy(text + at, unit, n);
    measure(tokenizer, name, text, bytes);
    free(text);
}

/* One run of characters drawn from `n` that begin at `first`. */
static void measure_drawn(const m2_tokenizer *tokenizer, const char *name, uint32_t first,
                          uint32_t n)
{
    char *text = malloc(TEXT_BYTES);
    if (!text) abort();
    uint64_t state = 1;
    size_t bytes = 0;
    while (bytes + 4 <= TEXT_BYTES) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        bytes += m2_utf8_put(first + (uint32_t)(state >> 33) % n, text + bytes);
    }
    measure(tokenizer, name, text, bytes);
    free(text);
}

static void measure_file(const m2_tokenizer *tokenizer, const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = malloc(16 * TEXT_BYTES);
    if (file && text) measure(tokenizer, path, text, fread(text, 1, 16 * TEXT_BYTES, file));
    if (file) fclose(file);
    free(text);
}

int main(int argc, char **argv)
{
    static const char *const units[][2] = {
        { "spaces", " " },
        { "newlines", "\n" },
        { "'a' without end", "a" },
        { "'ab' without end", "ab" },
        { "punctuation", "-" },
        { "space newline", " \n" },
        { "space x", "   x" },
        { "marks of two classes", "\xcc\x81\xcc\xa3" },
        { "marks of one class", "\xcc\x81" },
        { "a and marks", "a\xcc\x81" },
        { "emoji run", "\xf0\x9f\x98\x80" },
        { "emoji ZWJ run", "\xf0\x9f\x91\xa9\xe2\x80\x8d" },
        { "CJK", "\xe4\xbd\xa0\xe5\xa5\xbd" },
        { "CJK beyond the split", "\xf0\xa0\x80\x80" },
        { "Hangul", "\xea\xb0\x80\xea\xb0\x81" },
        { "Devanagari",
          "\xe0\xa4\xa8\xe0\xa4\xae\xe0\xa4\xb8\xe0\xa5\x8d\xe0\xa4\xa4\xe0\xa5\x87" },
        { "digits", "1234567890" },
        { "added tokens", "<|im_end|>" },
        { "almost added tokens", "<|im_en" },
        { "long s", "'\xc5\xbf" },
        { "NUL-like controls", "\x01" },
    };
    static const struct {
        const char *name;
        uint32_t first, n;
    } drawn[] = {
        { "one word of two letters", 'a', 2 },   { "one word of four letters", 'a', 4 },
        { "one word of eight letters", 'a', 8 }, { "one word of all letters", 'a', 26 },
        { "drawn punctuation", '!', 15 },        { "drawn Cyrillic", 0x430, 32 },
        { "drawn Devanagari", 0x905, 50 },       { "drawn Hangul", 0xac00, 11172 },
        { "drawn emoji", 0x1f300, 0x300 },       { "drawn CJK beyond the split", 0x20000, 0x2000 },
        { "drawn cuneiform", 0x12000, 0x380 },
    };
    if (argc < 2) {
        fprintf(stderr, "usage: bench_tokenizer TOKENIZER.json [TEXT-FILE ...]\n");
        return 2;
    }
    m2_tokenizer *tokenizer = NULL;
    const double begin = now_ms();
    if (m2_tokenizer_open(argv[1], &tokenizer) != M2_OK) {
        fprintf(stderr, "%s\n", m2_last_error());
        return 1;
    }
    printf("open: %.1f ms, %lld ids, peak of the process %.1f MiB\n", now_ms() - begin,
           (long long)m2_tokenizer_n_ids(tokenizer), (double)peak_kib() / 1024);
    measure_repeated(
        tokenizer, "an English prompt",
        "A slow dolly shot follows a tall woman in a yellow raincoat through the night "
        "market; neon reflections ripple on the wet stone while vendors call out.\n",
        30000);
    for (size_t k = 0; k < sizeof units / sizeof *units; k++)
        measure_repeated(tokenizer, units[k][0], units[k][1], TEXT_BYTES);
    for (size_t k = 0; k < sizeof drawn / sizeof *drawn; k++)
        measure_drawn(tokenizer, drawn[k].name, drawn[k].first, drawn[k].n);
    for (int k = 2; k < argc; k++) measure_file(tokenizer, argv[k]);
    m2_tokenizer_close(tokenizer);
    return 0;
}
