# _cuda.so: the CUDA runtime and the kernels behind device.h, where CUDA can be built for. It has a
# copy of the runtime in it, so it loads where there is no CUDA as well.
#
# Whatever is missing, a compiler, headers or libraries, is a reason not to build it; with
# PFFTJAX_CUDA=ON it is an error.

set(PFFTJAX_CUDA AUTO CACHE STRING "Build for CUDA: AUTO (where it can be built), ON or OFF")
set_property(CACHE PFFTJAX_CUDA PROPERTY STRINGS AUTO ON OFF)

# Sets `why` to what stands in the way, and enables the language where nothing does.
macro(pfftjax_find_cuda why)
  set(${why} "")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit 12.0 QUIET)
    if(NOT CUDAToolkit_FOUND)
      set(${why} "no CUDA toolkit of version 12 or newer beside ${CMAKE_CUDA_COMPILER}")
    elseif(NOT TARGET CUDA::cudart_static)
      set(${why} "no libcudart_static.a in the CUDA toolkit of ${CMAKE_CUDA_COMPILER}")
    endif()
  else()
    set(${why} "no CUDA compiler that works")
  endif()
endmacro()

# What has to run here: A100, H100 and H200, B200; and what is newer, by way of PTX.
function(pfftjax_cuda_architectures result)
  if(CUDAToolkit_VERSION VERSION_LESS 12.8)
    set(${result} 80-real 90 PARENT_SCOPE)
  else()
    set(${result} 80-real 90-real 100 PARENT_SCOPE)
  endif()
endfunction()

set(pfftjax_why_no_cuda "PFFTJAX_CUDA is OFF")
if(PFFTJAX_CUDA)
  # The compiler's own default may be an architecture that it does not know any more.
  set(pfftjax_user_architectures ${CMAKE_CUDA_ARCHITECTURES})
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80)
  endif()
  pfftjax_find_cuda(pfftjax_why_no_cuda)
endif()
if(NOT pfftjax_why_no_cuda)
  enable_language(CUDA)
  if(pfftjax_user_architectures)
    set(CMAKE_CUDA_ARCHITECTURES ${pfftjax_user_architectures})
  else()
    pfftjax_cuda_architectures(CMAKE_CUDA_ARCHITECTURES)
  endif()
  # A compiler of the host that is too new, or an architecture that is too old, shows only here.
  try_compile(PFFTJAX_CUDA_COMPILES
    SOURCE_FROM_CONTENT kernel.cu
      "#include <cuda_runtime.h>\n__global__ void kernel() {}\nint main() { kernel<<<1, 1>>>(); return cudaGetLastError(); }\n"
    CUDA_STANDARD 17
    LINK_LIBRARIES CUDA::cudart_static)
  if(NOT CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA")
    set(pfftjax_why_no_cuda "${CMAKE_CUDA_COMPILER} is not nvcc")
  elseif(NOT PFFTJAX_CUDA_COMPILES)
    set(pfftjax_why_no_cuda
        "${CMAKE_CUDA_COMPILER} does not compile for ${CMAKE_CUDA_ARCHITECTURES}")
  endif()
endif()

if(pfftjax_why_no_cuda)
  if(PFFTJAX_CUDA AND NOT PFFTJAX_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "PFFTJAX_CUDA=${PFFTJAX_CUDA}, but: ${pfftjax_why_no_cuda}")
  endif()
  message(STATUS "CUDA: not built for, ${pfftjax_why_no_cuda}")
  return()
endif()
message(STATUS "CUDA: ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

add_library(pfftjax_cuda MODULE cpp/gpu/box_plan.cc cpp/gpu/cuda_device.cc cpp/gpu/kernels.cu
            cpp/gpu/particles.cu)
set_target_properties(pfftjax_cuda PROPERTIES
  PREFIX ""
  OUTPUT_NAME _cuda
  CUDA_STANDARD 17
  CUDA_STANDARD_REQUIRED ON
  CUDA_VISIBILITY_PRESET hidden
  CUDA_RUNTIME_LIBRARY Static)
target_link_libraries(pfftjax_cuda PRIVATE CUDA::cudart_static)
target_link_options(pfftjax_cuda PRIVATE LINKER:--exclude-libs,ALL)
pfftjax_compile_options(pfftjax_cuda)
install(TARGETS pfftjax_cuda LIBRARY DESTINATION pfftjax/_runtime)
