#!/bin/sh
# check_install.sh BUILD-DIR C-COMPILER LIB-DIR: installs a build into an empty folder, moves it, and
# uses it as a stranger does: the program with the model it was installed with, the library from a
# program compiled by pkg-config's word.
#
# Catches a file that is not installed, paths of the build left in what is installed, a header that
# needs one that is not there, symbols of ours that are seen from outside.
set -eu
build=$1 compiler=$2 lib_dir=$3
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset MAGI2_MODEL

fail() {
    echo "[  FAILED  ] an_installed_tree_works_where_it_is_moved"
    echo "$*"
    exit 1
}

echo "[ RUN      ] an_installed_tree_works_where_it_is_moved"
cmake --install "$build" --prefix "$work/first" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
mv "$work/first" "$work/second"
prefix=$work/second
cd "$work"

# The program finds the model that lies beside it, not the one of the sources.
"$prefix/bin/magi2" inspect --json >inspected 2>&1 || fail "$(cat inspected)"
grep -q "\"path\": *\"$prefix/bin/../share/magi2/demo/preview\"" inspected || fail "$(cat inspected)"
"$prefix/bin/magi2" tokenize --json -p 'a red ball' >by_program || fail "tokenize"

export PKG_CONFIG_PATH="$prefix/$lib_dir/pkgconfig"
flags=$(pkg-config --cflags --libs magi2) || fail "pkg-config"
[ "$(pkg-config --modversion magi2)" = "$("$prefix/bin/magi2" --version | cut -d' ' -f2)" ] || fail "version"
# -I before the sources' own folder could be found: only the installed header is there.
"$compiler" -std=c99 -pedantic -Wall -Wextra -Werror "$here/uses_magi2.c" -o uses $flags || fail "compile"
LD_LIBRARY_PATH="$prefix/$lib_dir" ./uses "$(pkg-config --variable=demo magi2)" >by_library 2>&1 ||
    fail "$(cat by_library)"
cmp -s by_program by_library || fail "the library gives other ids than the program"

# Nothing but the functions of the header is seen from outside.
shown=$(nm -D --defined-only "$prefix/$lib_dir/libmagi2.so" | awk '{ print $3 }' | sort)
[ -n "$shown" ] || fail "the library shows no function"
for name in $shown; do
    grep -q "[ *]$name(" "$prefix/include/magi2.h" || fail "$name is shown and not in magi2.h"
done

echo "[       OK ] an_installed_tree_works_where_it_is_moved"
echo "[  PASSED  ] 1 test(s)."
