#!/bin/sh
# check_kernels.sh TEST_GPU_OPS TRACE: do the quick cases of test_gpu_ops start every kernel that the
# program holds, and do memcheck and racecheck find nothing in them?  TRACE is kernel_trace.c as a
# library.  What racecheck says of the kernels of cuBLASLt and cuDNN is printed and counts for nothing.
# Exit 77, saying so, where a tool or the GPU is missing; a test_gpu_ops that fails is a failure.  Prints
# what cmocka would, so it is counted.
set -eu
. "$(dirname "$0")/no_gpu.sh"
test=$1
trace=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n_failed=0
all='every_kernel_is_started memcheck_finds_nothing racecheck_finds_nothing'

missing() { # WHY
    echo "skipped, every test: $1"
    for name in $all; do
        echo "[ RUN      ] $name"
        echo "[  SKIPPED ] $name"
    done
    exit 77
}

verdict() { # NAME FILE: a test that failed if FILE says anything
    echo "[ RUN      ] $1"
    if [ -s "$2" ]; then
        cat "$2"
        echo "[  FAILED  ] $1"
        n_failed=$((n_failed + 1))
    else
        echo "[       OK ] $1"
    fi
}

if ! "$test" portable only advance >"$work/try" 2>&1; then
    echo "test_gpu_ops portable only advance fails:" >"$work/faults"
    tail -5 "$work/try" >>"$work/faults"
    for name in $all; do verdict $name "$work/faults"; done
    exit 1
fi
if grep 'skipped, every test' "$work/try" >"$work/why"; then
    says_no_gpu "$work/why" && missing "$(sed 's/.*test: //' "$work/why")"
    for name in $all; do verdict $name "$work/why"; done
    exit 1
fi
for tool in cuobjdump compute-sanitizer c++filt; do
    command -v $tool >"$work/where" || missing "$tool is not on the PATH"
done
[ -f "$trace" ] || missing "$trace is not there: CUPTI was not found when this was built"

# A program may hold images for several cards: those of this one's architecture are meant.
modes='fast portable cudnn'
arch=$(sed -n 's/.*(cuda device [0-9]*, \(sm_[0-9]*\),.*/\1/p' "$work/try" | head -1)
cuobjdump -symbols "$test" | awk -v arch="$arch" \
    '/^arch = / { ours = $3 ~ "^" arch "[a-z]?$" } ours && /FUNC.*ENTRY/ { print $NF }' | sort -u >"$work/held"
: >"$work/faults"
for mode in $modes; do
    : >"$work/started.$mode"
    KERNEL_TRACE=$work/started.$mode CUDA_INJECTION64_PATH=$(realpath "$trace") \
        timeout 300 "$test" $mode quick >"$work/log" 2>&1 || {
        echo "test_gpu_ops $mode quick fails, exit status $?:"
        grep -E 'ERROR|FAILED' "$work/log" || tail -3 "$work/log"
    } >>"$work/faults"
    if [ $mode = cudnn ] && grep -q 'skipped, every test' "$work/log"; then
        echo 'there is no cuDNN here: left out, with the one kernel that goes with it'
        grep -v attention_sinks_kernel "$work/held" >"$work/held.less"
        mv "$work/held.less" "$work/held"
        modes='fast portable'
    fi
done
cat "$work"/started.* | sort -u | comm -23 "$work/held" - | c++filt |
    sed 's/^/never started: /' >>"$work/faults"
[ -s "$work/held" ] || echo "no kernel for '$arch' in $test" >>"$work/faults"
echo "$(wc -l <"$work/held") kernels for $arch in $test"
verdict every_kernel_is_started "$work/faults"

own=$(c++filt <"$work/held" | sed 's/^void //; s/[<(].*//' | sort -u | paste -sd '|')
for tool in memcheck racecheck; do
    : >"$work/faults"
    for mode in $modes; do
        timeout 600 compute-sanitizer --tool $tool "$test" $mode quick >"$work/log.$mode" 2>&1 &
    done
    wait
    for mode in $modes; do
        log=$work/log.$mode
        echo "$tool, $mode: $(grep -c '^\[       OK' "$log") passed," \
            "$(grep SUMMARY "$log" | sed 's/=* *//')"
        grep -q 'PASSED' "$log" || tail -3 "$log" >>"$work/faults"
        if [ $tool = memcheck ]; then
            grep -q 'ERROR SUMMARY: 0 errors' "$log" || grep '=====' "$log" >>"$work/faults" ||
                echo "$tool, $mode: no summary" >>"$work/faults"
        else
            grep -q 'RACECHECK SUMMARY' "$log" || echo "$tool did not finish" >>"$work/faults"
            grep -E "access at (void )?($own)[<(]" "$log" >>"$work/faults" || true
        fi
    done
    verdict ${tool}_finds_nothing "$work/faults"
done
[ $n_failed = 0 ]
