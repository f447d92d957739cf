# The few CMake words this tree uses: splash_library, splash_test, splash_isa.

option(SPLASH_ASAN "AddressSanitizer and UndefinedBehaviorSanitizer" OFF)
option(SPLASH_TSAN "ThreadSanitizer" OFF)
# Parsing the same headers for each small file is most of the compiler's work: the presets that build everything put a
# folder's files together (less than half the time); the dev preset builds them one by one, for small changes.
option(SPLASH_UNITY "compile the files of a library or test program together" OFF)

find_program(SPLASH_CCACHE ccache)
if(SPLASH_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SPLASH_CCACHE})
endif()
find_program(SPLASH_MOLD mold)
if(SPLASH_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_library(splash_flags INTERFACE)
# -ffp-contract=off: a multiply-add is fused only where the source says fma, so that a row's bits do not
# depend on which of several kernel bodies the compiler happened to contract.
target_compile_options(splash_flags INTERFACE -Wall -Wextra -Wshadow -Wno-missing-field-initializers
                                              -ffp-contract=off -fno-math-errno
                                              -Wno-restrict)  # false alarms of g++ 12 in std::string
if(SPLASH_UNITY)
  target_compile_options(splash_flags INTERFACE -Wno-subobject-linkage)  # takes a file of the unit for a header
endif()
target_include_directories(splash_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
if(SPLASH_ASAN)
  target_compile_options(splash_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined
                                                -fno-omit-frame-pointer)
  target_link_options(splash_flags INTERFACE -fsanitize=address,undefined)
endif()
if(SPLASH_TSAN)
  target_compile_options(splash_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(splash_flags INTERFACE -fsanitize=thread)
endif()

macro(splash_find_packages)
  find_package(Threads REQUIRED)
  find_package(Boost 1.81 CONFIG REQUIRED COMPONENTS json url)
  find_package(fmt REQUIRED)
  find_package(spdlog REQUIRED)
  find_package(CLI11 REQUIRED)
  find_package(tl-expected REQUIRED)
  find_package(OpenSSL REQUIRED)
  find_package(prometheus-cpp CONFIG REQUIRED)
  find_package(GTest CONFIG REQUIRED)
  find_package(benchmark REQUIRED)
endmacro()

# LIGHT: not optimised in the sanitizer build, which halves the time to compile it there; a test program's own files nowhere. For
# what parses and formats: its tests spend little time in it. Not for kernels, packing, the engine and the simulator.
function(splash_light name)
  if(SPLASH_ASAN)
    target_compile_options(${name} PRIVATE -O0)
  endif()
endfunction()

# splash_library(NAME SOURCES a.cc ... DEPS lib ... [LIGHT]): static library of one folder of src/.
function(splash_library name)
  cmake_parse_arguments(arg "LIGHT" "" "SOURCES;DEPS" ${ARGN})
  if(arg_SOURCES)
    add_library(${name} STATIC ${arg_SOURCES})
    target_link_libraries(${name} PUBLIC splash_flags ${arg_DEPS})
    set_target_properties(${name} PROPERTIES UNITY_BUILD ${SPLASH_UNITY} UNITY_BUILD_BATCH_SIZE 12)
    if(arg_LIGHT)
      splash_light(${name})
    endif()
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE splash_flags ${arg_DEPS})
  endif()
endfunction()

add_custom_target(sanitized_tests)

# splash_test(NAME SOURCES a_test.cc ... DEPS lib ... [LABELS l ...] [TIMEOUT s] [NO_SANITIZER] [LIGHT]): one GoogleTest program and
# one CTest entry. SPLASH_SHARED in its environment names the folder of the golden fixtures, SPLASH_SOURCE the tree.
function(splash_test name)
  cmake_parse_arguments(arg "NO_SANITIZER;LIGHT" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${SPLASH_UNITY})
  target_link_libraries(${name} PRIVATE splash_flags ${arg_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  if(arg_LIGHT)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 900)
  endif()
  # Unit tests run a second time under the sanitizers; NO_SANITIZER keeps the long ones out of that run.
  set(labels unit ${arg_LABELS})
  if(NOT arg_NO_SANITIZER)
    list(APPEND labels sanitized)
    add_dependencies(sanitized_tests ${name})
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${labels}"
    ENVIRONMENT "SPLASH_SHARED=${PROJECT_SOURCE_DIR}/../shared;SPLASH_SOURCE=${PROJECT_SOURCE_DIR}")
endfunction()

# splash_isa(FILE flags...): compile one file for one instruction set. Such a file includes only its contract and
# the SIMD helpers, so that no inline function of a shared header is emitted with instructions the machine may lack.
function(splash_isa file)
  set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${ARGN}")
endfunction()
