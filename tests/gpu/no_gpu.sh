# no_gpu.sh - for the scripts beside it: does a message say that there is no GPU for this build?
#
# Only what the GPU backend itself says of a device that is missing, or that the build is not for.  A
# program that fails with any other word has failed.
says_no_gpu() { # FILE
    grep -qE 'there is no driver, or it is older|the driver shows no device|this build has no GPU backend|this build has [a-z]+ alone|bf16 matrix units need|this build .* does not run on architecture' "$1"
}
