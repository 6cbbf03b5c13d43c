#!/bin/sh
# The GPU sources as MUSA would compile them, on a machine without its SDK: host files by the C
# compiler, kernel files by both passes of clang's front end, against headers that declare nothing but
# what MUSA is known to have (tests/musa/include).  And names: vendors' own only where they belong.
# Prints what cmocka would, so it is counted.
set -eu
cd "$(dirname "$0")/../.."
clang=${CLANG:-$(command -v clang || command -v clang-14 || true)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n_failed=0

verdict() { # NAME FAULTS-FILE
    echo "[ RUN      ] $1"
    if [ -s "$2" ]; then
        head -40 "$2"
        echo "[  FAILED  ] $1"
        n_failed=$((n_failed + 1))
    else
        echo "[       OK ] $1"
    fi
}

flags='-DMAGI2_GPU_MUSA=1 -DMAGI2_GPU_ARCHS="31" -Itests/musa/include -Isrc'
gpu=src/backend/gpu

: >"$work/host"
for file in $gpu/*.c $gpu/platform/library.c $gpu/platform/no_dnn.c $gpu/platform/musa_*.c; do
    case $file in */absent.c) continue ;; esac
    ${CC:-cc} -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror $flags -fsyntax-only "$file" \
        >>"$work/host" 2>&1 || echo "$file does not compile for MUSA" >>"$work/host"
done
verdict gpu_host_files_compile_for_musa "$work/host"

: >"$work/kernels"
if [ -z "$clang" ]; then
    echo "[ RUN      ] gpu_kernels_compile_for_musa"
    echo "[  SKIPPED ] gpu_kernels_compile_for_musa (no clang)"
else
    front="-x cuda -nocudainc -nocudalib --cuda-path=$work --cuda-gpu-arch=sm_80 -std=c++17 -Wall
           -Wno-unknown-cuda-version -Wno-unused-function -Wno-pass-failed -U__CUDA_ARCH__ -U__CUDA__
           -D__MUSACC__=1 -D__MUSA_ARCH__=310"
    for file in $gpu/kernels/simt_*.cu $gpu/platform/musa_*.cu; do
        for pass in --cuda-device-only --cuda-host-only; do
            $clang $front $flags $pass -S -o /dev/null "$file" >"$work/out" 2>&1 ||
                { grep -m 3 error: "$work/out"; echo "$file $pass does not compile"; } >>"$work/kernels"
        done
    done
    verdict gpu_kernels_compile_for_musa "$work/kernels"
fi

# A vendor's name outside platform/ and the files of one architecture.
grep -nE '\b(cuda[A-Z]|musa[A-Z]|__nv_|__mt_|nccl|mccl|cublas|mublas|cudnn|mudnn)' \
    $(find src -path '*/platform/*' -prune -o -name 'sm90_*' -prune -o -path '*/parallel/*' -prune -o \
        \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print) >"$work/names" || true
verdict vendor_names_stand_in_platform_alone "$work/names"

# Both vendors' headers define the same set, each with its own vendor's names.
for vendor in cuda musa; do
    grep -oE '^ *#define +(gpu[A-Za-z_0-9]+|M2_GPU_VENDOR[A-Z_]*)' $gpu/platform/$vendor.h |
        awk '{ print $NF }' | sort >"$work/set.$vendor"
done
diff "$work/set.cuda" "$work/set.musa" >"$work/sets" || true
grep -nE '\bmusa[A-Z]' $gpu/platform/cuda.h >>"$work/sets" || true
grep -nE '\bcuda[A-Z]' $gpu/platform/musa.h >>"$work/sets" || true
verdict both_platform_headers_define_the_same_names "$work/sets"

if [ $n_failed = 0 ]; then echo "[  PASSED  ] MUSA checks"; else exit 1; fi
