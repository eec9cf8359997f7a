# _hip.so: the same table and kernels as _cuda.so, by HIP, for AMD's GPUs. It is built only where it
# is asked for, and then in place of _cuda.so: handlers know one runtime.

option(PFFTJAX_HIP "Build for AMD's GPUs, and not for NVIDIA's" OFF)
if(NOT PFFTJAX_HIP)
  return()
endif()
if(PFFTJAX_CUDA AND NOT PFFTJAX_CUDA STREQUAL "AUTO")
  message(FATAL_ERROR "PFFTJAX_HIP=ON and PFFTJAX_CUDA=${PFFTJAX_CUDA}: choose one of them")
endif()
set(PFFTJAX_CUDA OFF)

# MI200 and MI300. Where there is an nvcc as well, CMake would have HIP translate for that.
if(NOT CMAKE_HIP_ARCHITECTURES)
  set(CMAKE_HIP_ARCHITECTURES gfx90a gfx942)
endif()
if(NOT CMAKE_HIP_PLATFORM)
  set(CMAKE_HIP_PLATFORM amd)
endif()
enable_language(HIP)
message(STATUS "HIP: ${CMAKE_HIP_COMPILER_ROCM_ROOT} for ${CMAKE_HIP_ARCHITECTURES}")

set(pfftjax_hip_sources cpp/gpu/cuda_device.cc cpp/gpu/kernels.cu cpp/gpu/particles.cu)
set_source_files_properties(${pfftjax_hip_sources} PROPERTIES LANGUAGE HIP)
add_library(pfftjax_hip MODULE cpp/gpu/box_plan.cc ${pfftjax_hip_sources})
set_target_properties(pfftjax_hip PROPERTIES
  PREFIX ""
  OUTPUT_NAME _hip
  HIP_STANDARD 17
  HIP_STANDARD_REQUIRED ON
  HIP_VISIBILITY_PRESET hidden
  # HIP has no static runtime: JAX loads its own later, of the same name.
  INSTALL_RPATH_USE_LINK_PATH ON)
# Additions to memory by one instruction. They would be lost in memory that the host can write to at
# the same time; what paint adds to is XLA's, of the device alone.
target_compile_options(pfftjax_hip PRIVATE $<$<COMPILE_LANGUAGE:HIP>:-munsafe-fp-atomics>)
target_link_options(pfftjax_hip PRIVATE LINKER:--exclude-libs,ALL)
pfftjax_compile_options(pfftjax_hip)
install(TARGETS pfftjax_hip LIBRARY DESTINATION pfftjax/_runtime)
