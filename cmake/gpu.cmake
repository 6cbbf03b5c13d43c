# The GPU backend: MAGI2_GPU is empty, cuda or musa.
#
# Kernel files are compiled one by one by the vendor's compiler and linked as objects by the host's,
# so that host files never need a special compiler and CMake no language of the vendor's.
#
# -ftz=true: denormals are zero, as in the CPU's workers.
set(MAGI2_GPU "" CACHE STRING "GPU backend: empty, cuda or musa")
set_property(CACHE MAGI2_GPU PROPERTY STRINGS "" cuda musa)
set(MAGI2_GPU_ARCHS "80;89;90a;100;ptx" CACHE STRING
    "architectures that kernels are compiled for; ptx: the newest also as intermediate code")

if(MAGI2_GPU STREQUAL "cuda")
    find_program(MAGI2_NVCC nvcc HINTS /usr/local/cuda/bin REQUIRED)
    get_filename_component(M2_CUDA_ROOT ${MAGI2_NVCC} REALPATH)
    get_filename_component(M2_CUDA_ROOT ${M2_CUDA_ROOT}/../.. ABSOLUTE)
    find_path(M2_GPU_INCLUDE cuda_runtime_api.h REQUIRED
              HINTS ${M2_CUDA_ROOT}/include ${M2_CUDA_ROOT}/targets/x86_64-linux/include)
    find_library(M2_CUDART cudart_static REQUIRED
                 HINTS ${M2_CUDA_ROOT}/lib64 ${M2_CUDA_ROOT}/targets/x86_64-linux/lib)
    set(M2_GPU_FLAGS)
    set(M2_GPU_FLAGS_SM90)
    foreach(arch ${MAGI2_GPU_ARCHS})
        if(arch STREQUAL "ptx")
            list(APPEND M2_GPU_FLAGS -gencode=arch=compute_100,code=compute_100)
        else()
            list(APPEND M2_GPU_FLAGS -gencode=arch=compute_${arch},code=sm_${arch})
        endif()
        if(arch STREQUAL "90a")
            set(M2_GPU_FLAGS_SM90 -gencode=arch=compute_90a,code=sm_90a)
        endif()
    endforeach()
    set(M2_GPU_LIBS ${M2_CUDART} ${CMAKE_DL_LIBS} Threads::Threads rt stdc++)
elseif(MAGI2_GPU)
    message(FATAL_ERROR "MAGI2_GPU=${MAGI2_GPU}: use cuda, or leave it empty for a CPU-only build")
endif()

# m2_gpu_objects(out KERNELS...): objects of kernel files; sm90_* are for one architecture alone.
function(m2_gpu_objects out)
    set(objects)
    foreach(source ${ARGN})
        get_filename_component(name ${source} NAME_WE)
        set(object ${CMAKE_CURRENT_BINARY_DIR}/kernels/${name}.o)
        set(archs ${M2_GPU_FLAGS})
        if(name MATCHES "^sm90_")
            set(archs ${M2_GPU_FLAGS_SM90})
        endif()
        set(launcher)
        if(CMAKE_C_COMPILER_LAUNCHER)
            set(launcher ${CMAKE_C_COMPILER_LAUNCHER})
        endif()
        set(has_sm90)
        if(M2_GPU_FLAGS_SM90)
            set(has_sm90 -DM2_GPU_HAS_SM90)
        endif()
        add_custom_command(
            OUTPUT ${object}
            COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/kernels
            COMMAND ${launcher} ${MAGI2_NVCC} -std=c++17 -O3 -ftz=true ${archs} ${has_sm90}
                    -Xcompiler=-fPIC,-Wall,-Wextra,-Wno-unused-parameter
                    -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR} -MD -MF ${object}.d -c
                    ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
            DEPENDS ${source}
            DEPFILE ${object}.d
            COMMENT "kernels ${name}"
            VERBATIM)
        list(APPEND objects ${object})
    endforeach()
    set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    set(${out} ${objects} PARENT_SCOPE)
endfunction()
