/* zip.h - the directory of a zip file, for archives whose entries are stored as they are.
 *
 * Only the central directory is believed: writers that stream leave zeros in the local headers.
 * Values are used in place in the mapped file, so compressed and encrypted entries are refused by
 * name when they are asked for.
 *
 * Checksums  an entry is held against its CRC-32 the first time that it is asked for, which reads all
 *            of it: such files hold decoders of some GiB at most, whose bytes are read soon after in
 *            any case, and a flipped bit would else be a picture that is wrong and nothing said.  Zero
 *            stands for a sum that the writer left out, as torch does when told to.
 */
#ifndef M2_IO_ZIP_H
#define M2_IO_ZIP_H

#include "core/status.h"
#include "io/map.h"

#include <stddef.h>
#include <stdint.h>

/* A checkpoint has some thousands; the table of a hostile file must not outgrow the file. */
#define M2_ZIP_ENTRIES_MAX 100000

typedef struct m2_zip_entry {
    const char *name; /* [name_bytes] in the map, not terminated */
    uint64_t offset;  /* of the local header */
    uint64_t stored_bytes, bytes;
    uint32_t crc; /* of the bytes; 0: not known */
    uint16_t name_bytes, method, flags;
    uint16_t is_checked;
} m2_zip_entry;

typedef struct m2_zip {
    const m2_map *map;
    m2_zip_entry *entries; /* sorted by name */
    int64_t n_entries;
} m2_zip;

/* Read the directory; `map` is borrowed.  m2_zip_free in every case.
 * Errors  M2_ERR_FORMAT (cut short, damaged, two entries of one name), M2_ERR_UNSUPPORTED (several
 *         discs), M2_ERR_MEMORY */
m2_status m2_zip_read(const m2_map *map, m2_zip *zip);
void m2_zip_free(m2_zip *zip);

/* NULL if there is none of that name. */
const m2_zip_entry *m2_zip_find(const m2_zip *zip, const char *name, size_t name_bytes);

/* The entry's bytes in the map.
 * Errors  M2_ERR_UNSUPPORTED (compressed, encrypted), M2_ERR_FORMAT (not within the file, damaged) */
m2_status m2_zip_bytes(const m2_zip *zip, const m2_zip_entry *entry,
                       const unsigned char **data_out);

#endif
