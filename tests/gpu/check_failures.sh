#!/bin/sh
# check_failures.sh: the scripts beside it fail where their program does, they do not skip; a GPU that
# stopped working would look like a machine without one.  Prints what cmocka would, so it is counted.
set -eu
here=$(dirname "$0")
name=a_program_that_fails_is_not_skipped
echo "[ RUN      ] $name"
for script in check_interrupt check_kernels; do
    code=0
    sh "$here/$script.sh" /bin/false none >/dev/null 2>&1 || code=$?
    if [ $code != 1 ]; then
        echo "$script.sh of a program that only fails: exit status $code"
        echo "[  FAILED  ] $name"
        exit 1
    fi
done
echo "[       OK ] $name"
