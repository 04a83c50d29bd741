# The CUDA backend: nvcc, the static runtime, and headers of the libraries that are loaded at run
# time. SPILLWAY_CUDA: AUTO builds it where all of that is found, ON insists, OFF leaves it out.
# Sets SPILLWAY_CUDA_FOUND and makes spillway_cuda_runtime and spillway_cuda_libraries.
set(SPILLWAY_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE SPILLWAY_CUDA PROPERTY STRINGS AUTO ON OFF)
set(SPILLWAY_CUDA_PACKAGES ${PROJECT_SOURCE_DIR}/.cuda CACHE PATH
    "Where tools/setup puts NVIDIA's Python packages")
set(SPILLWAY_CUDA_FOUND OFF)

function(spillway_without_cuda reason)
  if(SPILLWAY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SPILLWAY_CUDA is ON: ${reason}; tools/setup cuda installs what is missing")
  endif()
  message(STATUS "Building without CUDA: ${reason}")
endfunction()

# Device code as fast and as exact as the host's: no fused multiply-add that is not spelled out,
# correctly rounded square roots and divisions (nvcc's default), constexpr functions on both sides.
function(spillway_cuda_flags)
  target_compile_options(spillway_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:
    --fmad=false --expt-relaxed-constexpr -lineinfo
    -Xcompiler=-Wall,-Wextra,-ffp-contract=off>)
endfunction()

if(NOT SPILLWAY_CUDA STREQUAL "OFF")
  # sm_100 with PTX, which later devices compile for themselves. sm_80 also serves 86 to 89.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(SPILLWAY_NVCC nvcc HINTS ${CUDAToolkit_ROOT}/bin
                 PATHS /usr/local/cuda/bin ${SPILLWAY_CUDA_PACKAGES}/nvidia/cu13/bin)
    if(SPILLWAY_NVCC)
      set(CMAKE_CUDA_COMPILER ${SPILLWAY_NVCC})
    endif()
  endif()
  find_path(SPILLWAY_CUBLASLT_INCLUDE cublasLt.h
            PATHS /usr/local/cuda/include ${SPILLWAY_CUDA_PACKAGES}/nvidia/cu13/include)
  find_path(SPILLWAY_CUDNN_INCLUDE cudnn.h
            PATHS /usr/local/cuda/include ${SPILLWAY_CUDA_PACKAGES}/nvidia/cudnn/include)
  find_path(SPILLWAY_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
            PATHS ${SPILLWAY_CUDA_PACKAGES}/include)
  if(NOT CMAKE_CUDA_COMPILER)
    spillway_without_cuda("no nvcc on PATH, in CUDAToolkit_ROOT or in ${SPILLWAY_CUDA_PACKAGES}")
  elseif(NOT SPILLWAY_CUBLASLT_INCLUDE OR NOT SPILLWAY_CUDNN_INCLUDE OR
         NOT SPILLWAY_CUDNN_FRONTEND_INCLUDE)
    spillway_without_cuda("no headers of cuBLASLt, cuDNN and cudnn-frontend in the system, in \
CUDA's folders or in ${SPILLWAY_CUDA_PACKAGES}")
  else()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(CMAKE_CUDA_STANDARD 20)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 passes none to nvcc
      string(APPEND CMAKE_CUDA_FLAGS " -std=c++20")
    endif()
    set(SPILLWAY_CUDA_FOUND ON)
    spillway_cuda_flags()
    # The static runtime asks for the driver when it is first used: the program also runs where
    # there is none.
    add_library(spillway_cuda_runtime INTERFACE)
    target_link_libraries(spillway_cuda_runtime INTERFACE CUDA::cudart_static)
    add_library(spillway_cuda_libraries INTERFACE)
    target_include_directories(spillway_cuda_libraries SYSTEM INTERFACE
      ${SPILLWAY_CUBLASLT_INCLUDE} ${SPILLWAY_CUDNN_INCLUDE} ${SPILLWAY_CUDNN_FRONTEND_INCLUDE})
    target_link_libraries(spillway_cuda_libraries INTERFACE spillway_cuda_runtime)
    message(STATUS
            "Building with CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
  endif()
endif()
