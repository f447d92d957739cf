# The CUDA backend. SPLASH_CUDA: AUTO builds it where a compiler is there or can be fetched (scripts/fetch_cuda.sh) and says so where
# not; ON demands it; OFF leaves it out. The program that comes out finds the driver at run time and needs none.
set(SPLASH_CUDA AUTO CACHE STRING "CUDA backend: AUTO, ON or OFF")
set_property(CACHE SPLASH_CUDA PROPERTY STRINGS AUTO ON OFF)
# The programs that need a GPU to do anything (conformance, golden, built-in model, device_bench): bench/device_kit.sh wants them, on
# other machines they would only cost time to compile.
option(SPLASH_CUDA_TESTS "build the programs that need a GPU" OFF)
set(SPLASH_CUDA_KIT "${CMAKE_BINARY_DIR}/kit" CACHE PATH "where fetch_cuda.sh puts or links the CUDA toolkit")

set(SPLASH_WITH_CUDA OFF)
string(TOUPPER "${SPLASH_CUDA}" SPLASH_CUDA_WISH)
if(SPLASH_CUDA_WISH STREQUAL "OFF")
  return()
endif()
if(NOT EXISTS ${SPLASH_CUDA_KIT}/bin/nvcc)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/fetch_cuda.sh ${SPLASH_CUDA_KIT} ERROR_VARIABLE complaint
                  ERROR_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT EXISTS ${SPLASH_CUDA_KIT}/bin/nvcc)
  if(SPLASH_CUDA_WISH STREQUAL "ON")
    message(FATAL_ERROR "${complaint}\nSPLASH_CUDA=OFF builds for the CPU alone.")
  endif()
  message(NOTICE "setup: building for the CPU alone, without the CUDA backend (${complaint})")
  return()
endif()
set(SPLASH_WITH_CUDA ON)
set(CMAKE_CUDA_COMPILER ${SPLASH_CUDA_KIT}/bin/nvcc)
if(SPLASH_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SPLASH_CCACHE})
endif()
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
# Kernels are of three kinds (src/backend/cuda/facts.h): Hopper's own, the portable path's, and those that both compile. Portable is
# machine code for sm_80, which all of 8.x runs, and PTX that drivers translate for what came after 9.0: one more architecture costs
# as much to compile again.
option(SPLASH_CUDA_PROVE_PORTABLE
       "the portable kernels' PTX of compute_80 as machine code for sm_90 and no code of Hopper's beside it, to test them on a Hopper GPU with SPLASH_CUDA_PATH=portable" OFF)
if(SPLASH_CUDA_PROVE_PORTABLE)
  add_compile_definitions(SPLASH_CUDA_PROVE_PORTABLE)
endif()
enable_language(CUDA)
# CMake 3.25 does not know that nvcc 13 speaks C++20.
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)  # finds the driver itself, at run time

add_library(splash_cuda_flags INTERFACE)
target_include_directories(splash_cuda_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
# ptxas names every spill; splash_cuda_resources fails for those of hot kernels. FMT_*: nvcc's front end cannot evaluate fmt 9's
# consteval constructors.
target_compile_options(splash_cuda_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo --expt-relaxed-constexpr -DFMT_USE_CONSTEXPR=1 -DFMT_CONSTEVAL=
  -Xptxas=-warn-spills,-warn-lmem-usage -Xcompiler=-Wall>)
target_include_directories(splash_cuda_flags SYSTEM INTERFACE ${SPLASH_CUDA_KIT}/include)

# For which architectures a target is compiled: for both kinds of devices, or without Hopper's.
function(splash_cuda_architectures name hopper)
  if(SPLASH_CUDA_PROVE_PORTABLE)
    set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES OFF)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--generate-code=arch=compute_80,code=[sm_90,compute_80]>)
  elseif(hopper)
    set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "80;90a-real")
  else()
    set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES 80)
  endif()
endfunction()

# splash_cuda_library(NAME SOURCES a.cu b.cc ... [HOPPER c.cu ...] [PORTABLE d.cu ...] DEPS lib ...): SOURCES are compiled for both
# kinds of devices.
function(splash_cuda_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;HOPPER;PORTABLE;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${SPLASH_UNITY})  # the .cc files; CMake 3.25 has none for CUDA
  target_link_libraries(${name} PUBLIC splash_cuda_flags ${arg_DEPS})
  splash_cuda_architectures(${name} ON)
  foreach(kind HOPPER PORTABLE)
    if(arg_${kind})
      string(TOLOWER ${name}_${kind} part)
      add_library(${part} OBJECT ${arg_${kind}})
      target_link_libraries(${part} PRIVATE splash_cuda_flags ${arg_DEPS})
      target_sources(${name} PRIVATE $<TARGET_OBJECTS:${part}>)
    endif()
  endforeach()
  if(arg_PORTABLE)
    splash_cuda_architectures(${name}_portable OFF)
  endif()
  if(arg_HOPPER AND SPLASH_CUDA_PROVE_PORTABLE)
    splash_cuda_architectures(${name}_hopper OFF)
  endif()
endfunction()

# splash_cuda_unit(OUT NAME a.cu b.cu ...): appends a file that includes these to the list OUT. nvcc parses the same headers for
# each file, ten seconds of it, which is most of the time of a small one. Where kernels are worked on (the preset cuda) and in
# unoptimised builds the files themselves.
function(splash_cuda_unit out name)
  if(SPLASH_UNITY AND NOT SPLASH_CUDA_TESTS)
    set(text "")
    foreach(file ${ARGN})
      string(APPEND text "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${file}\"\n")
    endforeach()
    file(CONFIGURE OUTPUT ${name}.cu CONTENT "${text}" @ONLY)
    set(${out} ${${out}} ${CMAKE_CURRENT_BINARY_DIR}/${name}.cu PARENT_SCOPE)
  else()
    set(${out} ${${out}} ${ARGN} PARENT_SCOPE)
  endif()
endfunction()

# Tests of a library's machine code, which need no GPU: one prints registers and spills of every kernel and fails where a hot one
# spills, one fails where sums of the matrix unit are read before they are waited for.
function(splash_cuda_resources name)
  foreach(test resources waits)
    add_test(NAME ${name}_${test}
             COMMAND ${PROJECT_SOURCE_DIR}/bench/cuda/${test}.sh ${SPLASH_CUDA_KIT}/bin/cuobjdump $<TARGET_FILE:${name}>)
    set_tests_properties(${name}_${test} PROPERTIES LABELS cuda)
  endforeach()
endfunction()
