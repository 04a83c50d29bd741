# The CUDA backend: nvcc, the static runtime, and headers of the libraries that are loaded at run
# time. SPILLWAY_CUDA: AUTO builds it where all of that is found, ON insists, OFF leaves it out.
# Sets SPILLWAY_CUDA_FOUND, SPILLWAY_CUDA_LIBRARY_DIRECTORIES (where the libraries are looked for)
# and makes spillway_cuda_runtime and spillway_cuda_libraries.
set(SPILLWAY_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE SPILLWAY_CUDA PROPERTY STRINGS AUTO ON OFF)
option(SPILLWAY_CUDA_LINES "Let profilers see the lines of kernels; programs then hold the path of \
the checkout, which nvcc cannot leave out" OFF)
set(SPILLWAY_CUDA_PACKAGES ${PROJECT_SOURCE_DIR}/.cuda CACHE PATH
    "Where tools/setup puts NVIDIA's Python packages")
set(SPILLWAY_CUDA_FOUND OFF)
set(SPILLWAY_CUDA_LIBRARY_DIRECTORIES "")

function(spillway_without_cuda reason)
  if(SPILLWAY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SPILLWAY_CUDA is ON: ${reason}; tools/setup cuda installs what is missing")
  endif()
  message(STATUS "Building without CUDA: ${reason}")
endfunction()

# Folders that may hold Python packages: our own, and those of the Python that is active.
function(spillway_package_folders result)
  set(folders ${SPILLWAY_CUDA_PACKAGES})
  find_program(SPILLWAY_ACTIVE_PYTHON python3)
  if(SPILLWAY_ACTIVE_PYTHON)
    execute_process(COMMAND ${SPILLWAY_ACTIVE_PYTHON} -c
                            "import sys; print(';'.join(p for p in sys.path if 'packages' in p))"
                    OUTPUT_VARIABLE active ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    list(APPEND folders ${active})
  endif()
  set(${result} ${folders} PARENT_SCOPE)
endfunction()

# Our own packages first: tools/setup installs them where nothing else was found, and their versions
# are the ones that are tested.
function(spillway_find_header variable header subfolder)
  list(TRANSFORM package_folders APPEND /${subfolder} OUTPUT_VARIABLE candidates)
  list(POP_FRONT candidates own)
  find_path(${variable} ${header} HINTS ${own} PATHS /usr/local/cuda/include ${candidates})
endfunction()

# find_program's VALIDATOR: CUDA 13, which the libraries are of; older ones know no sm_100.
function(spillway_is_new_enough result candidate)
  execute_process(COMMAND ${candidate} --version OUTPUT_VARIABLE text ERROR_QUIET)
  if(NOT text MATCHES "release ([0-9]+)" OR CMAKE_MATCH_1 LESS 13)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# Sets CMAKE_CUDA_COMPILER if there is an nvcc that works.
macro(spillway_find_nvcc)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(SPILLWAY_NVCC nvcc HINTS ${CUDAToolkit_ROOT}/bin $ENV{CUDAToolkit_ROOT}/bin
                 PATHS /usr/local/cuda/bin ${SPILLWAY_CUDA_PACKAGES}/nvidia/cu13/bin
                 VALIDATOR spillway_is_new_enough)
    if(SPILLWAY_NVCC)
      set(ENV{CUDACXX} ${SPILLWAY_NVCC})
      unset(CMAKE_CUDA_COMPILER CACHE)  # an earlier failure would be remembered
      include(CheckLanguage)
      check_language(CUDA)
    endif()
  endif()
endmacro()

# Device code as fast and as exact as the host's: no fused multiply-add that is not spelled out,
# correctly rounded square roots and divisions (nvcc's default), constexpr functions on both sides.
function(spillway_cuda_flags)
  target_compile_options(spillway_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:
    --fmad=false --expt-relaxed-constexpr $<$<BOOL:${SPILLWAY_CUDA_LINES}>:-lineinfo>
    -Xcompiler=-Wall,-Wextra,-ffp-contract=off>)
endfunction()

if(NOT SPILLWAY_CUDA STREQUAL "OFF")
  # sm_80 also serves 86 to 89, sm_100 also 103, and sm_120 also 121. PTX is that of sm_100, which
  # all others from there on compile for themselves: sm_110 could not use a later one.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100 120-real)
  endif()
  spillway_package_folders(package_folders)
  foreach(folder IN LISTS package_folders)
    list(APPEND SPILLWAY_CUDA_LIBRARY_DIRECTORIES
         ${folder}/nvidia/cu13/lib ${folder}/nvidia/cudnn/lib ${folder}/nvidia/nccl/lib)
  endforeach()
  spillway_find_nvcc()
  spillway_find_header(SPILLWAY_CUBLASLT_INCLUDE cublasLt.h nvidia/cu13/include)
  spillway_find_header(SPILLWAY_CUDNN_INCLUDE cudnn.h nvidia/cudnn/include)
  spillway_find_header(SPILLWAY_NCCL_INCLUDE nccl.h nvidia/nccl/include)  # for many GPUs only
  spillway_find_header(SPILLWAY_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h include)
  if(NOT CMAKE_CUDA_COMPILER)
    spillway_without_cuda(
      "no nvcc of CUDA 13 that works on PATH, in CUDAToolkit_ROOT or in ${SPILLWAY_CUDA_PACKAGES}")
  elseif(NOT SPILLWAY_CUBLASLT_INCLUDE OR NOT SPILLWAY_CUDNN_INCLUDE OR
         NOT SPILLWAY_CUDNN_FRONTEND_INCLUDE)
    spillway_without_cuda("no headers of cuBLASLt, cuDNN and cudnn-frontend in the system, in \
CUDA's folders or in Python packages")
  else()
    enable_language(CUDA)
    if(NOT TARGET CUDA::nvToolsExt)  # CMake 3.25 insists on it, and CUDA 13 has it no more
      add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(CMAKE_CUDA_STANDARD 20)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 passes none to nvcc
      string(APPEND CMAKE_CUDA_FLAGS " -std=c++20")
    endif()
    set(SPILLWAY_CUDA_FOUND ON)
    list(APPEND SPILLWAY_CUDA_LIBRARY_DIRECTORIES ${CUDAToolkit_LIBRARY_DIR})
    spillway_cuda_flags()
    # The static runtime asks for the driver when it is first used: the program also runs where
    # there is none. Both targets are exported, because the modules' archives need them at the link.
    add_library(spillway_cuda_runtime INTERFACE)
    target_link_libraries(spillway_cuda_runtime INTERFACE CUDA::cudart_static)
    add_library(spillway_cuda_libraries INTERFACE)
    foreach(directory IN ITEMS ${SPILLWAY_CUBLASLT_INCLUDE} ${SPILLWAY_CUDNN_INCLUDE}
                               ${SPILLWAY_CUDNN_FRONTEND_INCLUDE})
      target_include_directories(spillway_cuda_libraries SYSTEM INTERFACE
                                 $<BUILD_INTERFACE:${directory}>)
    endforeach()
    target_link_libraries(spillway_cuda_libraries INTERFACE spillway_cuda_runtime)
    message(STATUS
            "Building with CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
  endif()
endif()
