# Compiler flags shared by everything of ours.
#
# -ffp-contract=off: a product and a sum become one FMA only where the source says fmaf, so that
# every compiler and instruction set gives the same bits.
add_library(m2_flags INTERFACE)
target_compile_features(m2_flags INTERFACE c_std_17)
target_compile_options(m2_flags INTERFACE
    -ffp-contract=off -fno-math-errno -fno-trapping-math
    -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wwrite-strings
    )
if(MAGI2_WERROR)
    target_compile_options(m2_flags INTERFACE -Werror)
endif()
target_compile_definitions(m2_flags INTERFACE _GNU_SOURCE MAGI2_VERSION="${PROJECT_VERSION}")
target_include_directories(m2_flags INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
if(MAGI2_SANITIZE)
    target_compile_options(m2_flags INTERFACE -fsanitize=${MAGI2_SANITIZE} -fno-omit-frame-pointer
                           -fno-sanitize-recover=all)
    target_link_options(m2_flags INTERFACE -fsanitize=${MAGI2_SANITIZE})
endif()
if(MAGI2_FUZZ)
    # Counters in everything of ours, so that the fuzzer sees which inputs reach new code.
    target_compile_options(m2_flags INTERFACE -fsanitize=fuzzer-no-link)
    target_link_options(m2_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(MAGI2_COVERAGE)
    target_compile_options(m2_flags INTERFACE --coverage)
    target_link_options(m2_flags INTERFACE --coverage)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(M2_X86 ON)
    # FMA is the least that runs (checked at start): fmaf is then one instruction, not a call.
    set(M2_REF_FLAGS -mfma)
    set(M2_AVX2_FLAGS -mavx2 -mfma)
    set(M2_AVX512_FLAGS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma)
endif()

# m2_library(name SOURCES ... LIBS ...): one layer.
function(m2_library name)
    cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;FLAGS" ${ARGN})
    add_library(${name} STATIC ${ARG_SOURCES})
    target_link_libraries(${name} PUBLIC m2_flags ${ARG_LIBS})
    if(ARG_FLAGS)
        target_compile_options(${name} PRIVATE ${ARG_FLAGS})
    endif()
endfunction()

# m2_test(name SOURCES ... LIBS ... [TIMEOUT seconds]): one cmocka program.
function(m2_test name)
    cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBS" ${ARGN})
    add_executable(${name} ${ARG_SOURCES})
    target_link_libraries(${name} PRIVATE m2_test_support ${ARG_LIBS})
    add_test(NAME ${name} COMMAND ${name})
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT 120)
    endif()
    if(MAGI2_SANITIZE OR MAGI2_COVERAGE)
        math(EXPR ARG_TIMEOUT "10 * ${ARG_TIMEOUT}")
    endif()
    set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()
