# _mpi_openmpi.so, _mpi_mpich.so and _mpi_abi.so: the only code that sees <mpi.h>, once for each ABI.
#
# They name MPI's functions, and no library that has them: the file of the MPICH ABI is libmpi.so.12
# in MPICH and libmpi_cray.so.12 in Cray's, and mpi4py has loaded the right one before
# (pfftjax/_runtime/ffi.py). So headers are all that is needed here, and nothing of an MPI's folder
# gets into a backend.

set(PFFTJAX_MPI_COMPILERS "" CACHE STRING
    "Compilers of the MPIs to build for, like /opt/mpich/bin/mpicc;/opt/openmpi/bin/mpicc. Empty: the one that CMake finds, and the mpicc_abi beside it")

set(PFFTJAX_MPI_FAMILIES "")

# Builds for the ABI of the <mpi.h> that these flags of a compiler lead to, unless it has been built
# for.
function(pfftjax_mpi_backend name)
  set(is_openmpi "defined(OPEN_MPI)")
  set(is_mpich "defined(MPICH_VERSION) || defined(I_MPI_VERSION)")
  set(is_abi "MPI_ABI_VERSION >= 1")
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  # The headers of an implementation's own ABI name it; those of the standard ABI (MPI 5) name nobody.
  foreach(candidate openmpi mpich abi)
    string(MAKE_C_IDENTIFIER "PFFTJAX_IS_${candidate}_${name}" answer)
    try_compile(${answer}
      SOURCE_FROM_CONTENT is_${candidate}.c
        "#include <mpi.h>\n#if !(${is_${candidate}})\n#error other\n#endif\n"
      COMPILE_DEFINITIONS ${ARGN})
    if(${answer})
      set(family ${candidate})
      break()
    endif()
  endforeach()
  if(NOT family)
    message(FATAL_ERROR
      "The MPI behind ${name} is neither Open MPI, nor of the MPICH ABI "
      "(MPICH, Cray MPICH, Intel MPI, MVAPICH), nor of the standard ABI of MPI 5 (mpicc_abi)")
  endif()
  if(family IN_LIST PFFTJAX_MPI_FAMILIES)
    message(STATUS "MPI family: ${family}, by ${name} too: not built again")
    return()
  endif()
  message(STATUS "MPI family: ${family}, by ${name}")
  set(PFFTJAX_MPI_FAMILIES ${PFFTJAX_MPI_FAMILIES} ${family} PARENT_SCOPE)
  set(target pfftjax_mpi_${family})
  add_library(${target} MODULE cpp/mpi/mpi_backend.cc)
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME "_mpi_${family}")
  target_compile_options(${target} PRIVATE ${ARGN})
  pfftjax_compile_options(${target})
  install(TARGETS ${target} LIBRARY DESTINATION pfftjax/_runtime)
endfunction()

# Sets `flags` to what a wrapper of MPI's gives the compiler that leads to its headers.
function(pfftjax_flags_of compiler flags)
  execute_process(
    COMMAND "${compiler}" -show
    OUTPUT_STRIP_TRAILING_WHITESPACE
    OUTPUT_VARIABLE command
    ERROR_QUIET)
  separate_arguments(command UNIX_COMMAND "${command}")
  list(FILTER command INCLUDE REGEX "^-[DI]")
  set(${flags} ${command} PARENT_SCOPE)
endfunction()

if(PFFTJAX_MPI_COMPILERS)
  foreach(compiler IN LISTS PFFTJAX_MPI_COMPILERS)
    pfftjax_flags_of("${compiler}" flags)
    pfftjax_mpi_backend("${compiler}" ${flags})
  endforeach()
  return()
endif()

# Whatever mpicc compiles with, or the compiler itself where it wraps MPI (Cray's CC).
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI REQUIRED COMPONENTS C)
set(flags ${MPI_C_COMPILE_DEFINITIONS})
list(TRANSFORM flags PREPEND "-D")
foreach(folder IN LISTS MPI_C_INCLUDE_DIRS)
  list(APPEND flags "-I${folder}")
endforeach()
pfftjax_mpi_backend("${MPI_C_COMPILER}" ${MPI_C_COMPILE_OPTIONS} ${flags})

# An MPI that has the standard ABI beside its own is served through both: mpi4py may be built on
# either, and the import takes the backend that fits.
get_filename_component(bin "${MPI_C_COMPILER}" DIRECTORY)
find_program(PFFTJAX_MPICC_ABI mpicc_abi HINTS "${bin}" NO_DEFAULT_PATH)
if(PFFTJAX_MPICC_ABI)
  pfftjax_flags_of("${PFFTJAX_MPICC_ABI}" flags)
  pfftjax_mpi_backend("${PFFTJAX_MPICC_ABI}" ${flags})
endif()
