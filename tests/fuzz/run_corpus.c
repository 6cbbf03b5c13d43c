/* Runs a fuzz target over every file of its corpus: the sanitizers and the time limit judge. */
#include "fuzz.h"

#include "support/check.h"
#include "support/files.h"

#include <dirent.h>
#include <stdlib.h>

static void target_survives_its_corpus(void **state)
{
    (void)state;
    int n = 0;
    DIR *entries = opendir(M2_CORPUS_DIR);
    assert_non_null(entries);
    for (const struct dirent *entry; (entry = readdir(entries));) {
        if (entry->d_name[0] == '.') continue;
        char *path = m2_test_join(M2_CORPUS_DIR, entry->d_name);
        size_t bytes;
        char *data = m2_test_read_file(path, &bytes);
        /* A copy of just this size: one byte too far is seen by the sanitizers. */
        uint8_t *exact = malloc(bytes ? bytes : 1);
        assert_non_null(exact);
        for (size_t i = 0; i < bytes; i++) exact[i] = (uint8_t)data[i];
        assert_int_equal(LLVMFuzzerTestOneInput(exact, bytes), 0);
        free(exact);
        free(data);
        free(path);
        n++;
    }
    closedir(entries);
    assert_true(n > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(target_survives_its_corpus) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
