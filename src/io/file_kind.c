/* Files that got under a checkpoint's name by accident, each refused by what it is. */
#include "io/checkpoint_parts.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define SNIFF_BYTES 512

static m2_status refuse_lfs_pointer(const m2_map *map, const char *text)
{
    const char *line = strstr(text, "\nsize ");
    unsigned long long size;
    if (line && sscanf(line + 6, "%llu", &size) == 1)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: is a Git-LFS pointer of %zu bytes, the file itself has %llu bytes and "
                       "was not downloaded; `git lfs pull` fetches it",
                       map->path, map->bytes, size);
    return m2_fail(M2_ERR_FORMAT,
                   "%s: is a Git-LFS pointer, the file itself was not downloaded; `git lfs pull` "
                   "fetches it",
                   map->path);
}

m2_status m2_ckpt_refuse_kinds(const m2_map *map)
{
    if (map->bytes == 0)
        return m2_fail(M2_ERR_FORMAT, "%s: is empty (0 bytes); download it again", map->path);
    char text[SNIFF_BYTES + 1];
    const size_t n = map->bytes < SNIFF_BYTES ? map->bytes : SNIFF_BYTES;
    memcpy(text, map->data, n);
    text[n] = '\0';
    if (strncmp(text, "version https://git-lfs", 23) == 0) return refuse_lfs_pointer(map, text);
    const char *start = text;
    if (strncmp(start, "\xef\xbb\xbf", 3) == 0) start += 3;
    while (isspace((unsigned char)*start)) start++;
    if (strncasecmp(start, "<!doctype", 9) == 0 || strncasecmp(start, "<html", 5) == 0 ||
        strncasecmp(start, "<?xml", 5) == 0)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: is a web page of %zu bytes, not a checkpoint: the server's answer was "
                       "saved under this name; download it again",
                       map->path, map->bytes);
    if (start[0] == '{' && (start[1] == '"' || isspace((unsigned char)start[1]) || start[1] == '}'))
        return m2_fail(M2_ERR_FORMAT,
                       "%s: is JSON text of %zu bytes, not a checkpoint: perhaps a server's error "
                       "saved under this name; it begins with: %.120s",
                       map->path, map->bytes, start);
    /* Protocol 2 and the magic number that torch wrote before it used zip files. */
    if (n >= 2 && map->data[0] == 0x80 && map->data[1] >= 1 && map->data[1] <= 5)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: is a bare pickle (torch.save's format before 1.6, or no checkpoint); "
                       "load it with torch and save it again, or convert it to safetensors",
                       map->path);
    if (n >= 262 && memcmp(map->data + 257, "ustar", 5) == 0)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: is a tar archive (torch.save's oldest format, or a packed download); "
                       "unpack it, or save it again as safetensors",
                       map->path);
    if (n >= 2 && map->data[0] == 0x1f && map->data[1] == 0x8b)
        return m2_fail(M2_ERR_FORMAT, "%s: is compressed with gzip; unpack it first", map->path);
    return M2_OK;
}
