#!/bin/sh
# check_interrupt.sh MAGI2 [BACKEND]: Ctrl-C and SIGTERM while a GPU denoises: the state is kept, the
# exit status is that of the CPU, and --resume goes on to the bits of an unbroken run.  Exit 77, saying
# so, where magi2 says that there is no GPU (exit status 2); any other failure is one.  Prints what cmocka
# would, so it is counted.
set -eu
. "$(dirname "$0")/no_gpu.sh"
magi2=$1
backend=${2:-cuda}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
n_failed=0

clip() { # BACKEND STEPS ARGUMENTS...
    on=$1 steps=$2
    shift 2
    "$magi2" generate -p 'a red ball bouncing on a blue background' --seed 3 --backend "$on" \
        --steps "$steps" "$@"
}

code=0
clip "$backend" 1 --save try >log 2>&1 || code=$?
if [ $code != 0 ]; then
    verdict=FAILED
    if [ $code = 2 ] && says_no_gpu log; then verdict=SKIPPED; fi
    [ $verdict = FAILED ] || echo "skipped, every test: $(tail -1 log)"
    for name in INT TERM; do
        echo "[ RUN      ] ${name}_keeps_the_state"
        [ $verdict = SKIPPED ] || { echo "one step of a clip: exit status $code"; tail -3 log; }
        printf '[  %-7s ] %s\n' $verdict ${name}_keeps_the_state
    done
    [ $verdict = FAILED ] || exit 77
    exit 1
fi

# interrupted SIGNAL BACKEND STEPS AT DIR: a run that is sent the signal once AT steps are done; its exit
# status in $code
interrupted() {
    rm -f log
    (trap - INT TERM; exec env --default-signal=INT,TERM "$magi2" generate --seed 3 --backend "$2" \
        -p 'a red ball bouncing on a blue background' --steps "$3" --save "$5" >log 2>&1) &
    pid=$!
    for i in $(seq 6000); do
        grep -qE "preview ($4|[0-9][0-9]+)/$3" log 2>/dev/null && break
        sleep 0.005
    done
    kill -s "$1" $pid 2>/dev/null || true
    code=0
    wait $pid || code=$?
}

verdict() { # NAME FAULT
    echo "[ RUN      ] $1"
    if [ -n "$2" ]; then
        echo "$2"
        tail -3 log
        echo "[  FAILED  ] $1"
        n_failed=$((n_failed + 1))
    else
        echo "[       OK ] $1"
    fi
}

steps=400
clip "$backend" $steps --save whole -q
for name in INT TERM; do
    fault=
    interrupted $name cpu 6 1 host-$name
    host_code=$code
    interrupted $name "$backend" $steps 9 part-$name
    if [ $code != "$host_code" ] || [ $code = 0 ]; then
        fault="exit status $code, on the CPU $host_code"
    elif [ ! -s part-$name/clip.state ]; then
        fault="no state was kept"
    elif [ -e part-$name/manifest.json ]; then
        fault="a manifest stands beside an unfinished clip"
    elif ! "$magi2" generate --resume part-$name/clip.state --backend "$backend" \
        --save rest-$name -q >log 2>&1; then
        fault="--resume does not go on"
    else
        for file in video_latent audio_latent frames wave; do
            cmp whole/$file.safetensors rest-$name/$file.safetensors >>log 2>&1 ||
                fault="$file is not that of an unbroken run"
        done
    fi
    verdict ${name}_keeps_the_state "$fault"
done
[ $n_failed = 0 ]
