#include "support/check.h"

#include "core/temp_file.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int count_files(const char *dir)
{
    int n = 0;
    DIR *handle = opendir(dir);
    for (struct dirent *entry; (entry = readdir(handle));)
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(handle);
    return n;
}

/* Catches an id that is not of the file renamed into place, and one that a later file of the name, or
 * of the same number, is taken for. */
static void a_committed_file_is_known_until_another_takes_its_name(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    char target[300];
    snprintf(target, sizeof target, "%s/out.txt", dir);
    m2_file_id id = { 0 };
    assert_false(m2_file_is(target, &id));
    m2_temp_file file;
    for (int i = 0; i < 3; i++) { /* a file system gives a number again as soon as it is free */
        check_ok(m2_temp_create(&file, target));
        write_text(file.path, i == 1 ? "one" : "two");
        check_ok(m2_temp_commit(&file));
        assert_true(m2_file_is(target, &file.id));
        assert_false(m2_file_is(target, &id));
        id = file.id;
        usleep(20000);
    }
    assert_int_equal(unlink(target), 0);
    assert_false(m2_file_is(target, &id));
    assert_false(m2_file_id_of(target, &id));
    assert_false(m2_file_is(target, &id));
    m2_test_remove_tree(dir);
}

/* Catches a target that is touched before the new file is whole. */
static void the_target_changes_only_at_commit(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    char target[300], text[16] = "";
    snprintf(target, sizeof target, "%s/out.txt", dir);
    write_text(target, "old");
    m2_temp_file file;
    check_ok(m2_temp_create(&file, target));
    write_text(file.path, "new");
    FILE *stream = fopen(target, "rb");
    assert_non_null(fgets(text, sizeof text, stream));
    fclose(stream);
    assert_string_equal(text, "old");
    check_ok(m2_temp_commit(&file));
    stream = fopen(target, "rb");
    assert_non_null(fgets(text, sizeof text, stream));
    fclose(stream);
    assert_string_equal(text, "new");
    assert_int_equal(count_files(dir), 1);
    m2_test_remove_tree(dir);
}

static void a_discarded_file_leaves_nothing(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    char target[300];
    snprintf(target, sizeof target, "%s/out.txt", dir);
    m2_temp_file file;
    check_ok(m2_temp_create(&file, target));
    assert_int_equal(count_files(dir), 1);
    m2_temp_discard(&file);
    m2_temp_discard(&file);
    assert_int_equal(count_files(dir), 0);
    m2_test_remove_tree(dir);
}

/* Catches files that stay behind when a process must end at once. */
static void files_under_way_can_all_be_removed(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    m2_temp_file files[3];
    for (int i = 0; i < 3; i++) {
        char target[300];
        snprintf(target, sizeof target, "%s/%d", dir, i);
        check_ok(m2_temp_create(&files[i], target));
    }
    check_ok(m2_temp_commit(&files[1]));
    m2_temp_remove_all();
    assert_int_equal(count_files(dir), 1);
    for (int i = 0; i < 3; i++) m2_temp_discard(&files[i]);
    m2_test_remove_tree(dir);
}

static void a_missing_directory_is_named(void **state)
{
    (void)state;
    m2_temp_file file;
    check_fails(m2_temp_create(&file, "/nonexistent/dir/out.mp4"), M2_ERR_IO,
                "/nonexistent/dir/out.mp4");
    check_fails(m2_temp_create(&file, "/tmp"), M2_ERR_IO, "is a directory");
}

/* Catches a rename that puts a file in the place of a device or of a link. */
static void devices_are_refused_and_links_followed(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    char pipe_path[300], link_path[300], target[300];
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", dir);
    snprintf(link_path, sizeof link_path, "%s/link", dir);
    snprintf(target, sizeof target, "%s/target", dir);
    m2_temp_file file;
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    check_fails(m2_temp_create(&file, pipe_path), M2_ERR_IO, "is no regular file");
    check_fails(m2_temp_create(&file, "/dev/null"), M2_ERR_IO, "is no regular file");
    write_text(target, "old");
    assert_int_equal(symlink("target", link_path), 0);
    check_ok(m2_temp_create(&file, link_path));
    write_text(file.path, "newer");
    check_ok(m2_temp_commit(&file));
    struct stat info;
    assert_int_equal(lstat(link_path, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(lstat(target, &info), 0);
    assert_int_equal(info.st_size, 5);
    assert_int_equal(count_files(dir), 3);
    m2_test_remove_tree(dir);
}

/* Catches an output that replaces another because it was not there when they were compared. */
static void one_file_is_known_by_any_name(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    char a[300], b[300], c[300];
    snprintf(a, sizeof a, "%s/new", dir);
    snprintf(b, sizeof b, "%s/./new", dir);
    snprintf(c, sizeof c, "%s/other", dir);
    assert_true(m2_is_same_file(a, b));
    assert_false(m2_is_same_file(a, c));
    assert_false(m2_is_same_file(a, "new"));
    write_text(a, "x");
    assert_true(m2_is_same_file(a, b));
    assert_int_equal(link(a, c), 0);
    assert_true(m2_is_same_file(c, b));
    m2_test_remove_tree(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_committed_file_is_known_until_another_takes_its_name),
        cmocka_unit_test(the_target_changes_only_at_commit),
        cmocka_unit_test(a_discarded_file_leaves_nothing),
        cmocka_unit_test(files_under_way_can_all_be_removed),
        cmocka_unit_test(a_missing_directory_is_named),
        cmocka_unit_test(devices_are_refused_and_links_followed),
        cmocka_unit_test(one_file_is_known_by_any_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
