# Compiles for the arm64 system in a folder (machine.py), PFFTJAX_SYSTEM, and for its Python. CMake
# runs this machine's Python, of which it wants to know where packages are. For a wheel of the stable
# ABI this machine's headers of Python serve.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
if(NOT PFFTJAX_PYTHON AND SKBUILD_SOABI MATCHES "cpython-3([0-9]+)")  # of a wheel
  set(PFFTJAX_PYTHON "python3.${CMAKE_MATCH_1}")
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES PFFTJAX_SYSTEM PFFTJAX_PYTHON)
if(PFFTJAX_PYTHON)
  set(Python_INCLUDE_DIR "${PFFTJAX_SYSTEM}/usr/include/${PFFTJAX_PYTHON}")
  # nanobind takes this suffix in place of that of the Python that CMake runs.
  string(REGEX REPLACE "python3\\." "cpython-3" SKBUILD_SOABI "${PFFTJAX_PYTHON}")
  string(APPEND SKBUILD_SOABI "-aarch64-linux-gnu")
endif()
# Python's headers are in two folders, of which one is among those of all. With several sources in
# one, GCC 12 takes a pointer for null that cannot be.
set(CMAKE_CXX_FLAGS_INIT "-idirafter ${PFFTJAX_SYSTEM}/usr/include -Wno-error=stringop-overflow")
# The MPIs' libraries need others of the system.
foreach(kind EXE MODULE SHARED)
  string(CONCAT CMAKE_${kind}_LINKER_FLAGS_INIT
    "-Wl,-rpath-link,${PFFTJAX_SYSTEM}/usr/lib/aarch64-linux-gnu"
    ":${PFFTJAX_SYSTEM}/lib/aarch64-linux-gnu")
endforeach()
