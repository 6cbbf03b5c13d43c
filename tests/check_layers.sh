#!/bin/sh
# A file includes only from its own folder or from layers below it; siblings never include each
# other; each heavy library is confined to one folder.  Prints what cmocka would, so it is counted.
set -eu
cd "${1:-$(dirname "$0")/..}"

# folder: the folders of src/ that it may include ("magi2.h" is include/magi2.h)
allowed() {
    case $1 in
    core) echo "core" ;;
    io) echo "core io" ;;
    media) echo "core media" ;;
    backend) echo "core backend" ;;
    parallel) echo "core io media backend parallel" ;;
    model/*) echo "core io media backend parallel model/weights $1" ;;
    model) echo "core io media backend parallel model" ;;
    sample) echo "core io media backend parallel sample" ;;
    # The request and result types are the public ones: a second copy of forty fields would drift.
    pipeline) echo "core io media backend parallel model sample pipeline magi2.h" ;;
    .) echo "core io media backend parallel model sample pipeline magi2.h" ;;
    cli) echo "core cli magi2.h" ;;
    *) echo "" ;;
    esac
}

folder_of() {
    case $1 in
    src/model/*/*) echo "model/$(echo "$1" | cut -d/ -f3)" ;;
    src/*/*) echo "$1" | cut -d/ -f2 ;;
    *) echo . ;;
    esac
}

faults=0
files=$(find src include -name '*.[ch]' -o -name '*.cu' | sort)
for file in $files; do
    case $file in include/*) continue ;; esac
    folder=$(folder_of "$file")
    rules=$(allowed "$folder")
    if [ -z "$rules" ]; then
        echo "$file: folder '$folder' has no rule in tests/check_layers.sh"
        faults=$((faults + 1))
        continue
    fi
    for include in $(sed -n 's/^ *# *include *"\([^"]*\)".*/\1/p' "$file"); do
        ok=0
        for rule in $rules; do
            case $include in "$rule" | "$rule"/* | "$rule".h) ok=1 ;; esac
        done
        if [ $ok = 0 ]; then
            echo "$file includes \"$include\": $folder may include only: $rules"
            faults=$((faults + 1))
        fi
    done
done

# library header: the folders that may include it
confine() {
    for file in $(grep -lE "^ *# *include *<$1" $files || true); do
        case $file in
        $2) ;;
        *)
            echo "$file includes <$1...>: only $2 may"
            faults=$((faults + 1))
            ;;
        esac
    done
}
confine 'libav|libsw' 'src/media/*'
confine 'png\.h|jpeglib|webp' 'src/media/*'
confine 'microhttpd|sqlite3' 'src/serve/*'
confine 'curl/' 'src/net/*'
confine 'mpi\.h' 'src/parallel/*'
confine 'openssl/' 'src/core/*'
confine 'pcre2|utf8proc' 'src/model/text/*'

echo "[ RUN      ] every_include_points_to_a_lower_layer"
if [ $faults = 0 ]; then
    echo "[       OK ] every_include_points_to_a_lower_layer"
    echo "[  PASSED  ] 1 test(s)."
else
    echo "[  FAILED  ] every_include_points_to_a_lower_layer"
    exit 1
fi
