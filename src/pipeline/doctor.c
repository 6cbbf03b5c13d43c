#include "pipeline/doctor.h"

#include "backend/cpu/cpu.h"
#include "backend/gpu/gpu.h"
#include "core/threads.h"
#include "media/mp4.h"
#include "pipeline/memory.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The value behind "key : value" in /proc/cpuinfo. */
static void cpu_info(const char *key, char *to, size_t bytes)
{
    to[0] = '\0';
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[4096];
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        const char *colon = strchr(line, ':');
        if (!colon) continue;
        snprintf(to, bytes, "%s", colon + 2);
        to[strcspn(to, "\n")] = '\0';
        break;
    }
    if (file) fclose(file);
}

/* Those of the CPU's flags that matter here. */
static json_t *cpu_units(void)
{
    static const char *const known[] = { "fma",         "avx2",     "avx512f", "avx512bw",
                                         "avx512_bf16", "amx_tile", "amx_bf16" };
    char flags[4096], padded[4100];
    cpu_info("flags", flags, sizeof flags);
    snprintf(padded, sizeof padded, " %s ", flags);
    json_t *units = json_array();
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char word[32];
        snprintf(word, sizeof word, " %s ", known[i]);
        if (strstr(padded, word)) json_array_append_new(units, json_string(known[i]));
    }
    return units;
}

static json_t *encoders(void)
{
    json_t *list = json_object();
    const char *name;
    for (int i = 0, state; (state = m2_mp4_encoder_probe(i, &name)) >= 0; i++)
        json_object_set_new(list, name, json_string(state ? "opens" : "does not open"));
    return list;
}

/* Each device by its banner, or why there is none. */
static json_t *gpus(void)
{
    char why[256];
    const int n = m2_gpu_count(why, sizeof why);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        m2_gpu *gpu = NULL;
        const m2_gpu_params params = { .device = i };
        if (m2_gpu_open(&params, &gpu) == M2_OK)
            json_array_append_new(list, json_string(m2_gpu_banner(gpu)));
        else
            json_array_append_new(list, json_string(m2_last_error()));
        m2_gpu_close(gpu);
    }
    if (n == 0) json_array_append_new(list, json_sprintf("none: %s", why));
    return list;
}

static json_t *collect(void)
{
    struct utsname system;
    struct statvfs disk;
    char model[256];
    cpu_info("model name", model, sizeof model);
    const int has_system = uname(&system) == 0;
    const int has_disk = statvfs(".", &disk) == 0;
    json_t *root = json_object();
    json_object_set_new(root, "magi2", json_string(MAGI2_VERSION));
    json_object_set_new(root, "compiler", json_string(__VERSION__));
    json_object_set_new(root, "system",
                        json_sprintf("%s %s %s", has_system ? system.sysname : "?",
                                     has_system ? system.release : "?",
                                     has_system ? system.machine : "?"));
    json_object_set_new(root, "cpu", json_string(model));
    json_object_set_new(root, "cpus_online", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    json_object_set_new(root, "cpus_usable", json_integer(m2_cpu_count()));
    json_object_set_new(root, "cpu_units", cpu_units());
    json_object_set_new(root, "isa", json_string(m2_isa_name(m2_isa_detect())));
    json_object_set_new(root, "memory_bytes",
                        json_integer((json_int_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)));
    json_object_set_new(root, "memory_free_bytes", json_integer((json_int_t)m2_memory_available()));
    if (has_disk)
        json_object_set_new(root, "disk_free_bytes",
                            json_integer((json_int_t)disk.f_bavail * (json_int_t)disk.f_frsize));
    json_object_set_new(root, "video_encoders", encoders());
    json_object_set_new(root, "gpu", gpus());
    json_object_set_new(root, "mpi", json_string("runs on several ranks are not built yet"));
    return root;
}

static void print_value(FILE *stream, const char *key, json_t *value)
{
    if (strstr(key, "bytes"))
        fprintf(stream, "%.1f GiB", (double)json_integer_value(value) / 1073741824.0);
    else if (json_is_integer(value))
        fprintf(stream, "%lld", (long long)json_integer_value(value));
    else
        fputs(json_string_value(value), stream);
}

static char *page(json_t *root)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream) return NULL;
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        char label[64];
        snprintf(label, sizeof label, "%s", key);
        char *suffix = strstr(label, "_bytes");
        if (suffix) *suffix = '\0';
        for (char *c = label; *c; c++) {
            if (*c == '_') *c = ' ';
        }
        fprintf(stream, "%-16s ", label);
        size_t i;
        json_t *item;
        const char *name;
        const char *comma = "";
        if (json_is_array(value)) {
            json_array_foreach(value, i, item)
            {
                fprintf(stream, "%s%s", comma, json_string_value(item));
                comma = " ";
            }
            if (!*comma) fputs("none", stream);
        } else if (json_is_object(value)) {
            json_object_foreach(value, name, item)
            {
                fprintf(stream, "%s%s %s", comma, name, json_string_value(item));
                comma = ", ";
            }
            if (!*comma) fputs("none: built without MAGI2_WITH_MEDIA", stream);
        } else {
            print_value(stream, key, value);
        }
        fputc('\n', stream);
    }
    return fclose(stream) == 0 ? text : NULL;
}

m2_status m2_doctor(int as_json, char **text_out)
{
    json_t *root = collect();
    char *text = NULL;
    if (as_json) {
        char *dumped = json_dumps(root, JSON_COMPACT);
        if (dumped && asprintf(&text, "%s\n", dumped) < 0) text = NULL;
        free(dumped);
    } else {
        text = page(root);
    }
    json_decref(root);
    if (!text) return m2_fail(M2_ERR_MEMORY, "no memory for the report");
    *text_out = text;
    return M2_OK;
}
